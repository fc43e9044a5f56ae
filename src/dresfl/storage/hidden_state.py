"""What a client keeps of a run in the hidden mode: how far it is, its seeds, and how many runs a sharing has had.

    SHARING/runs.json        every run that was begun on this sharing, in order: its session, whether it is a trial, and
                             whether its model may have been opened. It outlives `forget`
    SHARING/SESSION.hop      the last hop that the client answered: round, hop, chain, check value; whether it has ended
    SHARING/SESSION.seeds    the run's mask seeds of some round; those of later rounds follow from them
    SHARING/mask.secret      what the dealt seeds are made from, until a run begins after which there can be no other

A hop is on the disk before its upload leaves, so a client never answers a hop twice in two ways. A run counts from the
moment that it is in runs.json; the other two files are made before. If one of them is missing or damaged then, the
client takes no more part in that run: it never starts over.

Seeds go with time. A run's seeds are replaced by later ones, and the old ones overwritten, so that nobody who takes
the disk later can open what was recorded before. Once no further run is allowed, the dealt seeds and the secret that
they were made from are erased as well. Nobody can be dealt them again: a client whose seeds are lost then is out.
"""

import hashlib
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from dresfl.errors import Refused, StoreError
from dresfl.field import SecretSeed
from dresfl.files import erase_file, read_private, read_record, write_atomic, write_record
from dresfl.protocol.hidden.client import Progress
from dresfl.protocol.hidden.ledger import Position

from .at_rest import StorageKey, open_file, seal_file
from .two_places import MOST_CONTENT, TwoPlaces, read_content

RUNS, MASK_SECRET = "runs.json", "mask.secret"
HOP, SEEDS = ".hop", ".seeds"  # suffixes, after the session
HOP_ROLE, SEEDS_ROLE, MASK_SECRET_ROLE = "hop", "seeds", "mask secret"
_STATE = struct.Struct("<??IH32sHH")  # answered, ended, round, hop, chain, sizes of check value and reason
_SEED = struct.Struct("<I32s")
_ROUND = struct.Struct("<II")  # of the seeds, and how many there are
_MASK_SECRET = b"dresfl mask secret 1\n"
_LOST = (
    "this client takes no more part in that run. The others go on, if enough of them are left; a new run needs another "
    "sharing, or a budget that allows it"
)


@final
@dataclass(frozen=True)
class RunState:
    """How far a client is in a run. progress: of its last answer; None before the first one."""

    progress: Progress | None = None
    ended: bool = False

    def encode(self) -> bytes:
        found = self.progress or Progress(Position(0, 0, bytes(32)))
        position, reason = found.position, found.stopped.encode()
        reason = reason[: MOST_CONTENT - _STATE.size - len(found.check)]
        if len(position.chain) != 32 or len(found.check) > MOST_CONTENT - _STATE.size:
            raise StoreError(
                f"a chain of {len(position.chain)} or a check value of {len(found.check)} bytes is not kept"
            )
        flags = self.progress is not None, self.ended
        head = _STATE.pack(*flags, *position.order, position.chain, len(found.check), len(reason))
        return head + found.check + reason

    @classmethod
    def decode(cls, data: bytes) -> "RunState":
        begun, ended, round_number, hop, chain, size, length = _STATE.unpack_from(data)
        check, reason = data[_STATE.size : _STATE.size + size], data[_STATE.size + size :][:length]
        progress = Progress(Position(round_number, hop, chain), check, reason.decode("utf-8", "ignore"))
        return cls(progress if begun else None, ended)


@final
@dataclass(frozen=True)
class Allowance:
    """What an agreement allows on one sharing, and what the run at hand is."""

    runs: int = 1  # models that may come of it
    trials: int = 0  # runs that open their validation loss only, and runs that stopped early
    trial: bool = False  # whether this run is one of those


@final
@dataclass(frozen=True)
class BegunRun:
    """One line of runs.json."""

    session: str
    trial: bool
    model: bool = False  # whether its model may have been opened: noted before the upload leaves


