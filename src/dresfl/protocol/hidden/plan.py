"""What a hidden run opens, hop by hop, and with how many bits: it follows from the network and the agreement alone.

Everybody derives the same plan. Nothing in it is typed in: the program of a round is walked through on shapes, and each
product says how large it is expected to be.

Bits. An item is planned with `bits`: |z| < 2^bits for every value z that it opens. That is the expected magnitude plus
a margin of 12 bits, at least. The primes are the fewest for which this holds for every item, with n mask seeds:

    bits + κ + log2 n + 2 ≤ log2 M

What the primes leave free goes to the items: all of it, and to the steps of the weights, of which there are most, as
much as the last word of their masks has room for.

A mask hides z to within 2^−κ. So κ − log2(values opened in the whole run) must be at least 40: the statistical distance
of all that a run publishes from what tells nothing is then below 2^−40.

Fixed point. A layer's step is U = keep·W + recall·W_before − multiplier·g, cut by a shift τ that is constant for the
whole run. The learning rate of a round becomes the integer multiplier, the momentum n/128. The coefficients are those
of `optimizers`: a velocity is kept as W − W_before, scaled by the quotient of two rates, and decay stays outside of it.
"""

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from torch import Tensor

from dresfl.coding import CodeParameters, recovery_threshold
from dresfl.errors import HeadroomAlarm, InfeasiblePlan, UsageError
from dresfl.field import Arithmetic, Elements, Outline, PublicStream, ResidueField, is_prime
from dresfl.model import Network, layer_from_dict
from dresfl.model.layers import Activation, Affine
from dresfl.model.program import Guard, Product, Program, Sent, Step, StepElements
from dresfl.optimizers import Optimizer

from .settings import DEGREES, HiddenSettings, Schedule

MARGIN = 12  # bits that an item has at least above its expected magnitude
LATE = 32  # bits by which Σe² may grow where two rounds of one hop pass before it is looked at
SECURITY = 40  # bits of statistical security that a whole run keeps
MULTIPLIER_BITS = 10  # of the integer that stands for the largest learning rate
MOMENTUM_UNIT = 128
LOSS_LIMIT = 2**62  # of an opened loss: it travels in 8 bytes

# The guards' limits. Squared norms: so many times what the layers begin with. Errors: the mean of ‖e‖² over a batch,
# which is about 1 at the beginning.
NORM_LIMIT = 8.0
ERROR_LIMIT = 16.0

# The largest learning rate, times the number of inputs, for which runs that diverge were all stopped in time, by
# schedule and number of activations (docs/results/hidden-guards.md). With S4 and two or more activations, the guards
# look late: above `_PLAIN`, products get 24 more bits, which is one prime.
_VOUCHED = {"S2": (96.0, 96.0, 96.0), "S4": (96.0, 96.0, 80.0)}
_PLAIN = 16.0
_MORE = 24

_LIMB = 32  # bits of a word of which masks are made
_RESIDUE_BYTES = 3
_LARGEST_MODULUS = 2**24


@final
@dataclass(frozen=True)
class Item:
    """One thing that a hop opens: `count` values of each shard, or their sums over the shards if `total`."""

    name: str
    count: int
    shift: int | None  # low bits that are cut off; None: opened in the clear
    bits: int  # |z| < 2^bits
    total: bool
    alike: bool = False  # all shards have the same values


@final
@dataclass(frozen=True)
class Hop:
    """One opening inside a round. All its items are total, or none is."""

    items: tuple[Item, ...]
    total: bool
    moves_weights: bool = False  # its masked items are the run's new state
    opens_loss: bool = False  # its one item is the validation loss

    @property
    def count(self) -> int:
        """Values of all items."""
        return sum(item.count for item in self.items)


