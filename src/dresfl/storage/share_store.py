"""A client's folder: its secret, the shares it was dealt, the rounds it has answered. Mode 0700, one process at a time.

    FOLDER/store.json                    what this folder is
    FOLDER/lock                          held while a process uses it
    FOLDER/secret                        32 bytes from the operating system, made once, and their SHA-256; may be sealed
    FOLDER/joined.json                   for which sharing each contribution has served
    FOLDER/SHARING/sharing.json          one folder for each sharing, by its identity
    FOLDER/SHARING/shares.rows .index    shares (share_table.py)
    FOLDER/SHARING/shares.setup          seeds of masks, shares of check values (set_up_file.py)
    FOLDER/SHARING/check.claimed         the coins that the dealers were checked with
    FOLDER/SHARING/verdict.json          what came of it
    FOLDER/SHARING/SESSION.answered      answered rounds of the open mode (answered_rounds.py)
    FOLDER/SHARING/runs.json, mask.secret, SESSION.hop, SESSION.seeds    of the hidden mode (hidden_state.py)

The seed of a sharing's masks is derived from the secret, the digest of this client's rows, and the sharing's full
digest. So the same masks never hide different rows, by construction, and a client that lost its shares but kept
`secret` deals exactly what it dealt before. Mask seeds of the hidden mode have a secret of their own, since they must
not outlive their runs. The tag, derived from the secret and the rows alone, is public: who shows
the same tag again still has both.
"""

import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, final

import torch
from torch import Tensor

from dresfl.errors import DresError, Refused, StoreError
from dresfl.field import SecretSeed
from dresfl.files import (
    disk,
    enter_private_folder,
    erase_file,
    read_private,
    read_record,
    sync_folder,
    take_lock,
    write_atomic,
    write_record,
)
from dresfl.protocol import Session, Verdict, coin_commitment

from .answered_rounds import FREE, AnswerLog
from .at_rest import StorageKey, check_mark, open_file, seal_file
from .hidden_state import (
    HOP,
    MASK_SECRET,
    RUNS,
    SEEDS,
    Allowance,
    HiddenRun,
    check_allowance,
    erase_mask_secret,
    is_last,
    mask_secret,
    read_runs,
)
from .set_up_file import NAME as SET_UP
from .share_table import DiskTable, unfinished
from .sum_notes import SUMS, SumFile

_log = logging.getLogger(__name__)

FORMAT = "dresfl store 3"
_SECRET = b"dresfl secret 1\n"
_SALT = 16  # bytes
_NUMBER = 8  # of them, the first ones: they count
_JOINED = "joined.json"
_CLAIM, _VERDICT = "check.claimed", "verdict.json"
_RECORD = {"tag": str, "index": int, "sharing": str, "nonce": str, "client_rows": list}  # sharing.json

SessionOf = Callable[[tuple[int, ...], bytes], Session]


def data_digest(inputs: Tensor, targets: Tensor) -> bytes:
    """SHA-256 of a client's integer rows, by which its store tells data sets apart."""
    digest = hashlib.sha256(b"dresfl rows")
    for part in (inputs, targets):
        digest.update(repr(tuple(part.shape)).encode())
        for rows in torch.split(part, 4096):
            digest.update(rows.to("cpu", torch.int64).contiguous().numpy().astype("<i8").tobytes())
    return digest.digest()


@final
@dataclass(frozen=True)
class Sharing:
    """What a store says of a sharing without looking into its shares."""

    identity: str
    client: int  # this client's number in it; -1 if its record is damaged
    rows: int  # of all clients
    bytes: int  # on the disk
    last_used: float  # seconds since 1970


