"""Looks at a folder of a run or of a client, changes nothing in it, and says whether a person should look closer.

report.py: what is said. run.py: a coordinator's or a simulation's folder. store.py: a client's.
"""

from pathlib import Path

from dresfl.errors import UsageError

from .report import AS_FAR, SOUND, Audit, FileState
from .run import audit_run, audit_simulation, is_run, is_simulation
from .store import audit_store, is_store


def audit(folder: Path, config: Path | None = None) -> Audit:
    """Audit a folder. config: the participant's fed.toml or site.toml, for its storage key and its agreement."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "give the folder of a run, or a client's store")
    folder = folder.absolute()
    if is_store(folder):
        return audit_store(folder, config)
    if is_run(folder):
        return audit_run(folder, config)
    if is_simulation(folder):
        return audit_simulation(folder)
    raise UsageError(
        f"{folder} is neither the folder of a run nor a client's store",
        "give the `folder` of fed.toml or site.toml, or the --out of dresfl train",
    )
