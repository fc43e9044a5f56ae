"""Rounds in blocks on a GPU: a block prepares what does not depend on the weights, and one CUDA graph does the rest.

Once per block, on the host: the rows of every round's batch and their dealers' keys, the survivors and their decoding
coefficients, the optimiser's factors. Once per round, replayed without the host: gather, expand the masks, encode,
answer, decode, step. Engine `direct` leaves out the masks and the code: its one "answer" is the sum itself.

A graph cannot branch. So it assumes that no decoded value leaves its range, and that the weights stay below a fixed
bound. The device counts where either fails. If it failed in a block, the block's results are thrown away and its rounds
run one by one, where a value out of range refuses its round as it should.
"""

from typing import Literal, Protocol, final

import torch
from torch import Tensor

from dresfl.field import Domain
from dresfl.kernels import fused_kernels, largest_magnitude
from dresfl.kernels.graphs import capture_graph
from dresfl.optimizers import State
from dresfl.protocol import (
    BatchRows,
    RoundRecord,
    Session,
    Training,
    coded_gradient_parts,
    decode_sum,
    encode_rows,
    step,
    stepped,
)

from .dropout import Dropouts

Engine = Literal["coded", "direct"]

_ROUNDS = 64
_GRAPH_BYTES = 2**33  # of answers: above this, launches take no share of the time, and a graph would hold the memory
_WEIGHT_BOUND = 2**20


class Federation(Protocol):
    """What a block needs of the federation it serves."""

    dropouts: Dropouts
    engine: Engine
    rows: Tensor  # (m,W) on the device
    keys: Tensor  # (N,8)

    def hidden_rows(self, batch: BatchRows) -> Tensor:
        """Rows hidden in a batch: (...,K)."""
        ...

    def run_round(self) -> tuple[RoundRecord, int]:
        """One round, step by step."""
        ...


