"""A client's disk in memory: what is flushed survives the process, what is not is lost with it."""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dresfl.errors import DresError, MessageError, Refused, StoreError
from dresfl.federation.terms import coin_commitment
from dresfl.field import Octets, Residues, SecretSeed, octets_of, unpacked
from dresfl.protocol import (
    AnsweredRounds,
    MemoryNotes,
    Session,
    ShareTable,
    Task,
    Verdict,
    num_slices,
    slice_range,
    slice_rows,
)
from dresfl.protocol.hidden.client import Progress

Place = tuple[int, int]  # a dealer and the number of a slice


@dataclass
class KeptSharing:
    """The shares of one sharing, as they are on the disk. A slice that is not sound was damaged after it was kept."""

    nonce: bytes
    client_rows: tuple[int, ...]
    tag: bytes
    slices: dict[Place, Tensor] = field(default_factory=dict)
    damaged: set[Place] = field(default_factory=set)
    set_up: dict[int, bytes] = field(default_factory=dict)
    coins: bytes | None = None
    verdict: Verdict | None = None


@dataclass
class Disk:
    """What a client keeps between its processes."""

    secret: bytes
    sharings: dict[bytes, KeptSharing] = field(default_factory=dict)
    answered: dict[bytes, dict[int, bytes]] = field(default_factory=dict)
    runs: dict[bytes, "KeptRun"] = field(default_factory=dict)  # of the hidden mode, by session
    notes: dict[bytes, MemoryNotes] = field(default_factory=dict)  # of sums, by sharing
    salts: dict[bytes, bytes] = field(default_factory=dict)  # of contributions, each with the sharing that it served
    made: int = 0  # salts
    model: Task | None = None

    def fresh_salt(self) -> bytes:
        """16 bytes that this client has not had before."""
        self.made += 1
        return self.made.to_bytes(16, "big")

    def damage(self, generator: random.Random) -> str:
        """Change a byte of one slice, if there is one."""
        places = [  # a slice without rows has no byte on the disk
            (kept, place)
            for kept in self.sharings.values()
            for place in sorted(kept.slices)
            if kept.slices[place].numel()
        ]
        if not places:
            return "nothing is kept yet"
        kept, place = generator.choice(places)
        kept.damaged.add(place)
        return f"slice {place[1]} of dealer {place[0]}"