def read_runs(folder: Path) -> list[BegunRun]:
    """Every run that was begun on a sharing, in order. StoreError if the list is damaged."""
    path = folder / RUNS
    hint = "restore it: without it nobody knows how many models came of this sharing; else share anew"
    record = read_record(path, hint)
    try:
        return [] if record is None else [_begun(entry) for entry in record["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} is not a list of runs", hint) from error


def _begun(entry: Any) -> BegunRun:
    session, trial, model = entry
    if type(session) is not str or type(trial) is not bool or type(model) is not bool:
        raise ValueError(f"{entry!r} is no run")
    return BegunRun(session, trial, model)


def check_allowance(begun: list[BegunRun], allowance: Allowance) -> None:
    """Refuse another run on a sharing that has had as many as were agreed on."""
    models = sum(run.model for run in begun)
    stopped = len(begun) - models
    if not allowance.trial and models >= allowance.runs:
        raise Refused(
            f"{models} models came of this sharing, and runs = {allowance.runs}",
            "share anew: start a run in a new folder of the coordinator; or agree on more runs before you share",
        )
    if stopped + allowance.trial > allowance.trials:
        raise Refused(
            f"{stopped} runs on this sharing were trials or stopped early, and trials = {allowance.trials}",
            "share anew: start a run in a new folder of the coordinator; or agree on more trials before you share",
        )


def is_last(begun: list[BegunRun], allowance: Allowance) -> bool:
    """Whether no further run is allowed after those that were begun, whatever becomes of the newest."""
    newest = begun[-1]
    for model in (False, True) if not newest.trial else (False,):
        ended = [*begun[:-1], replace(newest, model=model)]
        for trial in (False, True):
            try:
                check_allowance(ended, replace(allowance, trial=trial))
            except Refused:
                continue
            return False
    return True


# -- one run --------------------------------------------------------------------------------------------------------


@final
class HiddenRun:
    """One run of one client in the hidden mode, on the disk. Made by `ShareStore.begin_hidden`."""

    def __init__(self, folder: Path, session_id: bytes, allowance: Allowance, key: StorageKey | None) -> None:
        """A run that was begun."""
        self._folder, self._session, self._allowance = folder, session_id, allowance
        self._places, self._seeds = _open(folder, session_id, key)

    def __repr__(self) -> str:
        return f"HiddenRun({self._session.hex()}, <redacted>)"

    @classmethod
    def begin(
        cls,
        folder: Path,
        session_id: bytes,
        allowance: Allowance,
        key: StorageKey | None,
        seeds: Mapping[int, SecretSeed],
    ) -> "HiddenRun":
        """Begin a run within its allowance. seeds: the run's of round 0."""
        begun = read_runs(folder)
        check_allowance(begun, allowance)
        name = session_id.hex()
        content = _encode_seeds(0, seeds)
        TwoPlaces.create(folder / (name + HOP), session_id, RunState().encode(), key, HOP_ROLE).close()
        TwoPlaces.create(
            folder / (name + SEEDS), session_id, content, key, SEEDS_ROLE, room=len(content)
        ).close()  # both are whole before the run counts
        _write_runs(folder, [*begun, BegunRun(name, allowance.trial)])
        return cls(folder, session_id, allowance, key)

    @property
    def state(self) -> RunState:
        """How far the run is."""
        return RunState.decode(self._places.content)

    @property
    def ended(self) -> bool:
        """Whether the run has ended for this client: it answers nothing any more."""
        return self.state.ended

    @property
    def progress(self) -> Progress | None:
        """What was kept last; None before the first answer."""
        return self.state.progress

    def keep(self, progress: Progress) -> None:
        """Note where this client stands, for good, before its answer leaves.

        Refused if the run has ended, if a later hop was answered, or this one in another course of the run. That the
        client takes no further part is noted wherever it stands.
        """
        state, last = self.state, self.state.progress
        if last is not None and last.stopped:
            raise Refused(f"this client has left the run for good: {last.stopped}")
        if last is not None and progress.stopped and progress.position.order < last.position.order:
            progress = replace(last, stopped=progress.stopped)
        if state.ended or (last is not None and progress.position.order < last.position.order):
            raise Refused("the run is told to go back behind what this client has answered", "an old state is replayed")
        again = last is not None and progress.position.order == last.position.order and not progress.stopped
        if again and last is not None and progress.position.chain != last.position.chain:
            raise Refused("this client has answered in another course of the run", "an old state is replayed")
        self._places.write(RunState(progress).encode())

    def claim_model(self) -> None:
        """Note, for good, that a model may come of this run: before the final opening's upload leaves.

        Refused for a trial, for a run after which another was begun, and beyond the budget.
        """
        begun, name = read_runs(self._folder), self._session.hex()
        if not begun or begun[-1].session != name:
            raise Refused("another run was begun on this sharing: of this one no model may come")
        if begun[-1].model:
            return
        if begun[-1].trial:
            raise Refused("this run is a trial: it opens its validation loss and no model")
        check_allowance(begun[:-1], self._allowance)
        _write_runs(self._folder, [*begun[:-1], replace(begun[-1], model=True)])

    def end(self) -> None:
        """Note, for good, that the run has ended: nothing is answered any more, and its seeds go."""
        if not self.state.ended:
            self._places.write(replace(self.state, ended=True).encode())
        round_number, seeds = self.seeds()
        self._seeds.write(_encode_seeds(round_number, dict.fromkeys(seeds, SecretSeed(bytes(32)))))
        self._seeds.write(self._seeds.content)  # the other place, too

    # -- seeds -----------------------------------------------------------------------------------------------

    def seeds(self) -> tuple[int, dict[int, SecretSeed]]:
        """A round, and the run's seeds of that round by their numbers. Those of later rounds follow from them."""
        return _decode_seeds(self._seeds.content)

    def keep_seeds(self, round_number: int, seeds: Mapping[int, SecretSeed]) -> None:
        """Replace the seeds by those of a later round. After two such calls the old ones are overwritten."""
        before, known = self.seeds()
        if round_number < before or seeds.keys() != known.keys():
            raise StoreError(f"seeds of round {round_number} cannot follow those of round {before}")
        if round_number > before:
            self._seeds.write(_encode_seeds(round_number, seeds))

    def close(self) -> None:
        self._places.close()
        self._seeds.close()


def _open(folder: Path, session_id: bytes, key: StorageKey | None) -> tuple[TwoPlaces, TwoPlaces]:
    name = session_id.hex()
    try:
        places = TwoPlaces(folder / (name + HOP), session_id, key, HOP_ROLE)
        try:
            RunState.decode(places.content)
            seeds = TwoPlaces(folder / (name + SEEDS), session_id, key, SEEDS_ROLE)
            _decode_seeds(seeds.content)
        except BaseException:
            places.close()
            raise
    except (StoreError, struct.error) as error:
        raise StoreError(f"the state of run {name} is lost or damaged: {error}", _LOST) from error
    return places, seeds


def read_state(path: Path, session_id: bytes, key: StorageKey | None) -> RunState:
    """How far a run is, for who changes nothing. StoreError if the file is damaged."""
    return RunState.decode(read_content(path, session_id, key, HOP_ROLE))


def read_seeds(path: Path, session_id: bytes, key: StorageKey | None) -> tuple[int, dict[int, SecretSeed]]:
    """Of which round the seeds are, and they; for who changes nothing. StoreError if the file is damaged."""
    return _decode_seeds(read_content(path, session_id, key, SEEDS_ROLE))


def _write_runs(folder: Path, begun: list[BegunRun]) -> None:
    write_record(folder / RUNS, {"runs": [[run.session, run.trial, run.model] for run in begun]})


def _encode_seeds(round_number: int, seeds: Mapping[int, SecretSeed]) -> bytes:
    parts = [_SEED.pack(number, seed.reveal()) for number, seed in sorted(seeds.items())]
    return _ROUND.pack(round_number, len(seeds)) + b"".join(parts)


def _decode_seeds(data: bytes) -> tuple[int, dict[int, SecretSeed]]:
    round_number, count = _ROUND.unpack_from(data)
    parts = [_SEED.unpack_from(data, _ROUND.size + _SEED.size * i) for i in range(count)]
    return round_number, {number: SecretSeed(seed) for number, seed in parts}


# -- what the dealt seeds are made from --------------------------------------------------------------------------------


def mask_secret(folder: Path, key: StorageKey | None) -> SecretSeed | None:
    """The secret that this client's dealt mask seeds are made from; None if it is erased, since training has begun.

    It is made if there is none and no run was begun. It is not the one that masks of rows come from: rows must be dealt
    again after any time, seeds must not.
    """
    path = folder / MASK_SECRET
    found = read_private(path, 1024)
    if found is None:
        if read_runs(folder):
            return None
        secret = secrets.token_bytes(32)
        data = _MASK_SECRET + secret + hashlib.sha256(_MASK_SECRET + secret).digest()
        write_atomic(path, seal_file(key, data, MASK_SECRET_ROLE), private=True, error=StoreError)
    else:
        data = open_file(key, found, MASK_SECRET_ROLE, path)
    return SecretSeed(check_mask_secret(data, path))


def check_mask_secret(data: bytes, path: Path) -> bytes:
    """The 32 bytes of a mask secret's file. StoreError if it is damaged."""
    head, secret, check = data[: len(_MASK_SECRET)], data[len(_MASK_SECRET) : -32], data[-32:]
    if head != _MASK_SECRET or len(secret) != 32 or check != hashlib.sha256(head + secret).digest():
        raise StoreError(f"{path} is damaged", "restore it from a copy; else all participants must share again")
    return secret


def erase_mask_secret(folder: Path) -> None:
    """Erase what the dealt seeds are made from, if it is there."""
    erase_file(folder / MASK_SECRET)
