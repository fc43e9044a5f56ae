"""What a hidden run has published so far, as every participant keeps it: where the run stands, and a chain of hashes.

Every mask, key and factor of a hop is made from a label, and every label contains the chain. So two clients make masks
that belong together only if they have seen the same published values, byte by byte, in a run with the same terms.

    genesis        chain = ω = H("dresfl hidden run" | run digest)
    hop            base  = chain,  or for a weight hop  H("dresfl hidden weights" | chain | ω | H(losses))
    label          H("dresfl hidden label" | base | round u32 | hop u16 | item u16 | purpose)
    published u    chain = H("dresfl hidden hop" | base | round u32 | hop u16 | H(u)),  and after a weight hop ω = chain

H is SHA-256, integers are little-endian. The run digest is a hash of the roster, the sharing, the verdict on the
dealers, the agreement, and the terms to which every client contributed fresh bytes (`run_digest`).

ω commits to the weight broadcast before it, with the chain at which that one was made, and so on back to the start.
A client that was away therefore needs the last two weight broadcasts and what was published after them: if its chain
then equals that of the others, all of it was true (`Ledger.resume`). If not, its masks fit nobody else's.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from dresfl.errors import MessageError

from .plan import HiddenPlan, Hop

NO_ITEM = 2**16 - 1  # in labels of what belongs to a whole hop
DIGEST = 32  # bytes

_PLACE = struct.Struct("<IHH")
_WHERE = struct.Struct("<IH")
_LOSS = struct.Struct("<q")


def run_digest(
    roster: bytes,
    sharing: bytes,
    excluded: Sequence[int],
    deviating: Sequence[int],
    agreement: bytes,
    terms: bytes,
    coins: bytes,
) -> bytes:
    """What names a run: 32 bytes each of roster, sharing, agreement, terms and coins, and the verdict on the dealers.

    terms: a digest of all that was settled when the clients met, the fresh bytes of every client among it. excluded,
    deviating: of the verdict. Two clients that were shown different verdicts are in different runs. coins: the common
    coins of a fresh sharing, which nobody knew when the terms were settled; zeros for one that is used again.
    """
    parts = roster, sharing, agreement, terms, coins
    if any(len(part) != DIGEST for part in parts):
        raise ValueError("digests have 32 bytes")
    verdict = b"".join(struct.pack(f"<H{len(clients)}H", len(clients), *clients) for clients in (excluded, deviating))
    return _hash(b"dresfl hidden run digest", *parts, verdict)


def _hash(*parts: bytes | memoryview) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.digest()


@final
@dataclass(frozen=True)
class Position:
    """Where a run stands: the next hop to be opened, and the chain of all that was published before it."""

    round_number: int
    hop: int
    chain: bytes

    @property
    def order(self) -> tuple[int, int]:
        """By which positions of one run are compared."""
        return self.round_number, self.hop


@final
@dataclass(frozen=True, eq=False)
class WeightBroadcast:
    """A weight hop that was published, with what its labels were made of."""

    position: Position
    weights_digest: bytes  # ω before it
    losses: tuple[int, ...]  # opened before it
    published: bytes


@final
@dataclass(frozen=True, eq=False)
class History:
    """What a client that was away is sent.

    weights: the last two weight broadcasts before the round at which the client goes on, or as many as there were.
    after: what was published after the last of them in its round: for each hop its hash, or all of it if it opened a
    loss. hops: all that was published in the rounds after that, in order: at most two rounds, the last not complete.
    """

    weights: tuple[WeightBroadcast, ...] = ()
    after: tuple[bytes, ...] = ()
    hops: tuple[bytes, ...] = ()


@final
class Ledger:
    """Where a run stands. It knows what may be published next, and nothing secret."""

    def __init__(self, plan: HiddenPlan, run: bytes) -> None:
        """run: the run digest."""
        self.plan = plan
        self.round_number = 0
        self.hop = 0
        self.chain = self.weights_digest = _hash(b"dresfl hidden run", run)
        self.losses: tuple[int, ...] = ()
        self.after_total = False  # whether the hop before opened sums alone
        self.final = False  # the next hop opens the final weights
        self.opened = bytes(DIGEST)  # SHA-256 of what opened them; zeros: nothing has
        self.ended = False

    @property
    def position(self) -> Position:
        return Position(self.round_number, self.hop, self.chain)

    @property
    def at_start(self) -> bool:
        """Whether nothing was published yet."""
        return self.round_number == self.hop == 0

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The hops of this round; after the last round: the one that opens the final weights."""
        return self.plan.hops(self.plan.rounds if self.final else self.round_number)

    @property
    def current(self) -> Hop:
        """The next hop."""
        return self.hops[self.hop]

    @property
    def _base(self) -> bytes:
        if not self.current.moves_weights:
            return self.chain
        losses = _hash(*(_LOSS.pack(loss) for loss in self.losses))
        return _hash(b"dresfl hidden weights", self.chain, self.weights_digest, losses)

    def label(self, purpose: bytes, item: int = NO_ITEM) -> bytes:
        """What masks, keys and factors of the next hop are made from, one label for each purpose and item."""
        place = _PLACE.pack(self.round_number, self.hop, item)
        return _hash(b"dresfl hidden label", self._base, place, purpose)

    def after_label(self, purpose: bytes) -> bytes:
        """A label of what belongs to the hop that was published last. It contains what was published."""
        return _hash(b"dresfl hidden after", self.chain, purpose)

    def broadcast(self, published: bytes) -> WeightBroadcast:
        """The weight hop that is published now, as a client that comes back will need it. Before `advance`."""
        return WeightBroadcast(self.position, self.weights_digest, self.losses, published)

    def advance(self, published: bytes, loss: int | None = None) -> None:
        """The next hop was published: these bytes; loss: the validation loss, if it opened one."""
        self._advance(_hash(published), loss)

    def _advance(self, digest: bytes, loss: int | None) -> None:
        hop = self.current
        if (loss is not None) != hop.opens_loss:
            raise ValueError("a loss comes with the hop that opens one, and with no other")
        where = _WHERE.pack(self.round_number, self.hop)
        self.chain = _hash(b"dresfl hidden hop", self._base, where, digest)
        if hop.moves_weights:
            self.weights_digest = self.chain
        if loss is not None:
            self.losses = (*self.losses, loss)
        self.after_total = hop.total
        self.hop += 1
        if self.hop == len(self.hops):
            self._end_round(digest)

    def _end_round(self, digest: bytes) -> None:
        self.round_number += 1
        self.hop = 0
        if self.final:
            self.ended, self.opened = True, digest
        elif self.round_number == self.plan.rounds or self.plan.stops(self.losses):
            self.final = True
            self.ended = self.plan.settings.trial  # a trial opens losses alone

    @classmethod
    def resume(
        cls, plan: HiddenPlan, run: bytes, weights: Sequence[WeightBroadcast], after: Iterable[bytes]
    ) -> "Ledger":
        """The ledger after the last of these weight broadcasts and what followed it in its round (`History`).

        MessageError if they do not fit together. Whether they are true shows when the chain meets that of others.
        """
        if not weights:
            return cls(plan, run)
        digest = weights[0].weights_digest
        for broadcast in weights:
            ledger = cls.before(plan, run, broadcast, digest)
            ledger.advance(broadcast.published)
            digest = ledger.weights_digest
        for part in after:
            if ledger.hop == 0:
                raise MessageError("more hops were named than the round has")
            if ledger.current.opens_loss:
                ledger.advance(part, plan.loss_of(part))
            else:
                ledger._advance(_digest_of(part), None)
        if ledger.hop:
            raise MessageError("fewer hops were named than the round has")
        return ledger

    @classmethod
    def before(cls, plan: HiddenPlan, run: bytes, broadcast: WeightBroadcast, digest: bytes) -> "Ledger":
        """The ledger just before a weight broadcast; digest: ω there."""
        ledger, position = cls(plan, run), broadcast.position
        if not 0 <= position.round_number < plan.rounds or len(position.chain) != DIGEST or len(digest) != DIGEST:
            raise MessageError(f"there is no weight broadcast in round {position.round_number}")
        hops = plan.hops(position.round_number)
        if not position.hop < len(hops) or not hops[position.hop].moves_weights:
            raise MessageError(f"hop {position.hop} of round {position.round_number} does not move the weights")
        ledger.round_number, ledger.hop, ledger.chain = position.round_number, position.hop, position.chain
        ledger.weights_digest, ledger.losses, ledger.after_total = digest, broadcast.losses, False
        return ledger


def _digest_of(part: bytes) -> bytes:
    if len(part) != DIGEST:
        raise MessageError(f"a hash of {len(part)} bytes came")
    return part
