"""The coordinator over Flower: bundles to idle nodes, and what they reply to the machine, which decides everything.

A node has one bundle at a time. Its next one is made when it is idle, from the newest messages; so a slow node skips
rounds and works through no old ones. A node that fails, or says nothing until the deadline, counts as disconnected, and
is greeted anew if Flower still lists it.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import final

from dresfl.errors import IdentityError, MessageError, Refused
from dresfl.federation import Terms, Windows
from dresfl.federation.actions import Close, Finish, Send, SendSlice
from dresfl.federation.messages import ANY_ROUND, Answered, Begin, Confirmed, Declined, HopAnswered, Message, Wait
from dresfl.runtimes.coordinator_host import CoordinatorHost, OnNetwork
from dresfl.runtimes.log import Log
from dresfl.sealing import Identity, Roster

from .bundles import Reply, Request
from .post import Arrival, Failure, Post

_BUNDLE_BYTES = 4 * 2**20  # about as many are sent in one bundle
_LOOK_SECONDS = 1.0  # between two looks at who is online
_STRANGER = 6  # times as long a pause for a node that has not begun
_ANSWERS = (Answered.KIND, HopAnswered.KIND, Confirmed.KIND)
WINDOWS = Windows(asked_bytes=_BUNDLE_BYTES, sent_bytes=_BUNDLE_BYTES)


@final
@dataclass
class _Node:
    """A SuperNode as it is known here. `client` is None until it has said Hello, with a signature."""

    client: int | None = None
    begun: bool = False
    ticket: int | None = None  # of the bundle under way
    overdue_at: float = 0.0
    idle_until: float = 0.0
    outbox: deque[Message | SendSlice] = field(default_factory=deque)


@final
class FlowerCoordinator:
    """Greets nodes, and moves messages between them and the machine."""

    def __init__(
        self, host: CoordinatorHost, identity: Identity, roster: Roster, log: Log, deadline: float, pause: float = 5.0
    ) -> None:
        """deadline: seconds until a silent node counts as disconnected. pause: seconds until it is greeted anew."""
        self._host, self._identity, self._roster, self._log = host, identity, roster, log
        self._deadline, self._pause = deadline, pause
        self._most_bytes = 2 * host.most_bytes + 4 * _BUNDLE_BYTES  # of a reply: slices, an answer, and small messages
        self._nodes: dict[int, _Node] = {}
        self._node_of: dict[int, int] = {}  # client -> the newest node that it has
        self._online: set[int] = set()
        self._look_at = 0.0
        self._terms: Terms | None = None
        self._last: tuple[list[bytes], bytes] = [], b""  # the messages of the last bundle, and its bytes

    def run(self, post: Post) -> None:
        """Play until the run is over."""
        try:
            self._carry_out(self._host.start())
            while not self._host.machine.ended:
                self._step(post)
        finally:
            post.close()

    def _step(self, post: Post) -> None:
        """Look who is there, send what is due, take what arrives."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._look(post.nodes(self._online))
        for number, node in list(self._nodes.items()):
            if node.ticket is not None and now >= node.overdue_at:
                self._failed(number, f"no reply within {self._deadline:g} seconds")
        self._carry_out(self._host.tick())
        self._send(post, now)
        patience = self._host.patience
        patience = min(_LOOK_SECONDS, self._deadline / 4, _LOOK_SECONDS if patience is None else patience)
        arrival = post.next(patience)
        while arrival is not None:  # all that is there: fewer bundles follow from it
            self._take(arrival)
            arrival = post.next(0.0)

    # -- who is there ----------------------------------------------------------------------------------------

    def _look(self, online: set[int]) -> None:
        for number in online - self._nodes.keys():
            self._nodes[number] = _Node()
        for number in self._online - online:
            self._forget(number)
        self._online = online

    def _forget(self, number: int, pause: float = 0.0) -> None:
        """Nothing of what a node was sent or was to be sent counts any more: after a pause it is greeted anew."""
        client = self._nodes[number].client
        self._nodes[number] = _Node(idle_until=time.monotonic() + pause)
        if client is not None and self._node_of.get(client) == number:
            del self._node_of[client]
            for other, older in self._nodes.items():
                if older.client == client:  # it may take the place of this one again
                    self._nodes[other] = _Node()
            self._carry_out(self._host.disconnected(client))

    def _failed(self, number: int, reason: str) -> None:
        self._log("failed", node=str(number), client=self._nodes[number].client, reason=reason[:300])
        self._forget(number, self._pause)

    def _refuse(self, number: int) -> None:
        self._forget(number, self._pause * (1 if self._nodes[number].begun else _STRANGER))

    # -- what the machine wants ------------------------------------------------------------------------------

    def _carry_out(self, actions: list[OnNetwork]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._put(action.client, action.message)
                case SendSlice():
                    self._put(action.receiver, action)
                case Finish() if action.error is not None:
                    raise action.error
                case Close() if action.client in self._node_of:
                    number = self._node_of[action.client]
                    self._nodes[number].outbox.clear()
                    if action.error is not None:
                        self._refuse(number)

    def _put(self, client: int, item: Message | SendSlice) -> None:
        """A newer message of a kind takes the place of an older one, if it may. Wait is for those who have to wait."""
        if client not in self._node_of or isinstance(item, Wait):
            return
        node = self._nodes[self._node_of[client]]
        if isinstance(item, Begin):
            self._terms, node.begun = item.terms, True
        if isinstance(item, Message) and item.newest_only:
            node.outbox = deque(other for other in node.outbox if type(other) is not type(item))
        node.outbox.append(item)

    # -- what is sent ----------------------------------------------------------------------------------------

    def _send(self, post: Post, now: float) -> None:
        bundles: list[tuple[int, bytes]] = []
        for number in sorted(self._online):
            node = self._nodes[number]
            if node.ticket is None and now >= node.idle_until and (bundle := self._bundle(node)):
                bundles.append((number, bundle))
        for (number, _), ticket in zip(bundles, post.send(bundles) if bundles else [], strict=True):
            self._nodes[number].ticket, self._nodes[number].overdue_at = ticket, now + self._deadline

    def _bundle(self, node: _Node) -> bytes:
        """The next bundle for an idle node; empty if there is nothing to say."""
        if node.client is None:
            return Request().encode(self._identity, self._roster)
        messages: list[bytes] = []
        while node.outbox and sum(map(len, messages)) < _BUNDLE_BYTES:
            item = node.outbox.popleft()
            message = self._host.stored_slice(item) if isinstance(item, SendSlice) else item
            if message is not None:
                messages.append(message.encode())
            elif isinstance(item, SendSlice):
                self._carry_out(self._host.slice_lost(item))
        if (
            messages and messages != self._last[0]
        ):  # who is sent the same is sent the same bytes: Flower stores them once
            terms = None if messages[0][0] == Begin.KIND else self._terms
            self._last = messages, Request(tuple(messages), terms).encode(self._identity, self._roster)
        return self._last[1] if messages else b""

    # -- what arrives ----------------------------------------------------------------------------------------

    def _take(self, arrival: Arrival) -> None:
        number, node = arrival.node, self._nodes[arrival.node]
        current = node.ticket == arrival.ticket
        if current:
            node.ticket = None
        if isinstance(arrival.reply, Failure):
            if current:
                self._failed(number, arrival.reply.reason)
            return
        try:
            reply = Reply.decode(arrival.reply, self._roster, arrival.request, self._most_bytes)
            if node.client not in (None, reply.client):
                raise MessageError(f"the node of client {node.client} sent a reply of client {reply.client}")
            if reply.refusal is not None:
                raise Refused(f"client {reply.client} refuses: {reply.refusal}")
        except (MessageError, Refused, IdentityError) as error:
            self._log("refused", node=str(number), client=node.client, reason=str(error), hint=error.hint)
            if current:
                if node.begun and node.client is not None and isinstance(error, Refused):
                    declined = Declined(ANY_ROUND, str(error))
                    self._carry_out(self._host.received(node.client, declined.encode()))
                self._refuse(number)
            return
        if current and node.client is None:
            self._greeted(number, reply.client)
        elif not current or self._node_of.get(reply.client) != number:  # of an earlier connection: only answers count
            reply = Reply(reply.client, tuple(data for data in reply.messages if data[0] in _ANSWERS))
        for data in reply.messages:
            self._carry_out(self._host.received(reply.client, data))

    def _greeted(self, number: int, client: int) -> None:
        """A node is known by its client's signature. An older node of the same client has no more to do."""
        if client in self._node_of:
            self._nodes[self._node_of[client]].outbox.clear()
        self._nodes[number].client, self._node_of[client] = client, number
        self._carry_out(self._host.connected(client))
