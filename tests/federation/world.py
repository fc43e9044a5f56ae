"""A whole federation in memory, played by a random scheduler with a fake clock: one seed, one schedule.

Around the machines `Coordinator` and `Site` there is what a runtime would be: links that carry bytes in order, disks
that survive their processes, work that takes time. At each step the scheduler delivers a message, does a piece of work,
lets time pass, or plays a fault. Actions are carried out one by one, and a process may die between any two of them.
`World.run` returns when the coordinator has ended; `check` then says whether all is as it must be. Whatever is wrong
raises `Broken`, with the seed and the last events.
"""

import contextlib
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from torch import Tensor

from dresfl.errors import DresError, Refused
from dresfl.federation import (
    Coordinator,
    CoordinatorSettings,
    RoundTiming,
    Site,
    Terms,
    Windows,
    Workplace,
    sealed_slices,
)
from dresfl.federation import terms as terms_module
from dresfl.federation import workplace as workplace_module
from dresfl.federation.actions import (
    Action,
    AnswerTask,
    Close,
    Deal,
    Disconnect,
    DropSlice,
    Finish,
    GiveUp,
    Leave,
    Log,
    Record,
    RecordLoss,
    Send,
    SendSlice,
    SendToCoordinator,
    StoreBroadcast,
    StoreSlice,
    StoreTerms,
    Work,
)
from dresfl.federation.messages import (
    Ack,
    Begin,
    Checked,
    Done,
    Hello,
    Holding,
    HopAnswered,
    Judged,
    Message,
    Opened,
    Ready,
    Relayed,
    Resume,
    Weights,
)
from dresfl.masking import Blinding
from dresfl.model import Network, weights_sha256
from dresfl.protocol import Client, Session, Task, Totals, Training, findings, num_slices, slices
from dresfl.protocol import session as session_module
from dresfl.protocol.hidden.answers import HopAnswer

from .memory_store import Disk, MemoryStore
from .setting import Setting, linear, squared

KEEPALIVE = 20.0  # seconds until both ends of a silent link know that it is dead
OPERATOR = 60.0  # seconds until somebody restarts a client that has given up
MOST_STEPS = 30_000
MOST_SECONDS = 40_000.0
COORDINATOR = -1

FAULTS = {  # how often each is drawn
    "drop": 2,  # a message is lost, and its link dies within its keepalive time
    "cut": 4,  # a link
    "cut all": 1,
    "delay": 2,  # nothing passes a link for a while
    "duplicate": 2,
    "reorder": 2,
    "kill client": 5,  # it comes back soon
    "kill coordinator": 4,
    "away": 2,  # a client, for long
    "lose slice": 2,  # on the coordinator's disk
    "full disk": 1,  # the coordinator's will not take the next slice
    "damage share": 2,  # on a client's disk; it is found when the client starts again
    "second connection": 2,  # of the same client
    "other rows": 1,  # a client comes back with other rows, is refused, and comes back with its own
}
BENT = "bend"  # a byte of a message is changed, and no transport notices: the sender's program is faulty
BENT_WEIGHTS = "bend weights"  # of those alone


class Broken(AssertionError):
    """A schedule that shows something wrong."""


@dataclass
class Link:
    """A connection between a client and the coordinator."""

    client: int
    number: int
    outbox: deque[Message | SendSlice] = field(default_factory=deque)  # not written yet
    down: deque[bytes] = field(default_factory=deque)
    up: deque[bytes] = field(default_factory=deque)
    client_end: bool = True  # open, as far as the client knows
    coordinator_end: bool = True
    dead: bool = False
    dies_at: float | None = None
    held_until: float = 0.0
    error: DresError | None = None  # what the coordinator ended it with

    def __str__(self) -> str:
        return f"link {self.number} of client {self.client}"


@dataclass
class Process:
    """A client's process: gone when it dies, while its disk stays."""

    site: Site
    workplace: Workplace
    store: MemoryStore
    own_rows: bool
    link: Link | None = None
    connect_at: float | None = 0.0
    attempts: int = 0
    queues: dict[str, deque[Work]] = field(default_factory=lambda: {"work": deque(), "deal": deque()})
    results: dict[str, tuple[Work, object]] = field(default_factory=dict)


