"""The coordinator's side of a hop: it collects answers until enough of them agree, and publishes what they open.

Enough: R + T answers, and their shares of the key, lie on polynomials of degree D, and the key has its tag. (R alone if
the agreement says that clients are honest.) With fewer, a single lying client could have a garbled hop published and
read others' rows off the next one. The answers of up to A liars are found and left out if there are R + 2A.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, final

import numpy as np
import torch
from torch import Tensor

from dresfl.coding import locate_errors
from dresfl.errors import HeadroomAlarm, MessageError
from dresfl.field import FACTOR_BITS, Factors, unpacked
from dresfl.masking import pad

from ..random_factors import largest_probability, least_combinations
from ..session import Session
from .answers import HopAnswer, pad_key, pad_label, tag_of
from .check import KEY_WORDS
from .ledger import Ledger
from .plan import checked_loss
from .published import num_values, opened_integers, split, unpack_published


@final
@dataclass(frozen=True, eq=False)
class Opened:
    """A hop that was opened: what is published, who answered, and whose answers were left out as false."""

    published: bytes
    survivors: tuple[int, ...]
    liars: tuple[int, ...]


@final
class HopOpening:
    """One hop at the coordinator. Its factors are secret, and it is used once."""

    def __init__(self, session: Session, ledger: Ledger) -> None:
        self._session, self._plan = session, session.hidden_plan
        self._hop, self._position, self._label = ledger.current, ledger.position, ledger.label(b"pad")
        self._answers: dict[int, HopAnswer] = {}
        self._tried = 0

    def __repr__(self) -> str:
        return f"HopOpening({self._position.order}, {len(self._answers)} answers)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("answers are not pickled")

    @property
    def answered(self) -> tuple[int, ...]:
        """The clients whose answers have come."""
        return tuple(sorted(self._answers))

    @property
    def stuck(self) -> bool:
        """Whether enough answers have come, and they do not agree."""
        return bool(self._tried)

    def add(self, answer: HopAnswer) -> Opened | None:
        """Take an answer. When enough agree: what is to be published. An answer with another chain counts as none."""
        if answer.position != self._position:
            return None
        if answer.client in self._answers:
            raise MessageError(f"client {answer.client} answered a hop twice")
        self._answers[answer.client] = answer
        if len(self._answers) < self._plan.answers_needed or len(self._answers) <= self._tried:
            return None
        opened = self._open()
        self._tried = 0 if opened is not None else len(self._answers)
        return opened

    # -- opening ---------------------------------------------------------------------------------------------------

    def _open(self) -> Opened | None:
        """Open with the answers that agree; None if too few do."""
        session, code = self._session, self._session.code
        threshold, clients = session.recovery_threshold, sorted(self._answers)
        agreeing = threshold if self._plan.settings.honest_clients else threshold + session.max_colluders
        spare = len(clients) - agreeing
        if spare < 0:
            return None
        keys = {client: self._answers[client].key for client in clients}
        false_keys = self._outliers(keys, spare)
        if false_keys is None:
            return None
        honest = [client for client in clients if client not in false_keys]
        first = honest[:threshold]
        shares = torch.stack([keys[client] for client in first], 1)  # (M,R,2·KEY_WORDS)
        each = code.decode(shares[:, :, :KEY_WORDS].contiguous(), first)  # (M,K,KEY_WORDS)
        last = code.decode_sum(shares[:, :, KEY_WORDS:].contiguous(), first)  # (M,KEY_WORDS)
        key = pad_key(session.field, session.field.concat((each, last.unsqueeze(1)), 1))
        tag = tag_of(key, self._label)
        honest = [client for client in honest if self._answers[client].tag == tag]
        if len(honest) < agreeing:
            return None
        values = {client: self._unpadded(key, client) for client in honest}
        false_values = self._outliers(self._sums(values), len(honest) - agreeing)
        if false_values is None:
            return None
        survivors = [client for client in honest if client not in false_values]
        if len(survivors) < agreeing:
            return None
        liars = tuple(client for client in clients if client not in survivors)
        return Opened(self._decode(values, survivors[:threshold]), tuple(survivors), liars)

    def _unpadded(self, key: bytes, client: int) -> Tensor:
        """A client's answer (M,E) without its pad."""
        field, residues = self._session.field, unpacked(self._answers[client].residues)
        padding = pad(field, key, pad_label(self._label, client), residues.shape[1])
        return field.sub(residues.to(field.device, field.dtype), padding)

    def _sums(self, values: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Sums of each client's values with secret factors, (M,t): they lie on polynomials if the values do."""
        field = self._session.field
        count = least_combinations(self._plan.num_hops, largest_probability(field.moduli[0]))
        words = np.frombuffer(secrets.token_bytes(4 * count * num_values(self._hop)), dtype=np.uint32)
        factors: Factors = (words >> (32 - FACTOR_BITS)).astype(np.int32).reshape(count, -1)
        sums = {client: field.weighted_sums(residues, factors) for client, residues in values.items()}
        return {client: torch.from_numpy(np.asarray(found)) for client, found in sums.items()}

    def _outliers(self, values: Mapping[int, Tensor], spare: int) -> tuple[int, ...] | None:
        """The clients whose values (M,t) are not on the polynomial of the others; None: too many are not."""
        session, clients = self._session, sorted(values)
        points = [session.code.client_points[client] for client in clients]
        table = torch.stack([values[client] for client in clients], 2).to(torch.int64).numpy()  # (M,t,n)
        most = min(spare, (len(clients) - session.recovery_threshold) // 2)
        found = locate_errors(session.field.moduli, points, table, session.recovery_threshold, most)
        return None if found is None else tuple(clients[place] for place in found)

    def _decode(self, values: Mapping[int, Tensor], survivors: list[int]) -> bytes:
        """What is published: u at every β, or its sum, packed."""
        code, field = self._session.code, self._session.field
        matrix = code.sum_decoder(survivors).unsqueeze(1) if self._hop.total else code.decoding_matrix(survivors)
        return field.pack(field.combine(matrix, [values[client] for client in survivors]))  # (M,K,E) or (M,1,E)


def loss_of(session: Session, ledger: Ledger, published: bytes) -> int | None:
    """The validation loss that the next hop of a ledger opens with these bytes; None if it opens none.

    HeadroomAlarm if it is no loss.
    """
    hop = ledger.current
    if not hop.opens_loss:
        return None
    residues = unpack_published(session, hop, published)
    return checked_loss(opened_integers(session.field, split(hop, residues)[0])[0])


def opened_weights(session: Session, ledger: Ledger, published: bytes) -> list[int]:
    """The integers that the final hop opens."""
    if not ledger.final:
        raise HeadroomAlarm("weights are opened at the end alone")
    residues = unpack_published(session, ledger.current, published)
    return opened_integers(session.field, split(ledger.current, residues)[0])
