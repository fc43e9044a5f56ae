"""The four computations of a round, each written once: encode, answer, decode, step. Every runtime calls these.

They take tensors and return tensors, and they do not look at values on the host. So the same code runs client by client
over a network, for all clients at once in one process, and inside a captured CUDA graph.
Axis letters: M moduli, N clients, K shards, T masks, B rows, W values of a row (inputs, then targets), P parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dresfl.field import Domain, PackedResidues, Residues, ResidueSystem, columns_of
from dresfl.kernels import largest_magnitude
from dresfl.optimizers import Optimizer, State, squared_norm, squared_norm_of
from dresfl.quantize import gradient_reals, stepped_integers, weight_reals

from .session import Session

_COLUMNS = 2**13  # coordinates decoded together: answers of that width, as tensors, stay in a CPU's cache
_BLOCK = 2**15  # coordinates stepped together, likewise

# -- encode ----------------------------------------------------------------------------------------------------------


def encode_rows(
    session: Session, keys: Tensor, rows: Tensor, shards: Tensor, clients: Sequence[int] | Tensor | None = None
) -> Tensor:
    """The shares of B coded rows, as their dealers make them: exactly what the receivers hold.

    keys (B,8): the secret of each row's dealer; rows (B,): the row's number at its dealer; shards (B,K,W) integers: the
    K original rows in it. -> (M,N,B,W), or the shares of `clients` only. Each row is encoded by itself, so a driver
    encodes only the rows that it needs.
    """
    return session.code.encode(*mask_rows(session, keys, rows, shards), clients)


def mask_rows(session: Session, keys: Tensor, rows: Tensor, shards: Tensor) -> tuple[Tensor, Tensor]:
    """What `LagrangeCode.encode` combines: the shards as residues (M,K,B,W), and their masks (M,T,B,W).

    The arguments are those of `encode_rows`. This part does not depend on the receivers.
    """
    return session.field.embed(shards.swapaxes(0, 1)), expand_masks(session, keys, rows)


def expand_masks(session: Session, keys: Tensor, rows: Tensor) -> Tensor:
    """The masks of B coded rows from their dealers' secrets: keys (B,8), rows (B,) -> (M,T,B,W)."""
    field, num_masks, width = session.field, session.mask_degree, session.row_width
    flat = field.uniform(keys.to(field.device), rows.to(field.device), num_masks * width)  # (M,B,T·W)
    return flat.reshape(len(field.moduli), rows.shape[0], num_masks, width).swapaxes(1, 2)


# -- answer ----------------------------------------------------------------------------------------------------------


def coded_gradient(session: Session, weights: Tensor, coded: Tensor) -> Tensor:
    """What clients answer: the gradient at the weights (P,) on coded rows (M,N,B,W) of N clients -> (M,N,P)."""
    size = session.network.input_size
    return session.network.gradient(session.field, weights, coded[..., :size], coded[..., size:])


def coded_answer(session: Session, round_number: int, weights: Tensor, coded: Tensor) -> Tensor:
    """What clients answer in a round: `coded_gradient`, or the move of its local steps. (M,N,s·B,W) -> (M,N,P)."""
    local, size = session.local, session.network.input_size
    if local is None:
        return coded_gradient(session, weights, coded)
    multiplier = local.multiplier(round_number)
    return local.steps.move(session.field, weights, multiplier, coded[..., :size], coded[..., size:])


def answers_of(
    session: Session, round_number: int, weights: Tensor, shards: Tensor, masks: Tensor, clients: Sequence[int]
) -> Tensor:
    """`coded_answer` of the shares of some clients, which `LagrangeCode.encode` would make of shards and masks."""
    if session.local is None:
        return encoded_gradient(session, weights, shards, masks, clients)
    return coded_answer(session, round_number, weights, session.code.encode(shards, masks, clients))


