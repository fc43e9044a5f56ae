"""A simulated run whose residue channels are spread over ranks: every rank computes its own, and all take each step."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import NoReturn, final

import torch
from torch import Tensor

from dresfl import __version__
from dresfl.errors import UsageError
from dresfl.field import SecretSeed
from dresfl.kernels.cpu.sharing import kernels_alone_share
from dresfl.model import weights_sha256
from dresfl.protocol import (
    RoundRecord,
    Session,
    Training,
    answers_of,
    coded_gradient_parts,
    direct_sum,
    mask_rows,
)

from .blocks import Engine
from .driver import clients_together
from .dropout import Dropouts
from .plain_rows import PlainRows
from .ranks import Ranks

_CHECKED = 1000  # rounds after which ranks compare their weights


@final
class ChannelFederation:
    """N clients and the coordinator's training, in this rank's channels. The weights are those of `LocalFederation`.

    Every rank holds the rows of all clients. Each has its own secret seeds for the masks of its channels.
    """

    def __init__(
        self,
        session: Session,
        training: Training,
        data: Sequence[tuple[Tensor, Tensor]],
        dropouts: Dropouts,
        engine: Engine,
        ranks: Ranks,
    ) -> None:
        """session: with all channels. data: each client's integer inputs (m,F) and targets (m,C)."""
        if session.hidden is not None:
            raise UsageError("the hidden mode is simulated in one process", "start it without torchrun")
        self.session, self.training, self.dropouts, self.engine = session, training, dropouts, engine
        self._ranks = ranks
        self._part = dataclasses.replace(session, channels=ranks.channels(len(session.field.moduli)))
        self._plain = PlainRows(session, data)
        secrets = [SecretSeed.fresh() for _ in range(session.num_clients)]
        self._keys = torch.stack([secret.mask_key(session.sharing_id) for secret in secrets])
        ranks.check_same(self._digest(), "run", "give all ranks the same version, configuration and data set")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ChannelFederation holds its clients' secrets and is not pickled")

    def run_rounds(self, limit: int) -> list[tuple[RoundRecord, int]]:
        """Play a round, whatever the limit; return its record and how many clients answered."""
        with kernels_alone_share():
            return [self.run_round()]

    def run_round(self) -> tuple[RoundRecord, int]:
        """Play one round; return its record and how many clients answered."""
        answering = self.dropouts.answering(self.training.round_number)
        needed = self.session.answers_needed
        record = self._step(answering[:needed]) if len(answering) >= needed else self.training.skip()
        if self.training.done or self.training.round_number % _CHECKED == 0:
            self._check_weights()
        return record, len(answering)

    def _step(self, answered: list[int]) -> RoundRecord:
        survivors = tuple(sorted(answered)[: self.session.recovery_threshold])  # all are honest here
        total = self._coded(survivors) if self.engine == "coded" else self._direct()  # (M_r,P)
        return self.training.take_step(*self._ranks.lift(self.session.field, total), survivors)

    def _check_weights(self) -> None:
        """Refuse to go on if ranks have different weights: then one of them computes wrongly."""
        digest = bytes.fromhex(weights_sha256(self.training.weights))
        hint = f"look for a faulty machine; checkpoints of the last {_CHECKED} rounds may hold its fault: start over"
        self._ranks.check_same(digest, "weight", hint)

    def _direct(self) -> Tensor:
        part, number = self._part, self.training.round_number
        rows = self._plain.values[self._plain.hidden_in(part.batch_rows(number))]  # (s·B,K,W)
        return direct_sum(part, number, self.training.weights, rows)  # (M_r,P)

    def _coded(self, survivors: Sequence[int]) -> Tensor:
        """The decoded sum of the survivors' answers, in this rank's channels."""
        part, field = self._part, self._part.field
        batch = part.batch_rows(self.training.round_number)
        shards = self._plain.values[self._plain.hidden_in(batch)]  # (B,K,W)
        masked = mask_rows(part, self._keys[batch.dealers], batch.rows, shards)  # (M_r,K,B,W), (M_r,T,B,W)
        coefficients = part.code.sum_decoder(survivors)  # (M_r,R)
        group = clients_together(part)
        total: Tensor | None = None
        for start in range(0, len(survivors), group):
            factors = coefficients[:, start : start + group].unsqueeze(1)  # (M_r,1,n)
            answers = self._answers(*masked, survivors[start : start + group])
            found = field.concat([field.matmul(factors, piece)[:, 0] for piece in answers], 1)  # (M_r,P)
            total = found if total is None else field.add(total, found)
        if total is None:
            raise RuntimeError("nobody answered")
        return total

    def _answers(self, shards: Tensor, masks: Tensor, clients: Sequence[int]) -> list[Tensor]:
        """What these clients answer (M_r,n,P), in runs of columns."""
        part, weights = self._part, self.training.weights
        if torch.device(part.device).type == "cpu" or part.local is not None:
            return [answers_of(part, self.training.round_number, weights, shards, masks, clients)]
        return coded_gradient_parts(part, part.field, weights, part.code.encode(shards, masks, clients))

    def _digest(self) -> bytes:
        """Of everything that must be alike on all ranks. Rows enter by the sums of rows and of columns."""
        values, training = self._plain.values, self.training
        run = self.session.session_id.hex(), training.rounds, training.optimizer, self.engine, self.dropouts
        digest = hashlib.sha256(repr((__version__, *run)).encode())
        for axis in (0, 1):
            digest.update(values.sum(axis, dtype=torch.int64).cpu().numpy().tobytes())
        return digest.digest()
