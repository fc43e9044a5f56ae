"""`dresfl reproduce`: the paper's Table 1 and figures, run and rendered."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dresfl.errors import DresError, UsageError
from dresfl.experiments.published import METHODS, TABLE_DATASETS, recipes

from . import display
from .display import JsonOption

if TYPE_CHECKING:
    from dresfl.experiments.reproduce import Failure

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="The paper's experiments, cell by cell.")

_EXAMPLES = {
    "table1": "`dresfl reproduce table1 --data ~/data --out results/paper --device cuda --jobs 4`; "
    "`dresfl reproduce table1 --datasets digits --seeds 2 --out runs/small`; "
    "`dresfl reproduce table1 --render-only --out results/paper`",
    "figure3": "`dresfl reproduce figure3 --datasets mnist,fashion --data ~/data --out results/paper`",
    "figure4": "`dresfl reproduce figure4 --data ~/data --out results/paper`",
    "decoded": "`dresfl reproduce decoded --render-only --out results/paper`",
}
_HELP = {
    "table1": "Table 1: the test accuracy of every method on every data set, beside the paper's.",
    "figure3": "Figure 3: test accuracy over rounds, a panel a data set. Methods like for like have their own picture.",
    "figure4": "Figure 4: SCAFFOLD on MNIST, over rounds.",
    "decoded": "The share of rounds that DReS-FL decoded, a small panel a dropout draw.",
}
_DATASETS = {"figure4": "mnist"}
_METHODS = {"figure4": "scaffold", "decoded": "dresfl-paper,dresfl"}
_PERTURBATIONS = 3


def _run(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of the runs, records, tables and figures.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets, in torchvision's layout.")] = None,
    datasets: Annotated[str, typer.Option(help="Some of " + ",".join(recipes()) + ".")] = "",
    methods: Annotated[str, typer.Option(help="Some of " + ",".join(METHODS) + ".")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds a cell.")] = 5,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of every run; 0: as its recipe says.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "",
    engine: Annotated[str, typer.Option(help="Of the DReS-FL runs: coded, or direct (the same weights).")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, each in a process of its own.")] = 1,
    replace: Annotated[
        bool, typer.Option("--replace", help="Run cells again whose stored run had other settings.")
    ] = False,
    tuned: Annotated[
        Path | None, typer.Option(help="A tuned.toml of `reproduce tune`, instead of the choices of this version.")
    ] = None,
    render_only: Annotated[bool, typer.Option("--render-only", help="Run nothing; render what has run.")] = False,
    as_json: JsonOption = False,
) -> None:
    from dresfl.experiments import reproduce as paper

    from .matrix_bar import MatrixBar

    display.keep_freed_memory()
    target = context.command.name or ""
    wanted = _listed(datasets or _DATASETS.get(target, ",".join(TABLE_DATASETS)), recipes(), "data set")
    chosen = _listed(methods or _METHODS.get(target, ",".join(METHODS)), METHODS, "method")
    failures: list[Failure] = []
    if not render_only:
        cells = paper.matrix(
            wanted, chosen, seeds=seeds, rounds=rounds, engine=engine, device=device,
            tuned=None if tuned is None else paper.read_choices(tuned),
            with_infeasible=target in ("table1", "decoded"), perturbations=_PERTURBATIONS if target == "table1" else 0,
        )  # fmt: skip
        with MatrixBar(cells) as bar:
            failures = paper.run_matrix(cells, data=data, out=out, watch=bar, jobs=jobs, replace=replace)
    if not failures or any((out / "jsonl").glob("*.jsonl")):
        _render(target, out, wanted, chosen, as_json)
    _complain(failures, len(cells) if failures else 0)


def _complain(failures: "Sequence[Failure]", cells: int) -> None:
    """Raise DresError if cells failed."""
    if failures:
        names = ", ".join(failure.cell.name for failure in failures[:8]) + (", …" if len(failures) > 8 else "")
        raise DresError(
            f"{len(failures)} of {cells} cells failed: {names}: {failures[0].message}",
            failures[0].hint or "run the same command again: finished cells are kept",
        )


for _name in ("table1", "figure3", "figure4", "decoded"):
    app.command(_name, help=_HELP[_name], epilog="Examples: " + _EXAMPLES[_name])(_run)


@app.command(
    "tune",
    epilog="Examples: `dresfl reproduce tune --datasets mnist --data ~/data --out results/tuning --jobs 4`; then "
    "`dresfl reproduce table1 --tuned results/tuning/tuned.toml …`",
)
def tune_command(
    out: Annotated[Path, typer.Option(help="Folder of the trials, tuning.jsonl and tuned.toml.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets, in torchvision's layout.")] = None,
    datasets: Annotated[str, typer.Option(help="Some of " + ",".join(recipes()) + ".")] = ",".join(TABLE_DATASETS),
    methods: Annotated[str, typer.Option(help="Some of those that tune.toml has settings for; empty: all.")] = "",
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of every trial; 0: a third of its recipe's.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "",
    engine: Annotated[str, typer.Option(help="Of the DReS-FL runs: coded, or direct (the same weights).")] = "direct",
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time, each in a process of its own.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Choose learning rates and the like: six settings a method, measured on training rows that no client gets.

    The test rows play no part. A finished trial is never run again. The best settings are written to tuned.toml.
    """
    from dresfl.experiments import reproduce as paper

    from .matrix_bar import MatrixBar

    display.keep_freed_memory()
    wanted = _listed(datasets, recipes(), "data set")
    known = paper.tuned_methods()
    chosen = _listed(methods or ",".join(known), known, "method")
    failures: list[Failure] = []
    count = 0
    choices = paper.write_choices(out)
    for wave in paper.waves(chosen):
        cells = paper.trials(wanted, wave, choices, rounds=rounds, engine=engine, device=device)
        count += len(cells)
        with MatrixBar(cells) as bar:
            failures += paper.run_matrix(cells, data=data, out=out, watch=bar, jobs=jobs, replace=True)
        choices = paper.write_choices(out)
    print(json.dumps(choices, indent=2) if as_json else f"wrote {out / 'tuning.jsonl'}, {out / 'tuned.toml'}")
    _complain(failures, count)


