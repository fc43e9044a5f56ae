"""The command that looks at a folder and says whether a person should look closer."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import display
from .display import JsonOption

if TYPE_CHECKING:
    from dresfl.deploy.audit import Audit


def audit_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, or a client's store.")],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="This participant's fed.toml or site.toml: its storage key opens sealed files, and its agreement says "
            "what a store does not.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a run's or a client's folder shows: mode, parameters, who could see what, checks, and damaged files.

    Nothing is changed, and no secret is printed. The last line is the verdict. Exit code 1 if there is something to
    look at.
    """
    from dresfl.deploy.audit import audit

    found = audit(folder, config)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        _show(found)
    if found.look_at:
        raise typer.Exit(1)


def _show(found: "Audit") -> None:
    kinds = {"coordinator": "a coordinator's run", "simulation": "a simulation", "client": "a client's store"}
    key = {None: "not known", "": "none: not sealed at rest"}.get(found.storage_key, found.storage_key)
    facts: dict[str, Any] = {
        "state": found.state,
        "mode": found.mode or "not known",
        "consent": {True: "accepted", False: "MISSING", None: "not known"}[found.consent],
        **found.parameters,
        **{f"rounds: {name.replace('_', ' ')}": _plain(value) for name, value in found.rounds.items()},
        **{f"checked: {name}": _plain(value) for name, value in found.certificates.items()},
        "storage key": key,
        **{f"version: {name}": _plain(value) for name, value in found.versions.items()},
    }
    if found.kind == "simulation" or found.mode == "hidden":  # which needs none
        del facts["consent"]
    display.print_pairs(f"{found.folder}: {kinds[found.kind]}", facts)
    if found.could_see:
        display.print_table("who could see what", [], [list(pair) for pair in found.could_see.items()])
    for sharing in found.sharings:
        shown = {name: _plain(value) for name, value in sharing.items() if name != "sharing"}
        display.print_pairs(f"sharing {sharing['sharing']}", shown)
    rows = [[file.file, file.mode, file.format, file.state] for file in found.files]
    display.print_table("files", ["file", "mode", "format", "state"], rows, words=True)
    for what in found.cannot_see:
        print(f"not seen: {what}")
    print(found.verdict)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(entry)}" for name, entry in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(_plain, value)) or "none"
    return "not known" if value is None else str(value)