@final
@dataclass(frozen=True)
class HiddenPlan:
    """The plan of a hidden run. `make_plan` makes it and checks it.

    >>> from dresfl.model import mlp
    >>> network = mlp((784, 64, 64, 10), input_bits=4, weight_bits=10)
    >>> optimizer = Optimizer(method="momentum", learning_rate=0.02, schedule="cosine")
    >>> plan = make_plan(network, CodeParameters(num_clients=20), HiddenSettings(schedule="S4"), optimizer, 20_000)
    >>> plan.recovery_threshold, plan.answers_needed, plan.trips, len(plan.moduli)
    (5, 6, 5, 7)
    """

    network: Network  # with the weight bits of the hidden mode
    parameters: CodeParameters
    settings: HiddenSettings  # with everything chosen
    optimizer: Optimizer
    rounds: int
    num_masks: int  # n: mask seeds of one sharing
    moduli: tuple[int, ...]
    validation_rows: int = 0  # coded rows of a validation

    # -- sizes -----------------------------------------------------------------------------------------------------

    @property
    def kappa(self) -> int:
        """κ."""
        return self.settings.kappa

    @property
    def degree(self) -> int:
        """d."""
        return self.settings.degree

    @property
    def mask_degree(self) -> int:
        """Td."""
        return self.settings.mask_degree

    @property
    def recovery_threshold(self) -> int:
        """R = d(K + Td − 1) + 1."""
        return recovery_threshold(self.degree, self.parameters.num_shards, self.mask_degree)

    @property
    def answers_needed(self) -> int:
        """R, or R + max(T, 2A) where clients may lie."""
        return _answers_needed(self.parameters, self.settings, self.degree)

    @property
    def tries(self) -> int:
        """How many false hops a run gives room for: its hops, times the groups of clients that could be told others."""
        return self.num_hops * max(1, self.parameters.num_clients // self.recovery_threshold)

    @property
    def modulus_bits(self) -> float:
        """log2 M."""
        return _log2(self.moduli)

    def field(self, device: str = "cpu") -> ResidueField:
        """The field of all shares and openings."""
        return ResidueField(self.moduli, len(self.moduli), device)

    @property
    def state_size(self) -> int:
        """Values of a run's state after a round: the weights, and what guards carry behind them."""
        return self.network.num_parameters + len(self.program.carried)

    # -- what is opened --------------------------------------------------------------------------------------------

    @cached_property
    def program(self) -> Program:
        """The program of a round."""
        return _program(self.network, self.parameters, self.settings, self.num_masks)

    def hops(self, round_number: int) -> tuple[Hop, ...]:
        """The hops of a round. Round number `rounds` has one alone: it opens the final weights, in a trial nothing."""
        if round_number >= self.rounds:
            return () if self.settings.trial else (self.final_hop,)
        hops = self._first if round_number == 0 else self._later
        return (*hops, *self._validation) if self.validates(round_number) else hops

    def validates(self, round_number: int) -> bool:
        """Whether a round ends with a validation: every so many rounds, and after the last one."""
        every, done = self.settings.validation_every, round_number + 1
        return bool(every) and (done % every == 0 or done == self.rounds)

    @cached_property
    def _first(self) -> tuple[Hop, ...]:
        return self._planned(self.program.training_products(self._largest_steps, first=True))

    @cached_property
    def _later(self) -> tuple[Hop, ...]:
        return self._planned(self.program.training_products(self._largest_steps, first=False))

    @cached_property
    def _validation(self) -> tuple[Hop, ...]:
        return self._planned(self.program.validation_products(self.validation_rows), validation=True)

    @cached_property
    def final_hop(self) -> Hop:
        """The hop that opens the final weights."""
        size, bits = self.network.num_parameters, self.settings.weight_bits + MARGIN
        return Hop((Item("weights", size, None, bits, total=False, alike=True),), total=False)

    def _planned(self, hops: list[list[Product[Outline]]], *, validation: bool = False) -> tuple[Hop, ...]:
        found = []
        for products in hops:
            items = tuple(self._item(product) for product in products)
            total, clear = items[0].total, items[0].shift is None
            found.append(Hop(items, total, moves_weights=total and not validation, opens_loss=validation and clear))
        return tuple(found)

    def _item(self, product: Product[Outline]) -> Item:
        bits = planned_bits(product.magnitude) + reach_bits(self.network)
        if product.shift is None:
            bits = math.floor(self.modulus_bits) - 2  # no mask to outgrow
        elif not product.name.endswith(" step"):
            bits = self.most_bits  # longer masks for these cost little
        else:
            spare = -(bits + self.kappa - product.shift) % _LIMB  # bits that the masks' last word has anyway
            bits = min(bits + spare, self.most_bits)
        return Item(product.name, product.elements.shape[2], product.shift, bits, product.total, product.alike)

    @property
    def most_bits(self) -> int:
        """The most that an item may be planned with."""
        return math.floor(self.modulus_bits - self.kappa - math.log2(self.num_masks) - 2)

    def mask_bits(self, item: Item) -> int:
        """Bits of the high part of an item's masks."""
        if item.shift is None:
            raise ValueError(f"{item.name} is opened in the clear")
        return item.bits + self.kappa - item.shift

    # -- the round's program ---------------------------------------------------------------------------------------

    def round_program(
        self,
        arithmetic: Arithmetic[Elements],
        round_number: int,
        inputs: Elements,
        targets: Elements,
        weights: Elements,
        previous: Elements,
        validation: Callable[[], tuple[Elements, Elements]] | None = None,
        steps: Sequence[Step | StepElements[Elements]] | None = None,
    ) -> Generator[list[Any], Sent, Elements]:
        """The products of a round, hop by hop, in the order of `hops`, over shares, integers or reals.

        inputs (M,N,B,F), targets (M,N,B,C); weights and previous: the state after the last round and the one before it
        (M,1 or N,·). validation: makes the coded rows (M,N,·,F), (M,N,·,C) of the validation. steps: the round's, for
        callers that have them.
        Each hop is a list with one entry for each item: (M,N,count), or a pair for sums over the shards that hold a
        part which is to be added once: (M,1,count), (M,N,count). It is sent, item by item, what came of them: cut
        values (M,N,count), or (M,1,count) of sums, or integers where an item is opened in the clear.
        Returns the new state (M,1,·). Raises Diverged if a guard's quotient is above its limit.
        """
        steps = self.steps(round_number) if steps is None else steps
        state: Elements = yield from _bare(self.program.training(arithmetic, steps, inputs, targets, weights, previous))
        if self.validates(round_number):
            if validation is None:
                raise UsageError(f"round {round_number} ends with a validation, and no rows came for it")
            yield from _bare(self.program.validation(arithmetic, *validation(), state))
        return state

    def final_products(self, state: Elements) -> list[Elements]:
        """What the last hop opens: the weights (M,N,P) of the final state."""
        return [state[:, :, : self.network.num_parameters]]

    def initial_weights(self, stream: PublicStream) -> Tensor:
        """W_0 (P,) int64: public, from the common seed."""
        return self.network.initial_weights(stream)

    def loss_of(self, published: bytes | memoryview) -> int:
        """The validation loss in what a hop published that opens one. HeadroomAlarm if it is none."""
        field = self.field()
        return checked_loss(field.lift_exact(field.unpack(published, (1, 1)))[0])

    def real_loss(self, loss: int) -> float:
        """The mean of ‖e‖² over the validation's rows, from the opened integer."""
        rows = max(1, self.validation_rows * self.parameters.num_shards)
        return loss / 2.0 ** self.program.loss_scale(self.validation_rows) / rows

    def stops(self, losses: Sequence[int]) -> bool:
        """Whether the run ends after these validation losses: none of the last `patience` ones is a new best."""
        patience = self.settings.patience
        if not patience or len(losses) <= patience:
            return False
        return min(losses[-patience:]) >= min(losses[:-patience])

    # -- steps -----------------------------------------------------------------------------------------------------

    @property
    def largest_rate(self) -> float:
        """The largest learning rate at which the guards stop a run that diverges before a value outgrows its mask."""
        return self._rate(_VOUCHED[self.settings.schedule][self._depth])

    @property
    def _depth(self) -> int:
        """Activations, from two on counted as two."""
        return min(2, sum(isinstance(layer, Activation) for layer in self.network.layers))

    def _rate(self, times_inputs: float) -> float:
        return float(times_inputs / self.network.input_size / 4.0**self.network.input_magnitude)

    @property
    def more_bits(self) -> int:
        """Bits that products get beyond their margin, since the learning rate or the targets are large."""
        late = self.settings.schedule == "S4" and self._depth == 2
        more = _MORE if late and self.optimizer.learning_rate > self._rate(_PLAIN) else 0
        return more + reach_bits(self.network)

    @cached_property
    def shifts(self) -> tuple[int, ...]:
        """τ of each layer: by so much its step is cut, in every round."""
        largest = math.log2(2 * self._largest_rate / self._batch_rows)
        lowest = MULTIPLIER_BITS - math.ceil(largest) - self.settings.weight_bits
        return tuple(max(8, scale + lowest) for scale in self.program.gradient_scales)

    @property
    def _batch_rows(self) -> int:
        return self.parameters.batch_size * self.parameters.num_shards

    @property
    def _largest_rate(self) -> float:
        return self.optimizer.learning_rate  # no schedule goes above it

    @cached_property
    def momentum(self) -> float:
        """The momentum as it is used: a multiple of 1/128."""
        if self.optimizer.method != "momentum":
            return 0.0
        return round(self.optimizer.momentum * MOMENTUM_UNIT) / MOMENTUM_UNIT

    @cached_property
    def _largest_steps(self) -> tuple[Step, ...]:
        return self._steps_of(self._largest_rate, self._largest_rate)

    def steps(self, round_number: int) -> tuple[Step, ...]:
        """Each layer's step in a round."""
        rate = self.optimizer.rate(round_number, self.rounds)
        before = self.optimizer.rate(round_number - 1, self.rounds) if round_number else None
        return self._steps_of(rate, before)

    def _steps_of(self, rate: float, before: float | None) -> tuple[Step, ...]:
        """The steps at a rate, after a round at the rate `before`; None: there was none."""
        found = []
        for scale, shift in zip(self.program.gradient_scales, self.shifts, strict=True):
            one = 2**shift
            multiplier = round(math.ldexp(2 * rate / self._batch_rows, self.settings.weight_bits + shift - scale))
            decay = round(one * rate * self.optimizer.weight_decay)
            kept = 0 if before is None else round(one * self.momentum * rate / before)
            faded = 0 if before is None else round(kept * before * self.optimizer.weight_decay)
            found.append(Step(shift, multiplier, keep=one - decay + kept, recall=faded - kept))
        return tuple(found)

    # -- costs -----------------------------------------------------------------------------------------------------

    @property
    def trips(self) -> int:
        """Round trips of a training round."""
        return len(self._later)

    @property
    def values_per_round(self) -> int:
        """Values that a client uploads in a training round."""
        return sum(hop.count for hop in self._later)

    @property
    def upload_bytes(self) -> int:
        """Bytes of residues that a client uploads in a training round."""
        return self.values_per_round * len(self.moduli) * _RESIDUE_BYTES

    @property
    def download_bytes(self) -> int:
        """Bytes of residues that a training round publishes."""
        values = sum(hop.count * self._copies(hop.total) for hop in self._later)
        return values * len(self.moduli) * _RESIDUE_BYTES

    def _copies(self, total: bool) -> int:
        return 1 if total else self.parameters.num_shards

    @property
    def mask_words(self) -> int:
        """32-bit words that one mask seed is expanded to in a training round."""
        words = 0
        for item in (item for hop in self._later for item in hop.items):
            if item.shift is not None:
                limbs = -(-self.mask_bits(item) // _LIMB) - (-item.shift // _LIMB)
                words += limbs * item.count * self._copies(item.total)
        return words

    @cached_property
    def values_opened(self) -> int:
        """Values that the whole run opens under masks, at every β."""

        def masked(hops: tuple[Hop, ...]) -> int:
            items = (item for hop in hops for item in hop.items if item.shift is not None)
            return sum(item.count * self._copies(item.total) for item in items)

        validations = sum(self.validates(number) for number in range(self.rounds)) if self.validation_rows else 0
        found = masked(self._first) + (self.rounds - 1) * masked(self._later)
        return found + (validations * masked(self._validation) if validations else 0)

    @cached_property
    def num_hops(self) -> int:
        """Hops of the whole run."""
        validations = sum(self.validates(number) for number in range(self.rounds))
        found = len(self._first) + (self.rounds - 1) * len(self._later) + 1
        return found + (validations * len(self._validation) if validations else 0)

    @property
    def security_bits(self) -> float:
        """κ − log2(values opened in the whole run)."""
        return self.kappa - math.log2(self.values_opened)


def checked_loss(loss: int) -> int:
    """A validation loss that was opened. HeadroomAlarm if it is so large that no validation has it."""
    if abs(loss) >= LOSS_LIMIT:
        raise HeadroomAlarm(
            "the opened validation loss is impossible",
            "the coordinator published something false, or a value outgrew its plan: nothing more is sent",
        )
    return loss


def reach_bits(network: Network) -> int:
    """Bits by which weights may grow larger than those of a network with one value for each class.

    Targets of −1 and 1 are twice as far apart as 0 and 1, and larger targets take larger weights. Every product has one
    factor of the weights at most that no other guard bounds, so items have so many bits more, too.
    """
    return 0 if network.one_hot else 1 + max(0, math.ceil(network.target_magnitude))


def planned_bits(magnitude: float) -> int:
    """The bits that an item of an expected magnitude needs at least."""
    return math.ceil(magnitude) + MARGIN


def _log2(moduli: Sequence[int]) -> float:
    return sum(math.log2(p) for p in moduli)


def _answers_needed(parameters: CodeParameters, settings: HiddenSettings, degree: int) -> int:
    threshold = recovery_threshold(degree, parameters.num_shards, settings.mask_degree)
    if settings.honest_clients:
        return threshold
    return threshold + max(parameters.max_colluders, 2 * parameters.max_liars)


def _program(network: Network, parameters: CodeParameters, settings: HiddenSettings, num_masks: int) -> Program:
    """The program with its guards."""
    bare = Program(
        network,
        settings.degree,
        parameters.batch_size,
        parameters.num_shards,
        settings.value_bits,
        settings.error_bits,
    )
    begin = [p.place.init**2 * p.fan[1] for p in network.parameters]  # ‖W_0‖² of each layer
    factors = tuple(max(1, round(max(begin) / norm)) for norm in begin)
    norm = (
        sum(factor * value for factor, value in zip(factors, begin, strict=True))
        * NORM_LIMIT
        * 4.0 ** reach_bits(network)
    )
    rows, shards = parameters.batch_size, parameters.num_shards
    limits = {
        "error": math.log2(rows * shards * ERROR_LIMIT) + 2 * max(0.0, network.target_magnitude) + bare.error_scale,
        "norm": math.log2(norm) + 2 * settings.weight_bits,
    }
    for p in network.parameters:  # the root mean square of z stays below half of the largest |z| expected
        mean = 2 * (p.place.out_magnitude - 1 + settings.value_bits)
        limits[f"{p.name} output size"] = math.log2(rows * p.place.out_size) + mean
    guards = [_guard(name, limit, num_masks, factors if name == "norm" else ()) for name, limit in limits.items()]
    return dataclasses.replace(bare, guards=tuple(guards))


def _guard(name: str, limit: float, num_masks: int, factors: tuple[int, ...]) -> Guard:
    """A guard for a sum whose log2 is to stay below `limit`.

    The quotient carries the dither of its cut: at most n/2 units, and at most 8 standard deviations of √(n/12) units,
    except in one case in 10^15. The limit lies four times that high. So a sum below 3/4 of its limit never stops a run,
    and a sum above 5/4 of it always does.
    """
    noise = math.ceil(min(num_masks / 2, 8 * math.sqrt(num_masks / 12)))
    units = 4 * max(1, noise)
    return Guard(name, max(1, math.floor(limit - math.log2(units))), units, limit, factors)


# -- making a plan ---------------------------------------------------------------------------------------------------


def make_plan(
    network: Network,
    parameters: CodeParameters,
    settings: HiddenSettings,
    optimizer: Optimizer,
    rounds: int,
    *,
    client_rows: Sequence[int] = (),
    num_masks: int = 0,
    round_trip: float = 0.02,
    any_rate: bool = False,
) -> HiddenPlan:
    """The plan of a hidden run; UsageError or InfeasiblePlan, with what would do, if there is none.

    client_rows: of every client; needed for validations. num_masks: mask seeds of one sharing; 0: one for each set of T
    clients, which needs a mask degree of T. round_trip: seconds, from which the schedule is chosen if it is not given.
    any_rate: also rates that the plan does not vouch for, for experiments on clear values.
    """
    if rounds < 1:
        raise UsageError(f"rounds must be at least 1, not {rounds}")
    check_optimizer(optimizer)
    refuse_local_steps(parameters)
    settings = _with_masks(parameters, settings)
    masks = num_masks or _all_sets(parameters, settings)
    extra = max(0, math.ceil(math.log2(masks / 20) / 2))  # bits by which the dither of many masks is larger
    settings = dataclasses.replace(
        settings,
        weight_bits=settings.weight_bits or min(24, 18 + extra),
        value_bits=settings.value_bits or 10 + extra,
        error_bits=settings.error_bits or min(24, 14 + extra),
    )
    own = hidden_network(network, settings.weight_bits)
    share = settings.validation_share
    held_out = sum(held_out_rows(rows, parameters.num_shards, share) for rows in client_rows)
    if settings.validation_every and not held_out:
        raise UsageError("no rows are held out for the validation", "raise validation_share, or do without validation")
    schedules: tuple[Schedule, ...] = (settings.schedule,) if settings.schedule else ("S4", "S2")
    plans = []
    for schedule in schedules:
        chosen = dataclasses.replace(settings, schedule=schedule)
        if _answers_needed(parameters, chosen, chosen.degree) <= parameters.num_clients:
            bare = HiddenPlan(own, parameters, chosen, optimizer, rounds, masks, (), held_out)
            plans.append(dataclasses.replace(bare, moduli=_moduli(bare)))
    if not plans:
        raise _infeasible(parameters, settings, schedules)
    plan = plans[0] if len(plans) == 1 else _preferred(plans[0], plans[1], round_trip)
    _check_security(plan)
    if not any_rate:
        _check_rate(plan)
    return plan


def check_optimizer(optimizer: Optimizer) -> None:
    """UsageError if a hidden run cannot use an optimiser: it must be linear in the gradient, which nobody sees."""
    if optimizer.method not in ("sgd", "momentum"):
        raise UsageError(
            f"the hidden mode cannot use {optimizer.method}: it would have to divide by secret values",
            'use method = "momentum" or "sgd", with any schedule and weight decay',
        )
    if optimizer.max_norm:
        raise UsageError(
            "the hidden mode cannot clip gradients: nobody sees their norm",
            "set max_norm = 0, and a smaller learning rate; guards stop a run that diverges",
        )


def refuse_local_steps(parameters: CodeParameters) -> None:
    """UsageError if a hidden run is asked for several local steps: their weights would be opened between the steps."""
    if parameters.local_steps > 1:
        raise UsageError(
            f"the hidden mode takes one step a round, not {parameters.local_steps}: it cuts weights down after each",
            'set federation.local_steps = 1, or mode = "open"',
        )


def hidden_network(network: Network, weight_bits: int) -> Network:
    """The same network with weights of the hidden mode's scale in every layer.

    >>> from dresfl.model import Dense
    >>> hidden_network(Network((Dense(2, weight_bits=5),), (3,), 4), 18).weight_scales[0].item() == 2.0**18
    True
    """
    layers = tuple(
        layer_from_dict({**layer.to_dict(), "weight_bits": None}) if isinstance(layer, Affine) else layer
        for layer in network.layers
    )
    return dataclasses.replace(network, layers=layers, weight_bits=weight_bits)


def held_out_rows(rows: int, num_shards: int, share: float) -> int:
    """How many coded rows of a client with so many rows are held out: a share of its whole ones, and never all.

    >>> held_out_rows(101, 2, 0.25), held_out_rows(1, 2, 0.25)
    (12, 0)
    """
    whole = rows // num_shards
    return min(whole - 1, int(share * whole)) if whole else 0


def _with_masks(parameters: CodeParameters, settings: HiddenSettings) -> HiddenSettings:
    colluders = parameters.max_colluders
    if colluders < 1:
        raise UsageError("the hidden mode needs masks: at least 1 colluder", "set max_colluders = 1")
    degree = settings.mask_degree or colluders
    if degree < colluders:
        raise UsageError(f"mask_degree {degree} is below {colluders} colluders", "leave it out to have it chosen")
    return dataclasses.replace(settings, mask_degree=degree)


def _all_sets(parameters: CodeParameters, settings: HiddenSettings) -> int:
    if settings.mask_degree != parameters.max_colluders:
        raise UsageError("a mask degree above T has masks of its own family", "give num_masks")
    return math.comb(parameters.num_clients, parameters.max_colluders)


def _moduli(plan: HiddenPlan) -> tuple[int, ...]:
    """The fewest primes just below 2^24 that hold every item under its mask, and every one that is opened bare."""
    hops = [*plan.program.training_products(plan._largest_steps, first=False)]
    if plan.settings.validation_every:
        hops += plan.program.validation_products(plan.validation_rows)
    needed = 0.0
    for product in (product for hop in hops for product in hop):
        hidden = 0.0 if product.shift is None else plan.kappa + math.log2(plan.num_masks)
        needed = max(needed, planned_bits(product.magnitude) + plan.more_bits + hidden + 2)
        if product.name == "error" and plan.program.num_hops == 1:
            needed = max(needed, product.magnitude + LATE + hidden + 2)
    chosen: list[int] = []
    candidate = _LARGEST_MODULUS
    while _log2(chosen) < needed:
        candidate -= 1
        if is_prime(candidate):
            chosen.append(candidate)
    return tuple(sorted(chosen))


def _infeasible(parameters: CodeParameters, settings: HiddenSettings, schedules: Sequence[str]) -> InfeasiblePlan:
    needed = {schedule: _answers_needed(parameters, settings, DEGREES[schedule]) for schedule in DEGREES}
    asked = " or ".join(f"{needed[schedule]} answers with {schedule}" for schedule in schedules)
    hints = [f"at least {min(needed.values())} clients with S2"]
    if "S2" not in schedules and needed["S2"] <= parameters.num_clients:
        hints.insert(0, "schedule S2")
    if not settings.honest_clients:
        hints.append("an agreement that says that clients are honest")
    return InfeasiblePlan(
        f"{parameters.num_clients} clients are too few for the hidden mode: K = {parameters.num_shards}, "
        f"T = {parameters.max_colluders} and {settings.mask_degree} masks need {asked}",
        "use " + ", or ".join(hints),
    )


_BYTES_PER_SECOND = 12.5e6  # 100 Mbit/s: what a plan takes the slowest link for
_COMPUTING = 0.17  # seconds of a round per million values, clients and coordinator together, one core each


def round_seconds(plan: HiddenPlan, round_trip: float) -> float:
    """An estimate of the seconds of a training round: trips, bytes at 100 Mbit/s both ways, and computing."""
    moved = (plan.upload_bytes + plan.download_bytes) / _BYTES_PER_SECOND
    computed = _COMPUTING * plan.values_per_round * len(plan.moduli) * 1e-6
    return plan.trips * round_trip + moved + computed


def _preferred(fast: HiddenPlan, frugal: HiddenPlan, round_trip: float) -> HiddenPlan:
    """S4 or S2, where both are possible. S4 has half the trips, S2 needs fewer answers.

    S2 if S4 leaves less than a fifth of the clients free to be missing, or if S2's rounds take less than a tenth
    longer.
    """
    clients = fast.parameters.num_clients
    if 5 * (clients - fast.answers_needed) < clients:
        return frugal
    return frugal if round_seconds(frugal, round_trip) < 1.1 * round_seconds(fast, round_trip) else fast


def _check_security(plan: HiddenPlan) -> None:
    if plan.security_bits >= SECURITY:
        return
    wanted = SECURITY + math.ceil(math.log2(plan.values_opened))
    rounds = math.floor(plan.rounds * 2.0 ** (plan.security_bits - SECURITY))
    raise UsageError(
        f"kappa = {plan.kappa} is too little for a run that opens 2^{math.log2(plan.values_opened):.1f} values: "
        f"{plan.security_bits:.1f} bits of security are left, {SECURITY} are wanted",
        f"use kappa = {wanted}" + (f", or at most {rounds} rounds" if rounds else ""),
    )


def _check_rate(plan: HiddenPlan) -> None:
    if plan.optimizer.learning_rate <= plan.largest_rate:
        return
    hint = f"use a learning rate of at most {plan.largest_rate:.3g}"
    slower = dataclasses.replace(plan, settings=dataclasses.replace(plan.settings, schedule="S2")).largest_rate
    if plan.optimizer.learning_rate <= slower:
        hint += ", or schedule S2"
    raise UsageError(
        f"a learning rate of {plan.optimizer.learning_rate:g} is larger than the plan can vouch for: if the training "
        "diverged, values could outgrow their masks before a guard stops it",
        hint,
    )


def _bare(program: Generator[list[Product[Elements]], Sent, Any]) -> Generator[list[Any], Sent, Any]:
    """A program that yields elements alone, or pairs where a part is to be added once."""
    products = next(program)
    while True:
        sent = yield [p.elements if p.once is None else (p.once, p.elements) for p in products]
        try:
            products = program.send(sent)
        except StopIteration as end:
            return end.value
