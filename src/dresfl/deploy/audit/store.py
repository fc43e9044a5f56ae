"""The audit of a client's store: its shares, the rounds it answered, its secret's file. No secret is shown."""

import hashlib
import struct
from pathlib import Path
from typing import Any

from dresfl.deploy.settings import ClientConfig, load_agreement, load_settings
from dresfl.errors import DresError, StoreError
from dresfl.federation import Agreement, make_session
from dresfl.files import read_private, read_record
from dresfl.sealing import Roster
from dresfl.storage.answered_rounds import read_answered
from dresfl.storage.at_rest import StorageKey, mark_of, open_file
from dresfl.storage.hidden_state import (
    HOP,
    MASK_SECRET,
    MASK_SECRET_ROLE,
    RUNS,
    SEEDS,
    BegunRun,
    check_mask_secret,
    read_runs,
    read_seeds,
    read_state,
)
from dresfl.storage.share_check import INDEX, ROWS, check_shares
from dresfl.storage.share_store import FORMAT as STORE_FORMAT

from .report import SOUND, Audit
from .run import describe, look, note_verdict

_SECRET_BYTES = 80  # a head, 32 random bytes, and a SHA-256 of both
_SET_UP = "shares.setup"
_SET_UP_HEAD = 16 + 32  # its format, and the sharing's digest
_LARGEST = 2**30


def is_store(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("store.json", "secret"))


def audit_store(folder: Path, config: Path | None) -> Audit:
    """The audit of a client's folder. config: its site.toml, which names the agreement and the storage key."""
    audit = Audit(folder, "client", private=True)
    own = None if config is None else load_settings(ClientConfig, config)
    key = None if own is None else StorageKey.find(own.storage_key)
    record = look(audit, folder / "store.json", lambda path: read_record(path) or {}, STORE_FORMAT)
    if record is None and not (folder / "store.json").exists():
        audit.look_at.append("store.json: is missing; the client writes it again")
    if record is not None:
        audit.storage_key = str(record.get("storage_key", ""))
        if record.get("format") != STORE_FORMAT:
            audit.look_at.append(f"store.json: is of {record.get('format')!r}, not of {STORE_FORMAT!r}")
    agreement = None
    if own is None:
        audit.cannot_see.append("mode and parameters: a store does not have them; give --config site.toml")
    else:
        agreement = load_agreement(own, Roster.load(Path(own.keys.roster), own.keys.roster_sha256))
        describe(audit, agreement)
    look(audit, folder / "joined.json", read_record)
    _secret(audit, folder / "secret", key)
    for place in sorted(path for path in folder.iterdir() if path.is_dir() and len(path.name) == 32):
        audit.sharings.append(_sharing(audit, place, agreement, key))
    audit.state = _state(audit)
    audit.note_modes([folder, *(path for path in folder.rglob("*") if not path.is_symlink())])
    return audit


def _state(audit: Audit) -> str:
    if not audit.sharings:
        return "no sharing yet"
    last = max(sharing["rounds_answered"] for sharing in audit.sharings)
    count = "one sharing" if len(audit.sharings) == 1 else f"{len(audit.sharings)} sharings"
    return f"{count}; {last} rounds answered in the longest run"


def _secret(audit: Audit, path: Path, key: StorageKey | None) -> None:
    """Whether the secret's file is whole. What is in it is looked at and not kept."""
    if not path.exists():
        audit.look_at.append("secret: is missing; with a new one, all clients must share again")
        return
    try:
        data = read_private(path, 1024) or b""
        if key is None and (mark := mark_of(data)):
            audit.note_sealed(path, mark, "whether the secret is whole")
            return
        plain = open_file(key, data, "secret", path)
        if len(plain) != _SECRET_BYTES or hashlib.sha256(plain[:-32]).digest() != plain[-32:]:
            raise StoreError(f"{path} is damaged")
    except DresError as error:
        audit.note_damage(path, error)
    else:
        audit.note_file(path)


def _sharing(audit: Audit, folder: Path, agreement: Agreement | None, key: StorageKey | None) -> dict[str, Any]:
    """One sharing: whose shares are here, whether they are whole, and which rounds were answered with them."""
    found: dict[str, Any] = {"sharing": folder.name, "rounds_answered": 0, "runs": []}
    record = look(audit, folder / "sharing.json", lambda path: read_record(path) or {})
    if record:
        rows = record["client_rows"]
        found |= {"client": record["index"], "clients": len(rows), "rows": sum(rows)}
        digest = bytes.fromhex(record["sharing"])
        if agreement is not None:
            found["of this agreement"] = _is_of(agreement, record)
        _shares(audit, folder, digest, found, rows)
        _set_up(audit, folder / _SET_UP, digest, key)
    elif any((folder / name).exists() for name in (ROWS, INDEX)) and not (folder / "sharing.json").exists():
        audit.look_at.append(f"{folder.name}/sharing.json: is missing, so its shares cannot be checked")
    look(audit, folder / "check.claimed", read_record)
    verdict = look(audit, folder / "verdict.json", lambda path: read_record(path) or {})
    if verdict is not None:
        note_verdict(audit, verdict, f"{folder.name}/verdict.json")
        found["dealers"] = audit.certificates["dealers"]
    for path in sorted(folder.glob("*.answered")):
        answered = look(audit, path, lambda path: read_answered(path, bytes.fromhex(path.stem)))
        if answered is None:
            continue
        found["runs"].append({"session": path.stem, "answered": len(answered), "last": max(answered, default=None)})
        if agreement is not None and answered and max(answered) >= agreement.rounds:
            audit.look_at.append(f"{path.name}: round {max(answered)} was answered, {agreement.rounds} are agreed on")
    _hidden_runs(audit, folder, found, agreement, key)
    found["rounds_answered"] = max((run["answered"] for run in found["runs"]), default=0)
    return found


