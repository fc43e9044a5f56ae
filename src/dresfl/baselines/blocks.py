"""A baseline's rounds in blocks: on a GPU one captured graph a round, on a CPU round by round.

The host draws who answers and which rows they take; a block's draws go to the device at once. A graph has fixed shapes,
so there as many clients as ever answer together hold a slot in every round, and the absent ones count 0.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dresfl.kernels.graphs import capture_graph

from .rounds import Answers, Problem, State, advance, next_state

BLOCK_ROUNDS = 256


@final
@dataclass(frozen=True, eq=False)
class Turn:
    """One round as the host draws it: who answers, what each counts, which rows each takes, the learning rate."""

    clients: Sequence[int]  # at least one
    shares: Sequence[float]
    rows: Tensor  # (S,B) int64, of the training set
    rate: float


@final
class BaselineTraining:
    """A baseline's state on its device, and the training set it is taken through.

    inputs (m,F) in any floating type and labels (m,) are moved to the state's device; rows become the state's type
    when they are gathered. `fixed_shapes`: as a graph needs it, every round has equally many slots. most_answers: how
    many clients answer a round at most, and so the number of slots; 0: all.
    """

    def __init__(
        self,
        problem: Problem,
        state: State,
        inputs: Tensor,
        labels: Tensor,
        fixed_shapes: bool | None = None,
        most_answers: int = 0,
    ) -> None:
        device, dtype = state.weights.device, state.weights.dtype
        self._fixed_shapes = state.weights.is_cuda if fixed_shapes is None else fixed_shapes
        self._problem, self._state = problem, _copied(state) if self._fixed_shapes else state
        self._inputs, self._labels = inputs.to(device), labels.to(device)
        self._one_hot = torch.eye(problem.network.num_classes, dtype=dtype, device=device)
        self._num_slots = most_answers or problem.num_clients
        self._graph: torch.cuda.CUDAGraph | None = None
        self._slots: _Slots | None = None

    @property
    def state(self) -> State:
        """Where the training stands. On a GPU its tensors are the graph's own: read them before the next `play`."""
        return self._state

    def play(self, turns: Sequence[Turn]) -> None:
        """Take the state through these rounds; on a GPU they are only queued."""
        if not self._fixed_shapes:
            for turn in turns:
                answers = self._answers(torch.tensor(turn.clients), self._real(turn.shares), turn.rows)
                self._state = next_state(self._problem, self._state, turn.rate, answers)
            return
        for start in range(0, len(turns), BLOCK_ROUNDS):
            self._play_block(turns[start : start + BLOCK_ROUNDS])

    def _real(self, values: object) -> Tensor:
        return torch.tensor(values, dtype=self._state.weights.dtype)

    def _answers(self, clients: Tensor, shares: Tensor, rows: Tensor) -> Answers:
        """Gather the rows (S,B) of a round."""
        taken = rows.flatten()
        inputs = self._inputs.index_select(0, taken).to(self._state.weights.dtype)  # (SB,F)
        targets = self._one_hot.index_select(0, self._labels.index_select(0, taken))  # (SB,C)
        return Answers(inputs.view(*rows.shape, -1), targets.view(*rows.shape, -1), clients, shares)

    # -- fixed shapes ----------------------------------------------------------------------------------------------

    def _play_block(self, turns: Sequence[Turn]) -> None:
        if self._slots is None:
            batch = turns[0].rows.shape[1]
            self._slots = _Slots(self._num_slots, batch, self._problem.optimizer.num_factors, self._state.weights)
            if self._state.weights.is_cuda:
                self._graph = self._capture(self._slots)
        self._fill(self._slots, turns)
        for _ in turns:
            if self._graph is not None:
                self._graph.replay()
            else:
                self._round(self._slots)
        self._state = dataclasses.replace(self._state, steps=self._state.steps + len(turns))

    def _fill(self, slots: "_Slots", turns: Sequence[Turn]) -> None:
        """Send a block's draws to the device; the first absent clients come after the answering ones."""
        count, num_slots, batch = len(turns), slots.clients.shape[1], slots.rows.shape[2]
        num_clients = self._problem.num_clients
        optimizer, steps = self._problem.optimizer, self._state.steps
        who = torch.tensor([(place, i) for place, turn in enumerate(turns) for i in turn.clients])  # (answers,2)
        slot = torch.tensor([i for turn in turns for i in range(len(turn.clients))])
        taken = who[:, 0] * num_slots + slot
        order = torch.arange(num_clients, 2 * num_clients).repeat(count, 1)
        order.view(-1)[who[:, 0] * num_clients + who[:, 1]] = slot
        counted = self._real([0.0]).repeat(count * num_slots)
        counted[taken] = self._real([share for turn in turns for share in turn.shares])
        rows = torch.zeros((count * num_slots, batch), dtype=torch.int64)
        rows[taken] = torch.cat([turn.rows for turn in turns])
        slots.clients[:count].copy_(order.argsort(1)[:, :num_slots])
        slots.shares[:count].copy_(counted.view(count, num_slots))
        slots.rows[:count].copy_(rows.view(count, num_slots, batch))
        factors = [optimizer.factors(turn.rate, steps + 1 + place) for place, turn in enumerate(turns)]
        slots.factors[:count].copy_(self._real(factors))
        slots.restart()

    def _capture(self, slots: "_Slots") -> torch.cuda.CUDAGraph:
        """Record one round. The rounds played to warm up are undone. Their slots hold the clients and nothing else."""
        slots.clients.copy_(torch.arange(slots.clients.shape[1]).expand_as(slots.clients))
        before = _copied(self._state)
        graph = capture_graph(lambda: self._round(slots), warm_ups=3, before_each=slots.restart)
        self._overwrite(before)
        return graph

    def _round(self, slots: "_Slots") -> None:
        """The round in slot `place`, on the device alone; the state's tensors are overwritten."""

        def now(values: Tensor) -> Tensor:
            return values.index_select(0, slots.place)[0]

        answers = self._answers(now(slots.clients), now(slots.shares), now(slots.rows))
        self._overwrite(advance(self._problem, self._state, now(slots.factors), answers))
        slots.place += 1

    def _overwrite(self, after: State) -> None:
        """Put new values into the state's tensors, which the graph refers to."""
        self._state.weights.copy_(after.weights)
        for name, moment in after.moments.items():
            self._state.moments[name].copy_(moment)
        if self._problem.method == "scaffold":
            self._state.controls.copy_(after.controls)
            self._state.control.copy_(after.control)


def _copied(state: State) -> State:
    moments = {name: moment.clone() for name, moment in state.moments.items()}
    return State(state.weights.clone(), moments, state.controls.clone(), state.control.clone(), state.steps)


@final
class _Slots:
    """A block's draws on the device, a slot a round and client, and the round that comes next."""

    def __init__(self, num_slots: int, batch: int, num_factors: int, like: Tensor) -> None:
        def buffer(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=like.device)

        self.clients = buffer(BLOCK_ROUNDS, num_slots, dtype=torch.int64)
        self.shares = buffer(BLOCK_ROUNDS, num_slots, dtype=like.dtype)
        self.rows = buffer(BLOCK_ROUNDS, num_slots, batch, dtype=torch.int64)
        self.factors = buffer(BLOCK_ROUNDS, num_factors, dtype=like.dtype)
        self.place = buffer(1, dtype=torch.int64)

    def restart(self) -> None:
        """The round in the first slot comes next."""
        self.place.zero_()
