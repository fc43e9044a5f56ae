"""What a coordinator's folder says of its run before anything else is read: the agreement, and run.json.

run.json notes every key of the coordinator's own file that decides the weights, the agreement's digest, and the mark of
the storage key. Each start compares: a run goes on as it was begun, or not at all.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from dresfl.errors import CheckpointError
from dresfl.federation import Agreement
from dresfl.files import disk, enter_private_folder, read_record, take_lock, write_atomic, write_record
from dresfl.runtimes.log import Log
from dresfl.storage.at_rest import StorageKey, check_mark
from dresfl.storage.checkpoint import EARLIER, NEWEST, check_settings

from .settings import CoordinatorConfig

FORMAT = "dresfl run 1"
_RECORD = "run.json"
_KNOWN = {
    "agreement.json",
    "hops",
    "lock",
    "log.jsonl",
    "metrics.jsonl",
    "model.safetensors",
    "rounds.jsonl",
    "spool",
    "summary.json",
    "terms.json",
    "transcript",
    _RECORD,
    NEWEST,
    EARLIER,
}


def weight_settings(config: CoordinatorConfig) -> dict[str, object]:
    """Every key of the coordinator's file that decides the weights. All others may change between two starts."""
    optimizer = {f"optimizer.{name}": value for name, value in dataclasses.asdict(config.optimizer).items()}
    return {**optimizer, "network.on_shortage": config.network.on_shortage}


@contextlib.contextmanager
def run_folder_of(config: CoordinatorConfig, agreement: Agreement, key: StorageKey | None, log: Log) -> Iterator[Path]:
    """The run's folder: private, this process's alone while it is used, and of this agreement and these settings."""
    folder = Path(config.folder)
    if enter_private_folder(folder, _is_known):
        log("folder closed", folder=str(folder), reason="other users could enter it; it has mode 0700 now")
    lock = take_lock(folder / "lock", "coordinator")
    try:
        with disk(folder, "write to"):
            for part in folder.glob(".*.part"):  # of a write that a crash cut short
                part.unlink()
        check_run(folder, agreement, weight_settings(config), key, log)
        yield folder
    finally:
        os.close(lock)


def _is_known(name: str) -> bool:
    return name in _KNOWN or (name.startswith(".") and name.endswith(".part"))


def check_run(
    folder: Path, agreement: Agreement, settings: dict[str, object], key: StorageKey | None, log: Log
) -> None:
    """See that the folder is of this run, as far as it says. Without a record, the checkpoint is asked later."""
    path = folder / _RECORD
    record = read_record(
        path, f"restore it, or delete it: it is written again, and {NEWEST} refuses settings that are not its own"
    )
    if record is None:
        check_same(folder / "agreement.json", agreement)
        if (folder / "terms.json").exists():
            log("record missing", file=str(path), reason="it is written again from this configuration")
        return
    if record.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is of {record.get('format')!r}, not of {FORMAT!r}",
            "use the dresfl that made it, or choose another folder",
        )
    check_mark(key, record["storage_key"], folder)
    if record["agreement"] == agreement.digest.hex():
        _mend_agreement(folder / "agreement.json", agreement, log)
    check_same(folder / "agreement.json", agreement)
    check_settings(path, record["settings"], settings)


def note_run(folder: Path, agreement: Agreement, settings: dict[str, object], key: StorageKey | None) -> None:
    """Write the record, if there is none yet. Called when the checkpoint, if there is one, has had its say."""
    path = folder / _RECORD
    if not path.exists():
        mark = "" if key is None else key.mark.hex()
        described = {"format": FORMAT, "agreement": agreement.digest.hex(), "settings": settings, "storage_key": mark}
        write_record(path, described)


def check_same(path: Path, agreement: Agreement) -> None:
    """A run's folder is of one agreement; another one needs another folder."""
    with disk(path, "read", CheckpointError):
        found = path.read_bytes() if path.exists() else None
    if found is None:
        write_atomic(path, agreement.encode(), private=True, error=CheckpointError)
    elif found != agreement.encode():
        differing = "; ".join(agreement.differences(found))
        raise CheckpointError(
            f"the run in {path.parent} is of another agreement ({differing})", "choose another folder"
        )


def _mend_agreement(path: Path, agreement: Agreement, log: Log) -> None:
    """The record knows the agreement: a file with other bytes is damaged, and is written again."""
    with disk(path, "read", CheckpointError):
        damaged = path.exists() and path.read_bytes() != agreement.encode()
    if damaged:
        log("file mended", file=str(path), reason="it was damaged, and the run's record says what it was")
        write_atomic(path, agreement.encode(), private=True, error=CheckpointError)
