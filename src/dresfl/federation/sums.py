"""A sum over clients, as it is played after the last round: the coordinator's part, and the work of a client.

    counting --everybody has dealt, or time is up--> signing --more than (N+T)/2 have signed--> adding --> done
                                                       |  too few dealt, signed or agree within the deadline: done, too

1. Every client shares its vector, sealed for each receiver, through the coordinator (Counted).
2. The coordinator proposes those who have dealt as the set of dealers, and sends each client its shares (DealersOf).
   A client that can open all of them notes the set on its disk, for good, and signs it (SetSigned).
3. When enough clients have signed, the coordinator shows all their signatures (Release). A receiver checks them, and
   only then shows what it added (Added).
4. 2T+1 that agree give the totals, and everybody hears them (TotalsOf).

`protocol/sums.py` says why nobody can get at differences within a sum. For the same reason a client

- deals one vector and signs one set of dealers in a run, ever, whatever its sums are called;
- signs no set that differs from one it signed in an earlier run on the same sharing by one to T+1 clients.

A client that signed a set, and is sent another one later, since the coordinator was started again, answers with the set
that it signed. The coordinator then proposes that one. A client keeps nothing but its notes: what else it needs comes
with each message, so that each may meet a new process of it. Who comes back deals again, and hears what it missed. A
sum holds nobody up: if too few take part, there are no totals. A client that seals shares which do not open can have it
that there are none, and nothing else.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn, final

from torch import Tensor

from dresfl.errors import HeadroomAlarm, IdentityError, MessageError, Refused, TooFewAnswers
from dresfl.field import SecretSeed
from dresfl.protocol import (
    NotedSum,
    SumNotes,
    SumPlan,
    Totals,
    add_shares,
    deal_vector,
    decode_totals,
    vector_tag,
)
from dresfl.sealing import OVERHEAD, Identity, Member, Roster, SealContext, open_sealed, seal

from .actions import Action, Send, log
from .messages import Added, Counted, DealersOf, Message, Release, SetSigned, TotalsOf

_PURPOSE = "sum"


# -- the coordinator's part --------------------------------------------------------------------------------------------


@final
class SumOpening:
    """One sum at the coordinator: shares in, a set of dealers, signatures, sums, totals out."""

    def __init__(self, plan: SumPlan, roster: Roster, deadline: float) -> None:
        """deadline: seconds that each of the three steps waits for those who are away."""
        self._plan, self._members, self._deadline = plan, roster.members, deadline
        self._there: set[int] = set()  # clients that have counted, and can be asked now
        self._dealt: dict[int, dict[int, bytes]] = {}  # dealer -> receiver -> sealed share
        self._dealers: tuple[int, ...] = ()  # the set that is proposed; empty: none so far
        self._adopted = False  # it is one that a client had signed before
        self._signatures: dict[int, bytes] = {}
        self._released = False
        self._added: dict[int, Tensor] = {}
        self._until: float | None = None
        self.totals: Totals | None = None
        self.done = False

    @property
    def wake_at(self) -> float | None:
        """When `tick` has to be called at the latest; None: not at all."""
        return None if self.done else self._until

    def begin(self, now: float) -> None:
        """The rounds are over: clients deal as soon as they have the model and have counted."""
        self._until = now + self._deadline

    def left(self, client: int) -> None:
        """A client's connection has ended."""
        self._there.discard(client)

    def received(self, client: int, message: Message, now: float) -> list[Action]:
        """A message of the sum has come. MessageError if it is not one that may come."""
        if not isinstance(message, Counted | SetSigned | Added) or message.sum_id != self._plan.sum_id:
            raise MessageError(f"{type(message).__name__} came, which is not of this sum")
        if isinstance(message, Counted):
            return self._counted(client, message, now)
        if self.done:
            return []  # it is late, and has heard so
        if isinstance(message, SetSigned):
            return self._signed(client, message, now)
        return self._has_added(client, message)

    def tick(self, now: float) -> list[Action]:
        """Time has passed: go on with those who are there, or do without totals."""
        if self.done or self._until is None or now < self._until:
            return []
        if not self._dealers and len(self._dealt) >= self._plan.fewest_dealers:
            return self._propose(tuple(sorted(self._dealt)), now)
        return self._end("too few clients took part")

    # -- 1: shares -----------------------------------------------------------------------------------------------

    def _counted(self, client: int, message: Counted, now: float) -> list[Action]:
        if [receiver for receiver, _ in message.sealed] != list(range(self._plan.num_clients)):
            raise MessageError("a Counted message must have a share for every client")
        if any(len(sealed) != self._plan.packed_bytes + OVERHEAD for _, sealed in message.sealed):
            raise MessageError("a sealed share of a vector has another size than it must have")
        self._there.add(client)
        if self.done:
            return [Send(client, self._result())]
        if client not in self._dealt:  # what came first may have been sent on; another one would be the same
            self._dealt[client] = {receiver: bytes(sealed) for receiver, sealed in message.sealed}
        if not self._dealers:
            everybody = len(self._dealt) == self._plan.num_clients
            return self._propose(tuple(sorted(self._dealt)), now) if everybody else []
        missed: list[Message] = [self._proposal(client), *([self._release(client)] if self._released else [])]
        return [Send(client, part) for part in missed]

    # -- 2: the set ----------------------------------------------------------------------------------------------

    def _propose(self, dealers: tuple[int, ...], now: float) -> list[Action]:
        self._dealers, self._signatures, self._until = dealers, {}, now + self._deadline
        line = log("sum", name=self._plan.name, dealers=list(dealers))
        return [line, *(Send(client, self._proposal(client)) for client in sorted(self._there))]

    def _proposal(self, client: int) -> DealersOf:
        return DealersOf(self._plan.sum_id, self._dealers, self._shares(client))

    def _shares(self, client: int) -> tuple[tuple[int, bytes], ...]:
        return tuple((dealer, self._dealt[dealer][client]) for dealer in self._dealers)

    def _signed(self, client: int, message: SetSigned, now: float) -> list[Action]:
        if not self._dealers:
            raise MessageError("a set of dealers was signed before one was proposed")
        self._plan.check_dealers(message.dealers)
        check_set(self._members[client], self._plan, message.dealers, message.signature)
        if message.dealers != self._dealers:
            known = all(dealer in self._dealt for dealer in message.dealers)
            if self._adopted or self._released or not known:
                return []
            self._adopted = True  # once: else clients that sign anything would keep everybody busy
            return self._propose(message.dealers, now)
        self._signatures[client] = message.signature
        if self._released or len(self._signatures) < self._plan.quorum:
            return []
        self._released, self._until = True, now + self._deadline
        return [Send(other, self._release(other)) for other in sorted(self._there)]

    def _release(self, client: int) -> Release:
        signatures = tuple(sorted(self._signatures.items()))
        return Release(self._plan.sum_id, self._dealers, signatures, self._shares(client))

    # -- 3: what was added ---------------------------------------------------------------------------------------

    def _has_added(self, client: int, message: Added) -> list[Action]:
        if not self._released:
            raise MessageError("a client shows what it added before enough have signed")
        self._added[client] = self._plan.field.unpack(message.residues, (self._plan.count,))
        try:
            self.totals = decode_totals(self._plan, self._dealers, self._added)
        except TooFewAnswers:
            return []  # with one more it may do
        except HeadroomAlarm as error:
            return self._end(str(error))
        liars = [log("liar", client=liar, sum=self._plan.name) for liar in self.totals.lying]
        return [*liars, *self._end("")]

    # -- 4: the end ----------------------------------------------------------------------------------------------

    def _end(self, reason: str) -> list[Action]:
        self.done = True
        lines = [log("no totals", name=self._plan.name, reason=reason)] if self.totals is None else []
        return [*lines, *(Send(client, self._result()) for client in sorted(self._there))]

    def _result(self) -> TotalsOf:
        if self.totals is None:
            return TotalsOf(self._plan.sum_id, (), ())
        return TotalsOf(self._plan.sum_id, self.totals.dealers, self.totals.values)


