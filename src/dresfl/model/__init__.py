"""Polynomial networks: layer lists with exact gradients in any field."""

from .layers import Affine, Conv2d, Dense, Flatten, Layer, Quadratic, Shape, Square, SumPool
from .network import Network, mlp, weights_sha256

__all__ = [
    "Affine",
    "Conv2d",
    "Dense",
    "Flatten",
    "Layer",
    "Network",
    "Quadratic",
    "Shape",
    "Square",
    "SumPool",
    "mlp",
    "weights_sha256",
]
