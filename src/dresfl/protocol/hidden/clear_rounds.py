"""Rounds of the hidden mode on clear values: the same integers as those of the protocol, without shares and masks.

What the masks leave behind is their dither: a cut gives ⌊(z + l + centre)/2^t⌋, l the sum of the low parts of n masks.
`Dither` says where l comes from. With the low parts of a real run's seeds, a clear round gives that run's bits.

Three rings play the same program:
- `IntegerRing`: Python integers of any size. It is slow and obvious: the tests compare the others with it.
- `ResidueRing`: a few residues of the clear values. It is the fast one, on CPUs and GPUs, and gives the same integers.
- `RealRing`: float64, for experiments that need no exact bits.

All of them refuse a product that is not below 2^bits of its item with HeadroomAlarm: in a real run it would outgrow its
mask.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, cast, final

import torch
from torch import Tensor

from dresfl.errors import HeadroomAlarm, UsageError
from dresfl.field import (
    Arithmetic,
    Domain,
    Elements,
    IntegerArray,
    Integers,
    PublicStream,
    Reals,
    ResidueField,
    is_prime,
)
from dresfl.model.program import StepElements

from .plan import HiddenPlan, Item
from .published import centre

_MOST_SUMMED = 64  # masks whose low parts are drawn one by one
_MANY, _SUMMED_OF_MANY = 256, 20  # above so many masks, or if their sum leaves 62 bits, only so many are drawn
_HEADROOM = 20  # bits beyond the largest plan, in which an overflow shows
_ITEMS = 64  # of a round, at most


class Dither(Protocol):
    """Where the sums of the masks' low parts come from."""

    def __call__(self, round_number: int, hop: int, item_number: int, item: Item) -> Tensor:
        """Σ_A l_A (K,count) int64, or (1,count) for an item that opens sums; item_number: its place in the hop.

        Sums of very many masks leave 64 bits: integers in float64 are sums less their mean.
        """
        ...


