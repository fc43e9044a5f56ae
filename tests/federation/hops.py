"""The hidden rounds alone, step by step: a coordinator's `HiddenRounds` and the `HiddenWork` of every client.

Nothing is random here and nothing takes time: messages go through in order, and a test says who is silent or dies when.
"""

import dataclasses
from collections import deque
from collections.abc import Callable

from dresfl.federation.actions import Action, Finish, Log, Send, StoreBroadcast
from dresfl.federation.coordinator_state import Counters
from dresfl.federation.hidden_answering import HopResult
from dresfl.federation.hidden_rounds import HiddenRounds
from dresfl.federation.hidden_work import HiddenWork
from dresfl.federation.messages import Confirmations, Message, Opened, Resume, Started
from dresfl.federation.opening import RoundTiming
from dresfl.federation.rounds import Attendance
from dresfl.protocol.hidden.seeds import RunSeeds
from dresfl.runtimes.local.hidden import HiddenFederation

from .memory_store import KeptRun
from .setting import Setting


def nothing_is_lost(client: int, message: Message) -> bool:
    return False


class Hops:
    """A hidden run between machines, after the dealers were checked."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.session = dataclasses.replace(setting.session, run=bytes(32))
        federation = HiddenFederation(self.session, setting.rows)
        seeds = [RunSeeds.begin(dealt, self.session.run).of(0) for dealt in federation.dealt]
        self.tables, self.disks = federation.tables, [KeptRun(0, dict(held)) for held in seeds]
        self.now, self.stored, self.events = 0.0, list[StoreBroadcast](), list[Log]()
        self.error: Exception | None = None  # what the coordinator has ended the run with
        self.lost: Callable[[int, Message], bool] = nothing_is_lost  # on the way to the coordinator
        self.unread: Callable[[int, Message], bool] = nothing_is_lost  # on the way to a client
        self.works: dict[int, HiddenWork] = {}
        self.inbox: dict[int, deque[Message]] = {}
        self.start_coordinator()

    @property
    def at(self) -> tuple[int, int]:
        """Where the run stands."""
        return self.rounds._ledger.position.order

    def start_coordinator(self) -> None:
        """Start it with what is on its disk. Nobody is connected."""
        self.attendance = Attendance(self.setting.roster, lambda: sorted(self.inbox))
        self.inbox.clear()
        starts = [] if not self.stored else sorted(self.rounds._starts.items())
        kept = [hop for hop in self.stored if hop.round_number > self.stored[-1].round_number - 4]
        timing = RoundTiming(deadline=100.0)
        self.rounds = HiddenRounds(self.session, timing, self.attendance, self.setting.roster, Counters(), kept, starts)

    def connect(self, *clients: int, again: bool = False) -> None:
        """These clients connect. again: their processes are new, and know what is on their disks."""
        for client in clients:
            self.gone(client)
            if again or client not in self.works:
                identity, roster = self.setting.clients[client], self.setting.roster
                self.works[client] = HiddenWork(self.session, client, identity, roster)
                self.works[client].attach(self.tables[client], self.disks[client])
            self.inbox[client] = deque()
            self.up(client, self.works[client].stand())

    def gone(self, *clients: int) -> None:
        """These clients lose their connections."""
        for client in clients:
            if self.inbox.pop(client, None) is not None:
                self.rounds.left(client, self.now)

    def up(self, client: int, result: HopResult) -> None:
        for message in result.messages:
            if not self.lost(client, message):
                self.do(self.rounds.received(client, message, self.now))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send() if action.client in self.inbox and not self.unread(action.client, action.message):
                    self.inbox[action.client].append(action.message)
                case StoreBroadcast():
                    self.stored.append(action)
                case Log():
                    self.events.append(action)
                case Finish():
                    self.error = action.error

    def play(self, until: tuple[int, int] = (10**6, 0)) -> None:
        """Deliver what is under way, one message of each client after the other, until the run stands there."""
        while self.at < until and any(self.inbox.values()):
            for client in sorted(self.inbox):
                if self.inbox.get(client) and self.at < until:
                    self.up(client, self.take(client, self.inbox[client].popleft()))

    def take(self, client: int, message: Message) -> HopResult:
        work = self.works[client]
        match message:
            case Started():
                return work.start(message)
            case Resume():
                return work.resume(message)
            case Opened():
                return work.take((message,))
            case Confirmations():
                return work.confirm(message)
        raise AssertionError(f"{message} came")

    def wait(self, times: int = 1) -> None:
        """Nothing is under way: let so many deadlines pass."""
        for _ in range(times):
            if self.rounds.wake_at is not None:
                self.now = self.rounds.wake_at
                self.do(self.rounds.tick(self.now))
                self.play()

    def logged(self, event: str) -> list[Log]:
        return [line for line in self.events if line.event == event]
