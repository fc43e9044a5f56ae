"""Polynomial networks: layer lists with exact gradients in any field."""

from .layers import Conv2d, Dense, Flatten, Layer, Quadratic, Square, SumPool, layer_from_dict, layer_kinds
from .local_steps import LocalSteps
from .network import Network, mlp, weights_sha256
