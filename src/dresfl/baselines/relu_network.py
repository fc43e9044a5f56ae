"""The ReLU network that a polynomial network is compared with: same sizes and weight layout, in reals.

Each layer says what stands for it: squares and quadratics become ReLU, sums over windows become means. All functions
take one weight vector (P,), or one for each client (S,P).
Axis letters: S answering clients, B rows, F features, C classes, P parameters.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from dresfl.model import Network
from dresfl.model.layers import Affine, Fixed

Loss = Literal["cross-entropy", "squared"]
LOSSES: tuple[Loss, ...] = get_args(Loss)


def outputs(network: Network, weights: Tensor, inputs: Tensor) -> Tensor:
    """The ReLU network's values: inputs (...,B,F) -> (...,B,C); weights (P,), or (S,P) for inputs (S,B,F)."""
    return _forward(network, _parts(network, weights), inputs)


def row_losses(loss: Loss, found: Tensor, targets: Tensor) -> Tensor:
    """Each row's loss: outputs and one-hot targets (...,C) -> (...)."""
    if loss == "squared":
        return (found - targets).square().sum(-1)
    return -(found.log_softmax(-1) * targets).sum(-1)


def mean_gradient(
    network: Network, loss: Loss, weights: Tensor, inputs: Tensor, targets: Tensor, weighting: Tensor
) -> Tensor:
    """Σ_i weighting_i · ∇(client i's mean loss) in one backward pass: (S,B,F), (S,B,C), (S,) -> (P,)."""
    leaves = [part.requires_grad_() for part in _parts(network, weights.detach())]
    found = _forward(network, leaves, inputs.flatten(0, 1))  # (SB,F) -> (SB,C)
    means = row_losses(loss, found, targets.flatten(0, 1)).view(inputs.shape[:2]).mean(1)  # (S,)
    return torch.cat([g.flatten() for g in torch.autograd.grad((means * weighting).sum(), leaves)])


def client_gradients(network: Network, loss: Loss, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """∇ of each client's mean loss, all at once: (S,B,F), (S,B,C) -> (S,P)."""
    clients = inputs.shape[0]
    each = weights.detach().expand(clients, -1)  # every client has weights of its own, so its own gradient
    leaves = [part.requires_grad_() for part in _parts(network, each)]
    means = row_losses(loss, _forward(network, leaves, inputs), targets).mean(1)  # (S,)
    return torch.cat([g.flatten(1) for g in torch.autograd.grad(means.sum(), leaves)], 1)


def _parts(network: Network, weights: Tensor) -> list[Tensor]:
    """Views of (...,P): each affine layer's matrix (...,in,out) and bias (...,1,out)."""
    parts: list[Tensor] = []
    for p in network.parameters:
        parts += [weights[..., p.weight].view(*weights.shape[:-1], *p.fan), weights[..., p.bias].unsqueeze(-2)]
    return parts


def _forward(network: Network, parts: Sequence[Tensor], inputs: Tensor) -> Tensor:
    affine = zip(parts[::2], parts[1::2], strict=True)
    x = inputs
    for layer, place in zip(network.layers, network.places, strict=True):
        if isinstance(layer, Affine):
            matrix, bias = next(affine)
            x = (layer.relu_columns(place, x) @ matrix + bias).reshape(*x.shape[:-1], place.out_size)
        elif isinstance(layer, Fixed):
            x = layer.relu_forward(place, x)
    return x
