"""The fast simulation of the hidden mode: the run's integers on clear rows, without shares, masks and messages.

The weights are those of a real run whose masks left the same dither behind. A real run's dither comes from its secret
seeds; here it comes from a public stream of the simulation's seed, with the same distribution.

On a GPU, rounds are recorded as a graph and replayed in blocks. A graph cannot look at values, so it counts products
beyond their plan and guards above their limit. If it counted any, the block is thrown away and its rounds are played
one by one, where the first of them raises what it should.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from dresfl.errors import CheckpointError
from dresfl.kernels import fused_kernels
from dresfl.kernels.graphs import capture_graph
from dresfl.model.program import StepElements
from dresfl.protocol import Session
from dresfl.protocol.hidden.clear_rounds import Dither, ResidueRing, StreamDither, final_weights, play_round
from dresfl.protocol.hidden.plan import HiddenPlan, Item

from .plain_rows import PlainRows

_ROUNDS = 64  # of a block


@final
class HiddenDirect:
    """A hidden run of all clients together, on clear values. `run_rounds` plays on; `weights` opens the model."""

    def __init__(
        self,
        session: Session,
        data: Sequence[tuple[Tensor, Tensor]],
        dither: Dither | None = None,
        in_blocks: bool | None = None,
    ) -> None:
        """data: each client's integer inputs (m,F) and targets (m,C). dither: None: from the session's seed.

        in_blocks: whether blocks of rounds are played at once; None: on a GPU. The bits are the same.
        """
        self.session, self.plan = session, session.hidden_plan
        self.round_number = 0
        self.losses: tuple[int, ...] = ()  # opened so far
        self._rows = PlainRows(session, data)
        self._ring = ResidueRing(self.plan, session.device)
        self._dither = dither or StreamDither(self.plan, session.seed, session.device)
        initial = self.plan.initial_weights(session.stream).to(session.device)
        self._state = self._before = self._ring.arithmetic.embed(initial).unsqueeze(1)  # (M,1,P)
        wanted = fused_kernels(session.device) if in_blocks is None else in_blocks
        self._blocks = _Blocks(session, self._rows) if wanted and dither is None else None

    @property
    def done(self) -> bool:
        """Whether the run has come to its end: the last round, or the stopping rule."""
        return self.round_number >= self.plan.rounds or self.plan.stops(self.losses)

    def run_rounds(self, limit: int) -> int:
        """Play up to `limit` rounds, one on a CPU, a block of them on a GPU; how many were played.

        Diverged if a guard ends the run, HeadroomAlarm if a product outgrew its plan.
        """
        if self.done or limit < 1:
            return 0
        count = 0 if self._blocks is None else self._recordable(min(limit, _ROUNDS))
        if self._blocks is not None and count:
            found = self._blocks.run(self.round_number, count, self._state, self._before)
            if found is not None:
                self._state, self._before = found
                self.round_number += count
                return count
        self._run_round()
        return 1

    def _recordable(self, limit: int) -> int:
        """How many of the next rounds are of the kind that is recorded: not the first, and without validation."""
        count = 0
        while count < limit and self.round_number + count < self.plan.rounds:
            number = self.round_number + count
            if number == 0 or self.plan.validates(number):
                break
            count += 1
        return count

    def _run_round(self) -> None:
        number = self.round_number
        rows = self._coded(self._rows.hidden_in(self.session.batch_rows(number)))
        states = self._state, self._before
        played = play_round(self.plan, self._ring, number, rows, states, self._dither, lambda: self._held_out)
        self._before, self._state = self._state, played.state
        self.losses = self.losses if played.loss is None else (*self.losses, played.loss)
        self.round_number += 1

    def _coded(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Rows at places (B,K) as inputs (M,K,B,F) and targets (M,K,B,C)."""
        return _split(self._ring, self.session, self._rows.values[places.T])

    @cached_property
    def _held_out(self) -> tuple[Tensor, Tensor]:
        return self._coded(self._rows.hidden_in(self.session.validation_rows()))

    @property
    def weights(self) -> Tensor:
        """(P,) int64: the weights as they are now. A real run opens them at its end alone."""
        return final_weights(self.plan, self._ring, self._state)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, between rounds."""
        lift = self._ring.arithmetic.lift
        return {
            "round": torch.tensor([self.round_number]),
            "weights": lift(self._state[:, 0]).to("cpu", torch.int64),
            "previous": lift(self._before[:, 0]).to("cpu", torch.int64),
            "losses": torch.tensor(self.losses, dtype=torch.int64),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from `state()` of the same session."""
        number = int(state["round"]) if state.keys() == self.state().keys() else -1
        sizes = [self.plan.network.num_parameters if at <= 0 else self.plan.state_size for at in (number, number - 1)]
        fits = [state[name].shape == (size,) for name, size in zip(("weights", "previous"), sizes, strict=True)]
        if not 0 <= number <= self.plan.rounds or not all(fits):
            raise CheckpointError("the checkpoint does not fit this run", "resume with the run's own config.toml")
        embed = self._ring.arithmetic.embed
        self.round_number, self.losses = number, tuple(state["losses"].tolist())
        self._state, self._before = (embed(state[name]).unsqueeze(1) for name in ("weights", "previous"))