@dataclass
class CoordinatorDisk:
    """What the coordinator keeps between its processes."""

    terms: bytes | None = None
    checkpoint: dict[str, Tensor] | None = None
    outcomes: dict[int, str] = field(default_factory=dict)
    hops: list[StoreBroadcast] = field(default_factory=list)  # of the last four rounds, in the hidden mode
    slices: dict[tuple[int, int, int], bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Schedule:
    """What a seed decides before the first step."""

    setting: Setting
    settings: CoordinatorSettings
    checkpoint_every: int
    faults: int
    bends: bool
    slow: int | None  # a client whose events are rarely chosen
    patient: bool  # no time passes while something can happen at once
    late: bool = False  # no fault is played before the first hop is published

    @classmethod
    def draw(cls, generator: random.Random, setting: Setting | None = None) -> "Schedule":
        setting = setting or generator.choice((linear, linear, squared))()
        tight, some = Windows(1, 1, 1), Windows(600, 600, 3000)
        timing = RoundTiming(
            grace=generator.choice((0.0, 0.0, 0.5)),
            deadline=generator.choice((2.0, 30.0)),
            on_shortage=generator.choice(("retry", "retry", "retry" if setting.is_hidden else "skip")),
        )
        settings = CoordinatorSettings(
            timing, linger=generator.choice((0.0, 30.0, 60.0)), windows=generator.choice((tight, some, Windows()))
        )
        checkpoint_every = generator.choice((1, 1, 2, 3))
        return cls(
            setting,
            settings,
            checkpoint_every=1 if timing.on_shortage == "skip" else checkpoint_every,  # as its settings want
            faults=generator.choice((0, 1, 2, 4, 8, 14)),
            bends=generator.random() < 0.25,
            slow=generator.choice((None, None, generator.randrange(setting.num_clients))),
            patient=generator.random() < 0.3,
            late=setting.is_hidden and generator.random() < 0.75,
        )


class World:
    """One federation, one schedule."""

    def __init__(
        self,
        seed: int,
        setting: Setting | None = None,
        disks: list[Disk] | None = None,
        kinds: dict[str, int] | None = None,
    ) -> None:
        """disks: the clients', of an earlier run. kinds: the faults to draw from, if not from all."""
        self.seed = seed
        self.random = random.Random(seed)
        self.schedule = schedule = Schedule.draw(self.random, setting)
        self.kinds = kinds or {**FAULTS, **({BENT: 8} if schedule.bends else {})}
        self.setting = schedule.setting
        clients = range(self.setting.num_clients)
        self.second_run = disks is not None
        self.disks = disks or [Disk(bytes([client + 1]) * 32) for client in clients]
        self.disk = CoordinatorDisk()
        self.now = 1000.0
        self.steps = 0
        self.events: deque[str] = deque(maxlen=400)
        self.faults_left = schedule.faults
        self.played: Counter[str] = Counter()
        self.links: list[Link] = []
        self._link_number = 0
        self.current: dict[int, Link] = {}  # the coordinator's, by client
        self.fuses: dict[int, int] = {}  # actions until a process dies
        self.timers: list[tuple[float, str, Callable[[], None]]] = []
        self.processes: dict[int, Process] = {}
        self.left: dict[int, Task | None] = {}
        self.given_up: dict[int, list[str]] = {}
        self.bent: dict[int, set[str]] = {}  # by client: what was bent on its links
        self.disturbances: list[str] = []  # what an undisturbed run does not have
        self.full_disk = False
        self.answers: dict[tuple[bytes, int, int], str] = {}  # session, client, round -> weights it was answered for
        self.uploads: dict[tuple[bytes, int, int, int], bytes] = {}  # session, client, round, hop -> what was sent
        self.histories: list[tuple[int, int]] = []  # clients that were told what they missed, and in how many bytes
        self.machine: Coordinator | None = None
        self.server: Training | None = None
        self.final: str | None = None
        self.totals: Totals | None = None  # at the coordinator, of a hidden run
        self.gave_up = ""  # why the coordinator ended the run
        self.informed: set[int] = set()
        self.start_coordinator()
        for client in clients:
            self.at(self.random.choice((0.0, 0.0, 5.0)), "start", lambda client=client: self.start_client(client))

    # -- words -----------------------------------------------------------------------------------------------

    def note(self, *words: object) -> None:
        self.events.append(f"{self.now:10.3f} {' '.join(map(str, words))}")

    def broken(self, reason: str) -> Broken:
        lines = "\n".join(self.events)
        what = f"seed {self.seed}: {reason}"
        return Broken(f"{what}\n{self.schedule}\n{dict(self.played)}\n{lines}\n{what}")

    def at(self, seconds: float, what: str, do: Callable[[], None]) -> None:
        self.timers.append((self.now + seconds, what, do))

    def token_bytes(self, count: int) -> bytes:
        """The coordinator's part of a nonce: one of two, so that sharings are computed once for all schedules."""
        return bytes([self.random.randrange(2) + 2 * self.second_run]) * count

    # -- the coordinator's process ---------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        if self.machine is not None or self.final is not None or self.gave_up:
            return
        setting, disk = self.setting, self.disk
        terms = None if disk.terms is None else Terms.from_json(disk.terms, setting.agreement)
        self.note("coordinator starts", "anew" if terms is None else "with its terms")

        def make_training(session: Session) -> Training:
            self.server = setting.server(session)
            if disk.checkpoint is not None:
                self.server.restore(disk.checkpoint)
            return self.server

        self.machine = Coordinator(
            self.schedule.settings,
            setting.agreement,
            setting.coordinator,
            setting.roster,
            make_training,
            terms,
            lambda session: sorted(disk.slices),
            lambda run: list(disk.hops),
        )
        self.coordinator_does(self.machine.start(self.now))

    def kill_coordinator(self) -> None:
        if self.machine is None:
            return
        self.note("coordinator DIES")
        self.fuses.pop(COORDINATOR, None)
        self.machine = self.server = None
        self.current.clear()
        for link in self.links:
            link.coordinator_end = False
            link.outbox.clear()
            link.dead = link.dead or self.random.random() < 0.5
        for place in list(self.disk.slices):  # they are not flushed
            luck = self.random.random()
            if luck < 0.1:
                del self.disk.slices[place]
            elif luck < 0.2:
                self.disk.slices[place] = self.disk.slices[place][: self.random.randrange(40)]
        self.at(self.random.choice((0.1, 3.0, 40.0)), "coordinator starts", self.start_coordinator)

    def coordinator_does(self, actions: list[Action]) -> None:
        left = deque(actions)
        while left:
            if self._burns(COORDINATOR):
                self.kill_coordinator()
                return
            self._coordinator_does(left.popleft(), left)

    def _coordinator_does(self, action: Action, left: deque[Action]) -> None:
        machine, disk = self._alive, self.disk
        match action:
            case Log():
                self.note("coordinator:", action.event, action.fields)
            case StoreTerms():
                self.note("coordinator stores terms")
                if disk.terms is None and len(machine.connected) < self.setting.num_clients:
                    raise self.broken(f"the terms were settled when only {machine.connected} were there")
                disk.terms = action.terms.to_json(self.setting.agreement)
            case Record():
                self._record(action)
            case StoreBroadcast():
                self._store_hop(action)
            case RecordLoss():
                self.note("coordinator records a loss", action.loss)
            case StoreSlice():
                if self.full_disk:
                    self.full_disk = False
                    self._end_link(action.dealer, DresError("the disk is full"))
                    left.extend(machine.slice_lost(action.receiver, action.dealer, action.number))
                    left.extend(machine.disconnected(action.dealer, self.now))
                else:
                    disk.slices[action.receiver, action.dealer, action.number] = action.sealed
            case DropSlice():
                disk.slices.pop((action.receiver, action.dealer, action.number), None)
            case Send():
                self._check_send(action)
                self._put(action.client, action.message)
            case SendSlice():
                self._put(action.receiver, action)
            case Close():
                self.note("coordinator closes client", action.client, action.error or "")
                if action.error is not None:
                    self.disturbances.append(f"client {action.client} is refused: {action.error}")
                self._end_link(action.client, action.error)
            case Finish() if action.error is not None:  # no schedule leaves too few, if nobody's check was bent
                if not any("checked" in what for what in self.bent.values()):
                    raise self.broken(f"the coordinator gives up: {action.error}")
                self.gave_up, self.machine = str(action.error), None
            case Finish():
                self._finish()
            case _:
                raise self.broken(f"{action} is not the coordinator's")

    @property
    def _alive(self) -> Coordinator:
        if self.machine is None:
            raise self.broken("the coordinator is dead")
        return self.machine

    def _store_hop(self, hop: StoreBroadcast) -> None:
        """Hops follow each other, and are never stored twice."""
        hops, place = self.disk.hops, (hop.round_number, hop.hop)
        if hops and place not in (
            (hops[-1].round_number, hops[-1].hop + 1),
            (hops[-1].round_number + 1, 0),
        ):
            raise self.broken(f"hop {place} was stored after {hops[-1].round_number, hops[-1].hop}")
        self.note("coordinator stores hop", place)
        self.disk.hops = [kept for kept in hops if kept.round_number > hop.round_number - 4] + [hop]

    def _record(self, action: Record) -> None:
        number, outcome, server = action.record.round_number, action.record.outcome, self.server
        self.note("coordinator records round", number, outcome, action.record.survivors)
        known = self.disk.outcomes.setdefault(number, outcome)
        if known != outcome:
            raise self.broken(f"round {number} was {known}, and is {outcome} after a restart")
        if self.setting.is_hidden:
            return
        assert server is not None
        if number % self.schedule.checkpoint_every == 0 or server.done or outcome != "stepped":
            self.disk.checkpoint = {name: value.clone() for name, value in server.state().items()}

    def _check_send(self, action: Send) -> None:
        """What others hear of is on the disk, or follows again from what is."""
        if isinstance(action.message, Begin):
            if self.disk.terms != action.message.terms.to_json(self.setting.agreement):
                raise self.broken("terms were sent that are not on the disk")
        elif isinstance(action.message, Judged):
            terms = None if self.disk.terms is None else Terms.from_json(self.disk.terms, self.setting.agreement)
            if terms is None or terms.verdict != action.message.verdict:
                raise self.broken("a verdict was sent that is not on the disk")
        elif isinstance(action.message, Opened):
            opened = action.message.round_number, action.message.hop, bytes(action.message.published)
            if opened not in [(hop.round_number, hop.hop, hop.published) for hop in self.disk.hops]:
                raise self.broken(f"hop {opened[:2]} was published before it was stored")
        elif isinstance(action.message, Resume):
            self.histories.append((action.client, len(action.message.history)))
        elif isinstance(action.message, (Weights, Done)) and not self.setting.is_hidden:
            server = self.server
            assert server is not None
            unwritten = [number for number in range(server.round_number) if number not in self.disk.outcomes]
            if unwritten:
                raise self.broken(f"weights were sent before the record of rounds {unwritten}")

    def _put(self, client: int, item: Message | SendSlice) -> None:
        link = self.current.get(client)
        if link is None:
            return
        if isinstance(item, Message) and item.newest_only:
            link.outbox = deque(other for other in link.outbox if type(other) is not type(item))
        link.outbox.append(item)

    def _end_link(self, client: int, error: DresError | None) -> None:
        """The coordinator ends a client's connection. What is written already may still arrive."""
        link = self.current.pop(client, None)
        if link is not None:
            link.coordinator_end, link.error = False, error
            link.outbox.clear()

    def _finish(self) -> None:
        machine, server = self._alive, self.server
        self.note("coordinator has ended")
        if not machine.ended:
            raise self.broken("Finish came, but the machine has not ended")
        if machine.wake_at is not None:
            raise self.broken("an ended machine wants to be woken")
        weights = machine.model if server is None else server.weights
        self.final = "none" if weights is None else weights_sha256(weights)
        self.informed, self.totals = set(machine._informed), machine.totals
        for client in list(self.current):
            self._end_link(client, None)
        self.machine = None

    # -- clients' processes ----------------------------------------------------------------------------------

    def start_client(self, client: int, own_rows: bool = True) -> None:
        if client in self.processes or client in self.left:
            return
        inputs, targets = self.setting.rows[client]
        rows = (inputs if own_rows else inputs + 1), targets
        self.note("client", client, "starts", "" if own_rows else "with other rows")
        store = MemoryStore(self.disks[client], rows, self.disks[client].fresh_salt)
        setting = self.setting

        def keep_model(task: Task) -> None:
            self.disks[client].model = task

        workplace = Workplace(
            setting.agreement, setting.clients[client], setting.roster, store, lambda: rows, keep_model=keep_model
        )
        site = Site(setting.agreement, setting.roster, client, workplace.introduce, lambda: self.random.randbytes(16))
        self.processes[client] = Process(site, workplace, store, own_rows, connect_at=self.now)

    def kill_client(self, client: int, seconds: float) -> None:
        process = self.processes.pop(client, None)
        self.fuses.pop(client, None)
        if process is None:
            return
        self.note("client", client, "DIES, back in", seconds)
        self._client_closes(process)
        self.at(seconds, "start", lambda: self.start_client(client))

    def _client_closes(self, process: Process) -> None:
        """The client's end goes. What it has written may still arrive; the coordinator may hear of the end later."""
        link, process.link = process.link, None
        if link is None:
            return
        link.client_end = False
        link.down.clear()
        if self.random.random() < 0.5:
            link.up.clear()
        if self.random.random() < 0.3:  # nobody says so: the keepalive does
            link.held_until = self.now + KEEPALIVE

    def client_does(self, client: int, actions: list[Action]) -> None:
        process = self.processes[client]
        for action in actions:
            if self._burns(client):
                self.kill_client(client, self.random.choice((0.1, 1.0, 10.0)))
                return
            match action:
                case Log():
                    self.note("client", client, ":", action.event, action.fields)
                case SendToCoordinator():
                    self._client_sends(client, process, action.message)
                case Work():
                    process.queues["deal" if isinstance(action, Deal) else "work"].append(action)
                case Disconnect():
                    self.note("client", client, "disconnects:", action.reason)
                    self.disturbances.append(f"client {client} disconnects: {action.reason}")
                    self._client_closes(process)
                    self._lost_connection(client, process)
                    return
                case GiveUp():
                    self._gives_up(client, action.error)
                    return
                case Leave():
                    self.note("client", client, "leaves with the model")
                    self.left[client] = action.final
                    self._client_closes(process)
                    del self.processes[client]
                    return
                case _:
                    raise self.broken(f"{action} is not a client's")

    def _client_sends(self, client: int, process: Process, message: Message) -> None:
        if isinstance(message, (Ack, Holding, Ready)):
            self._check_claims(process, message)
        if isinstance(message, HopAnswered):
            self._check_upload(client, process, bytes(message.answer))
        if process.link is not None:
            process.link.up.append(message.encode())

    def _check_upload(self, client: int, process: Process, answer: bytes) -> None:
        """A client answers each hop once, in one way, and has written down where it stands."""
        session, _ = process.workplace._member
        position = HopAnswer.position_of(answer)
        if self.uploads.setdefault((session.session_id, client, *position.order), answer) != answer:
            raise self.broken(f"client {client} answered hop {position.order} twice, with other bytes")
        kept = self.disks[client].runs[session.session_id].progress
        if kept is None or kept.position.order < position.order:
            raise self.broken(f"client {client} answered hop {position.order} before it was on its disk")

    def _check_claims(self, process: Process, message: Ack | Holding | Ready) -> None:
        """What a client says it has is on its disk."""
        _, table = process.workplace._member
        if isinstance(message, Ack):
            places = [(message.peer, message.number)]
        elif isinstance(message, Holding):
            places = [(message.dealer, n) for n in range(message.held.bit_length()) if message.held >> n & 1]
        else:
            session = process.workplace._member[0]
            dealers = range(session.num_clients)
            places = [(dealer, number) for dealer in dealers for number in range(num_slices(session, dealer))]
        lost = [place for place in places if not table.durable(*place)]
        if lost:
            raise self.broken(f"{message} was sent, but {lost} are not on the disk")

    def _lost_connection(self, client: int, process: Process) -> None:
        """The runtime tells the machine, and comes back later."""
        for queue in process.queues.values():
            queue.clear()
        process.attempts += 1
        process.connect_at = self.now + self.random.choice((0.1, 0.5, min(30.0, 0.2 * 2**process.attempts)))
        self.client_does(client, process.site.disconnected(self.now))

    def _gives_up(self, client: int, error: DresError) -> None:
        self.note("client", client, "GIVES UP:", type(error).__name__, error)
        process = self.processes.pop(client)
        self.fuses.pop(client, None)
        self._client_closes(process)
        allowed = BENT in self.bent.get(client, ()) or not process.own_rows
        if not allowed:
            raise self.broken(f"client {client} gave up without a reason: {error}")
        if process.own_rows:
            self.given_up.setdefault(client, []).append(str(error))
        self.at(OPERATOR, "operator", lambda: self.start_client(client))

    # -- events ----------------------------------------------------------------------------------------------

    def _burns(self, who: int) -> bool:
        if who not in self.fuses:
            return False
        self.fuses[who] -= 1
        return self.fuses[who] < 0

    def possible(self) -> list[tuple[int, str, Callable[[], None]]]:
        """What can happen now: of whom, its name, and how."""
        found: list[tuple[int, str, Callable[[], None]]] = []
        for link in self.links:
            client = link.client
            if link.dies_at is not None and self.now >= link.dies_at:
                link.dead = True
            current = self.current.get(client) is link
            if link.client_end and (link.dead or (not link.coordinator_end and not link.down)):
                found.append((client, "client's end", lambda link=link: self._tell_client(link)))
            if self.now < link.held_until:
                continue
            if current and (link.dead or (not link.client_end and not link.up)):
                found.append((client, "coordinator's end", lambda link=link: self._tell_coordinator(link)))
            if link.dead:
                continue
            if link.outbox and current:
                found.append((client, "write", lambda link=link: self._write(link)))
            if link.down and link.client_end:
                found.append((client, "down", lambda link=link: self._deliver_down(link)))
            if link.up and current:
                found.append((client, "up", lambda link=link: self._deliver_up(link)))
        for client, process in self.processes.items():
            for name, queue in process.queues.items():
                if name in process.results:
                    found.append((client, "report", lambda c=client, n=name: self._report(c, n)))
                elif queue:
                    found.append((client, "perform", lambda c=client, n=name: self._perform(c, n)))
            if process.connect_at is not None and self.now >= process.connect_at and self.machine is not None:
                found.append((client, "connect", lambda c=client: self._connect(c)))
            at = process.site.wake_at
            if at is not None and self.now >= at:
                found.append((client, "tick", lambda c=client: self._tick_client(c)))
        if self.machine is not None and self.machine.wake_at is not None and self.now >= self.machine.wake_at:
            found.append((COORDINATOR, "tick", self._tick_coordinator))
        due = [timer for timer in self.timers if self.now >= timer[0]]
        return found + [(COORDINATOR, timer[1], lambda timer=timer: self._fire(timer)) for timer in due]

    def next_time(self) -> float | None:
        """When something will be possible that is not now."""
        times = [at for at, _, _ in self.timers]
        for link in self.links:
            times += [at for at in (link.dies_at, link.held_until) if at is not None]
        for process in self.processes.values():
            times += [at for at in (process.connect_at, process.site.wake_at) if at is not None]
        if self.machine is not None and self.machine.wake_at is not None:
            times.append(self.machine.wake_at)
        return min((at for at in times if at > self.now), default=None)

    def _fire(self, timer: tuple[float, str, Callable[[], None]]) -> None:
        self.timers.remove(timer)
        timer[2]()

    def _tick_coordinator(self) -> None:
        machine = self._alive
        before = machine.wake_at
        self.coordinator_does(machine.tick(self.now))
        if machine is self.machine and machine.wake_at == before:
            raise self.broken("a tick of the coordinator changes nothing: it would be called for ever")

    def _tick_client(self, client: int) -> None:
        site = self.processes[client].site
        self.client_does(client, site.tick(self.now))
        if client in self.processes and site.wake_at is not None and site.wake_at <= self.now:
            raise self.broken(f"a tick of client {client} changes nothing: it would be called for ever")

    def _connect(self, client: int) -> None:
        process = self.processes[client]
        process.connect_at = None
        process.link = self._new_link(client)
        self.client_does(client, process.site.connected(self.now))

    def _new_link(self, client: int) -> Link:
        self._link_number += 1
        link = Link(client, self._link_number)
        self.note("client", client, "connects:", link)
        self.links.append(link)
        self._end_link(client, None)  # an older one is replaced
        self.current[client] = link
        self.coordinator_does(self._alive.connected_to(client, self.now))
        return link

    def _tell_client(self, link: Link) -> None:
        """The client learns that its connection has ended."""
        link.client_end = False
        link.down.clear()
        process = self.processes.get(link.client)
        if process is None or process.link is not link:
            return
        process.link = None
        self.note("client", link.client, "loses its connection:", link.error or "")
        if isinstance(link.error, Refused):
            self._gives_up(link.client, link.error)
        else:
            self._lost_connection(link.client, process)

    def _tell_coordinator(self, link: Link) -> None:
        del self.current[link.client]
        link.coordinator_end = False
        link.outbox.clear()
        self.coordinator_does(self._alive.disconnected(link.client, self.now))

    def _write(self, link: Link) -> None:
        item = link.outbox.popleft()
        if isinstance(item, SendSlice):
            sealed = self.disk.slices.get((item.receiver, item.dealer, item.number))
            if sealed is None:
                self.note("slice lost:", item)
                self.coordinator_does(self._alive.slice_lost(item.receiver, item.dealer, item.number))
                return
            item = Relayed(item.dealer, item.number, sealed)
        link.down.append(item.encode())

    def _deliver_up(self, link: Link) -> None:
        data = link.up.popleft()
        self.note("up  ", link.client, data[0], f"({len(data)} bytes)")
        self.coordinator_does(self._alive.received(link.client, data, self.now))

    def _deliver_down(self, link: Link) -> None:
        data = link.down.popleft()
        process = self.processes.get(link.client)
        if process is None or process.link is not link:
            return  # a ghost's
        self.note("down", link.client, data[0], f"({len(data)} bytes)")
        self.client_does(link.client, process.site.received(data, self.now))

    def _perform(self, client: int, name: str) -> None:
        process = self.processes[client]
        work = process.queues[name].popleft()
        result = process.workplace.perform(work)
        if isinstance(work, AnswerTask) and isinstance(result, bytes):
            self._check_answer(client, process, work)
        process.results[name] = work, result

    def _check_answer(self, client: int, process: Process, work: AnswerTask) -> None:
        session, _ = process.workplace._member
        key = session.session_id, client, work.task.round_number
        weights = weights_sha256(work.task.weights)
        if self.answers.setdefault(key, weights) != weights:
            raise self.broken(f"client {client} answered round {key[2]} for two sets of weights")

    def _report(self, client: int, name: str) -> None:
        process = self.processes[client]
        work, result = process.results.pop(name)
        if isinstance(result, Exception):
            self.note("client", client, type(work).__name__, "fails:", result)
        self.client_does(client, process.site.worked(work, result, self.now))

    # -- faults ----------------------------------------------------------------------------------------------

    def fault(self) -> None:
        generator = self.random
        kind = generator.choices(list(self.kinds), list(self.kinds.values()))[0]
        client = generator.randrange(self.setting.num_clients)
        if self._play(kind, client):
            self.played[kind] += 1
            self.faults_left -= 1

    def _play(self, kind: str, client: int) -> bool:
        """Play a fault; False if there is nothing that it could hit."""
        generator = self.random
        links = [link for link in self.links if not link.dead and link.client_end and link.coordinator_end]
        link = generator.choice(links) if links else None
        match kind:
            case "kill client" | "away" | "other rows" if client not in self.processes:
                return False
            case "kill client":
                self.fuses[client] = generator.randrange(12)
            case "away":
                self.kill_client(client, generator.choice((100.0, 1000.0)))
            case "other rows":
                if self.disk.terms is None:
                    return False
                self.kill_client(client, 1000.0)
                self.start_client(client, own_rows=False)
            case "kill coordinator":
                if self.machine is None:
                    return False
                self.fuses[COORDINATOR] = generator.randrange(12)
            case "cut all":
                for each in links:
                    each.dead = True
            case "lose slice":
                if not self.disk.slices:
                    return False
                del self.disk.slices[generator.choice(sorted(self.disk.slices))]
            case "full disk":
                self.full_disk = True
            case "damage share":
                self.note("damage at client", client, self.disks[client].damage(generator))
                self.kill_client(client, 1.0)
            case "second connection":
                if self.machine is None:
                    return False
                self._second_connection(client)
            case _ if link is None:
                return False
            case "cut":
                link.dead = True
            case "delay":
                link.held_until = self.now + generator.choice((0.5, 10.0, 100.0))
            case _:
                busy = [link for link in links if link.up or link.down]
                if kind == BENT_WEIGHTS:
                    busy = [link for link in busy if link.down and link.down[0][0] == Weights.KIND]
                return bool(busy) and self._play_on_message(kind, generator.choice(busy))
        self.note("FAULT", kind, link if kind in ("cut", "delay") else client)
        return True

    def _second_connection(self, client: int) -> None:
        """Another process with the client's key: it says nothing, or nothing sensible, or Hello and then nothing."""
        ghost = self._new_link(client)
        ghost.dies_at = self.now + self.random.choice((1.0, 100.0))
        process = self.processes.get(client)
        said = self.random.choice(("nothing", "nonsense", "Hello"))
        if said == "Hello" and process is not None and process.own_rows:
            introduction = process.workplace.introduce()
            ghost.up.append(Hello(introduction, bytes(16), self.setting.agreement.encode()).encode())
        elif said == "nonsense":
            ghost.up.append(self.random.randbytes(self.random.randrange(1, 50)))

    def _play_on_message(self, kind: str, link: Link) -> bool:
        generator = self.random
        ways = [way for way in (link.up, link.down) if way]
        if not ways:
            return False
        way = generator.choice(ways) if kind != BENT_WEIGHTS else link.down
        place = generator.randrange(len(way)) if kind != BENT_WEIGHTS else 0
        kind_of_message = way[place][0]
        if kind == "drop":
            del way[place]
            link.dies_at = self.now + KEEPALIVE * generator.random()
        elif kind == "duplicate":
            way.insert(place, way[place])
        elif kind == "reorder":
            if len(way) < 2:
                return False
            other = generator.randrange(len(way))
            way[place], way[other] = way[other], way[place]
        else:
            return self._bend(link, way, place)
        self.note("FAULT", kind, "on", link, "up" if way is link.up else "down", "kind", kind_of_message)
        return True

    def _bend(self, link: Link, way: deque[bytes], place: int) -> bool:
        """Change one byte of a message. The client is restarted some time later, if the run is not over by then."""
        data, client = bytearray(way[place]), link.client
        dropped = {} if self.machine is None else self.machine.dropped
        spare = self.setting.num_clients - self.setting.session.recovery_threshold - len(dropped)
        lasting = (Weights.KIND, Judged.KIND, Checked.KIND)
        victims = {victim for victim, what in self.bent.items() if what & {"weights", "judged", "checked"}} | {client}
        if data[0] in lasting and len(victims) > spare:
            return False  # then nobody would be left who can answer that round
        if data[0] == Checked.KIND and any("checked" in what for what in self.bent.values()):
            return False  # two would be enough to exclude a dealer
        where = self.random.randrange(len(data))
        data[where] ^= self.random.randrange(1, 256)
        what = self.bent.setdefault(client, set())
        what.add(BENT)
        named = (Weights, "weights"), (Done, "done"), (Hello, "hello"), (Judged, "judged"), (Checked, "checked")
        for kind, name in ((message.KIND, name) for message, name in named):
            if way[place][0] == kind:
                what.add(name)
        self.note("FAULT bend", link, "up" if way is link.up else "down", "kind", way[place][0], "byte", where)
        way[place] = bytes(data)
        self.at(400.0, "operator", lambda: self.kill_client(client, 1.0))
        return True

    # -- the schedule ----------------------------------------------------------------------------------------

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS or self.now > MOST_SECONDS:
            raise self.broken(f"no end after {self.steps} steps and {self.now:.0f} seconds")
        generator = self.random
        self.now += generator.random() * 0.01
        self.links = [link for link in self.links if link.client_end or link.coordinator_end]
        begun = not self.schedule.late or self.disk.hops
        if self.faults_left and begun and generator.random() < (0.05 if self.schedule.late else 0.02):
            self.fault()
        found = self.possible()
        if not found or (not self.schedule.patient and generator.random() < 0.003):
            at = self.next_time()
            if at is not None:
                self.now = max(self.now, at)
                return
            if not found:
                raise self.broken("nothing can happen any more")
        slow = self.schedule.slow
        quick = [event for event in found if event[0] != slow]
        generator.choice(quick if quick and slow is not None and generator.random() < 0.9 else found)[2]()

    def run(self) -> "World":
        """Play until the coordinator has ended, or until a client was refused for good."""
        while self.final is None and not self.gave_up and not self.refused_for_good():
            self.step()
        for _ in range(2000):  # what is under way still arrives
            found = [event for event in self.possible() if event[1] not in ("connect", "start", "operator")]
            if not found:
                break
            self.random.choice(found)[2]()
        return self

    def refused_for_good(self) -> list[int]:
        """Clients that were refused again and again: their terms were settled with a Hello that was bent."""
        return [client for client, reasons in self.given_up.items() if len(reasons) > 3]

    # -- the end ---------------------------------------------------------------------------------------------

    def check(self) -> str:
        """How it ended, in a word; Broken if not as it must."""
        for client in self.refused_for_good():
            if not self.bent.get(client, set()) & {"hello", "judged"}:
                raise self.broken(f"client {client} was refused for good: {self.given_up[client][-1]}")
            return "refused"
        if self.gave_up:
            return "refused"
        outcomes = self.disk.outcomes
        rounds = range(self.setting.rounds)
        if sorted(outcomes) != list(rounds):
            raise self.broken(f"rounds {sorted(outcomes)} were recorded")
        bends = Counter(what for client in self.bent.values() for what in client)
        for number in rounds:
            skips = self.schedule.settings.timing.on_shortage == "skip"
            if (outcomes[number] == "skipped" and not skips) or (outcomes[number] == "refused" and not bends):
                raise self.broken(f"round {number} was {outcomes[number]} without a reason")
        stepped = tuple(outcomes[number] == "stepped" for number in rounds)
        if self.setting.is_hidden:
            return self._check_hidden()
        if self.final != self.setting.weights_after(stepped):
            raise self.broken(f"other weights than those of an undisturbed run came out of {outcomes}")
        for client in range(self.setting.num_clients):
            model = self.disks[client].model
            kept = None if model is None else weights_sha256(model.weights)
            if "done" in self.bent.get(client, ()):
                continue
            if client in self.informed and kept != self.final:
                raise self.broken(f"client {client} was informed, but has other weights")
            final = self.left.get(client)
            if final is not None and weights_sha256(final.weights) != self.final:
                raise self.broken(f"client {client} left with other weights")
        quiet = not self.schedule.faults and self.schedule.patient and self.schedule.settings.linger
        if quiet and len(self.informed) < self.setting.num_clients:
            raise self.broken(f"only {self.informed} were informed, without a fault")
        if not self.played and self.disturbances:
            raise self.broken(f"without a fault: {self.disturbances}")
        return "exact" if all(stepped) else "skipped" if "refused" not in outcomes.values() else "round refused"

    def _check_hidden(self) -> str:
        """A hidden run has ended: with the weights of a run in one process, whoever was missing when."""
        terms = Terms.from_json(self.disk.terms or b"", self.setting.agreement)
        wanted = self.setting.hidden_model(terms.session(self.setting.agreement), self.disks)
        everybody = self.setting.agreement.hidden.model_for == "everybody"
        if self.final != (wanted if everybody else "none"):
            raise self.broken("other weights than those of an undisturbed run came out")
        for client in range(self.setting.num_clients):
            model = self.disks[client].model
            if model is not None and weights_sha256(model.weights) != wanted:
                raise self.broken(f"client {client} has other weights")
            if client in self.informed and model is None:
                raise self.broken(f"client {client} was informed, but has no weights")
        return "exact"


def remembering(function: Callable[..., Any], key: Callable[..., object]) -> Callable[..., Any]:
    """The function, which does not compute again what it has computed for the same key."""
    known: dict[object, Any] = {}

    def remembered(*arguments: Any) -> Any:
        found = key(*arguments)
        if found not in known:
            known[found] = function(*arguments)
        return known[found]

    return remembered


def _tensor_key(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.numpy().tobytes()


REMEMBERED: list[tuple[Any, str, Any]] = [
    (owner, name, remembering(getattr(owner, name), key))
    for owner, name, key in (
        (session_module, "choose_field", lambda network, *rest: (network.layers, *rest)),
        (terms_module, "make_session", lambda agreement, *rest: (agreement.digest, *rest)),
        (workplace_module, "make_session", lambda agreement, *rest: (agreement.digest, *rest)),
        (sealed_slices, "seal", lambda own, peer, context, data: (own.name, peer, context, data)),
        (sealed_slices, "open_sealed", lambda own, peer, context, data: (own.name, peer, context, data)),
        (
            Client,
            "deal_to",
            lambda self, receivers, first, count: (
                self.session.sharing_id,
                self._secret.tag(),
                self.index,
                tuple(receivers),
                first,
                count,
            ),
        ),
        (
            Client,
            "deal_set_up",
            lambda self, receivers: (self.session.sharing_id, self._secret.tag(), self.index, tuple(receivers)),
        ),
        (
            findings,
            "combine_shares",
            lambda session, table, dealer, coins, check: (
                session.sharing_id,
                dealer,
                coins,
                _tensor_key(check),
                *(table.packed_rows(dealer, row, row + 1).tobytes() for row in range(session.coded_rows(dealer))),
            ),
        ),
        (
            Blinding,
            "values",
            lambda self, label, count: (label, count, tuple(seed.tag() for seed in self.seeds)),
        ),
        (Session, "batch_rows", lambda self, number: (self.session_id, number)),
        (
            Network,
            "gradient",
            lambda self, field, weights, inputs, targets: (
                self.layers,
                _tensor_key(weights),
                _tensor_key(inputs),
                _tensor_key(targets),
            ),
        ),
    )
]


@contextlib.contextmanager
def small_and_fast(world: World) -> Iterator[None]:
    """Slices of a few rows; and what follows from the same keys, nonces and rows is computed once for all schedules."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(slices, "SLICE_BYTES", world.setting.slice_bytes))
        stack.enter_context(patch.object(terms_module, "secrets", world))
        for owner, name, function in REMEMBERED:
            stack.enter_context(patch.object(owner, name, function))
        yield


def play(seed: int, kinds: dict[str, int] | None = None) -> tuple[str, World]:
    """Play one schedule; how it ended. Some have a second run on the shares of the first."""
    world = World(seed, kinds=kinds)
    with small_and_fast(world):
        outcome = world.run().check()
    if seed % 5 == 0 and outcome != "refused":
        for disk in world.disks:
            disk.model = None
        again = World(seed + 2**32, world.setting, world.disks, kinds)
        with small_and_fast(again):
            again.run().check()
    return outcome, world
