"""Check C at the coordinator: it gathers the clients' check values of a hop, sealed, and sends them to all.

It cannot read them. It sends them when all have come that are waited for, or a moment after enough have, and once more
with each that comes later. A client needs R + T that agree, its own among them, and goes on with nothing less. If a
liar was among the first, it waits for more.
"""

import struct
from collections.abc import Collection
from typing import final

from dresfl.errors import MessageError
from dresfl.protocol import Session
from dresfl.protocol.hidden.check import repetitions
from dresfl.protocol.hidden.ledger import Position
from dresfl.sealing import Identity, Member, Roster

from .messages import Confirmations, Confirmed

_PURPOSE = "confirmed"
_PLACE = struct.Struct("<IH")
_MOMENT = 0.5  # seconds, at least, for the others after enough have come


def _text(run: bytes, position: Position, sealed: bytes | memoryview) -> bytes:
    return run + _PLACE.pack(*position.order) + position.chain + sealed


def sign_confirmed(identity: Identity, run: bytes, position: Position, sealed: bytes) -> Confirmed:
    """A client's word on the hop that was published before this position."""
    signature = identity.sign(_PURPOSE, _text(run, position, sealed))
    return Confirmed(*position.order, position.chain, signature, sealed)


def check_confirmed(
    member: Member, run: bytes, position: Position, sealed: bytes | memoryview, signature: bytes
) -> None:
    """Refuse what a client has not signed. IdentityError."""
    member.check_signature(_PURPOSE, _text(run, position, sealed), signature)


@final
class Confirming:
    """The check values of one hop, on their way to all clients."""

    def __init__(self, session: Session, roster: Roster, position: Position, grace: float) -> None:
        self._session, self._roster, self.position, self._grace = session, roster, position, max(grace, _MOMENT)
        plan, field = session.hidden_plan, session.field
        count = len(field.moduli) * repetitions(field.moduli, plan.tries, confirmed=True)
        self._size = count * field.residue_bytes
        self._values: dict[int, Confirmed] = {}
        self.release_at: float | None = None
        self.released: Confirmations | None = None

    def add(self, client: int, message: Confirmed, asked: Collection[int], now: float) -> bool:
        """A client's value; whether they are to be sent now. asked: the clients that are waited for.

        MessageError if it has another length than all have: nobody could read the others with it.
        """
        if len(message.sealed) != self._size:
            raise MessageError(f"a check value of {len(message.sealed)} bytes came, it has {self._size}")
        check_confirmed(
            self._roster.members[client], self._session.run, self.position, message.sealed, message.signature
        )
        if self.released is not None and client in self._values:
            return False
        self._values[client] = message
        if self.released is not None:
            return True
        needed = self._session.recovery_threshold + self._session.max_colluders
        if len(self._values) < needed:
            return False
        if self.release_at is None:
            self.release_at = now + self._grace
        return set(asked) <= self._values.keys()

    def has(self, client: int) -> bool:
        """Whether a client's value has come."""
        return client in self._values

    def is_due(self, now: float) -> bool:
        return self.release_at is not None and now >= self.release_at

    def release(self) -> Confirmations:
        """All values that have come."""
        values = tuple((c, m.signature, bytes(m.sealed)) for c, m in sorted(self._values.items()))
        self.released, self.release_at = Confirmations(self.position, values), None
        return self.released