# -- a client's work ---------------------------------------------------------------------------------------------------


def check_set(member: Member, plan: SumPlan, dealers: Sequence[int], signature: bytes) -> None:
    """MessageError unless this member has signed this set of dealers for this sum."""
    try:
        member.check_signature(_PURPOSE, plan.set_digest(dealers), signature)
    except IdentityError as error:
        raise MessageError(f"{member.name} has not signed this set of dealers") from error


@final
class SumWork:
    """One client's work for one sum. All that it keeps is what it has noted."""

    def __init__(
        self, plan: SumPlan, index: int, identity: Identity, roster: Roster, secret: SecretSeed, notes: SumNotes
    ) -> None:
        self._plan, self._index, self._identity, self._members = plan, index, identity, roster.members
        self._secret, self._notes = secret, notes

    def __repr__(self) -> str:
        return f"SumWork({self._plan.name!r}, client {self._index}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("shares are not pickled")

    def deal(self, vector: Tensor) -> Counted:
        """Share the own vector (count,) among all. Refused if another vector, or another sum, was dealt in this run."""
        plan, shares = self._plan, deal_vector(self._plan, self._secret, vector)  # (M,N,count)
        tag, noted = vector_tag(plan, self._secret, vector), self._noted()
        if noted.vector and noted.vector != tag:
            raise Refused(
                "this client counts otherwise than before, for the same run",
                "its rows have changed, or another model is shown to it",
            )
        if not noted.vector:
            self._notes.note_sum(plan.session_id, replace(noted, vector=tag))
        sealed = [(receiver, self._sealed(receiver, shares[:, receiver])) for receiver in range(plan.num_clients)]
        return Counted(plan.sum_id, tuple(sealed))

    def _sealed(self, receiver: int, share: Tensor) -> bytes:
        context = self._context(self._index, receiver)
        return seal(self._identity, self._members[receiver], context, self._plan.field.pack(share))

    def _context(self, dealer: int, receiver: int) -> SealContext:
        return SealContext(self._plan.sum_id, dealer, receiver, 0, 1)

    def _noted(self) -> NotedSum:
        """What was noted of this sum. Refused if there was another one in this run."""
        noted = self._notes.sums().get(self._plan.session_id, NotedSum(self._plan.digest, model=self._plan.model))
        if noted.plan != self._plan.digest:
            raise Refused("another sum was taken in this run", "there is one sum in a run")
        return noted

    def sign(self, message: DealersOf) -> SetSigned:
        """Open the shares of a set of dealers, and sign the set. If another one was signed before, it is that one.

        MessageError if a share is missing or does not open: then nothing is signed.
        """
        plan, dealers = self._plan, message.dealers
        if message.sum_id != plan.sum_id:
            raise MessageError("shares of another sum came")
        plan.check_dealers(dealers)
        noted = self._noted()
        if not noted.vector:
            raise MessageError("this client has not counted yet")
        self._added(dealers, message.sealed)
        if not noted.dealers:
            self._check_differences(dealers)
            noted = replace(noted, dealers=dealers)
            self._notes.note_sum(plan.session_id, noted)
        signature = self._identity.sign(_PURPOSE, plan.set_digest(noted.dealers))
        return SetSigned(plan.sum_id, signature, noted.dealers)

    def _check_differences(self, dealers: tuple[int, ...]) -> None:
        """Refuse a set that differs too little from one of an earlier run: the same clients count much the same."""
        for session_id, noted in self._notes.sums().items():
            differ = set(dealers) ^ set(noted.dealers)
            if noted.dealers and session_id != self._plan.session_id and 0 < len(differ) < self._plan.fewest_dealers:
                raise MessageError(
                    f"clients {sorted(differ)} would be the difference to an earlier sum",
                    "let the same clients take part as in the earlier run, or share anew",
                )

    def _added(self, dealers: tuple[int, ...], sealed: Sequence[tuple[int, bytes | memoryview]]) -> Tensor:
        """What was dealt to this client, added up. MessageError if it is not all there, or does not open."""
        if tuple(dealer for dealer, _ in sealed) != dealers:
            raise MessageError("the shares that came are not those of the set of dealers")
        shares = []
        for dealer, envelope in sealed:
            context = self._context(dealer, self._index)
            opened = open_sealed(self._identity, self._members[dealer], context, envelope)
            shares.append(self._plan.field.unpack(opened, (self._plan.count,)))
        return add_shares(self._plan, shares)

    def add(self, message: Release) -> Added:
        """Show what was added of a set of dealers, once enough clients have signed it. Refused for any other set."""
        plan, dealers = self._plan, message.dealers
        if message.sum_id != plan.sum_id:
            raise MessageError("signatures of another sum came")
        clients = [client for client, _ in message.signatures]
        if clients != sorted(set(clients)) or not set(clients) <= set(range(plan.num_clients)):
            raise MessageError("signatures must be of different clients")
        for client, signature in message.signatures:
            check_set(self._members[client], plan, dealers, signature)
        if len(clients) < plan.quorum:
            raise MessageError(f"{len(clients)} clients have signed this set of dealers, {plan.quorum} must")
        signed = self._noted().dealers
        if not signed:
            raise MessageError("this client has signed no set of dealers")
        if signed != dealers:
            raise Refused("another set of dealers was signed for this sum", "somebody tries to get at differences")
        return Added(plan.sum_id, plan.field.pack(self._added(dealers, message.sealed)))

    def totals(self, message: TotalsOf) -> Totals | None:
        """What came of the sum, as the coordinator says; None: nothing."""
        if message.sum_id != self._plan.sum_id or len(message.values) != (self._plan.count if message.dealers else 0):
            raise MessageError("totals of another sum came")
        return Totals(message.dealers, message.values) if message.dealers else None
