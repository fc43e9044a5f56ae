"""Polynomial networks: layer lists with exact gradients in any field."""

from .layers import (
    Activation,
    Affine,
    Conv2d,
    Dense,
    Fixed,
    Flatten,
    Layer,
    Place,
    Quadratic,
    Reshaping,
    Shape,
    Square,
    SumPool,
    layer_from_dict,
    layer_kinds,
)
from .network import Network, mlp, weights_sha256
