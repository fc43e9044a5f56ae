"""The commands, nothing else: parse options, call the library, print."""

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dresfl import __version__
from dresfl.errors import DresError, TooFewAnswers, UsageError
from dresfl.experiments.presets import preset_names

from . import (
    advice,
    audit,
    bench,
    data,
    display,
    flower,
    hidden_plan,
    identity,
    local_prices,
    network,
    reproduce,
    schema,
    using,
)
from .display import JsonOption

if TYPE_CHECKING:
    from dresfl.experiments.config import RunConfig
    from dresfl.protocol import RoundRecord
    from dresfl.storage.run_folder import Progress, Watcher

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Dropout-resilient, secure federated learning: exact training on Lagrange-coded data.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dresfl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    several = os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("WORLD_SIZE", "1") != "1"
    if several and context.invoked_subcommand != "train":
        raise UsageError(
            f"torchrun started several processes, and each would do all of `{context.invoked_subcommand}`",
            "only `dresfl train` can be shared between them; start the others without torchrun",
        )


@app.command(
    "plan",
    epilog="Examples: `dresfl plan --clients 20 --layers 784,64,64,10 --json`; "
    '`dresfl plan --clients 20 --layers 784,64,64,10 --goal "dropouts=8,colluders=2" --plot trade-off.png`; '
    "`dresfl plan --clients 20 --layers 784,10 --local-steps 4`",
)
def plan_command(
    clients: Annotated[int, typer.Option(help="N: number of clients.")],
    layers: Annotated[str, typer.Option(help="Sizes of dense layers with squares between, e.g. 784,64,64,10.")] = "",
    model: Annotated[Path | None, typer.Option(help="A TOML file whose [model] gives input_shape and layers.")] = None,
    shards: Annotated[int, typer.Option(help="K: shards per data set.")] = 1,
    colluders: Annotated[int, typer.Option(help="T: largest coalition of clients that learns nothing.")] = 1,
    batch: Annotated[int, typer.Option(help="B: coded rows a round.")] = 64,
    liars: Annotated[int, typer.Option(help="A: clients whose answers may be false in one round.")] = 0,
    local_steps: Annotated[int, typer.Option(help="s: steps that clients take before they answer; open mode.")] = 1,
    input_bits: Annotated[int, typer.Option(help="l: inputs are rounded to multiples of 2^-l.")] = 4,
    weight_bits: Annotated[int, typer.Option(help="Weights are multiples of 2^-bits.")] = 10,
    rows: Annotated[int, typer.Option(help="Rows of all clients together, for the size of the shares.")] = 60_000,
    mode: Annotated[str, typer.Option(help="open, or hidden: nobody sees a weight before the final model.")] = "open",
    rounds: Annotated[int, typer.Option(help="Hidden mode: rounds of the run.")] = 0,
    rtt: Annotated[
        list[float] | None, typer.Option(metavar="MS", help="Milliseconds of a round trip; several times.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of [optimizer], or in the hidden mode of [hidden]."),
    ] = None,
    goal: Annotated[
        str, typer.Option(metavar="dropouts=D,colluders=T", help="List the settings of both modes that reach this.")
    ] = "",
    plot: Annotated[Path | None, typer.Option(help="With --goal: draw the trade-off of D, T and K to a file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a setting before anybody shares a row: threshold, field, sizes, warnings, and what the mode protects.

    Exit code 2 if the clients are too few, with the nearest settings that work. In the hidden mode --model may be an
    agreement.toml, whose [hidden], [optimizer] and rounds then count. With --goal: which settings bear so many missing
    and colluding clients, best first, with the seconds a round on this machine (measuring takes some seconds).
    """
    from dresfl.api.advice import depths
    from dresfl.api.plan import plan
    from dresfl.coding import CodeParameters
    from dresfl.experiments.config import parse_model
    from dresfl.model import mlp
    from dresfl.protocol.hidden.plan import refuse_local_steps

    if bool(layers) == (model is not None):
        raise UsageError("give either --layers or --model", "for example --layers 784,64,64,10")
    if model is not None:
        network = parse_model(model, input_bits=input_bits, weight_bits=weight_bits)
    else:
        network = mlp(_sizes(layers), input_bits=input_bits, weight_bits=weight_bits)
    if goal:
        if (shards, colluders, liars, local_steps) != (1, 1, 0, 1) or settings or len(rtt or ()) > 1:
            raise UsageError(
                "--goal takes no --shards, --colluders, --liars, --local-steps, --set or second --rtt",
                'the goal says them: --goal "dropouts=8,colluders=2,liars=1"',
            )
        advice.print_advice(
            depths(_sizes(layers), input_bits=input_bits, weight_bits=weight_bits) if layers else [network], goal,
            num_clients=clients, batch_size=batch, rows=rows, rounds=rounds or 1000,
            round_trip=(rtt or [20.0])[0] / 1000, plot=plot, as_json=as_json,
        )  # fmt: skip
        return
    if plot is not None:
        raise UsageError("--plot draws what --goal found", 'give both: --goal "dropouts=8,colluders=2" --plot FILE')
    if mode == "hidden":
        refuse_local_steps(CodeParameters(clients, local_steps=local_steps))
        sizes = {
            "num_clients": clients,
            "num_shards": shards,
            "max_colluders": colluders,
            "batch_size": batch,
            "max_liars": liars,
            "rows": rows,
        }
        hidden_plan.print_plan(network, sizes, model, rounds, rtt or (1.0, 20.0, 50.0), settings or (), as_json)
        return
    if mode != "open" or rounds or rtt or (settings and local_steps == 1):
        known = mode == "open"
        raise UsageError(
            "--rounds, --rtt and --set are of the hidden mode, --set of local steps, too"
            if known
            else f"mode {mode!r} is not known",
            "use --mode hidden, or --mode open, or --local-steps",
        )
    planned = plan(
        network,
        num_clients=clients,
        num_shards=shards,
        max_colluders=colluders,
        batch_size=batch,
        max_liars=liars,
        local_steps=local_steps,
        rows=rows,
        optimizer=local_prices.chosen_optimizer(model, settings or ()) if local_steps > 1 else None,
    )
    values = planned.to_dict()
    if as_json:
        print(json.dumps(values, indent=2))
    else:
        verdict = "feasible" if planned.feasible else "NOT feasible"
        shown = {k: display.bytes_text(v) if k.endswith(("bytes", "per_client")) else v for k, v in values.items()}
        shown["moduli"] = f"{len(planned.moduli)} primes, {planned.moduli[0]} … {planned.moduli[-1]}"
        shown["warnings"] = list(planned.warnings)
        del shown["protection"], shown["local_prices"]
        needed = planned.answers_needed
        display.print_pairs(f"plan: {verdict}, {needed} of {clients} clients must answer a round", shown)
        local_prices.print_table(planned)
        rows_shown = [[line.against, line.open_mode, line.hidden_mode] for line in planned.protection]
        display.print_table("what is protected", ["against", "open mode", "hidden mode"], rows_shown, words=True)
    planned.check()


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise UsageError(f"--layers {text!r} is not a list of sizes", "for example --layers 784,64,64,10") from None


@app.command(
    "train",
    epilog="Examples: `dresfl train digits`; "
    "`dresfl train mnist --data ~/data --set rounds=3000 --out runs/mnist`; add `--resume` to go on after a stop; "
    "`torchrun --nproc-per-node 2 -m dresfl train mnist --data ~/data` shares the run between two processes.",
)
def train_command(
    source: Annotated[str, typer.Argument(metavar="PRESET|FILE.toml", help=f"One of {', '.join(preset_names())}.")],
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets, in torchvision's layout.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")] = False,
    engine: Annotated[str, typer.Option(help="coded: the whole protocol; direct: the same integers uncoded.")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda; the weights come out the same.")] = "",
    record: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTY", help="Write down what it sees: coordinator, client-0 …, or all. Large."),
    ] = None,
    blinded: Annotated[
        bool, typer.Option("--blinded", help="Blind answers as real participants do: same weights, slower.")
    ] = False,
    backend: Annotated[
        str, typer.Option(help="Under torchrun, how ranks talk: gloo or nccl; default nccl if each has its own GPU.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Train a network over simulated clients; write config, metrics, summary and model to a folder.

    Under torchrun several processes share the run, each with some of its residue channels. Rank 0 writes the folder.
    """
    from dresfl.experiments.config import load_config
    from dresfl.experiments.training import train
    from dresfl.runtimes.local import ranks

    display.keep_freed_memory()
    chosen = [f'{key}="{value}"' for key, value in (("engine", engine), ("device", device)) if value]
    config = load_config(source, [*(settings or []), *chosen])
    if out is None and Path(config.name).name != config.name:
        raise UsageError(f"the name {config.name!r} is no folder name", "give --out, or a name without / in it")
    folder = out or Path("runs") / config.name
    options: dict[str, Any] = {"folder": data, "out": folder, "resume": resume}
    options |= {"recorded": record or (), "blinded": blinded}
    if backend and not ranks.launched():
        raise UsageError("--backend is for several ranks, and this is no rank", "start it with torchrun")
    with contextlib.ExitStack() as stack:
        joined = stack.enter_context(ranks.join(config.device, backend)) if ranks.launched() else None
        if joined is not None and not joined.leads:
            train(config, **options, ranks=joined)
            return
        if joined is not None:
            display.note(f"note: {joined.size} ranks share the run's residue channels, over {joined.backend}")
        watch = _watcher(stack.enter_context(display.RoundBar()), config)
        summary = train(config, **options, watch=watch, note=display.note, ranks=joined)
    display.print_pairs(f"{config.name}: {folder}", summary if as_json else _readable(summary), as_json)
    _check_outcome(summary)


def _watcher(bar: display.RoundBar, config: "RunConfig", label: str = "") -> "Watcher":
    def watch(progress: "Progress", record: "RoundRecord", answers: int) -> None:
        counts = answers, progress.skipped, progress.alarms
        line = display.status(progress.accuracy, *counts, regression=progress.regression)
        bar.update(label or config.name, progress.round_number, config.rounds, line)

    return watch


def _readable(summary: dict[str, Any]) -> dict[str, Any]:
    shown = {
        key: display.bytes_text(value) if key.startswith("bytes") else value
        for key, value in summary.items()
        if key != "versions"
    }
    if summary["task"] == "regression":
        del shown["test_accuracy"]
        return shown
    del shown["test_r2"]
    return {**shown, "test_accuracy": display.percent(summary["test_accuracy"], 2)}


def _check_outcome(summary: dict[str, Any]) -> None:
    if summary["skipped_rounds"] == summary["rounds"]:
        raise TooFewAnswers(
            f"all {summary['rounds']} rounds were skipped: fewer than {summary['answers_needed']} clients answered",
            f"{summary['reliable_clients']} clients are reliable; try another dropout.seed or more clients",
        )
    advice = "the values outgrew the field or the training diverged: lower optimizer.learning_rate or set max_norm"
    if summary["alarms"] + summary["skipped_rounds"] == summary["rounds"]:
        raise DresError("every decoded round was refused; no step was taken", advice)
    if summary["alarms"]:
        display.note(f"note: {summary['alarms']} rounds were refused; {advice} (metrics.jsonl has the reasons)")


@app.command("demo", epilog="Example: `dresfl demo --out runs/demo`")
def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the run and the picture.")] = Path("runs/demo"),
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    hidden: Annotated[
        bool, typer.Option("--hidden/--no-hidden", help="End with a federation of processes in the hidden mode.")
    ] = True,
) -> None:
    """Train digits on 20 label-skewed clients, half of them nearly always absent: DReS-FL, FedAvg, centralised.

    Then five clients as processes on this machine train in the hidden mode, and one of them is killed.
    """
    from dresfl.experiments.comparison import compare
    from dresfl.experiments.config import load_config
    from dresfl.experiments.training import train
    from dresfl.runtimes.local import first_feasible_seed
    from dresfl.storage.run_folder import clear_run

    display.keep_freed_memory()
    config = load_config("digits")
    seed, passed = first_feasible_seed(config.federation.num_clients, needed=9)
    config = load_config("digits", [f"dropout.seed={seed}", *(settings or [])])
    clear_run(out)
    with display.RoundBar() as bar:
        summary = train(config, out=out, watch=_watcher(bar, config, "DReS-FL"), note=display.note)

        def watch(label: str, done: int, accuracy: float) -> None:
            bar.update(label, done, config.rounds, display.status(accuracy))

        curves = compare(config, out, watch)
    print(
        f"Dropouts: seed {seed} of the paper's model leaves {summary['reliable_clients']} of "
        f"{config.federation.num_clients} clients reliable; {summary['recovery_threshold']} answers decode a round. "
        f"Seeds passed over as infeasible: {passed or 'none'}.\n"
        "(About a quarter of all draws leave fewer than 9; then hardly any round can be decoded.)"
    )
    answers, skipped = f"{summary['mean_survivors']:.1f}", str(summary["skipped_rounds"])
    seen = {"DReS-FL": (answers, skipped), "FedAvg": (answers, "0"), "centralised": ("-", "0")}
    display.print_table(
        "digits, sorted by label over 20 clients, same rounds, optimiser and dropouts",
        ["method", "test accuracy", "rounds", "answers a round", "skipped", "seconds"],
        [
            [label, f"{100 * curve.final:.1f} %", str(config.rounds), *seen[label], f"{curve.seconds:.1f}"]
            for label, curve in curves.items()
        ],
    )
    print(f"curves: {out / 'curves.png'}   model: {out / 'model.safetensors'}")
    if hidden:
        _hidden_demo(out / "hidden")


def _hidden_demo(out: Path) -> None:
    """A short federation of real processes in which nobody sees a weight before the end."""
    import importlib.util
    import shutil

    if importlib.util.find_spec("grpc") is None:
        display.note("note: the hidden mode between processes needs the extra `network`: pip install 'dresfl[network]'")
        return
    from dresfl.experiments.trials.grpc_trial import Trial, federate

    shutil.rmtree(out, ignore_errors=True)
    result = federate(Trial("digits-hidden", 5, kill=1, settings=_HIDDEN_DEMO), out, display.note)
    totals = result["totals"] or {"correct": 0, "rows": 0}
    print(
        "\nThe hidden mode: five clients as processes, one of them killed on the way. Every step was opened under "
        f"one-time masks. The first weights that anybody saw are the final ones, after {result['rounds']} rounds.\n"
        f"Any {result['answers_needed']} of 5 clients decode a step. The clients counted on their own rows: "
        f"{totals['correct']} of {totals['rows']} are right. Test accuracy "
        f"{display.percent(result['test_accuracy'], 1)}, {result['seconds_per_round']:.2f} s a round on this machine.\n"
        f"model: {out / 'coordinator' / 'run' / 'model.safetensors'}"
    )


# One hidden layer and few rounds: most of the time is the start of six processes. First weights and batches differ from
# run to run. At this rate none of 30 simulated runs diverged; at 0.15 every second one did.
_HIDDEN_DEMO = (
    "rounds=100",
    "optimizer.learning_rate=0.03",
    'model.layers=[{ kind = "dense", units = 32 }, { kind = "square" }, { kind = "dense", units = 10 }]',
)


@app.command("vectors", epilog="Examples: `dresfl vectors --out v.json`; `dresfl vectors --check v.json`")
def vectors_command(
    out: Annotated[Path | None, typer.Option(help="Write the vectors to this file.")] = None,
    check: Annotated[Path | None, typer.Option(help="Recompute and compare with this file.")] = None,
) -> None:
    """Test vectors: one small coded round in full, every number of it."""
    from dresfl.experiments.vectors.round_vectors import check_vectors, write_vectors

    if (out is None) == (check is None):
        raise UsageError("give either --out or --check", "for example dresfl vectors --out vectors.json")
    if out is not None:
        write_vectors(out)
        print(f"wrote {out}")
    if check is not None:
        print(f"{check}: all {check_vectors(check)} values agree")


app.add_typer(reproduce.app, name="reproduce")
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(schema.app, name="schema")
app.command("predict", epilog="Example: `dresfl predict runs/mine/model.safetensors new.csv --out predictions.csv`")(
    using.predict_command
)
app.command("evaluate", epilog="Example: `dresfl evaluate runs/mine/model.safetensors known.csv --json`")(
    using.evaluate_command
)
app.command("export", epilog="Example: `dresfl export runs/mine/model.safetensors --format onnx`")(using.export_command)
app.command("keygen", epilog="Example: `dresfl keygen hospital-1 --out keys`")(identity.keygen)
app.command("storage-key", epilog="Example: `dresfl storage-key /etc/dresfl/storage.key`")(identity.storage_key)
app.add_typer(identity.ca, name="ca")
app.add_typer(identity.roster, name="roster")
app.command("serve", epilog="Example: `dresfl serve --config fed.toml`")(network.serve_command)
app.command("join", epilog="Example: `dresfl join --config site.toml`")(network.join_command)
app.command("server", hidden=True)(network.old_serve_command)
app.command("client", hidden=True)(network.old_join_command)
app.command("shares", epilog="Example: `dresfl shares --config site.toml`")(network.shares_command)
app.command("audit", epilog="Example: `dresfl audit /var/lib/dresfl/first-run`")(audit.audit_command)
app.command("federate", epilog="Example: `dresfl federate --clients 12 --kill 2 --json`")(network.federate_command)
app.add_typer(flower.app, name="flower")
