"""The coordinator over Flower: decides, whenever something arrives, what each idle node is sent next.

A node has one message at a time: its next one is made when it is free, from the newest weights. So a slow node skips
rounds instead of working through old ones, and is never ejected. One that has not replied within the deadline may be
dead or slow; it is sent something again if Flower lists it, and its old reply, if it comes after all, still counts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, final

from dresfl.errors import IdentityError, MessageError, Refused, UsageError
from dresfl.federation import NO_NONCE, Agreement, Introduction, Terms, parcel_bytes
from dresfl.protocol import Answer, RoundRecord, Session, Task, Training, num_slices
from dresfl.sealing import Identity, Roster

from .letters import (
    Kind,
    Place,
    Reply,
    Request,
    decode_hello,
    decode_kept,
    decode_parcels,
    encode_parcels,
    encode_places,
)
from .post import Arrival, Failure, Post
from .relay import MESSAGE_BYTES, Relay

_LOOK_SECONDS = 1.0  # between two looks at who is online
_SAY_SECONDS = 15.0  # between two lines about what is waited for
_FRAME_BYTES = 4096  # more than any letter has beside its payload


class Log(Protocol):
    """Writes one event. Called as log("joined", client=3)."""

    def __call__(self, event: str, **fields: str | int | float | bool | list[int] | list[str] | None) -> None: ...


@final
@dataclass(frozen=True)
class Settings:
    """How long the coordinator waits, and what it allows itself."""

    grace: float = 0.0  # seconds for stragglers after the R-th answer
    deadline: float = 120.0  # seconds until a silent node is sent its message again, or a short round is skipped
    on_shortage: Literal["retry", "skip"] = "retry"
    linger: float = 30.0  # seconds to wait at the end for clients that have not heard of it
    pause: float = 5.0  # seconds before a node is asked again after it failed; six times as many if it is a stranger
    memory: int = 256 * 2**20  # bytes of sealed slices that wait for their receivers

    def __post_init__(self) -> None:
        if min(self.grace, self.linger, self.pause) < 0 or not self.deadline > 0 or self.memory < 1:
            raise UsageError("grace, linger and pause must not be negative, deadline and memory must be positive")

    @property
    def ttl(self) -> float:
        """Seconds after which a message is given up for good: much more than the deadline."""
        return max(3600.0, 10 * self.deadline)


@final
@dataclass
class _Node:
    """A SuperNode as it is known here. `client` is None until it has said hello, with a signature."""

    client: int | None = None
    ticket: int | None = None
    kind: Kind = Kind.HELLO
    free_after: float = 0.0  # the deadline of the message under way
    idle_until: float = 0.0
    told: bool = False


@final
@dataclass
class Counters:
    """What happened so far."""

    late: int = 0
    invalid: int = 0
    failures: int = 0
    shortages: int = 0
    last_answered: dict[int, int] = field(default_factory=dict)  # client -> round


@final
class Coordinator:
    """Greets nodes, settles the terms, relays sealed shares, plays the rounds."""

    def __init__(
        self,
        settings: Settings,
        agreement: Agreement,
        identity: Identity,
        roster: Roster,
        folder: Path,
        make_server: Callable[[Session], Training],
        watch: Callable[[RoundRecord, int], None],
        log: Log,
    ) -> None:
        """make_server: a session's Training, restored if there is a checkpoint. watch: called after every round."""
        if identity.member != roster.server:
            raise UsageError(f"{identity.name} is not the coordinator of this roster", "check [keys]")
        self._settings, self._agreement, self._identity, self._roster = settings, agreement, identity, roster
        self._make_server, self._watch, self._log = make_server, watch, log
        self._terms_path = folder / "terms.json"
        self._nodes: dict[int, _Node] = {}
        self._seats: dict[int, int] = {}  # client -> its newest node
        self._online: set[int] = set()
        self._greeted: dict[int, Introduction] = {}
        self._terms: Terms | None = None
        self._server: Training | None = None
        self._relay: Relay | None = None
        self._task: tuple[int, bytes] = (-1, b"")
        self._answered: set[int] = set()
        self._round_began = self._next_round = 0.0
        self._most_bytes = _FRAME_BYTES
        self._looked = self._said = 0.0
        self._playing = False
        self.counters = Counters()
        if self._terms_path.exists():
            terms = Terms.load(self._terms_path, agreement.num_clients)
            self._settle(terms, terms.session(agreement))

    # -- the whole run ---------------------------------------------------------------------------------------

    def run(self, post: Post) -> Training:
        """Play until the run is complete; return the Training with its final weights."""
        try:
            while self._server is None or not self._server.done:
                self._step(post)
            self._close(post, self._server)
        finally:
            post.close()
        return self._server

    def _step(self, post: Post) -> None:
        """Look who is there, send what is due, take what arrives."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._look(post.nodes(self._online))
        self._overdue(now)
        self._begin_rounds(now)
        self._send(post, now)
        patience = min(_LOOK_SECONDS, self._settings.deadline / 4)
        graced = self._next_round - now
        arrival = post.next(min(patience, graced) if graced > 0 else patience)
        if arrival is not None:
            self._take(arrival)
        else:
            self._say(now)

    def _look(self, online: set[int]) -> None:
        for number in online - self._nodes.keys():
            self._nodes[number] = _Node()
        for number in online - self._online:
            node = self._nodes[number]
            if node.client is not None:
                self._log("back", node=str(number), client=node.client)
                node.ticket = None  # what it was sent before it went is lost with its process
                self._forget(node.client)
        for number in self._online - online:
            self._log("left", node=str(number), client=self._nodes[number].client)
        self._online = online

    def _forget(self, client: int) -> None:
        """A client was away: what it holds has to be asked again."""
        if self._relay is not None:
            self._relay.forget(client)

    def _overdue(self, now: float) -> None:
        for number, node in self._nodes.items():
            if node.ticket is not None and now >= node.free_after:
                self._log("no reply", node=str(number), client=node.client, to=node.kind.name)
                self._release(node)

    def _release(self, node: _Node) -> None:
        node.ticket = None
        if node.kind is Kind.DEAL and node.client is not None and self._relay is not None:
            self._relay.unask(node.client)

    def _say(self, now: float) -> None:
        if now - self._said < _SAY_SECONDS:
            return
        self._said = now
        if self._terms is None:
            missing = [i for i in range(self._agreement.num_clients) if i not in self._greeted]
            self._log("waiting", missing=missing, online=len(self._online))
        elif not self._playing:
            self._log("sharing", ready=self.ready, needed=self._session.recovery_threshold)

    # -- who is there ----------------------------------------------------------------------------------------

    @property
    def _session(self) -> Session:
        if self._server is None:
            raise RuntimeError("the terms are not settled")
        return self._server.session

    @property
    def ready(self) -> list[int]:
        """The clients that hold every share, as far as is known."""
        if self._relay is None:
            return []
        return [client for client in sorted(self._seats) if self._relay.ready(client)]

    def _settle(self, terms: Terms, session: Session) -> None:
        """Go on with the session that the terms give."""
        self._terms, self._server = terms, self._make_server(session)
        self._relay = Relay(session, self._settings.memory)
        answer = Answer.size(session.field, session.network.num_parameters)
        parcel = max(parcel_bytes(session, dealer, 0) for dealer in range(session.num_clients))
        account = 6 * sum(num_slices(session, dealer) for dealer in range(session.num_clients))
        self._most_bytes = _FRAME_BYTES + max(answer, parcel, MESSAGE_BYTES + 2**20, account + MESSAGE_BYTES)

    # -- what is sent ----------------------------------------------------------------------------------------

    def _send(self, post: Post, now: float) -> None:
        letters: list[tuple[int, str, bytes]] = []
        for number in sorted(self._online):
            node = self._nodes[number]
            if node.ticket is None and now >= node.idle_until and (letter := self._due(node, now)) is not None:
                node.kind, data = letter
                letters.append((number, node.kind.name.lower(), data))
        for (number, _, _), ticket in zip(letters, post.send(letters) if letters else [], strict=True):
            self._nodes[number].ticket = ticket
            self._nodes[number].free_after = now + self._settings.deadline

    def _due(self, node: _Node, now: float) -> tuple[Kind, bytes] | None:
        """The next letter for an idle node, if there is anything for it."""
        client, relay, server = node.client, self._relay, self._server
        if client is None:
            return Kind.HELLO, self._letter(Kind.HELLO, self._agreement.encode())
        if relay is None or server is None or self._nodes.get(self._seats[client]) is not node:
            return None
        if server.done:
            done = Task(server.rounds, server.weights.cpu())
            return None if node.told else (Kind.DONE, self._letter(Kind.DONE, done.encode(server.session)))
        if not relay.knows(client):
            return Kind.KEEP, self._letter(Kind.KEEP, b"")
        wanted = self._playing and client not in self._answered and now >= self._next_round
        if wanted and relay.ready(client):
            return Kind.ANSWER, self._round_letter(server)
        if places := relay.ask(client):
            return Kind.DEAL, self._letter(Kind.DEAL, encode_places(places))
        if parcels := relay.due(client):
            return Kind.KEEP, self._letter(Kind.KEEP, encode_parcels(parcels))
        return None

    def _letter(self, kind: Kind, body: bytes) -> bytes:
        terms = None if kind is Kind.HELLO else self._terms
        return Request(kind, terms, body).encode(self._identity, self._roster)

    def _round_letter(self, server: Training) -> bytes:
        """The round's request: the same bytes for all, so that Flower stores them once."""
        if self._task[0] != server.round_number:
            body = server.task().encode(server.session)
            self._task = server.round_number, self._letter(Kind.ANSWER, body)
        return self._task[1]

    # -- what arrives ----------------------------------------------------------------------------------------

    def _take(self, arrival: Arrival) -> None:
        node = self._nodes[arrival.node]
        current = node.ticket == arrival.ticket
        try:
            if isinstance(arrival.reply, Failure):
                self._failed(arrival.node, node, arrival.reply.reason, current)
            else:
                self._read(node, arrival)
        except (MessageError, Refused, IdentityError) as error:  # it has no effect on anybody else
            self.counters.invalid += 1
            self._log("refused", node=str(arrival.node), client=node.client, reason=str(error))
            node.idle_until = time.monotonic() + self._settings.pause * (6 if node.client is None else 1)
        if current:
            self._release(node)

    def _failed(self, number: int, node: _Node, reason: str, current: bool) -> None:
        self.counters.failures += 1
        if current:
            self._log("failed", node=str(number), client=node.client, to=node.kind.name, reason=reason[:300])
            node.idle_until = time.monotonic() + self._settings.pause
            if node.client is not None:
                self._forget(node.client)

    def _read(self, node: _Node, arrival: Arrival) -> None:
        if isinstance(arrival.reply, Failure):
            raise TypeError("a failure is not read")
        reply = Reply.decode(arrival.reply, self._roster, arrival.request, self._most_bytes)
        if reply.refused:
            if node.client is not None and reply.kind in (Kind.ANSWER, Kind.DEAL):
                self._forget(reply.client)
            raise Refused(f"client {reply.client} refuses {reply.kind.name}: {reply.text}")
        if reply.kind is Kind.HELLO:
            self._hello(arrival.node, node, reply.client, decode_hello(reply.body))
            return
        if reply.client != node.client:
            raise MessageError(f"the node of client {node.client} sent a reply of client {reply.client}")
        if self._relay is None:
            raise MessageError("a reply came before the terms")
        if reply.kind is Kind.KEEP:
            request = Request.decode(arrival.request, self._roster)
            if request.kind is not Kind.KEEP:
                raise MessageError(f"an account of slices came in reply to {request.kind.name}")
            self._kept(self._relay, reply, {parcel[:2] for parcel in decode_parcels(request.body)})
        elif reply.kind is Kind.DEAL:
            self._relay.dealt(reply.client, decode_parcels(reply.body))
        elif reply.kind is Kind.ANSWER:
            self._answer(reply)
        else:
            node.told = True

    def _hello(self, number: int, node: _Node, client: int, introduction: Introduction) -> None:
        if self._terms is not None:
            self._terms.check_client(client, introduction)
        else:
            self._agreement.check_row_count(introduction.rows)
        node.client = client
        self._greeted[client], self._seats[client] = introduction, number
        self._log("joined", node=str(number), client=client, name=self._roster.members[client].name)
        if self._terms is not None:
            self._forget(client)
        elif len(self._greeted) == self._agreement.num_clients:
            introductions = [self._greeted[i] for i in range(self._agreement.num_clients)]
            terms = Terms.settle(introductions)
            session = terms.session(self._agreement)  # raises here if it cannot be: such terms never reach the disk
            terms.save(self._terms_path)  # before anybody hears of them
            self._settle(terms, session)
            self._log("terms settled", sharing="fresh" if terms.fresh else "reused", rows=sum(terms.rows))
            for i, found in enumerate(introductions):
                if terms.fresh and self._relay is not None and found.held_nonce == NO_NONCE:
                    self._relay.lacks_everything(i)

    def _kept(self, relay: Relay, reply: Reply, carried: set[Place]) -> None:
        """Take a client's account. After a full look it is the whole truth; else it is of what was carried to it."""
        missing, rejected = decode_kept(reply.body)
        unseen = set(carried)
        for dealer, number, _ in rejected:  # all of them before any counts
            if (dealer, number) not in unseen:
                raise MessageError(
                    f"client {reply.client} rejects slice {number} of client {dealer}, which it was not sent"
                )
            unseen.discard((dealer, number))
        for dealer, number, reason in rejected:
            again = relay.rejected(reply.client, dealer, number)
            self._log(
                "slice rejected",
                dealer=dealer,
                receiver=reply.client,
                slice=number,
                reason=reason,
                then="asked for again" if again else "given up",
            )
        before = relay.ready(reply.client)
        relay.declare(reply.client, {*missing, *(relay.lacking(reply.client) - carried if carried else ())})
        if relay.ready(reply.client) and not before:
            self._log("ready", client=reply.client, ready=len(self.ready))

    # -- rounds ----------------------------------------------------------------------------------------------

    def _begin_rounds(self, now: float) -> None:
        server = self._server
        if server is None or server.done:
            return
        if not self._playing and len(self.ready) >= self._session.recovery_threshold:
            self._playing, self._round_began, self._answered = True, now, set()
            self._log("rounds", first=server.round_number, rounds=server.rounds, ready=self.ready)
        if self._playing and now - self._round_began >= self._settings.deadline:
            self._shortage(server, now)

    def _shortage(self, server: Training, now: float) -> None:
        self.counters.shortages += 1
        self._log(
            "shortage",
            round=server.round_number,
            answered=sorted(self._answered),
            needed=self._session.recovery_threshold,
            then=self._settings.on_shortage,
        )
        if self._settings.on_shortage == "skip":
            self._end_round(server.skip(), now)
        self._round_began = now  # with "retry" nodes are sent the same round again as they fall free

    def _answer(self, reply: Reply) -> None:
        server = self._server
        if server is None or server.done:
            return
        answer = Answer.decode_from(reply.client, reply.body, server.session)
        if answer.round_number != server.round_number or answer.client in self._answered:
            self.counters.late += 1
            return
        record = server.receive(answer)
        self._answered.add(answer.client)
        self.counters.last_answered[answer.client] = answer.round_number
        if record is not None:
            self._end_round(record, time.monotonic())

    def _end_round(self, record: RoundRecord, now: float) -> None:
        """Write it down; only then may anybody see what follows from it."""
        self._watch(record, len(self._answered))
        self._answered = set()
        self._round_began = self._next_round = now + self._settings.grace

    # -- the end ---------------------------------------------------------------------------------------------

    def _close(self, post: Post, server: Training) -> None:
        """Tell every client that is there the final weights; wait a while for their word."""
        until = time.monotonic() + self._settings.linger
        while (now := time.monotonic()) < until and self._untold():
            self._look(post.nodes(self._online))
            self._overdue(now)
            self._send(post, now)
            arrival = post.next(min(_LOOK_SECONDS, until - now))
            if arrival is not None:
                self._take(arrival)
        if untold := self._untold():
            self._log("ended without", clients=untold)

    def _untold(self) -> list[int]:
        return [
            client
            for client, number in sorted(self._seats.items())
            if number in self._online and not self._nodes[number].told
        ]
