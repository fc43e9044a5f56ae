"""All clients in one process: the same protocol, with every client of a round in one product per layer."""

from collections.abc import Sequence
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
    coded_answer,
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
        batch = self.session.batch_rows(self.training.round_number)
        rows, field = self.rows[self.hidden_rows(batch)], self.session.field  # (B,K,W)
        if self.session.local is None:
            residues = field.embed(rows.flatten(0, 1)).unsqueeze(1)  # (M,1,B·K,W)
        else:  # each shard takes its own steps
            residues = field.embed(rows.swapaxes(0, 1))  # (M,K,s·B,W)
        answers = coded_answer(self.session, self.training.round_number, self.training.weights, residues)  # (M,·,P)
        total = answers[:, 0] if self.session.local is None else field.sum(answers, 1)
        return self.training.apply(total, tuple(survivors))

    def _coded(self, survivors: list[int]) -> RoundRecord:
        session, number = self.session, self.training.round_number
        batch = session.batch_rows(number)
        shards = self.rows[self.hidden_rows(batch)]  # (B,K,W)
        masked = mask_rows(session, self.keys[batch.dealers], batch.rows, shards)  # (M,K,B,W), (M,T,B,W)
        per_client = len(session.field.moduli) * batch.rows.numel() * session.row_width * 8
        if session.local is not None:  # weights, their move and its gradient are each client's own
            per_client += len(session.field.moduli) * 6 * session.network.num_parameters * 8
        group = max(1, _GROUP_BYTES // per_client)
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