@final
class ShareStore:
    """A client's folder, opened for one set of rows. Use it in a `with`.

    with ShareStore.open(folder, data_digest(inputs, targets), agreement.roster) as store:
        (table, damage), answered = store.table(session, index), store.answered(session)
        client = Client(session, index, store.secret(session), inputs, targets, table, answered)
    """

    def __init__(
        self,
        folder: Path,
        lock: int,
        root: SecretSeed,
        data: bytes,
        roster: str,
        key: StorageKey | None,
        allowance: Allowance | None,
        share_again: bool,
    ) -> None:
        """Not called directly: see `open`."""
        self.folder, self._key, self._allowance, self._share_again = folder, key, allowance, share_again
        self._lock = lock
        self._seed = root.derive(b"rows" + data + b"roster" + roster.encode())
        self._tables: dict[tuple[bytes, int], DiskTable] = {}
        self._logs: dict[bytes, AnswerLog] = {}
        self._runs: dict[bytes, HiddenRun] = {}

    def __repr__(self) -> str:
        return f"ShareStore({str(self.folder)!r}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ShareStore holds a secret and is not pickled")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @classmethod
    def open(
        cls,
        folder: Path,
        data: bytes,
        roster: str = "",
        key: StorageKey | None = None,
        allowance: Allowance | None = None,
        share_again: bool = False,
    ) -> "ShareStore":
        """Open a client's folder, or make it, for rows of this digest and the roster of this digest.

        key: seals the secret and the shares at rest. A store is made with a key or without, and stays so.
        allowance: in the hidden mode, how many runs the agreement allows on one sharing, and what this one is.
        share_again: the operator allows a new sharing although there were runs on earlier ones. Without it the budget
        of runs would be worth nothing: a coordinator could begin one sharing after the other.

        Under another roster the masks are others: were they the same, a client that the rosters number differently
        could hold two shares of one polynomial.

        Refused: a folder of something else, one that other users may enter, one that another process has open, one
        whose secret is damaged, and one that was made with another storage key.
        """
        _enter(folder)
        lock = take_lock(folder / "lock", "client")
        try:
            _recognise(folder, key)
            return cls(folder, lock, _secret(folder / "secret", key), data, roster, key, allowance, share_again)
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Flush everything and let another process have the folder."""
        try:
            for log in self._logs.values():
                log.close()
            for run in self._runs.values():
                run.close()
            for table in self._tables.values():
                table.close()
        finally:
            self._tables.clear()
            self._logs.clear()
            self._runs.clear()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    # -- the secret ------------------------------------------------------------------------------------------

    def secret(self, session: Session) -> SecretSeed:
        """The seed of this client's masks in a sharing: the same whenever rows, roster and sharing are."""
        return self._seed.derive(b"sharing" + session.sharing_digest)

    @property
    def tag(self) -> bytes:
        """16 public bytes: the same as long as secret, rows and roster are. Another tag: all must share again."""
        return self._seed.tag()

    def contribution(self) -> bytes:
        """What this client adds to the nonce of a new sharing: its tag, a fresh salt, and a commitment to a coin.

        The salt begins with a number, larger than that of every salt that has served a sharing.
        """
        number = self._joined()[0] + 1
        salt = number.to_bytes(_NUMBER, "big") + secrets.token_bytes(_SALT - _NUMBER)
        return self.tag + salt + coin_commitment(self._coin(salt))

    def coin(self, contribution: bytes) -> bytes:
        """The coin that a contribution of this store is bound to. It is shown once all shares are on the disk."""
        return self._coin(contribution[len(self.tag) : len(self.tag) + _SALT])

    def _coin(self, salt: bytes) -> bytes:
        return self._seed.derive(b"coin" + salt).reveal()

    def owns(self, contribution: bytes) -> bool:
        """Whether a contribution to a sharing's nonce is this store's: then it deals as it dealt in that sharing."""
        return len(contribution) == 64 and hmac.compare_digest(contribution[:16], self.tag)

    def claim_contribution(self, session: Session, contribution: bytes) -> bool:
        """Note, for good, that a contribution serves this sharing; False if it is too old to, or has served another.

        Its coin is shown once all shares are dealt. A dealer that knew the coins before it deals could pass its check.
        """
        salt = contribution[len(self.tag) : len(self.tag) + _SALT]
        last, sharings = self._joined()
        name, number = session.sharing_id.hex(), int.from_bytes(salt[:_NUMBER], "big")
        if sharings.get(name) == salt.hex():
            return True
        if number <= last:
            return False
        self._folder(session)
        kept = {other: noted for other, noted in sharings.items() if (self.folder / other).is_dir()}
        write_record(self.folder / _JOINED, {"last": number, "sharings": {**kept, name: salt.hex()}})
        return True

    def _joined(self) -> tuple[int, dict[str, str]]:
        """The number of the last salt that served a sharing, and the salts of the sharings that are here."""
        path = self.folder / _JOINED
        hint = "restore it: without it coins that were shown could serve a second time; or begin with an empty folder"
        found = read_record(path, hint)
        if found is None:
            return 0, {}
        if type(found.get("last")) is not int or not isinstance(found.get("sharings"), dict):
            raise StoreError(f"{path} is no list of contributions", hint)
        return found["last"], found["sharings"]

    # -- sharings --------------------------------------------------------------------------------------------

    def held_nonces(self, session_of: SessionOf, index: int) -> list[bytes]:
        """The nonces of the sharings here that can be used again: same rows, same secret, same code. Newest first.

        The check of their dealers must have found nothing.
        session_of: the session that row counts and a nonce give under the agreement; DresError if they give none.
        """
        found: list[tuple[float, bytes]] = []
        for folder in self._sharings():
            path = folder / "sharing.json"
            try:
                record = _sharing_record(path)
                if record is None or (record["tag"], record["index"]) != (self.tag.hex(), index):
                    continue
                nonce = bytes.fromhex(record["nonce"])
                session = session_of(tuple(record["client_rows"]), nonce)
                clean = self._read_verdict(folder) == Verdict()
            except StoreError as error:
                _log.warning("%s", error)
                continue
            except DresError:
                continue  # it does not fit this agreement
            if session.sharing_id.hex() == folder.name and clean:
                found.append((path.stat().st_mtime, nonce))
        return [nonce for _, nonce in sorted(found, key=lambda pair: -pair[0])]

    def offered_nonces(self, session_of: SessionOf, index: int) -> list[bytes]:
        """Those of `held_nonces` on whose sharing another run may begin. In the open mode all of them."""
        nonces = self.held_nonces(session_of, index)
        if self._allowance is None:
            return nonces
        allowed = {nonce for nonce in nonces if self._may_begin(nonce, self._allowance)}
        return [nonce for nonce in nonces if nonce in allowed]

    def _may_begin(self, nonce: bytes, allowance: Allowance) -> bool:
        for folder in self._sharings():
            try:
                record = _sharing_record(folder / "sharing.json")
                if record is not None and record["nonce"] == nonce.hex():
                    check_allowance(read_runs(folder), allowance)
            except DresError as error:
                _log.warning("%s is not used again: %s", folder, error)
                return False
        return True

    def table(self, session: Session, index: int, look: bool = True) -> tuple[DiskTable, list[str]]:
        """The shares of the session's sharing, and what was found wrong with them, in words.

        look=False reads a slice only before its first use, for a process that lives for one message. A sharing that is
        new here takes the place of those that were never finished. Refused if the sharing was dealt to another client
        number here, or dealt by this client under another secret or from other rows.
        """
        folder, key = self._folder(session), (session.sharing_digest, index)
        if key in self._tables:
            return self._tables[key], []
        wanted = {
            "tag": self.tag.hex(),
            "index": index,
            "sharing": session.sharing_digest.hex(),
            "nonce": session.nonce.hex(),
            "client_rows": list(session.client_rows),
        }
        path = folder / "sharing.json"
        try:
            found = _sharing_record(path)
        except StoreError as error:
            _log.warning("%s; it is written again", error)
            found = None
        if found is not None and found != wanted:
            differs = "the secret or the rows have changed" if found["tag"] != wanted["tag"] else "the number differs"
            raise StoreError(
                f"{folder} holds shares that were dealt to client {found['index']}, not to this one: {differs}",
                "all participants must share again, or bring back the secret and rows of then",
            )
        if found is None:
            self._check_new(folder)
            self._drop_unfinished(folder)
            write_record(path, wanted)
        table = self._tables[key] = DiskTable(folder, session, index, look, self._key)
        self._erase_dealt_seeds(session)  # again, if a crash came in between
        self._check_known(folder, table, index)
        return table, table.damage

    def _check_known(self, folder: Path, table: DiskTable, index: int) -> None:
        """In the hidden mode, refuse to be dealt shares after the check of the dealers that nothing is known of.

        They were not checked, and a single answer on rows off the polynomial gives the weights away. A client that
        deviates answers nothing.
        """
        verdict = None if self._allowance is None else self._read_verdict(folder)
        if verdict is None or index in verdict.deviating or table.is_known:
            return
        self._tables = {key: other for key, other in self._tables.items() if other is not table}
        table.close(flush=False)
        raise Refused(
            f"{folder} has lost shares, and their digests, since the dealers were checked: others would be unchecked",
            "restore the folder from a copy, or begin a new run in a new folder of the coordinator, which shares anew",
        )

    def _check_new(self, new: Path) -> None:
        """In the hidden mode, refuse a new sharing after runs on earlier ones, unless the operator allows it."""
        if self._allowance is None or self._share_again:
            return
        begun = [run for folder in self._sharings() if folder != new for run in read_runs(folder)]
        if begun:
            models = sum(run.model for run in begun)
            raise Refused(
                f"{len(begun)} runs were begun on earlier sharings of this client, and {models} models came of them; "
                "the coordinator wants another sharing",
                "if your organisation agrees to further models of its rows, start once with: dresfl join --share-again",
            )

    def answered(self, session: Session) -> AnswerLog:
        """The rounds of this session that were answered, whatever happened since."""
        folder, key = self._folder(session), session.session_id
        if key not in self._logs:
            self._logs[key] = AnswerLog(folder / f"{key.hex()}.answered", key)
        return self._logs[key]

    # -- runs in the hidden mode -----------------------------------------------------------------------------

    def mask_secret(self, session: Session) -> SecretSeed | None:
        """What this client makes the mask seeds from that it deals in a sharing of the hidden mode.

        None: it is erased. Rows can still be dealt, seeds cannot.
        """
        return mask_secret(self._folder(session), self._key)

    def hidden_run(self, session: Session) -> HiddenRun | None:
        """A run that was begun, where its disk left it; None if it was not. StoreError if its state is lost."""
        folder, key = self._folder(session), session.session_id
        if key not in self._runs:
            if key.hex() not in [run.session for run in read_runs(folder)]:
                return None
            self._runs[key] = HiddenRun(folder, key, self._allowed, self._key)
        return self._runs[key]

    def begin_hidden(self, session: Session, seeds: Mapping[int, SecretSeed]) -> HiddenRun:
        """Count a run that begins now, or go on with it. Refused if the sharing has had as many as were agreed on.

        seeds: the run's own of round 0, by number. If no further run is allowed after this one, the dealt seeds are
        erased, and so is what this client would deal its own from again.
        """
        found = self.hidden_run(session)
        if found is None:
            folder, key = self._folder(session), session.session_id
            found = self._runs[key] = HiddenRun.begin(folder, key, self._allowed, self._key, seeds)
            self._erase_dealt_seeds(session)
        return found

    def _erase_dealt_seeds(self, session: Session) -> None:
        folder = self._folder(session)
        begun = read_runs(folder) if self._allowance is not None else []
        if not begun or not is_last(begun, self._allowed):
            return
        erase_mask_secret(folder)
        for (digest, _), table in self._tables.items():
            if digest == session.sharing_digest:
                table.erase_seeds()

    @property
    def _allowed(self) -> Allowance:
        if self._allowance is None:
            raise StoreError("this store was opened for the open mode", "open it with the agreement's allowance")
        return self._allowance

    def sum_notes(self, session: Session) -> SumFile:
        """What is kept of the sums on a session's sharing."""
        return SumFile(self._folder(session))

    # -- the check of the dealers ----------------------------------------------------------------------------

    def claim_check(self, session: Session, coins: bytes) -> bool:
        """Note, for good, that the dealers of a sharing are checked with coins of this digest; False if with others."""
        found = self._claim(session)
        if found is None:
            write_record(self._folder(session) / _CLAIM, {"coins": coins.hex()})
            return True
        return bool(found["coins"] == coins.hex())

    def claimed_coins(self, session: Session) -> bytes:
        """The digest of the coins that `claim_check` noted; zeros if it noted none."""
        found = self._claim(session)
        return bytes(32) if found is None else bytes.fromhex(found["coins"])

    def _claim(self, session: Session) -> dict[str, Any] | None:
        hint = "restore it: without it this client could be asked for a second check"
        return read_record(self._folder(session) / _CLAIM, hint)

    def verdict(self, session: Session) -> Verdict | None:
        """What came of the check of a sharing's dealers, if it was kept."""
        return self._read_verdict(self._folder(session))

    def _read_verdict(self, folder: Path) -> Verdict | None:
        path, hint = (
            folder / _VERDICT,
            "restore it, or begin a new run in a new folder: there is one verdict for a sharing",
        )
        found = read_record(path, hint)
        try:
            return None if found is None else Verdict.from_dict(found)
        except ValueError as error:
            raise StoreError(f"{path} is damaged: {error}", hint) from error

    def keep_verdict(self, session: Session, verdict: Verdict) -> None:
        """Keep what came of the check, for good."""
        write_record(self._folder(session) / _VERDICT, verdict.to_dict())

    def sharings(self) -> list[Sharing]:
        """Every sharing that has shares here, whatever rows, roster and agreement they were dealt for.

        The last used first.
        """
        found: list[Sharing] = []
        for folder in self._dealt_sharings():
            with disk(folder, "read"):
                files = [path.stat() for path in folder.iterdir()]
            try:
                record = _sharing_record(folder / "sharing.json")
            except StoreError as error:
                _log.warning("%s", error)
                record = None
            client, rows = (record["index"], sum(record["client_rows"])) if record else (-1, 0)
            size = sum(file.st_blocks * 512 for file in files)  # what is taken: a file may have holes
            found.append(Sharing(folder.name, client, rows, size, max(file.st_mtime for file in files)))
        return sorted(found, key=lambda sharing: -sharing.last_used)

    def forget(self, identity: str) -> None:
        """Delete the shares of a sharing. To take part in it again, this client has to be dealt them again.

        Which rounds were answered, how many runs there were, and what was summed, stays written down: a client that
        forgot could be asked for a round twice. Seeds are overwritten before they are deleted.
        """
        known = [folder.name for folder in self._dealt_sharings()]
        if identity not in known:
            raise StoreError(
                f"{self.folder} has no shares of {identity!r}", f"it has those of: {', '.join(known) or 'none'}"
            )
        self._delete_shares(self.folder / identity)

    def _delete_shares(self, folder: Path) -> None:
        for key in [key for key in self._tables if key[0].hex().startswith(folder.name)]:
            self._tables.pop(key).close(flush=False)
        for run in [run for run in self._runs if (folder / (run.hex() + SEEDS)).exists()]:
            self._runs.pop(run).close()
        with disk(folder, "delete from"):
            for path in _dealt(folder):
                if path.suffix == SEEDS or path.name in (MASK_SECRET, SET_UP):
                    erase_file(path)
                else:
                    path.unlink()
            sync_folder(folder)

    def _drop_unfinished(self, new: Path) -> None:
        """Delete the shares of all other sharings in which slices never came, and what else is of no use then.

        So a coordinator that invents one sharing after the other never takes the space of more than one. Should an
        unfinished sharing be gone on with, its dealers deal again what they dealt.
        """
        for folder in self._dealt_sharings():
            if folder != new and unfinished(folder):
                _log.warning("%s was never finished, and another sharing begins: its shares are deleted", folder)
                self._delete_shares(folder)
                self._drop_empty_logs(folder)

    def _drop_empty_logs(self, folder: Path) -> None:
        """Delete the logs in which no round is noted, and the folder if nothing else is in it."""
        for key in [key for key, log in self._logs.items() if log.path.parent == folder]:
            self._logs.pop(key).close()
        with disk(folder, "delete from"):
            for path in folder.glob("*.answered"):
                if not path.read_bytes().strip(FREE):
                    path.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()
                sync_folder(self.folder)

    def _sharings(self) -> Sequence[Path]:
        return [path for path in sorted(self.folder.iterdir()) if _is_identity(path.name) and path.is_dir()]

    def _dealt_sharings(self) -> Sequence[Path]:
        with disk(self.folder, "read"):
            return [folder for folder in self._sharings() if _dealt(folder)]

    def _folder(self, session: Session) -> Path:
        if self._lock < 0:
            raise StoreError(f"the store {self.folder} is closed")
        folder = self.folder / session.sharing_id.hex()
        with disk(folder, "make"):
            if not folder.is_dir():
                folder.mkdir(mode=0o700)
                sync_folder(self.folder)
            for part in folder.glob(".*.part"):  # of a write that a crash cut short: there may be seeds in it
                erase_file(part)
        return folder