class KeptTable(ShareTable):
    """Shares that are on the disk after `flush`. Slices of other residues than were kept before are refused."""

    def __init__(self, session: Session, kept: KeptSharing) -> None:
        self._session, self._kept = session, kept
        self.damage = [f"slice {number} of dealer {dealer} is damaged" for dealer, number in sorted(kept.damaged)]
        self._known = dict(kept.slices)  # also of those that are damaged: their digests are known
        self._held = {place: rows for place, rows in kept.slices.items() if place not in kept.damaged}
        self._pending: set[Place] = set()
        self._set_up = dict(kept.set_up)

    def put(self, dealer: int, first_row: int, residues: Residues) -> None:
        numbers = [n for n in range(num_slices(self._session, dealer)) if self._rows(dealer, n).start == first_row]
        if not numbers or len(self._rows(dealer, numbers[0])) != residues.shape[1]:
            raise MessageError("not a whole slice")
        place, coming = (dealer, numbers[0]), unpacked(residues).to("cpu", torch.int32)
        if place in self._known and not torch.equal(self._known[place], coming):
            raise MessageError(f"dealer {dealer} sent other residues for rows it had shared already")
        if place not in self._held:
            self._known[place] = self._held[place] = coming
            self._pending.add(place)

    def _rows(self, dealer: int, number: int) -> range:
        return slice_range(self._session, dealer, number)

    def rows(self, dealers: Tensor, rows: Tensor) -> Tensor:
        size = slice_rows(self._session)
        pairs = zip(dealers.tolist(), rows.tolist(), strict=True)
        return torch.stack([self._held[d, r // size][:, r % size] for d, r in pairs], 1)

    def packed_rows(self, dealer: int, first: int, last: int) -> Octets:
        numbers = torch.arange(first, last)
        rows = self.rows(torch.full_like(numbers, dealer), numbers)  # (M,rows,W)
        return octets_of(self._session.field.pack(rows)).reshape(rows.shape[0], last - first, -1).swapaxes(0, 1)

    def missing(self, dealer: int) -> list[range]:
        numbers = range(num_slices(self._session, dealer))
        return [self._rows(dealer, number) for number in numbers if (dealer, number) not in self._held]

    def put_set_up(self, dealer: int, data: bytes) -> None:
        if self._set_up.setdefault(dealer, data) != data:
            raise MessageError(f"dealer {dealer} sent other set-up values than before")

    def set_up(self, dealer: int) -> bytes | None:
        return self._set_up.get(dealer)

    def flush(self) -> None:
        self._kept.set_up.update(self._set_up)
        for place in self._pending:
            self._kept.slices[place] = self._held[place]
            self._kept.damaged.discard(place)
        self._pending.clear()

    def durable(self, dealer: int, number: int) -> bool:
        """Whether a slice would be found after a crash, as far as this process can know."""
        whole = number < num_slices(self._session, dealer) - 1 or dealer in self._kept.set_up
        return whole and (dealer, number) in self._held and (dealer, number) not in self._pending


class KeptAnswers(AnsweredRounds):
    """Answered rounds, on the disk at once."""

    def __init__(self, kept: dict[int, bytes]) -> None:
        self._kept = kept

    def claim(self, round_number: int, weights: bytes) -> bool:
        return self._kept.setdefault(round_number, weights) == weights


@dataclass
class KeptRun:
    """A hidden run on the disk: a `HiddenRun`."""

    first_round: int
    held: Mapping[int, SecretSeed]
    progress: Progress | None = None
    ended: bool = False
    models: int = 0

    def keep(self, progress: Progress) -> None:
        last = self.progress
        if last is not None and (last.stopped or last.position.order > progress.position.order):
            raise Refused("back behind what was answered")
        if last is not None and last.position.order == progress.position.order and not progress.stopped:
            raise Refused("answered before")
        self.progress = progress

    def seeds(self) -> tuple[int, Mapping[int, SecretSeed]]:
        return self.first_round, self.held

    def keep_seeds(self, round_number: int, seeds: Mapping[int, SecretSeed]) -> None:
        if round_number < self.first_round:
            raise StoreError("seeds go on, and never back")
        self.first_round, self.held = round_number, dict(seeds)

    def claim_model(self) -> None:
        self.models += 1

    def end(self) -> None:
        self.ended, self.held = True, {}


class MemoryStore:
    """A `Store` over a `Disk`, for the time of one process."""

    def __init__(self, disk: Disk, rows: tuple[Tensor, Tensor], fresh: Callable[[], bytes]) -> None:
        """fresh: 16 bytes that nobody had before."""
        digest = hashlib.sha256(b"".join(part.numpy().tobytes() for part in rows)).digest()
        self._disk, self._fresh = disk, fresh
        self._seed = SecretSeed(disk.secret).derive(b"rows" + digest)
        self._tables: dict[bytes, KeptTable] = {}

    def contribution(self) -> bytes:
        salt = self._fresh()
        return self._seed.tag() + salt + coin_commitment(self._coin(salt))

    def coin(self, contribution: bytes) -> bytes:
        return self._coin(contribution[16:32])

    def _coin(self, salt: bytes) -> bytes:
        return self._seed.derive(b"coin" + salt).reveal()

    def owns(self, contribution: bytes) -> bool:
        return contribution[:16] == self._seed.tag()

    def claim_contribution(self, session: Session, contribution: bytes) -> bool:
        return self._disk.salts.setdefault(contribution[16:32], session.sharing_id) == session.sharing_id

    def held_nonces(self, session_of: Callable[[tuple[int, ...], bytes], Session], index: int) -> Sequence[bytes]:
        nonces = []
        for identity, kept in reversed(self._disk.sharings.items()):
            try:
                fits = session_of(kept.client_rows, kept.nonce).sharing_id == identity
            except DresError:
                continue
            if fits and kept.tag == self._seed.tag() and kept.verdict == Verdict():
                nonces.append(kept.nonce)
        return nonces

    def secret(self, session: Session) -> SecretSeed:
        return self._seed.derive(b"sharing" + session.sharing_digest)

    def table(self, session: Session, index: int, look: bool) -> tuple[KeptTable, Sequence[str]]:
        identity = session.sharing_id
        if identity in self._tables:
            return self._tables[identity], []
        fresh = KeptSharing(session.nonce, session.client_rows, self._seed.tag())
        table = self._tables[identity] = KeptTable(session, self._disk.sharings.setdefault(identity, fresh))
        return table, table.damage

    def claim_check(self, session: Session, coins: bytes) -> bool:
        kept = self._disk.sharings[session.sharing_id]
        kept.coins = kept.coins or coins
        return kept.coins == coins

    def claimed_coins(self, session: Session) -> bytes:
        kept = self._disk.sharings.get(session.sharing_id)
        return (kept and kept.coins) or bytes(32)

    def verdict(self, session: Session) -> Verdict | None:
        kept = self._disk.sharings.get(session.sharing_id)
        return kept and kept.verdict

    def keep_verdict(self, session: Session, verdict: Verdict) -> None:
        self._disk.sharings[session.sharing_id].verdict = verdict

    def answered(self, session: Session) -> KeptAnswers:
        return KeptAnswers(self._disk.answered.setdefault(session.session_id, {}))

    # -- the hidden mode ---------------------------------------------------------------------------------------

    def offered_nonces(self, session_of: Callable[[tuple[int, ...], bytes], Session], index: int) -> Sequence[bytes]:
        return self.held_nonces(session_of, index)

    def mask_secret(self, session: Session) -> SecretSeed:
        return self._seed.derive(b"masks" + session.sharing_digest)

    def hidden_run(self, session: Session) -> KeptRun | None:
        return self._disk.runs.get(session.session_id)

    def sum_notes(self, session: Session) -> MemoryNotes:
        return self._disk.notes.setdefault(session.sharing_id, MemoryNotes())

    def begin_hidden(self, session: Session, seeds: Mapping[int, SecretSeed]) -> KeptRun:
        return self._disk.runs.setdefault(session.session_id, KeptRun(0, dict(seeds)))
