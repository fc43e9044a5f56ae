"""What an attacker reads off a hidden run as if its masks were zero: weights, gradients, and the first layer's output.

The same reader serves a run with masks and its control without. Where what it reads is too large to be a weight, a
gradient or an output, it is brought to the size that such a value has: the attacker hopes that something is left of it.
"""

import math

import torch
from torch import Tensor

from .runs import Seen


def plausible(values: Tensor, size: float) -> Tensor:
    """Values (T,n), scaled down in every round in which their root mean square is above 8 times `size`."""
    spread = values.square().mean(1, keepdim=True).sqrt()
    return torch.where(spread > 8 * size, values * (size / spread.clamp_min(1e-300)), values)


def reals(values: list[int], shift: int, middle: int) -> Tensor:
    """(values − middle)/2^shift (n,) in float64, exact up to rounding whatever their size."""
    return torch.tensor([math.ldexp(float(value - middle), -shift) for value in values], dtype=torch.float64)


def middle_of(seen: Seen, bits: int, values: list[int]) -> int:
    """The mean of the one mask that the client does not know; zero if there is none."""
    mask = 1 << (bits + seen.session.hidden_plan.kappa)
    return mask // 2 if max(map(abs, values)) > mask >> 20 else 0


Views = ("published", "differences", "shares", "ends")


def steps_read(seen: Seen, view: str) -> list[list[list[int]]]:
    """What is read as the step of each layer, before it is cut: for each round and layer a list of integers.

    published: u less the masks that the client knows. differences: those of successive rounds, in which a mask that is
    used twice would cancel.
    """
    rounds = [[hop.unmasked(n) for n in range(len(seen.session.network.parameters))] for hop in seen.of(-1)]
    if view == "published":
        return rounds
    pairs = zip(rounds[1:], rounds[:-1], strict=True)
    later = [[[a - b for a, b in zip(*layer, strict=True)] for layer in zip(*pair, strict=True)] for pair in pairs]
    return [rounds[0], *later]


def read_weights(seen: Seen, view: str = "published") -> Tensor:
    """The weights of all rounds (T+1,P) as integers in float64; the first ones are public.

    published, differences: from the weight hops. shares: the client's own shares of the weights, taken for weights.
    ends: a straight line from the first weights to the final model.
    """
    session, plan = seen.session, seen.session.hidden_plan
    start, scale = plan.initial_weights(session.stream).double(), float(session.network.weight_scales[0])
    if view == "ends":
        along = torch.linspace(0, 1, plan.rounds + 1, dtype=torch.float64).unsqueeze(1)
        return start + along * (seen.model - start)
    if view == "shares":
        lifted = [session.field.lift_exact(share) for share in seen.weight_shares[1:]]
        rounds = [reals(values, 0, 0) for values in lifted]
    else:
        rounds = []
        for hop, layers in zip(seen.of(-1), steps_read(seen, view), strict=True):
            parts = []
            for item, values in zip(hop.hop.items, layers, strict=False):
                middle = middle_of(seen, item.bits, values) if view == "published" else 0
                parts.append(reals(values, item.shift or 0, middle).round())
            rounds.append(torch.cat(parts))
    found = plausible(torch.stack(rounds) / scale, 0.2) * scale
    if view == "differences":
        found = start + found.cumsum(0) / max(1, len(found)) ** 0.5
    return torch.cat((start.unsqueeze(0), found))


def read_gradients(seen: Seen, *, sums: bool, view: str = "published") -> tuple[Tensor, Tensor, Tensor]:
    """Weights (T,P) real, mean gradients (T,P), and the standard deviation of their errors (T,P).

    From the weights alone, as a client would (W' = (keep·W + recall·W_before − multiplier·g)/2^τ, cut), or from the
    published sums themselves, as the coordinator would.
    """
    session, plan = seen.session, seen.session.hidden_plan
    network, integers = session.network, read_weights(seen, view)
    gradients, noise = torch.empty_like(integers[1:]), torch.empty_like(integers[1:])
    rows = session.batch_size * session.num_shards
    steps = steps_read(seen, view) if sums else []
    for number, hop in enumerate(seen.of(-1)):
        before = integers[max(0, number - 1)]
        for layer, (p, step) in enumerate(zip(network.parameters, plan.steps(number), strict=True)):
            whole, item = slice(p.weight.start, p.bias.stop), hop.hop.items[layer]
            linear = step.keep * integers[number, whole] + step.recall * before[whole]
            moved = 2.0**step.shift * integers[number + 1, whole]
            if sums:
                values = steps[number][layer]
                moved = reals(values, 0, middle_of(seen, item.bits, values))
            unit = 2.0 / step.multiplier * 2.0 ** -plan.program.gradient_scales[layer] / rows
            gradients[number, whole] = (linear - moved) * unit
            noise[number, whole] = 2.0**step.shift * unit * math.sqrt(plan.num_masks / 12)
    return integers[:-1] / network.weight_scales, plausible(gradients, 0.1), noise.clamp_min(1e-3)


def read_outputs(seen: Seen) -> Tensor:
    """The first layer's outputs (T,B,H) of all rounds, as real numbers."""
    session, found = seen.session, []
    width = session.network.parameters[0].fan[1]
    scale = session.network.input_bits + session.network.weight_bits
    for hop in seen.of(0):
        values = hop.unmasked(0)
        found.append(reals(values, scale, middle_of(seen, hop.hop.items[0].bits, values)))
    return plausible(torch.stack(found), 1.0).view(len(found), -1, width)


def rows_from_outputs(weights: Tensor, outputs: Tensor, places: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """Rows (m,F) by least squares with a prior, from the first layer's weights (T,F+1,H) and outputs (T,B,H).

    z = x·W + b is linear in a row, and every round that uses the row has other weights. places (T,B): its rows.
    """
    count, features = mean.shape
    ones = 1 / spread.square()
    normal, right = torch.diag_embed(ones), mean * ones
    noise = 1e-3
    for t in range(len(weights)):
        matrix, bias = weights[t, :features], weights[t, features]
        gram = matrix @ matrix.T / noise**2
        drawn, times = places[t].unique(return_counts=True)
        normal[drawn] += gram * times.view(-1, 1, 1)
        right.index_add_(0, places[t], (outputs[t] - bias) @ matrix.T / noise**2)
    return torch.linalg.solve(normal, right.unsqueeze(2)).squeeze(2).clamp(0, 1).view(count, features)
