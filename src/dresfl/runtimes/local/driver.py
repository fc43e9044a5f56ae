"""All clients in one process: the same protocol, with every client of a round in one product per layer."""

from collections.abc import Iterator, Sequence
from typing import NoReturn, final

import torch
from torch import Tensor

from dresfl.field import SecretSeed
from dresfl.kernels.cpu.sharing import kernels_alone_share
from dresfl.model import weights_sha256
from dresfl.protocol import (
    Answer,
    BatchRows,
    RoundRecord,
    Session,
    Training,
    answers_of,
    coded_gradient,
    decode_part,
    direct_sum,
    encoded_gradient,
    fresh_blinding,
    mask_rows,
    opening_label,
)
from dresfl.storage.transcript import Recording

from .blocks import Engine, RoundBlocks
from .dropout import Dropouts
from .plain_rows import PlainRows

# Clients are taken in groups whose coded rows stay below this, so that memory does not grow with N.
_GROUP_BYTES = 2**28
# If a round's answers take more than this, they are added up as they are computed, in groups of so many bytes.
_ANSWERS_BYTES, _SUMMED_BYTES = 2**28, 2**25
_MANY_ROWS, _CODED_BYTES = 8, 2**27  # so many shards and masks are encoded for clients of so many bytes at a time


@final
class LocalFederation:
    """N clients and the coordinator's training in one process.

    Engine `coded` runs the whole protocol. Shares are never stored: masks expand from each client's secret seed by
    row, so only the rows of the round's batch are encoded, for the clients whose answers are needed.
    Engine `direct` computes the same integers on the uncoded rows. Both skip rounds with too few answers.
    """

    def __init__(
        self,
        session: Session,
        training: Training,
        data: Sequence[tuple[Tensor, Tensor]],
        dropouts: Dropouts,
        engine: Engine,
        recording: Recording | None = None,
        blinded: bool = False,
    ) -> None:
        """data: each client's integer inputs (m,F) and targets (m,C).

        blinded: answers are blinded as between real participants. The weights are the same, and rounds take longer.
        recording: writes down what participants see. All clients are sent all weights, as if nobody lost a connection.
        """
        self.session = session
        self.training = training
        self.dropouts = dropouts
        self.engine: Engine = engine
        self._recording = recording
        self._plain = PlainRows(session, data)
        self.rows = self._plain.values  # (m,W)
        secrets = [SecretSeed.fresh() for _ in range(session.num_clients)]
        self.keys = torch.stack([secret.mask_key(session.sharing_id) for secret in secrets])
        self._blinding = fresh_blinding(session) if blinded else None
        in_blocks = torch.device(session.device).type == "cuda" and recording is None and not blinded
        in_blocks = in_blocks and session.local is None  # a graph has one rate for all rounds
        self._blocks = RoundBlocks(session, training, self) if in_blocks else None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a LocalFederation holds its clients' secrets and is not pickled")

    def run_rounds(self, limit: int) -> list[tuple[RoundRecord, int]]:
        """Play up to `limit` rounds; return each one's record and how many clients answered.

        One round at a time on a CPU, or if they are recorded or blinded; a block of them on a GPU.
        """
        if self._blocks is not None:
            return self._blocks.run(limit)
        with kernels_alone_share():
            return [self.run_round()]

    def run_round(self) -> tuple[RoundRecord, int]:
        """Play one round; return its record and how many clients answered."""
        answering = self.dropouts.answering(self.training.round_number)
        if self._recording is not None:
            self._recording.task(self.training.task())
        if len(answering) < self.session.answers_needed:
            return self.training.skip(), len(answering)
        needed = sorted(answering[: self.session.answers_needed])
        decoded = needed[: self.session.recovery_threshold]  # all are honest here
        record = self._coded(needed) if self.engine == "coded" else self._direct(decoded)
        return record, len(answering)

    def hidden_rows(self, batch: BatchRows) -> Tensor:
        """Which rows the coded rows (...) of a batch hide: (...,K), as places in the rows of all clients."""
        return self._plain.hidden_in(batch)

    def _direct(self, survivors: list[int]) -> RoundRecord:
        number = self.training.round_number
        rows = self.rows[self.hidden_rows(self.session.batch_rows(number))]  # (s·B,K,W)
        return self.training.apply(direct_sum(self.session, number, self.training.weights, rows), tuple(survivors))

    def _coded(self, survivors: list[int]) -> RoundRecord:
        session, number = self.session, self.training.round_number
        batch = session.batch_rows(number)
        shards = self.rows[self.hidden_rows(batch)]  # (B,K,W)
        masked = mask_rows(session, self.keys[batch.dealers], batch.rows, shards)  # (M,K,B,W), (M,T,B,W)
        answer_bytes = len(session.field.moduli) * session.network.num_parameters * 8
        if len(survivors) * answer_bytes > _ANSWERS_BYTES and self._answers_unseen:
            return self._summed(survivors, masked, max(1, _SUMMED_BYTES // answer_bytes))
        group = clients_together(session)
        published = bytes.fromhex(weights_sha256(self.training.weights)) if self._blinding is not None else b""
        for start in range(0, len(survivors), group):
            clients = survivors[start : start + group]
            answers = answers_of(session, number, self.training.weights, *masked, clients)  # (M,n,P)
            for place, client in enumerate(clients):
                residues = answers[:, place]  # (M,P)
                if self._blinding is not None:
                    label = opening_label(session, number, published)
                    residues = session.field.add(residues, self._blinding[client].values(label, residues.shape[1]))
                answer = Answer(number, client, residues)
                if self._recording is not None:
                    self._recording.answer(answer)
                record = self.training.receive(answer)
                if record is not None:
                    return record
        raise RuntimeError("enough answers did not close the round")

    @property
    def _answers_unseen(self) -> bool:
        """Whether nobody looks at single answers of one step: they are not recorded, blinded or checked for lies."""
        seen = self._recording is not None or self._blinding is not None or self.session.parameters.max_liars > 0
        return not seen and self.session.local is None

    def _summed(self, survivors: list[int], masked: tuple[Tensor, Tensor], group: int) -> RoundRecord:
        """The same round in the memory of a group's answers: each group is decoded as far as it goes."""
        session, field = self.session, self.session.field
        coefficients = session.code.sum_decoder(survivors)  # (M,R)
        total = field.embed(torch.zeros(session.network.num_parameters, dtype=torch.int64))  # (M,P)
        done = 0
        for gradients in self._gradients(survivors, masked, group):  # (M,n,P)
            now = coefficients[:, done : done + gradients.shape[1]]
            total = field.add(total, decode_part(field, now, gradients))
            done += gradients.shape[1]
        return self.training.apply(total, tuple(survivors))

    def _gradients(self, survivors: list[int], masked: tuple[Tensor, Tensor], group: int) -> Iterator[Tensor]:
        """The answers of the survivors, in groups: (M,n,P). Many shards and masks are encoded for many at a time."""
        session, weights = self.session, self.training.weights
        if session.num_shards + session.max_colluders < _MANY_ROWS:
            for start in range(0, len(survivors), group):
                yield encoded_gradient(session, weights, *masked, survivors[start : start + group])
            return
        per_client = len(session.field.moduli) * session.batch_size * session.row_width * 8
        block = max(1, _CODED_BYTES // per_client)
        for first in range(0, len(survivors), block):
            coded = session.code.encode(*masked, survivors[first : first + block])  # (M,n,B,W)
            for start in range(0, coded.shape[1], group):
                yield coded_gradient(session, weights, coded[:, start : start + group])


def clients_together(session: Session) -> int:
    """How many clients' answers are computed together."""
    values = session.parameters.local_steps * session.batch_size * session.row_width
    if session.local is not None:  # weights, their move and its gradient are each client's own
        values += 6 * session.network.num_parameters
    return max(1, _GROUP_BYTES // (len(session.field.moduli) * values * session.field.dtype.itemsize))
