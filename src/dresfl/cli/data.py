"""`dresfl data`: what a folder of data sets holds."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dresfl.errors import DataError

from . import display
from .display import JsonOption

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="The data sets in a folder.")


@app.callback()
def _group() -> None:
    pass


@app.command("check", epilog="Example: `dresfl data check ~/data --json`")
def check_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of data sets, in torchvision's layout.")],
    as_json: JsonOption = False,
) -> None:
    """Say which files are the official ones, by published checksums, and print the digests that records carry.

    `official values` are the authors' own in another packing: an experiment on them is the official one. Nothing is
    changed or downloaded.
    """
    from dresfl.data import check_folder, load, sources
    from dresfl.data.official import MEANING
    from dresfl.features import check_weights

    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}", "give the folder that has the files, in torchvision's layout")
    found = [finding for finding in (*check_folder(folder), *check_weights(folder)) if finding.verdict != "missing"]
    if not found:
        raise DataError(f"{folder} holds no file of a known data set", "docs/reference/data-sets.md names the files")
    damaged = {finding.data_set for finding in found if finding.verdict == "damaged"}
    digests: dict[str, Any] = {}
    for name, source in sources().items():
        held = {finding.file for finding in found if finding.data_set == name}
        if source.files and held == source.files.keys() and name not in damaged:
            display.note(f"reading {source.label}")
            split = load(name, folder)
            digests[name] = {
                "train_rows": split.train.num_rows,
                "test_rows": split.test.num_rows,
                "data_sha256": dict(split.origin.data),
            }
    if as_json:
        print(json.dumps({"files": [dataclasses.asdict(finding) for finding in found], "arrays": digests}, indent=2))
        return
    rows = [[finding.file, finding.verdict, finding.sha256[:16]] for finding in found]
    display.print_table(str(folder), ["file", "verdict", "SHA-256 begins"], rows)
    for finding in found:
        if finding.note:
            print(f"{finding.file}: {finding.note}")
    for verdict in dict.fromkeys(finding.verdict for finding in found):
        print(f"{verdict}: {MEANING[verdict]}")
    if digests:
        names = ("train_inputs", "train_labels", "test_inputs", "test_labels")
        display.print_table(
            "arrays as runs see them; SHA-256 begins",
            ["data set", "rows", *(name.replace("_", " ") for name in names)],
            [
                [
                    name,
                    f"{one['train_rows']:,} + {one['test_rows']:,}",
                    *(one["data_sha256"][key][:12] for key in names),
                ]
                for name, one in digests.items()
            ],
        )