def _split(ring: ResidueRing, session: Session, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (K,B,W) as residues of inputs and of targets."""
    coded, size = ring.arithmetic.embed(rows), session.network.input_size
    return coded[..., :size].contiguous(), coded[..., size:].contiguous()


@final
class _Blocks:
    """Rounds on a GPU: one graph that plays the round in the next slot, for rounds after the first."""

    def __init__(self, session: Session, rows: PlainRows) -> None:
        plan, device = session.hidden_plan, session.device
        self._session, self._plan, self._rows = session, plan, rows
        self._broken = torch.zeros(1, dtype=torch.int64, device=device)
        self._ring = ResidueRing(plan, device, self._broken)
        self._dither = StreamDither(plan, session.seed, device)
        channels, layers = len(self._ring.arithmetic.moduli), len(plan.network.parameters)
        places = session.num_shards * session.batch_size
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._numbers = torch.zeros((_ROUNDS, 1), dtype=torch.int64, device=device)
        self._hidden = torch.zeros((_ROUNDS, places), dtype=torch.int64, device=device)
        self._factors = torch.zeros((_ROUNDS, 3, layers, channels, 1, 1), dtype=torch.float64, device=device)
        self._state = torch.zeros((channels, 1, plan.state_size), dtype=torch.float64, device=device)
        self._before = torch.zeros_like(self._state)
        self._loaded = self._state, self._before
        self._like = 1  # a round with the hops of all that are recorded
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, first: int, count: int, state: Tensor, before: Tensor) -> tuple[Tensor, Tensor] | None:
        """The states after `count` rounds from number `first` on; None if a value left its range on the way."""
        self._prepare(range(first, first + count))
        self._like = first
        self._loaded = state, _padded(before, self._plan)
        if self._graph is None and torch.device(self._session.device).type == "cuda":
            self._graph = capture_graph(self._round, warm_ups=2, before_each=self._load)
        self._load()
        for _ in range(count):
            if self._graph is not None:
                self._graph.replay()
            else:
                self._round()
        return None if int(self._broken) else (self._state.clone(), self._before.clone())

    def _prepare(self, rounds: range) -> None:
        """Fill the slots for these rounds."""
        device, count, numbers = self._session.device, len(rounds), torch.tensor(rounds)
        self._numbers[:count, 0] = numbers.to(device)
        hidden = self._rows.hidden_in(self._session.batches(numbers))  # (rounds,B,K)
        self._hidden[:count] = hidden.swapaxes(1, 2).flatten(1)
        moduli, names = self._ring.arithmetic.moduli, ("multiplier", "keep", "recall")
        factors = [[[getattr(step, name) for step in self._plan.steps(number)] for name in names] for number in rounds]
        residues = [
            [[[(factor + p // 2) % p - p // 2 for p in moduli] for factor in layers] for layers in kinds]
            for kinds in factors
        ]
        table = torch.tensor(residues, dtype=torch.float64)  # (rounds,3,layers,M)
        self._factors[:count] = table.unsqueeze(-1).unsqueeze(-1).to(device)

    def _load(self) -> None:
        self._slot.zero_()
        self._broken.zero_()
        self._state.copy_(self._loaded[0])
        self._before.copy_(self._loaded[1])

    def _round(self) -> None:
        """The round in slot `_slot`, on the device alone."""

        def now(slots: Tensor) -> Tensor:
            return slots.index_select(0, self._slot)[0]

        session, number, factors = self._session, now(self._numbers), now(self._factors)
        values = self._rows.values.index_select(0, now(self._hidden))  # (K·B,W)
        rows = _split(self._ring, session, values.view(session.num_shards, session.batch_size, -1))
        steps = [StepElements(shift, *factors[:, layer]) for layer, shift in enumerate(self._plan.shifts)]

        def dither(round_number: int, hop: int, item_number: int, item: Item) -> Tensor:
            return self._dither.at(number, hop, item_number, item)

        played = play_round(self._plan, self._ring, self._like, rows, (self._state, self._before), dither, steps=steps)
        self._before.copy_(self._state)
        self._state.copy_(played.state)
        self._slot += 1


def _padded(state: Tensor, plan: HiddenPlan) -> Tensor:
    """A state of the first round, with zeros where others carry what guards have cut."""
    missing = plan.state_size - state.shape[2]
    return torch.nn.functional.pad(state, (0, missing)) if missing else state
