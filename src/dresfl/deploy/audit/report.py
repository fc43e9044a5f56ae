"""What an audit says: facts, what could be seen, the state of every file, and a verdict."""

import contextlib
import dataclasses
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from dresfl import __version__
from dresfl.errors import DresError
from dresfl.federation.messages import VERSION as PROTOCOL

SOUND = "sound"
AS_FAR = "sound, as far as it can be seen"
_SEALED = "sealed with the storage key"


@final
@dataclass(frozen=True)
class FileState:
    """One file: what it is, how it is, and who may open it."""

    file: str
    state: str  # "sound"; or what is wrong; or why it was not looked into
    mode: str  # of the file, in octal
    format: str = ""


@final
@dataclass
class Audit:
    """The audit of one folder. `look_at` is what a person should look at; nothing in it: the verdict is "sound"."""

    folder: Path
    kind: str  # "coordinator", "simulation" or "client"
    private: bool  # whether other users must be kept out
    state: str = ""  # how far the run is
    mode: str | None = None  # None: the folder does not say
    consent: bool | None = None
    parameters: dict[str, int] = field(default_factory=dict)
    could_see: dict[str, str] = field(default_factory=dict)  # who: what
    certificates: dict[str, Any] = field(default_factory=dict)
    rounds: dict[str, Any] = field(default_factory=dict)
    sharings: list[dict[str, Any]] = field(default_factory=list)  # of a client
    storage_key: str | None = None  # the mark of the key that seals; empty: none; None: not known
    versions: dict[str, Any] = field(default_factory=lambda: {"dresfl": __version__, "protocol": PROTOCOL})
    files: list[FileState] = field(default_factory=list)
    cannot_see: list[str] = field(default_factory=list)
    look_at: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """One line: "sound", or what to look at."""
        if self.look_at:
            return f"look at: {'; '.join(self.look_at)}"
        return AS_FAR if any(file.state.startswith(_SEALED) for file in self.files) else SOUND

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain values, as `dresfl audit --json` prints them."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "private"}
        files = [dataclasses.asdict(file) for file in self.files]
        return {**values, "folder": str(self.folder), "files": files, "verdict": self.verdict}

    # -- what the parts of an audit note ---------------------------------------------------------------------

    def note_file(self, path: Path, state: str = SOUND, format: str = "", *, wrong: bool = False) -> None:
        """Note a file that is there. wrong: a person should look at it."""
        name = str(path.relative_to(self.folder))
        self.files.append(FileState(name, state, _mode(path), format))
        if wrong:
            self.look_at.append(f"{name}: {state}")

    def note_damage(self, path: Path, error: DresError) -> None:
        """Note a file that cannot be used, with the reason in the words of its reader."""
        self.note_file(path, str(error).removeprefix(f"{path} ").removeprefix("is "), wrong=True)

    def note_sealed(self, path: Path, mark: str, lost: str) -> None:
        """Note a file that is sealed, and no key was given. lost: what cannot be seen because of that."""
        self.note_file(path, f"{_SEALED} {mark}, not looked into")
        self.cannot_see.append(f"{lost}: give --config with the storage key")

    def note_modes(self, places: list[Path]) -> None:
        """In a private folder, name what other users may enter, read or change."""
        if not self.private or os.name != "posix":
            return
        for path in places:
            with contextlib.suppress(FileNotFoundError):  # the run may be under way
                if path.lstat().st_mode & 0o077:
                    name = path.relative_to(self.folder.parent)
                    self.look_at.append(f"{name}: its mode {_mode(path)} lets other users at it")


def _mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.lstat().st_mode):04o}"