def direct_sum(session: Session, round_number: int, weights: Tensor, rows: Tensor) -> Tensor:
    """What the answers of a round decode to, computed on the rows as they are: integers (s·B,K,W) -> (M,P)."""
    if session.local is None:
        residues = session.field.embed(rows.flatten(0, 1)).unsqueeze(1)  # (M,1,B·K,W)
        return coded_gradient(session, weights, residues)[:, 0]
    residues = session.field.embed(rows.swapaxes(0, 1))  # (M,K,s·B,W): each shard takes its own steps
    return session.field.sum(coded_answer(session, round_number, weights, residues), 1)


def encoded_gradient(
    session: Session, weights: Tensor, shards: Tensor, masks: Tensor, clients: Sequence[int]
) -> Tensor:
    """`coded_gradient` of the shares of some clients, which `LagrangeCode.encode` would make of shards and masks.

    shards (M,K,B,W), masks (M,T,B,W) -> (M,n,P). On a CPU a client's coded rows are made when its gradient is computed.
    """
    matrix = session.code.encoding_matrix[:, list(clients)]  # (M,n,K+T)
    rows = [*shards.unbind(1), *masks.unbind(1)]
    found = session.network.encoded_gradient(session.field, weights, matrix, rows)
    return coded_gradient(session, weights, session.code.encode(shards, masks, clients)) if found is None else found


def coded_gradient_parts(session: Session, field: ResidueSystem, weights: Tensor, coded: Tensor) -> list[Tensor]:
    """`coded_gradient` in pieces (M,N,·), for drivers that do not want all of it in one tensor.

    field: the session's, or the session's with a bound on the weights.
    """
    size = session.network.input_size
    return session.network.gradient_parts(field, weights, coded[..., :size], coded[..., size:])


# -- decode ----------------------------------------------------------------------------------------------------------