@final
class RoundBlocks:
    """Plays a block of rounds at a time on the session's GPU. The bits are those of the rounds played one by one."""

    def __init__(self, session: Session, training: Training, federation: Federation) -> None:
        field = session.field.with_public_bound(_WEIGHT_BOUND)
        self._session, self._training, self._federation = session, training, federation
        self._field = field
        self._graph: torch.cuda.CUDAGraph | None = None
        self._coded = federation.engine == "coded"
        device, moduli, needed = session.device, len(field.moduli), session.recovery_threshold
        size, batch = session.network.num_parameters, session.batch_size
        decoded = needed if self._coded else 1  # answers that a decoder combines
        answers = torch.empty((moduli, decoded, size), dtype=field.dtype, device="meta")
        self._graphs = fused_kernels(device) and answers.nbytes <= _GRAPH_BYTES

        def buffer(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        # inputs of the graph, one slot per round
        self._numbers = buffer(_ROUNDS, 1, dtype=torch.int64)
        self._hidden = buffer(_ROUNDS, batch * session.num_shards, dtype=torch.int64)
        self._rows = buffer(_ROUNDS, batch, dtype=torch.int64)
        self._keys = buffer(_ROUNDS, batch, 8, dtype=torch.int32)
        self._survivors = buffer(_ROUNDS, needed, dtype=torch.int64)
        self._decoders = torch.ones((_ROUNDS, moduli, decoded), dtype=field.dtype, device=device)
        self._factors = buffer(_ROUNDS, training.optimizer.num_factors)
        # state and outputs
        self._slot = buffer(1, dtype=torch.int64)
        self._weights = training.weights.clone()
        self._moments: State = {}
        self._peaks, self._norms, self._broken = buffer(_ROUNDS), buffer(_ROUNDS), buffer(1)

    def run(self, limit: int) -> list[tuple[RoundRecord, int]]:
        """Up to `limit` rounds; each one's record, and how many clients answered."""
        training, needed, decoded = self._training, self._session.answers_needed, self._session.recovery_threshold
        first = training.round_number
        count = min(limit, _ROUNDS, training.rounds - first)
        answering = self._federation.dropouts.answering_in(range(first, first + count))
        live = [first + i for i, answers in enumerate(answering) if len(answers) >= needed]
        survivors = {first + i: tuple(sorted(answers[:needed])[:decoded]) for i, answers in enumerate(answering)}
        if live:
            self._prepare(live, [survivors[number] for number in live])
            self._replay(len(live))
            if bool(self._broken.item()):
                return [self._federation.run_round() for _ in range(count)]
            training.adopt(self._weights.clone(), {name: m.clone() for name, m in self._moments.items()}, len(live))
        peaks, norms = iter(self._peaks.tolist()), iter(self._norms.tolist())
        records: list[tuple[RoundRecord, int]] = []
        for i, answers in enumerate(answering):
            number = first + i
            if len(answers) < needed:
                record = training.skip()
            else:
                record = training.close(stepped(number, survivors[number], next(peaks), next(norms)))
            records.append((record, len(answers)))
        return records

    def _prepare(self, rounds: list[int], survivors: list[tuple[int, ...]]) -> None:
        """Fill the slots of the graph's inputs for these rounds."""
        session, training, count = self._session, self._training, len(rounds)
        numbers = torch.tensor(rounds)
        batches = session.batches(numbers)
        self._numbers[:count, 0] = numbers.to(session.device)
        self._hidden[:count] = self._federation.hidden_rows(batches).flatten(1)
        if self._coded:
            self._rows[:count] = batches.rows.to(session.device)
            self._keys[:count] = self._federation.keys[batches.dealers].to(session.device)
            sets = torch.tensor(survivors)
            self._survivors[:count] = sets.to(session.device)
            self._decoders[:count] = session.code.sum_decoders(sets).swapaxes(0, 1)
        optimizer, steps = training.optimizer, training.steps
        factors = [
            optimizer.factors(optimizer.rate(number, training.rounds), steps + 1 + i) for i, number in enumerate(rounds)
        ]
        self._factors[:count] = torch.tensor(factors, dtype=torch.float64).to(session.device)

    def _replay(self, count: int) -> None:
        if not self._moments:
            self._moments = {name: moment.clone() for name, moment in self._training.moments.items()}
        if self._graph is None and self._graphs and self._weights.is_cuda:
            self._graph = capture_graph(self._round, warm_ups=2, before_each=self._load)
        self._load()
        for _ in range(count):
            if self._graph is not None:
                self._graph.replay()
            else:
                self._round()  # the same operations one by one, for devices without graphs

    def _load(self) -> None:
        """Set the graph's state to the training's."""
        self._slot.zero_()
        self._broken.zero_()
        self._weights.copy_(self._training.weights)
        for name, moment in self._training.moments.items():
            self._moments[name].copy_(moment)

    def _round(self) -> None:
        """The round in slot `_slot`, on the device alone."""
        session, field = self._session, self._field

        def now(slots: Tensor) -> Tensor:
            return slots.index_select(0, self._slot)[0]

        rows = self._federation.rows.index_select(0, now(self._hidden))  # (B·K,W)
        if self._coded:
            shards = rows.view(session.batch_size, session.num_shards, -1)  # (B,K,W)
            coded = encode_rows(session, now(self._keys), now(self._rows), shards, now(self._survivors))  # (M,R,B,W)
        else:
            coded = field.embed(rows).unsqueeze(1)  # (M,1,B·K,W)
        parts = coded_gradient_parts(session, field, self._weights, coded)
        if self._graphs:
            parts = [field.concat(parts, 2)]  # (M,R,P): small enough that fewer launches are worth a copy
        integers, exceeded = decode_sum(field, now(self._decoders), parts)  # (P,)
        noise = session.device_stream.uniform_at(Domain.ROUNDING, now(self._numbers), integers.numel())
        optimizer = self._training.optimizer
        taken = step(session, optimizer, self._weights, self._moments, integers, now(self._factors), noise)
        bounded = (taken.reach < _WEIGHT_BOUND) & (largest_magnitude(self._weights) < _WEIGHT_BOUND)  # after and before
        self._broken += exceeded + ~bounded
        self._weights.copy_(taken.weights)
        for name, moment in taken.moments.items():
            self._moments[name].copy_(moment)
        self._peaks.index_copy_(0, self._slot, taken.peak.view(1))
        self._norms.index_copy_(0, self._slot, taken.squared_norm.view(1))
        self._slot += 1