@app.command("recipe", epilog="Example: `dresfl reproduce recipe mnist dresfl > my.toml; dresfl train my.toml`")
def recipe_command(
    dataset: Annotated[str, typer.Argument(help="One of " + ", ".join(recipes()) + ".")],
    method: Annotated[str, typer.Argument(help="One of " + ", ".join(METHODS) + ".")],
) -> None:
    """Print a cell's whole configuration as TOML, for seed 0.

    Of a baseline: `dresfl train` would run DReS-FL with these settings; the baseline runs the ReLU network of the
    same sizes, in reals.
    """
    from dresfl.deploy.toml import to_toml
    from dresfl.experiments import reproduce as paper

    cell = paper.matrix([dataset], [method], seeds=1)[0]
    if cell.baseline is not None:
        print(f"# {method} runs the ReLU network of these sizes, in reals; `dresfl train` would run DReS-FL instead.")
        print(f"# Its loss: {cell.baseline.loss}. Its first weights: those of {cell.baseline.start}.")
    print(to_toml(cell.config), end="")


def _listed(text: str, known: Sequence[str], what: str) -> list[str]:
    """The names of a comma-separated list, in the known order."""
    from dresfl.deploy.toml import closest

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"unknown {what} {name!r}", closest(name, known))
    if not names:
        raise UsageError(f"no {what} is named", "known: " + ", ".join(known))
    return [name for name in known if name in names]


def _render(target: str, out: Path, datasets: Sequence[str], methods: Sequence[str], as_json: bool) -> None:
    from dresfl.experiments import reproduce as paper
    from dresfl.files import write_atomic

    records = paper.read_records(out)
    result: dict[str, Any]
    if target == "table1":
        result = paper.table(records)
        files = {
            "table1.md": paper.markdown(records),
            "table1.csv": paper.spreadsheet(records),
            "table1.json": json.dumps(result, indent=2) + "\n",
        }
        for name, text in files.items():
            write_atomic(out / name, text.encode())
        paths = [out / name for name in files]
        if not as_json:
            display.print_table("Table 1: test accuracy, % (the paper's)", *paper.accuracies(result))
    else:
        from dresfl.experiments.reproduce.figures import curves, draw

        if target == "figure4":
            records = [record for record in records if record.dataset in datasets and record.method in methods]
        paths = draw(target, records, out)
        result = {"files": [str(path) for path in paths], "curves": curves(records)}
    print(json.dumps(result, indent=2) if as_json else "wrote " + ", ".join(map(str, paths)))