def decode_sum(field: ResidueSystem, coefficients: Tensor, pieces: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """The summed gradient of a round as integers (P,) in float64, and how many of them leave the range of values.

    coefficients (M,R): from `LagrangeCode.sum_decoder`, for the clients that answered; pieces: their answers (M,R,·) in
    runs of columns. They are taken one at a time, so that hardly more memory is needed than the answers take.
    """
    integers, exceeded = zip(*(field.decode_lift(coefficients, piece) for piece in pieces), strict=True)
    return torch.cat(integers), torch.stack(exceeded).sum()


def decode_answers(field: ResidueSystem, coefficients: Tensor, answers: Sequence[Residues]) -> tuple[Tensor, Tensor]:
    """`decode_sum` of R whole answers (M,P), packed or not, which need not lie side by side.

    They are taken a few columns at a time: beyond the answers and the result this needs hardly any memory.
    """
    whole = [answer for answer in answers if isinstance(answer, Tensor)]
    if len(whole) == len(answers):
        return field.decode_lift_answers(coefficients, whole)
    size = answers[0].shape[1]
    integers = torch.empty(size, dtype=torch.float64, device=field.device)
    exceeded = torch.zeros((), dtype=torch.int64, device=field.device)
    packed = [answer for answer in answers if isinstance(answer, PackedResidues)]
    for first in range(0, size, _COLUMNS):
        last = min(first + _COLUMNS, size)
        if len(packed) == len(answers):
            values, beyond = field.decode_lift_packed(coefficients, packed, first, last)
        else:
            piece = torch.stack([columns_of(answer, first, last) for answer in answers], 1)  # (M,R,columns)
            values, beyond = field.decode_lift(coefficients, piece)
        integers[first:last] = values
        exceeded += beyond
    return integers, exceeded


def decode_part(field: ResidueSystem, coefficients: Tensor, answers: Tensor) -> Tensor:
    """What some of the R clients add to the decoded sum: their coefficients (M,n), their answers (M,n,P) -> (M,P).

    For drivers that know who will be decoded before they compute the answers, and keep none of them.
    """
    return field.combine(coefficients.unsqueeze(1), answers.unbind(1))[:, 0]


# -- step ------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class Step:
    """What a step gives: the state after it, and three numbers, as tensors, that somebody has to look at."""

    weights: Tensor  # (P,) int64
    moments: State
    peak: Tensor  # the largest decoded integer
    squared_norm: Tensor  # of the mean gradient
    reach: Tensor  # the largest weight after the step


def step(
    session: Session,
    optimizer: Optimizer,
    weights: Tensor,
    moments: Mapping[str, Tensor],
    integers: Tensor,
    factors: Sequence[float] | Tensor,
    noise: Tensor,
) -> Step:
    """One step from the decoded integers (P,): w ← w − Q(2^lw · update). Of local steps the update is the mean move.

    factors: the optimiser's, for this step. noise (P,): uniform in (0, 1), for the stochastic rounding.
    """
    whole = slice(0, integers.numel())
    gradient = _gradient(session, integers, whole)
    squares = squared_norm(gradient)
    moved, after = _stepped(session, optimizer, weights, moments, gradient, factors, noise, squares, whole)
    return Step(moved.to(torch.int64), after, largest_magnitude(integers), squares, largest_magnitude(moved))


def step_in_blocks(
    session: Session,
    optimizer: Optimizer,
    weights: Tensor,
    moments: Mapping[str, Tensor],
    integers: Tensor,
    factors: Sequence[float],
    round_number: int,
) -> Step:
    """`step` with the round's noise, bit for bit, a few coordinates at a time: what a CPU holds in its cache.

    Beyond what it is given and what it returns, it needs memory for half the squares of the gradient. The moments are
    those that `moments` names.
    """
    size = integers.numel()
    squares = squared_norm_of(lambda first, last: _gradient(session, integers, slice(first, last)), size, _BLOCK)
    after_weights, after = torch.empty_like(weights), {name: torch.empty_like(value) for name, value in moments.items()}
    peaks, reaches = [], []
    for first in range(0, size, _BLOCK):
        place = slice(first, min(first + _BLOCK, size))
        noise = session.device_stream.uniform_from(Domain.ROUNDING, round_number, first, place.stop - first)
        gradient = _gradient(session, integers, place)
        moved, moved_moments = _stepped(session, optimizer, weights, moments, gradient, factors, noise, squares, place)
        after_weights[place] = moved
        for name, value in moved_moments.items():
            after[name][place] = value
        peaks.append(integers[place].abs().max())
        reaches.append(moved.abs().max())
    return Step(after_weights, after, torch.stack(peaks).max(), squares, torch.stack(reaches).max())


def _gradient(session: Session, integers: Tensor, place: slice) -> Tensor:
    """The mean gradient at some coordinates, real; with local steps the mean move, whose rate is already in it."""
    network, device = session.network, str(integers.device)
    if session.local is not None:
        return gradient_reals(integers[place], session.local.steps.move_scales_on(device)[place], session.num_shards)
    if place == slice(0, integers.numel()):
        scales = network.gradient_scales_on(device)
    else:  # the same powers of two, without a list of them all
        scales = 2.0 ** (2 * network.out_scale) / network.weight_scales_on(device)[place]
    return gradient_reals(integers[place], scales, session.batch_size * session.num_shards)


def _stepped(
    session: Session,
    optimizer: Optimizer,
    weights: Tensor,
    moments: Mapping[str, Tensor],
    gradient: Tensor,
    factors: Sequence[float] | Tensor,
    noise: Tensor,
    squares: Tensor,
    place: slice,
) -> tuple[Tensor, State]:
    """Integer weights, as float64, and moments after a step at some coordinates; gradient, noise: at these."""
    scales = session.network.weight_scales_on(str(gradient.device))[place]
    before = weights[place].to(torch.float64)
    held = {name: value[place] for name, value in moments.items()}
    reals = weight_reals(before, scales) if optimizer.weight_decay else before  # only the decay looks at them
    update, after = optimizer.update(held, factors, gradient, reals, squares)
    return stepped_integers(before, update, scales, noise), after
