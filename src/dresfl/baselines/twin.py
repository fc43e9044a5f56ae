"""The ReLU twin of a polynomial network: same layers, sizes and weight layout, in reals.

Squares and quadratics become ReLU, sums over windows become means. Everything is written for one weight vector (P,) and
for one per client (S,P) alike. Axis letters: S answering clients, B rows, F features, C classes, P parameters.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Shape, Square, SumPool

Loss = Literal["cross-entropy", "squared"]
LOSSES: tuple[Loss, ...] = get_args(Loss)


def outputs(network: Network, weights: Tensor, inputs: Tensor) -> Tensor:
    """The twin's values: inputs (...,B,F) -> (...,B,C); weights (P,), or (S,P) for inputs (S,B,F)."""
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
        if isinstance(layer, Dense | Conv2d):
            matrix, bias = next(affine)
            columns = x if isinstance(layer, Dense) else _columns(layer, place.in_shape, x)
            x = (columns @ matrix + bias).reshape(*x.shape[:-1], place.out_size)
        elif isinstance(layer, SumPool):
            windows = _windows(x, place.in_shape, layer.kernel, layer.stride or layer.kernel, 0)
            x = windows.mean((-2, -1)).reshape(*x.shape[:-1], place.out_size)
        elif isinstance(layer, Square | Quadratic):
            x = x.relu()
        elif not isinstance(layer, Flatten):
            raise UsageError(f"{type(layer).__name__.lower()} has no ReLU twin", "compare a model without it")
    return x


def _windows(x: Tensor, shape: Shape, kernel: int, stride: int, padding: int) -> Tensor:
    """Sliding windows over channels-last images: (...,HWC) -> (rows,H',W',C,k,k)."""
    images = x.reshape(-1, *shape)
    if padding:
        images = torch.nn.functional.pad(images, (0, 0, padding, padding, padding, padding))
    return images.unfold(1, kernel, stride).unfold(2, kernel, stride)


def _columns(layer: Conv2d, shape: Shape, x: Tensor) -> Tensor:
    """(...,B,HWC) -> (...,B·positions,k²C), in the order of the network's weights."""
    windows = _windows(x, shape, layer.kernel, layer.stride, layer.padding)
    return windows.permute(0, 1, 2, 4, 5, 3).reshape(*x.shape[:-2], -1, layer.kernel**2 * shape[2])