def _hidden_runs(
    audit: Audit, folder: Path, found: dict[str, Any], agreement: Agreement | None, key: StorageKey | None
) -> None:
    """The runs of the hidden mode on this sharing: how many there were, and how far each is."""
    begun = look(audit, folder / RUNS, lambda path: read_runs(path.parent)) or []
    models = sum(run.model for run in begun)
    if begun:
        found["budget"] = {"models": models, "trials or stopped": len(begun) - models}
    for run in begun:
        found["runs"].append({"session": run.session, "mode": "hidden", **_hidden_run(audit, folder, run, key)})
    _mask_secret(audit, folder / MASK_SECRET, key)
    settings = None if agreement is None else agreement.hidden
    if settings is not None and found.get("of this agreement"):
        if models > settings.runs:
            audit.look_at.append(f"{folder.name}: {models} models came of it, {settings.runs} are agreed on")
        found["budget"] = {**found.get("budget", {}), "runs": settings.runs, "trials": settings.trials}


def _hidden_run(audit: Audit, folder: Path, run: BegunRun, key: StorageKey | None) -> dict[str, Any]:
    state: dict[str, Any] = {"trial": run.trial, "model": run.model, "answered": 0, "last": None}
    session = bytes.fromhex(run.session)
    for path in (folder / (run.session + HOP), folder / (run.session + SEEDS)):
        if not path.exists():
            if path.suffix == HOP or not state.get("ended"):
                audit.look_at.append(f"{path.relative_to(audit.folder)}: is missing; this client is out of that run")
        elif key is None and (mark := mark_of(path.read_bytes()[:64])):
            audit.note_sealed(path, mark, f"how far run {run.session} is")
        elif path.suffix == SEEDS:
            seeds = look(audit, path, lambda path: read_seeds(path, session, key))
            state["seeds_of_round"] = None if seeds is None else seeds[0]
        else:
            found = look(audit, path, lambda path: read_state(path, session, key))
            state["ended"] = found is not None and found.ended
            if found is not None and found.progress is not None:
                position = found.progress.position
                state |= {"answered": position.round_number + 1, "last": position.round_number, "hop": position.hop}
                if found.progress.stopped:
                    state["stopped"] = found.progress.stopped
                    audit.look_at.append(f"{path.name}: this client left the run: {found.progress.stopped}")
    return state


def _mask_secret(audit: Audit, path: Path, key: StorageKey | None) -> None:
    if not path.exists():
        return
    try:
        data = read_private(path, 1024) or b""
        if key is None and (mark := mark_of(data)):
            audit.note_sealed(path, mark, f"whether {path.parent.name}/{path.name} is whole")
            return
        check_mask_secret(open_file(key, data, MASK_SECRET_ROLE, path), path)
    except DresError as error:
        audit.note_damage(path, error)
    else:
        audit.note_file(path)


def _is_of(agreement: Agreement, record: dict[str, Any]) -> bool:
    try:
        session = make_session(agreement, record["client_rows"], bytes.fromhex(record["nonce"]), b"")
    except DresError:
        return False
    return session.sharing_digest == bytes.fromhex(record["sharing"])


def _shares(audit: Audit, folder: Path, digest: bytes, found: dict[str, Any], rows: list[int]) -> None:
    paths = [folder / ROWS, folder / INDEX]
    if not any(path.exists() for path in paths):
        found["shares"] = "none: they have not come yet, or were forgotten"
        return
    try:
        check = check_shares(folder, digest, found["client"], rows)
    except DresError as error:
        found["shares"] = str(error)
        for path in paths:
            if path.exists():
                audit.note_damage(path, error)
            else:
                audit.look_at.append(f"{path.relative_to(audit.folder)}: is missing")
        return
    found |= {"slices": check.slices, "held": check.held, "missing": check.missing, "damaged": len(check.damaged)}
    found["shares"] = "whole" if check.held == check.slices else f"{check.held} of {check.slices} slices are here"
    for path in paths:
        wrong = [what for what in check.damaged if what.startswith(path.name)]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        audit.note_file(path, f"damaged: {wrong[0]}{more}" if wrong else SOUND, wrong=bool(wrong))


def _set_up(audit: Audit, path: Path, digest: bytes, key: StorageKey | None) -> None:
    """Seeds of masks and shares of check values: as secret as shares. Whether the file is whole."""
    if not path.exists():
        return
    try:
        data = read_private(path, _LARGEST) or b""
        if key is None and (mark := mark_of(data)):
            audit.note_sealed(path, mark, f"whether {path.parent.name}/{path.name} is whole")
            return
        plain = open_file(key, data, "set-up", path)
        if hashlib.sha256(plain[:-32]).digest() != plain[-32:] or plain[16:_SET_UP_HEAD] != digest:
            raise StoreError(f"{path} is damaged; it is fetched again")
        _, clients = struct.unpack_from("<II", plain, _SET_UP_HEAD)
    except (DresError, struct.error) as error:
        audit.note_damage(path, error if isinstance(error, DresError) else StoreError(f"{path} is damaged"))
    else:
        audit.note_file(path, format=f"{plain[:15].decode('ascii', 'replace')}, of {clients} dealers")
