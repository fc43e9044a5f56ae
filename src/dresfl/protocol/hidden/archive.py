"""What the coordinator keeps of the published hops: as much as a client that comes back can need, and no more.

    short history   the last two weight broadcasts before this round, and this round's hops so far
    long history    one round more, so that a client can compute the last round again. Then it has the check value of
                    that round's last hop, without which it would have to be silent in the next one

Of rounds further back there are only weight broadcasts.
"""

import hashlib
import struct
from dataclasses import dataclass, field
from typing import final

from dresfl.errors import MessageError

from .ledger import DIGEST, History, Ledger, Position, WeightBroadcast

_KEPT = 4  # rounds, the current one among them

_BROADCAST = struct.Struct(f"<IH{DIGEST}s{DIGEST}sII")
_COUNTS = struct.Struct("<BHH")
_LENGTH = struct.Struct("<I")


@final
@dataclass(eq=False)
class _Round:
    """The hops of one round that were published, in order, and the one among them that moved the weights."""

    number: int
    hops: list[bytes] = field(default_factory=list)
    opened_losses: list[bool] = field(default_factory=list)
    weights: WeightBroadcast | None = None
    weights_at: int = 0

    def after(self) -> list[bytes]:
        """What followed the weight hop: hashes, and all of a hop that opened a loss."""
        followed = zip(self.hops[self.weights_at + 1 :], self.opened_losses[self.weights_at + 1 :], strict=True)
        return [hop if loss else hashlib.sha256(hop).digest() for hop, loss in followed]


@final
class Archive:
    """The published hops of the last rounds."""

    def __init__(self) -> None:
        self._rounds: list[_Round] = []

    def note(self, ledger: Ledger, published: bytes) -> None:
        """The ledger's next hop is published: before `Ledger.advance`."""
        if not self._rounds or self._rounds[-1].number != ledger.round_number:
            self._rounds = [*self._rounds[1 - _KEPT :], _Round(ledger.round_number)]
        current = self._rounds[-1]
        if ledger.current.moves_weights:
            current.weights, current.weights_at = ledger.broadcast(published), len(current.hops)
        current.hops.append(published)
        current.opened_losses.append(ledger.current.opens_loss)

    def history(self, ledger: Ledger, *, long: bool = False, least_hops: int = 0) -> History:
        """What a client needs that was away, when the run stands where this ledger stands.

        least_hops: so many are played again at least, if the round before has them. Seeds of earlier ones are gone.
        """
        playing = ledger.round_number - (1 if long and ledger.round_number else 0)  # the first round to play again
        earliest = max(0, ledger.round_number - (2 if ledger.ended else 1))  # the end begins no round
        if self._num_hops(playing) < least_hops:
            playing = min(playing, earliest)
        before = [past for past in self._rounds if playing - 2 <= past.number < playing]
        weights = tuple(past.weights for past in before if past.weights is not None)
        after = tuple(before[-1].after()) if before else ()
        hops = tuple(hop for past in self._rounds if past.number >= playing for hop in past.hops)
        return History(weights, after, hops)

    def _num_hops(self, first: int) -> int:
        return sum(len(past.hops) for past in self._rounds if past.number >= first)


# -- bytes ---------------------------------------------------------------------------------------------------------


def encode_broadcast(broadcast: WeightBroadcast) -> bytes:
    """round u32 | hop u16 | chain 32 | ω 32 | losses u32 | length u32 | losses i64 each | published."""
    position, losses = broadcast.position, broadcast.losses
    sizes = len(losses), len(broadcast.published)
    head = _BROADCAST.pack(*position.order, position.chain, broadcast.weights_digest, *sizes)
    return head + struct.pack(f"<{len(losses)}q", *losses) + broadcast.published


def encode_history(history: History) -> bytes:
    """weights u8 | after u16 | hops u16 | the broadcasts | for each of the others: length u32, bytes."""
    others = (*history.after, *history.hops)
    head = _COUNTS.pack(len(history.weights), len(history.after), len(history.hops))
    broadcasts = [encode_broadcast(broadcast) for broadcast in history.weights]
    return b"".join((head, *broadcasts, *(_LENGTH.pack(len(part)) + part for part in others)))


def decode_history(data: bytes | memoryview) -> History:
    """What `encode_history` made. MessageError for anything else; whether it is true shows later."""
    reader = _Reader(memoryview(data))
    num_weights, num_after, num_hops = reader.unpack(_COUNTS)
    weights = tuple(_broadcast(reader) for _ in range(num_weights))
    others = [reader.take(*reader.unpack(_LENGTH)) for _ in range(num_after + num_hops)]
    if reader.left:
        raise MessageError(f"a history has {reader.left} bytes too many")
    return History(weights, tuple(others[:num_after]), tuple(others[num_after:]))


def _broadcast(reader: "_Reader") -> WeightBroadcast:
    round_number, hop, chain, digest, num_losses, size = reader.unpack(_BROADCAST)
    losses = reader.unpack(struct.Struct(f"<{num_losses}q"))
    return WeightBroadcast(Position(round_number, hop, chain), digest, losses, reader.take(size))


class _Reader:
    """Takes bytes apart from the front."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    @property
    def left(self) -> int:
        return len(self._data)

    def unpack(self, form: struct.Struct) -> tuple:  # type: ignore[type-arg]
        return form.unpack(self.take(form.size))

    def take(self, size: int) -> bytes:
        if len(self._data) < size:
            raise MessageError("a history ends too early")
        part, self._data = self._data[:size], self._data[size:]
        return bytes(part)