@final
class StreamDither:
    """Dither from a public stream, for simulations: n low parts, each uniform in [0, 2^t), and summed.

    Above 64 masks the sum of 64 is stretched to the variance of n: mean and variance are right, and the shape is that
    of a normal distribution to within 1 part in 500. Above 256 masks, or if the sum leaves 62 bits, it is the sum of
    20: to within 1 part in 150.
    """

    def __init__(self, plan: HiddenPlan, seed: int, device: str = "cpu") -> None:
        if plan.rounds >= 2**20:
            raise UsageError("a simulation of the hidden mode has less than 2^20 rounds")
        self._stream, self._masks, self._shards = PublicStream(seed, device), plan.num_masks, plan.parameters.num_shards

    def __call__(self, round_number: int, hop: int, item_number: int, item: Item) -> Tensor:
        index = torch.tensor([round_number], device=self._stream.device)
        return self.at(index, hop, item_number, item)

    def at(self, round_number: Tensor, hop: int, item_number: int, item: Item) -> Tensor:
        """The same for a round number (1,) on the stream's device: graphs are recorded with it."""
        if item.shift is None:
            raise ValueError(f"{item.name} is opened in the clear")
        wide = self._masks > _MANY or self._masks << item.shift >= 2**62
        copies, masks = 1 if item.total else self._shards, min(self._masks, _SUMMED_OF_MANY if wide else _MOST_SUMMED)
        place, count = round_number * _ITEMS**2 + (hop * _ITEMS + item_number), copies * item.count
        if wide:
            low = self._deviations(place, masks, item.shift, count)
        else:
            low = self._stream.word_sums(Domain.DITHER, place, masks, item.shift, count)
            if masks < self._masks:
                mean = (2**item.shift - 1) / 2
                stretched = (low.to(torch.float64) - masks * mean) * math.sqrt(self._masks / masks)
                low = (stretched + self._masks * mean).round().to(torch.int64)
        return low.view(copies, item.count)

    def _deviations(self, place: Tensor, masks: int, shift: int, count: int) -> Tensor:
        """(count,) float64, whole numbers: the sum of `masks` low parts less its mean, stretched to all masks."""
        limbs = -(-shift // 32)
        words = self._stream.words_of(Domain.DITHER, place, limbs * masks * count).view(limbs, masks, count)
        words[-1] &= 2 ** (shift - 32 * (limbs - 1)) - 1
        total = words.sum(1).to(torch.float64)  # (limbs,count)
        drawn = total[0] if limbs == 1 else total[0] + total[1] * 2.0**32
        stretched: Tensor = (drawn - masks * (2**shift - 1) / 2) * math.sqrt(self._masks / masks)
        return stretched.round()


class Ring(ABC, Generic[Elements]):
    """What clear values are computed in."""

    arithmetic: Arithmetic[Elements]

    @abstractmethod
    def total(self, once: Elements | None, elements: Elements) -> Elements:
        """The sum over the shards, with a part that is added once: (M,1,count), (M,K,count) -> (M,1,count)."""

    @abstractmethod
    def cut(self, item: Item, values: Elements, low: Tensor, middle: int) -> Elements:
        """⌊(z + l + middle)/2^t⌋ of (M,k,count). HeadroomAlarm if a |z| is not below 2^bits."""

    @abstractmethod
    def opened(self, item: Item, values: Elements) -> list[int]:
        """The integers of an item that is opened in the clear: of all shards, or of the first where all are alike."""


def alarm(item: Item, magnitude: float) -> HeadroomAlarm:
    """What is raised for a product beyond its plan."""
    return HeadroomAlarm(
        f"{item.name}: a product reaches {magnitude:.1f} bits, {item.bits} are planned: it would outgrow its mask",
        "the training diverges: use a smaller learning rate",
    )


@final
class IntegerRing(Ring[IntegerArray]):
    """Python integers."""

    arithmetic = Integers()

    def total(self, once: IntegerArray | None, elements: IntegerArray) -> IntegerArray:
        summed = self.arithmetic.sum(elements, 1)[:, None]
        return summed if once is None else summed + once

    def _check(self, item: Item, values: IntegerArray) -> None:
        largest = max((abs(value) for value in values.ravel().tolist()), default=0)
        if largest >= 2**item.bits:
            raise alarm(item, math.log2(largest))

    def cut(self, item: Item, values: IntegerArray, low: Tensor, middle: int) -> IntegerArray:
        self._check(item, values)
        return cast("IntegerArray", (values + self.arithmetic.embed(low) + middle) >> _shift(item))

    def opened(self, item: Item, values: IntegerArray) -> list[int]:
        self._check(item, values)
        return [int(value) for value in _told(item, values)[0].ravel().tolist()]


@final
class RealRing(Ring[Tensor]):
    """float64: products are rounded, so it gives about the same training, not the same bits."""

    arithmetic = Reals()

    def total(self, once: Tensor | None, elements: Tensor) -> Tensor:
        summed = elements.sum(1, keepdim=True)
        return summed if once is None else summed + once

    def _check(self, item: Item, values: Tensor) -> None:
        largest = float(values.abs().max())
        if not largest < 2.0**item.bits:
            raise alarm(item, math.log2(largest) if math.isfinite(largest) else math.inf)

    def cut(self, item: Item, values: Tensor, low: Tensor, middle: int) -> Tensor:
        self._check(item, values)
        return ((values + (low + middle).to(torch.float64)) / 2.0 ** _shift(item)).floor()

    def opened(self, item: Item, values: Tensor) -> list[int]:
        self._check(item, values)
        return [int(value) for value in _told(item, values)[0].ravel().tolist()]


@final
class ResidueRing(Ring[Tensor]):
    """Residues of the clear values modulo enough primes for all planned bits and 20 more, in which an overflow shows.

    exceeded: where a graph plays the rounds, which cannot look at values, it counts the products beyond their plan and
    the guards' quotients above their limits.
    """

    def __init__(self, plan: HiddenPlan, device: str = "cpu", exceeded: Tensor | None = None) -> None:
        items = [item for number in {0, 1, plan.rounds - 1} for hop in plan.hops(number) for item in hop.items]
        cut = [
            item.bits for item in items if item.shift is not None
        ]  # what is opened in the clear is smaller than these
        self.arithmetic: ResidueField = clear_field(max(cut), device)
        self._exceeded = exceeded
        self._limits = {f"{guard.name} quotient": guard.limit for guard in plan.program.guards}
        self._shards = plan.parameters.num_shards

    def total(self, once: Tensor | None, elements: Tensor) -> Tensor:
        field = self.arithmetic
        summed = elements if elements.shape[1] == 1 else field.sum(elements, 1).unsqueeze(1)
        return summed if once is None else field.add(summed, once)

    def _check(self, item: Item, sizes: Tensor) -> None:
        if self._exceeded is not None:
            self._exceeded += (sizes.abs() >= 2.0**item.bits).sum()
        elif bool((sizes.abs() >= 2.0**item.bits).any()):
            raise alarm(item, math.log2(float(sizes.abs().max())))

    def cut(self, item: Item, values: Tensor, low: Tensor, middle: int) -> Tensor:
        field, shape = self.arithmetic, values.shape
        added = (low + middle).flatten()
        if low.is_floating_point():
            residues = field.add(values.flatten(1), field.add_integer(_embedded(field, low.flatten()), middle))
        elif self._exceeded is not None:
            return field.cut(values.flatten(1), added, _shift(item), item.bits, self._exceeded).view(shape)
        else:
            residues = field.add(values.flatten(1), field.embed_wide(added, 62))  # |low + middle| < n·2^t < 2^62
        cut, sizes = field.floor_shift(residues, _shift(item))
        self._check(item, sizes - added.to(torch.float64))
        return cut.view(shape)

    def opened(self, item: Item, values: Tensor) -> list[int]:
        told = _told(item, values)
        if self._exceeded is not None:
            limit = self._limits[item.name] * (self._shards if item.total else 1)
            self.arithmetic.count_above(told, limit, self._exceeded)
            return [0]
        found = self.arithmetic.lift_exact(told)
        self._check(item, torch.tensor([float(value) for value in found], dtype=torch.float64))
        return found


def _told(item: Item, values: Elements) -> Elements:
    """(M,k,count): what is told of an item that is opened in the clear."""
    return values[:, :1] if item.alike else values


def _embedded(field: ResidueField, whole: Tensor) -> Tensor:
    """The residues of whole numbers in float64, below 2^83: (n,) -> (M,n)."""
    high = (whole * 2.0**-31).floor()
    return field.add(field.scale(field.embed(high), 2**31), field.embed(whole - high * 2.0**31))


def _shift(item: Item) -> int:
    if item.shift is None:
        raise ValueError(f"{item.name} is opened in the clear")
    return item.shift


def clear_field(bits: int, device: str = "cpu") -> ResidueField:
    """The field of clear values below 2^bits: the fewest large primes that leave 20 bits of headroom."""
    chosen: list[int] = []
    candidate = ResidueField.LARGEST_MODULUS
    while sum(math.log2(p) for p in chosen) < bits + 1 + _HEADROOM:
        candidate -= 1
        if is_prime(candidate):
            chosen.append(candidate)
    return ResidueField(tuple(sorted(chosen)), len(chosen), device)


@final
@dataclass(frozen=True, eq=False)
class Played(Generic[Elements]):
    """What a clear round came to."""

    state: Elements  # (M,1,·)
    loss: int | None  # the validation loss, if the round opened one


def play_round(
    plan: HiddenPlan,
    ring: Ring[Elements],
    round_number: int,
    rows: tuple[Elements, Elements],
    states: tuple[Elements, Elements],
    dither: Dither,
    validation: Callable[[], tuple[Elements, Elements]] | None = None,
    watch: Callable[[int, Item, Elements], None] = lambda hop, item, product: None,
    steps: Sequence[StepElements[Elements]] | None = None,
) -> Played[Elements]:
    """One round on clear values. Diverged and HeadroomAlarm as in `HiddenPlan.round_program` and in the ring.

    rows: inputs (M,K,B,F) and targets (M,K,B,C). states: that after the last round and the one before it.
    watch: is shown every product (M,k,count), with the number of its hop. steps: the round's, as elements.
    """
    program = plan.round_program(ring.arithmetic, round_number, *rows, *states, validation, steps)
    products, loss = next(program), None
    for number, hop in enumerate(plan.hops(round_number)):
        sent = [
            _play_item(plan, ring, (round_number, number, place), item, product, dither, watch)
            for place, (item, product) in enumerate(zip(hop.items, products, strict=True))
        ]
        loss = sent[0][0] if hop.opens_loss else loss
        try:
            products = program.send(sent)
        except StopIteration as end:
            return Played(end.value, loss)
    raise RuntimeError("a round has more hops than its plan")


def _play_item(
    plan: HiddenPlan,
    ring: Ring[Elements],
    where: tuple[int, int, int],
    item: Item,
    product: Any,
    dither: Dither,
    watch: Callable[[int, Item, Elements], None],
) -> Any:
    once, elements = product if isinstance(product, tuple) else (None, product)
    values = ring.total(once, elements) if item.total else elements
    watch(where[1], item, values)
    if item.shift is None:
        return ring.opened(item, values)
    low = dither(*where, item)
    middle = centre(0 if low.is_floating_point() else plan.num_masks, item.shift)
    return ring.cut(item, values, low, middle)


def final_weights(plan: HiddenPlan, ring: Ring[Elements], state: Elements) -> Tensor:
    """(P,) int64: what the last hop of a run opens."""
    (item,) = plan.final_hop.items
    return torch.tensor(ring.opened(item, plan.final_products(state)[0]), dtype=torch.int64)
