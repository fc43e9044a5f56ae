"""`dresfl bench`: speed and memory."""

import json
from pathlib import Path
from typing import Annotated

import typer

from . import display
from .display import JsonOption

app = typer.Typer(rich_markup_mode="markdown")


@app.callback(
    invoke_without_command=True,
    epilog="Examples: `dresfl bench --quick`; `dresfl bench --json bench.json --plot bench.png`; "
    "`dresfl bench --from bench.json --page benchmarks.md` renders without measuring.",
)
def bench_command(
    context: typer.Context,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute: shorter budgets, fewer sizes.")] = False,
    threads: Annotated[int, typer.Option(help="CPU threads, ours and the other libraries'.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON; - for stdout.")
    ] = None,
    picture: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw a PNG, SVG or PDF.")] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Write the results as a Markdown page.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE.json", help="Render these results; measure nothing.")
    ] = None,
) -> None:
    """Measure every stage beside its limit and other libraries, its growth and its memory."""
    if context.invoked_subcommand is not None:
        return
    from dresfl.experiments import bench
    from dresfl.files import write_atomic

    display.keep_freed_memory()
    if picture is not None:
        bench.picture_format(picture)  # now, not after minutes of measuring
    if source is not None:
        results = bench.read_results(source)
    else:
        settings = bench.QUICK if quick else bench.FULL
        results = bench.measure(settings, device=device, threads=threads, note=display.note)
    as_json = json.dumps(results, indent=2)
    if json_file is not None and str(json_file) != "-":
        write_atomic(json_file, (as_json + "\n").encode())
    if picture is not None:
        bench.plot(results, picture)
    if page is not None:
        write_atomic(page, bench.page(results).encode())
    if json_file is not None and str(json_file) == "-":
        print(as_json)
        return
    for table in bench.tables(results):
        display.print_table(table.title, table.columns, table.rows)


@app.command("prepare", epilog="Example: `dresfl bench prepare --rows 1000000 --folder /tmp --out prepare.jsonl`")
def prepare_command(
    rows: Annotated[int, typer.Option(help="Rows of the table.")] = 10_000_000,
    columns: Annotated[int, typer.Option(help="Input columns of the table.")] = 30,
    folder: Annotated[
        Path | None, typer.Option(help="Where the table is written; default: a temporary folder.")
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads of dresfl and of the readers.")] = 2,
    repeats: Annotated[int, typer.Option(help="Measurements of each, in turns.")] = 3,
    out: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="Write the measurements, a line each.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Prepare a large Parquet table for training, in turns with pandas' plain read of it: seconds and peak memory.

    The table is random and is deleted at the end. Each measurement is a process of its own.
    """
    from dresfl.experiments.bench import prepare
    from dresfl.files import write_atomic

    lines = prepare.measure(rows, columns, folder=folder, threads=threads, repeats=repeats, note=display.note)
    if out is not None:
        write_atomic(out, "".join(json.dumps(line) + "\n" for line in lines).encode())
    found = prepare.summary(lines)
    display.print_pairs(f"{rows:,} rows of {columns} columns", found, as_json)
