"""Rounds in blocks on a GPU: what does not depend on the weights is prepared for a block, the rest is one CUDA graph.

Per block: the rows of every round's batch and their dealers' keys, the survivors and their decoding coefficients, the
optimiser's factors. Per round, replayed without the host looking on: gather, expand the masks, encode, forward,
backward, decode, lift, step. Engine `direct` leaves the masks and the code out: its one "answer" is the sum itself.

A graph cannot branch, so it takes two things for granted: no headroom alarm, and weights below a fixed bound. Both are
counted on the device. If a block broke either, its results are thrown away and its rounds run one by one, where an
alarm refuses its round as it should.
"""

from typing import Literal, Protocol, final

import torch
from torch import Tensor

from dresfl.field import Domain
from dresfl.kernels import fused_kernels
from dresfl.optimizers import State
from dresfl.protocol import BatchRows, RoundRecord, Server, Session, expand_masks, stepped

from .dropout import Dropouts

Engine = Literal["coded", "direct"]

_ROUNDS = 64
_GRAPH_BYTES = 2**33  # of answers: beyond, launches cost nothing beside the work, and a graph would hold the memory
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
    """Plays a block of rounds at a time on the session's GPU, bit for bit as the federation would one by one."""

    def __init__(self, session: Session, server: Server, federation: Federation) -> None:
        field = session.field.with_public_bound(_WEIGHT_BOUND)
        self._session, self._server, self._federation = session, server, federation
        self._field = field
        self._encoding = session.code.encoding_matrix
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
        self._factors = buffer(_ROUNDS, server.optimizer.num_factors)
        # state and outputs
        self._slot = buffer(1, dtype=torch.int64)
        self._weights = server.weights.clone()
        self._moments: State = {}
        self._peaks, self._norms, self._broken = buffer(_ROUNDS), buffer(_ROUNDS), buffer(1)

    def run(self, limit: int) -> list[tuple[RoundRecord, int]]:
        """Up to `limit` rounds; each one's record, and how many clients answered."""
        server, needed = self._server, self._session.recovery_threshold
        first = server.round_number
        count = min(limit, _ROUNDS, server.rounds - first)
        answering = self._federation.dropouts.answering_in(range(first, first + count))
        live = [first + i for i, answers in enumerate(answering) if len(answers) >= needed]
        survivors = {first + i: tuple(sorted(answers[:needed])) for i, answers in enumerate(answering)}
        if live:
            self._prepare(live, [survivors[number] for number in live])
            self._replay(len(live))
            if bool(self._broken.item()):
                return [self._federation.run_round() for _ in range(count)]
            server.adopt(self._weights.clone(), {name: m.clone() for name, m in self._moments.items()}, len(live))
        peaks, norms = iter(self._peaks.tolist()), iter(self._norms.tolist())
        records: list[tuple[RoundRecord, int]] = []
        for i, answers in enumerate(answering):
            number = first + i
            if len(answers) < needed:
                record = server.skip()
            else:
                record = server.close(stepped(number, survivors[number], next(peaks), next(norms)))
            records.append((record, len(answers)))
        return records

    def _prepare(self, rounds: list[int], survivors: list[tuple[int, ...]]) -> None:
        """Fill the slots of the graph's inputs for these rounds."""
        session, server, count = self._session, self._server, len(rounds)
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
        steps = server.steps
        factors = [
            server.optimizer.factors(server.optimizer.rate(number, server.rounds), steps + 1 + i)
            for i, number in enumerate(rounds)
        ]
        self._factors[:count] = torch.tensor(factors, dtype=torch.float64).to(session.device)

    def _replay(self, count: int) -> None:
        if not self._moments:
            self._moments = {name: moment.clone() for name, moment in self._server.moments.items()}
        graph = self._graph or (self._capture() if self._graphs and self._weights.is_cuda else None)
        self._load()
        for _ in range(count):
            if graph is not None:
                graph.replay()
            else:
                self._round()  # the same operations one by one, for devices without graphs

    def _load(self) -> None:
        """Set the graph's state to the server's."""
        self._slot.zero_()
        self._broken.zero_()
        self._weights.copy_(self._server.weights)
        for name, moment in self._server.moments.items():
            self._moments[name].copy_(moment)

    def _capture(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries set themselves up on a first call, which capture would forbid
                self._load()
                self._round()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._round()
        return self._graph

    def _round(self) -> None:
        """The round in slot `_slot`, on the device alone."""
        session, field, size = self._session, self._field, self._session.network.input_size

        def now(slots: Tensor) -> Tensor:
            return slots.index_select(0, self._slot)[0]

        rows = self._federation.rows.index_select(0, now(self._hidden))  # (B·K,W)
        if self._coded:
            coded = self._encode(rows, now(self._keys), now(self._rows), now(self._survivors))  # (M,R,B,W)
        else:
            coded = field.embed(rows).unsqueeze(1)  # (M,1,B·K,W)
        parts = session.network.gradient_parts(field, self._weights, coded[..., :size], coded[..., size:])
        if self._graphs:
            parts = [field.concat(parts, 2)]  # (M,R,P): small enough that fewer launches are worth a copy
        decoded = [field.decode_lift(now(self._decoders), part) for part in parts]
        integers = torch.cat([values for values, _ in decoded])  # (P,)
        exceeded = torch.stack([count for _, count in decoded]).sum()
        noise = session.device_stream.uniform_at(Domain.ROUNDING, now(self._numbers), integers.numel())
        weights, moments, (peak, norm, reach) = self._server.step(
            self._weights, self._moments, integers, now(self._factors), noise
        )
        bounded = (reach < _WEIGHT_BOUND) & (self._weights.abs().max() < _WEIGHT_BOUND)  # after the step, and before
        self._broken += exceeded + ~bounded
        self._weights.copy_(weights)
        for name, moment in moments.items():
            self._moments[name].copy_(moment)
        self._peaks.index_copy_(0, self._slot, peak.view(1))
        self._norms.index_copy_(0, self._slot, norm.view(1))
        self._slot += 1

    def _encode(self, rows: Tensor, keys: Tensor, numbers: Tensor, survivors: Tensor) -> Tensor:
        """The shares of these rows (B·K,W) that the R survivors hold: (M,R,B,W)."""
        session, field = self._session, self._field
        shards = rows.view(session.batch_size, session.num_shards, -1).swapaxes(0, 1)  # (K,B,W)
        hidden = torch.cat((field.embed(shards), expand_masks(session, keys, numbers)), 1)  # (M,K+T,B,W)
        matrix = self._encoding.index_select(1, survivors)  # (M,R,K+T)
        coded: Tensor = field.matmul(matrix, hidden.flatten(2))  # (M,R,B·W)
        return coded.view(len(field.moduli), -1, session.batch_size, session.row_width)
