"""`dresfl schema`: what the clients' tables must look like."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from dresfl.errors import DataError, UsageError

from . import display
from .display import JsonOption

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="What the clients' tables must look like.")


@app.callback()
def _group() -> None:
    pass


@app.command(
    "init",
    epilog="Example: `dresfl schema init hospital-1.csv --label outcome --vocabulary outcome --vocabulary sex "
    "--leave-out patient --out schema.toml`",
)
def init_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Tables: CSV, Parquet, Arrow, NPZ.")],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="The column that a model shall learn.")],
    task: Annotated[str, typer.Option(help="classification or regression.")] = "classification",
    vocabulary: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Write the words of this column into the draft.")
    ] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column that is no input, e.g. a number of a person.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.toml", help="Where to write; default: stdout.")] = None,
) -> None:
    """Draft a schema from one client's tables, for people to complete and to agree on.

    No cell of a row goes into the draft: ranges are rounded away from the values, to one digit, and words are left out
    except those of the columns that --vocabulary names.
    """
    from dresfl.files import write_new
    from dresfl.tables import draft

    if task not in ("classification", "regression"):
        raise UsageError(f"the task {task!r} is not known", "use classification or regression")
    made = draft(
        files,
        label=label,
        task=cast(Any, task),
        vocabulary=vocabulary or (),
        leave_out=leave_out or (),
    )
    if out is None:
        print(made.to_toml(), end="")
    else:
        write_new(out, made.to_toml().encode(), error=UsageError)
        display.note(f"wrote {out}")
    try:
        made.check_complete()
    except UsageError as error:
        display.note(f"note: the draft is not complete: {error}; {error.hint}")


@app.command(
    "check", epilog="Example: `dresfl schema check hospital-1.csv --schema schema.toml`; it exits with 1 on a problem."
)
def check_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Tables: CSV, Parquet, Arrow, NPZ.")],
    schema: Annotated[Path, typer.Option(metavar="FILE.toml", help="The agreed schema.")],
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Print the cells, too. They may be about people.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Hold tables against a schema: every problem with its column, its count and its first rows. Nothing is changed.

    Rows count from 1, without the header.
    """
    from dresfl.tables import check_table, load_schema

    agreed = load_schema(schema)
    reports = [check_table(file, agreed, show_values=show_values) for file in files]
    digest = agreed.digest().hex()
    if as_json:
        print(json.dumps({"schema_sha256": digest, "tables": [dataclasses.asdict(one) for one in reports]}, indent=2))
    else:
        for report in reports:
            rows = [
                [found.column, kind, found.what, f"{found.count:,}", _shown(found.rows, found.values, found.count)]
                for kind, some in (("problem", report.problems), ("note", report.notes))
                for found in some
            ]
            verdict = f"{len(report.problems)} problems" if report.problems else "fits the schema"
            title = f"{report.table}: {report.num_rows:,} rows, {verdict}"
            if rows:
                display.print_table(title, ["column", "", "what", "rows", "which"], rows, words=True)
            else:
                print(title)
            if report.unused:
                print(f"columns that the schema does not name: {', '.join(report.unused)}")
        print(f"schema: {agreed.num_features} features, SHA-256 {digest}")
    wrong = [report.table for report in reports if report.problems]
    if wrong:
        raise DataError(f"{', '.join(wrong)}: a run would refuse these rows", "mend them, or agree on another schema")


def _shown(rows: tuple[int, ...], values: tuple[str, ...], count: int) -> str:
    cells = [f"{row} ({value!r})" for row, value in zip(rows, values, strict=True)] if values else map(str, rows)
    return ", ".join(cells) + (", …" if count > len(rows) else "")