def _is_identity(name: str) -> bool:
    return len(name) == 32 and _is_hex(name)


def _sharing_record(path: Path) -> dict[str, Any] | None:
    """What a sharing's record says; None if there is none. StoreError if it is not one that this release writes."""
    record = read_record(path)
    if record is not None:
        kinds = {key: type(value) for key, value in record.items()}
        rows = record.get("client_rows")
        if kinds != _RECORD or not all(type(count) is int for count in rows or ()) or not _is_hex(record["nonce"]):
            raise StoreError(f"{path} is not the record of a sharing", "delete it: it is written again")
    return record


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and all(letter in "0123456789abcdef" for letter in text)


def _dealt(folder: Path) -> list[Path]:
    """A sharing's files, without those of what was answered. Its own record is last: it outlives a delete cut short."""
    kept = _CLAIM, _VERDICT, RUNS, SUMS
    files = [path for path in folder.iterdir() if path.suffix not in (".answered", HOP) and path.name not in kept]
    return sorted(files, key=lambda path: path.name == "sharing.json")


def _enter(folder: Path) -> None:
    """Make the folder with mode 0700, or see that nobody else may enter it."""
    enter_private_folder(folder, lambda name: name == "lost+found")  # empty: made for us, say by a service manager
    with disk(folder, "open"):
        strangers = [path.name for path in folder.iterdir() if not _is_known(path.name)]
        if strangers and not (folder / "store.json").exists():
            raise StoreError(f"{folder} holds other files ({strangers[0]})", "give the store a folder of its own")