@app.command(
    "convergence",
    epilog="Examples: `dresfl reproduce convergence --out runs/convergence`; "
    "`dresfl reproduce convergence --steps 64 --seeds 1 --out runs/short`; "
    "`dresfl reproduce convergence --render-only --out runs/convergence`",
)
def convergence_command(
    out: Annotated[Path, typer.Option(help="Folder of the records, the table and the figure.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each case; both sides are their means.")] = 3,
    steps: Annotated[int, typer.Option(min=0, help="At most so many steps a run; 0: as the case says.")] = 0,
    engine: Annotated[str, typer.Option(help="coded, or direct (the same weights).")] = "coded",
    render_only: Annotated[bool, typer.Option("--render-only", help="Run nothing; render what has run.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Theorem 2: both sides of the printed bound, and of the bound that holds, along real runs on `digits`.

    Finished runs are kept: the same command goes on after a stop.
    """
    from dataclasses import replace
    from typing import cast, get_args

    from dresfl.experiments import convergence as theorem
    from dresfl.experiments.convergence.figure import draw
    from dresfl.files import write_atomic
    from dresfl.runtimes.local import Engine

    if engine not in get_args(Engine):
        raise UsageError(f"the engine {engine!r} is not known", f"use one of {', '.join(get_args(Engine))}")
    if not render_only:
        with display.RoundBar(count="step {task.completed:>5}/{task.total}") as bar:
            for case in theorem.CASES:
                chosen = replace(case, steps=min(case.steps, steps) if steps else case.steps)
                for seed in range(seeds):
                    if theorem.finished(theorem.read_records(out), chosen, seed):
                        continue
                    name = f"{chosen.name} seed {seed}"

                    def watch(done: int, name: str = name, total: int = chosen.steps) -> None:
                        bar.update(name, done, total, "")

                    theorem.add_record(out, theorem.play(chosen, seed, cast(Engine, engine), watch))
                    bar.remove(name)
    records = theorem.read_records(out)
    paths = draw(records, out)
    write_atomic(out / "convergence.md", theorem.markdown(records).encode())
    if as_json:
        print(json.dumps(theorem.results(records), indent=2))
        return
    display.print_table("Mean of ‖∇ℓ‖² over the steps, and its bounds", theorem.COLUMNS, theorem.table(records))
    print("wrote " + ", ".join(map(str, (out / "convergence.jsonl", out / "convergence.md", *paths))))


@app.command(
    "complexity",
    epilog="Examples: `dresfl reproduce complexity --out runs/costs --quick`; "
    "`dresfl reproduce complexity --out results --page docs/results/complexity.md --render-only`",
)
def complexity_command(
    out: Annotated[Path, typer.Option(help="Folder of complexity.jsonl; a stopped run goes on there.")],
    page: Annotated[Path | None, typer.Option(help="The page to write, a figure beside it; default: in --out.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two sizes a sweep, less time on each.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    render_only: Annotated[bool, typer.Option("--render-only", help="Measure nothing; render the records.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The cost tables: bytes and seconds of FedAvg, FedAvg with LightSecAgg and DReS-FL, by phase and participant."""
    from dresfl.experiments import complexity
    from dresfl.files import write_atomic

    display.keep_freed_memory()
    source, target = out / "complexity.jsonl", page or out / "complexity.md"
    if render_only:
        records = complexity.read_records(source)
    else:
        plan = complexity.QUICK if quick else complexity.FULL
        out.mkdir(parents=True, exist_ok=True)
        records = complexity.measure(plan, source, quick=quick, threads=threads, note=display.note)
    picture = target.with_suffix(".png")
    write_atomic(target, complexity.page(records, target, source, picture.name).encode())
    complexity.plot(records, picture)
    if as_json:
        print(json.dumps(complexity.summary(records), indent=2))
        return
    for table in complexity.tables(records):
        if table.title.startswith("Over many rounds"):
            display.print_table(table.title, table.columns, table.rows)
    print(f"wrote {source}, {target}, {picture}")


@app.command(
    "hospitals",
    epilog="Examples: `dresfl reproduce hospitals --out runs/hospitals`; "
    "`dresfl reproduce hospitals --splits 2 --rounds 20 --out runs/short`; "
    "`dresfl reproduce hospitals --render-only --out results`",
)
def hospitals_command(
    out: Annotated[Path, typer.Option(help="Folder of hospitals.jsonl; a stopped run goes on there.")],
    splits: Annotated[int, typer.Option(min=1, help="How many draws of test rows for each table.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of every run.")] = 200,
    render_only: Annotated[bool, typer.Option("--render-only", help="Run nothing; render the records.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Tables of nine hospitals, three of them nearly always away, beside scikit-learn on pooled rows.

    Breast cancer and diabetes, which scikit-learn brings along. A gap above zero: pooled rows did better.
    """
    from dresfl.experiments import hospitals

    display.keep_freed_memory()
    records = hospitals.read_records(out) if render_only else hospitals.measure(out, splits, rounds, display.note)
    if not records:
        raise UsageError(f"{out} has no {hospitals.NAME}", "run without --render-only first")
    if as_json:
        print(json.dumps(hospitals.results(records), indent=2))
        return
    display.print_table(
        "The coded protocol, and scikit-learn on pooled rows", hospitals.COLUMNS, hospitals.rows(records)
    )
    print(f"read {out / hospitals.NAME}" if render_only else f"wrote {out / hospitals.NAME}")
