"""The coordinator's checkpoint: its state after a round, with a digest of all of it, and the one before.

A checkpoint is a safetensors file, sealed if there is a storage key. Its tensors are those of `Training.state`. Its
description has

    format      "dresfl checkpoint 3"
    session     the identity of the run's session
    settings    what decides the weights and is not part of the session: the optimiser, for instance
    progress    the counters
    metrics     the SHA-256 of metrics.jsonl as far as the checkpoint knows it
    sha256      of all tensors and of everything above

The checkpoint before stays under another name. If the newest is damaged, a run may go on from that one: what is
decoded depends on no mask and on nobody's absence, so the weights come out the same.
"""

import errno
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, final

from torch import Tensor

from dresfl.errors import CheckpointError, StoreError
from dresfl.files import disk, sync_folder, write_atomic
from dresfl.protocol import Session

from .at_rest import BrokenSeal, StorageKey, open_file
from .tensors import decode_tensors, encode_tensors, octets

_log = logging.getLogger(__name__)

FORMAT = "dresfl checkpoint 3"
NEWEST, EARLIER = "checkpoint.safetensors", "checkpoint-before.safetensors"
_ROLE = "checkpoint"


class Course(Protocol):
    """What a checkpoint keeps of a run: a `Training` of the open mode, or how far a hidden run is."""

    @property
    def session(self) -> Session:
        """Whose identity a checkpoint carries."""

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, between rounds; `round` among it."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from `state()`. CheckpointError if it does not fit."""


@final
@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its files, and how."""

    path: Path
    private: bool = False  # files of mode 0600
    key: StorageKey | None = None
    settings: Mapping[str, object] = field(default_factory=dict)  # what decides the weights, beside the session
    use_earlier: bool = False  # go on from the checkpoint before, if the newest is damaged
    how_to_use_earlier: str = "restore it from a backup"  # in words, for the hint


@final
@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds."""

    tensors: dict[str, Tensor]
    progress: dict[str, Any]
    metrics: str  # SHA-256 of the metrics that it knows of


class _Damaged(CheckpointError):
    """A checkpoint whose bytes are not those that were written."""


def write_checkpoint(folder: RunFolder, course: Course, progress: Mapping[str, object], metrics: str) -> None:
    """Put a run's state on the disk; the checkpoint of before stays beside it."""
    described = {
        "format": FORMAT,
        "session": course.session.session_id.hex(),
        "settings": dict(folder.settings),
        "progress": dict(progress),
        "metrics": metrics,
    }
    tensors = course.state()
    described["sha256"] = content_digest(tensors, described)
    parts = encode_tensors(tensors, described)
    if folder.key is not None:
        parts = [folder.key.seal(b"".join(parts), _ROLE)]
    write_atomic(folder.path / NEWEST, *parts, private=folder.private, keep=folder.path / EARLIER)


def read_checkpoint(folder: RunFolder, course: Course) -> Checkpoint | None:
    """The folder's checkpoint, which must be of this run; None if there is none.

    If the newest is damaged or gone, it is the one before, if the folder says so: it takes the place of the newest.
    """
    newest, earlier = folder.path / NEWEST, folder.path / EARLIER
    if not newest.exists() and not earlier.exists():
        return None
    try:
        return _read(newest, folder, course)
    except _Damaged as damage:
        try:
            found = _read(earlier, folder, course)
        except CheckpointError as other:
            raise CheckpointError(
                f"{damage}, and there is no earlier one to go on from ({other})",
                "restore the file from a backup, or start over in another folder",
            ) from damage
        number = int(found.tensors["round"])
        if not folder.use_earlier:
            raise CheckpointError(
                f"{damage}; the one before it is sound and is of round {number}",
                folder.how_to_use_earlier,
            ) from damage
        _log.warning("%s; the run goes on from the checkpoint before it, of round %d", damage, number)
        with disk(newest, "replace", CheckpointError):
            os.replace(earlier, newest)  # or the next one would keep the damaged one as the one before
            sync_folder(folder.path)
        return found


def read_content(path: Path, key: StorageKey | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description of a checkpoint, whichever run it is of. CheckpointError if it is damaged."""
    try:
        data = open_file(key, path.read_bytes(), _ROLE, path)
        tensors, meta = decode_tensors(data)
    except FileNotFoundError as error:
        raise _Damaged(f"{path} is missing") from error
    except OSError as error:
        if error.errno != errno.EIO:  # a bad sector is damage; anything else may pass
            raise CheckpointError(f"cannot read {path}: {error.strerror}", "check its permissions") from error
        raise _Damaged(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _Damaged(f"{path} cannot be read: {error}") from error
    except BrokenSeal as error:
        raise _Damaged(str(error), error.hint) from error
    except StoreError as error:
        raise CheckpointError(str(error), error.hint) from error
    found, digest = meta.get("format", "that of dresfl 0.1"), meta.pop("sha256", None)
    if found != FORMAT and digest is None:
        raise CheckpointError(
            f"{path} has the format {found}, but {FORMAT!r} was wanted",
            "finish the run with the dresfl that began it, or start over in another folder",
        )
    if digest != content_digest(tensors, meta):
        raise _Damaged(f"{path} is damaged: it does not have its digest")
    if found != FORMAT:
        raise CheckpointError(f"{path} has the format {found}, but {FORMAT!r} was wanted", "use the dresfl of then")
    if missing := {"session", "settings", "progress", "metrics"} - meta.keys():
        raise CheckpointError(f"{path} has no {min(missing)}", "start over in another folder")
    return tensors, meta


def _read(path: Path, folder: RunFolder, course: Course) -> Checkpoint:
    tensors, meta = read_content(path, folder.key)
    if meta["session"] != course.session.session_id.hex():
        raise CheckpointError(
            f"{path} is of another run: of session {meta['session']}, not {course.session.session_id.hex()}",
            "bring back the run's own files, or start over in another folder",
        )
    check_settings(path, meta["settings"], folder.settings)
    return Checkpoint(tensors, meta["progress"], str(meta["metrics"]))


def check_settings(path: Path, then: object, now: Mapping[str, object]) -> None:
    """Refuse settings that would lead to other weights than those that a run began with; each is named."""
    before = then if isinstance(then, Mapping) else {}
    current = json.loads(json.dumps(dict(now)))  # as a file gives them back
    keys = sorted({*before, *current})
    differing = [
        f"{key} was {_literal(before.get(key, '-'))} and is now {_literal(current.get(key, '-'))}"
        for key in keys
        if before.get(key, None) != current.get(key, None)
    ]
    if differing:
        raise CheckpointError(
            f"the run in {path.parent} was begun with other settings: {'; '.join(differing)}",
            "put the old values back to go on with this run, or choose another folder for a new one",
        )


def _literal(value: object) -> str:
    return json.dumps(value) if value != "-" else "not there"


def content_digest(tensors: Mapping[str, Tensor], described: Mapping[str, object]) -> str:
    """SHA-256 of tensors and of what describes them, in one fixed order."""
    shapes = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
    head = json.dumps([described, shapes], sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(b"dresfl checkpoint" + len(head).to_bytes(8, "little") + head)
    for name in sorted(tensors):
        digest.update(octets(tensors[name].contiguous()))
    return digest.hexdigest()