def _is_known(name: str) -> bool:
    known = ("store.json", _JOINED, "lock", "secret", "flower.json", "transcript", "lost+found")
    return name in known or name.endswith(".part") or _is_identity(name)


def _recognise(folder: Path, key: StorageKey | None) -> None:
    """See that the folder is a store of this key, or make it one."""
    path = folder / "store.json"
    with disk(folder, "write to"):
        for part in folder.glob(".*.part"):
            part.unlink()
    found = read_record(path, "restore it, or delete it: it is written again")
    if found is None:
        write_record(path, {"format": FORMAT, "storage_key": "" if key is None else key.mark.hex()})
    elif found.get("format") != FORMAT:
        raise StoreError(
            f"{path} is of {found.get('format')!r}, not of {FORMAT!r}", "use the dresfl that made it, or another folder"
        )
    else:
        check_mark(key, found.get("storage_key", ""), folder)


def _secret(path: Path, storage_key: StorageKey | None) -> SecretSeed:
    """The store's root secret; made if there is none."""
    found = read_private(path, 1024)
    if found is None:
        if any(_is_identity(name) for name in os.listdir(path.parent)):
            _log.warning("%s is missing and made anew: sharings of before are of no use to others any more", path)
        key = secrets.token_bytes(32)
        data = _SECRET + key + hashlib.sha256(_SECRET + key).digest()
        write_atomic(path, seal_file(storage_key, data, "secret"), private=True, error=StoreError)
    else:
        data = open_file(storage_key, found, "secret", path)
    key = data[len(_SECRET) : -32]
    if len(data) != len(_SECRET) + 64 or data[-32:] != hashlib.sha256(_SECRET + key).digest() or data[:16] != _SECRET:
        raise StoreError(
            f"{path} is damaged",
            "restore it from a copy; if there is none, delete it: then all participants must share again",
        )
    return SecretSeed(key)
