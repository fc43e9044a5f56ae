"""Commands for real participants: a coordinator, a client, and a trial of both on one machine.

What they need is imported inside them: the extra `network` is for those who use them.
"""

import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dresfl.errors import DresError, UsageError

from . import display
from .display import JsonOption

if TYPE_CHECKING:
    from dresfl.federation.agreement import Mode
    from dresfl.runtimes.log import Log

ConfigOption = Annotated[Path, typer.Option("--config", metavar="FILE.toml", help="This participant's configuration.")]


def serve_command(
    config: ConfigOption,
    earlier: Annotated[
        bool,
        typer.Option(
            "--from-earlier-checkpoint",
            help="If the newest checkpoint is damaged, go on from the one before it. "
            "The weights will be the same, if on_shortage is retry.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Coordinate a federation: relay sealed shares, send weights, decode gradients. One port; logs are JSON lines.

    Stopped or killed, it goes on where it was when it is started again.
    """
    from dresfl.deploy.serve import serve
    from dresfl.deploy.settings import CoordinatorConfig, load_settings

    display.keep_freed_memory(one_heap=True)
    with _logging() as log:
        summary = serve(load_settings(CoordinatorConfig, config), log, use_earlier=earlier)
    _show(summary, as_json)


def join_command(
    config: ConfigOption,
    share_again: Annotated[
        bool,
        typer.Option(
            "--share-again",
            help="Hidden mode: allow a new sharing, and so another model, after runs on earlier sharings.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take part as one organisation: share rows once, then answer rounds. Connects outwards only; needs no open port.

    Stopped or killed, it goes on where it was when it is started again.
    """
    from dresfl.deploy.join import join
    from dresfl.deploy.settings import ClientConfig, load_settings

    display.keep_freed_memory(one_heap=True)
    with _logging() as log:
        summary = join(load_settings(ClientConfig, config), log, share_again=share_again)
    _show(summary, as_json)


def old_serve_command(config: ConfigOption, as_json: JsonOption = False) -> None:
    """The old name of `dresfl serve`."""
    display.note("note: `dresfl server` is now `dresfl serve`; the old name goes with the next release")
    serve_command(config, as_json=as_json)


def old_join_command(config: ConfigOption, as_json: JsonOption = False) -> None:
    """The old name of `dresfl join`."""
    display.note("note: `dresfl client` is now `dresfl join`; the old name goes with the next release")
    join_command(config, as_json=as_json)


def shares_command(
    config: ConfigOption,
    forget: Annotated[str, typer.Option(metavar="SHARING", help="Delete the shares of this sharing.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List the sharings that a stopped client holds shares of, or forget one, so that its old members' rows are gone.

    The client's log line `connected` names the sharing it uses now. A forgotten one would have to be dealt again.
    """
    from dresfl.deploy.join import stored_sharings
    from dresfl.deploy.settings import ClientConfig, load_settings

    sharings = stored_sharings(load_settings(ClientConfig, config), forget)
    if as_json:
        print(json.dumps([dataclasses.asdict(sharing) for sharing in sharings], indent=2))
        return
    rows = [
        [
            sharing.identity,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(sharing.last_used)),
            f"{sharing.client}" if sharing.client >= 0 else "damaged",
            f"{sharing.rows:,}",
            f"{sharing.bytes / 1e6:,.1f}",
        ]
        for sharing in sharings
    ]
    display.print_table("Sharings", ["sharing", "last used", "client", "rows of all", "MB"], rows)


def federate_command(
    clients: Annotated[int, typer.Option(help="N: how many clients.")] = 9,
    preset: Annotated[str, typer.Option(metavar="PRESET|FILE.toml", help="What to train.")] = "digits",
    kill: Annotated[
        int, typer.Option(help="Kill this many clients mid-run, and restart as many as needed, at least one.")
    ] = 0,
    kill_coordinator: Annotated[
        bool, typer.Option("--kill-coordinator", help="Kill and restart the coordinator too.")
    ] = False,
    mode: Annotated[str, typer.Option(help="hidden, or open: the weights of every round are seen.")] = "hidden",
    engine: Annotated[str, typer.Option(help="grpc, flower or flower-simulation.")] = "grpc",
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets, in torchvision's layout.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for keys, stores and logs; default: a temporary one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides who is killed, and when.")] = 0,
    record: Annotated[
        bool, typer.Option("--record", help="Open mode: everybody writes down what it sees. Give --out, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Try it: a coordinator and its clients as real processes on this machine, with fresh keys; kill some of them."""
    from dresfl.experiments.trials.flower_trial import federate_flower, federate_simulation
    from dresfl.experiments.trials.grpc_trial import Trial, federate

    engines = {"grpc": federate, "flower": federate_flower, "flower-simulation": federate_simulation}
    if engine not in engines:
        raise UsageError(f"engine {engine!r} is not known", f"use one of {', '.join(engines)}")
    if mode not in ("hidden", "open"):
        raise UsageError(f"mode {mode!r} is not known", "use hidden or open")
    chosen: Mode = "hidden" if mode == "hidden" else "open"
    trial = Trial(
        preset, clients, kill, kill_coordinator, tuple(settings or ()), seed, data, record=record, mode=chosen
    )
    with contextlib.ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dresfl-")))
        result = engines[engine](trial, folder, display.note)
    _show({key: value for key, value in result.items() if key != "versions"}, as_json)
    if not result["clients_agree"]:
        raise DresError("the clients ended with other weights than the coordinator")


@contextlib.contextmanager
def _logging() -> Iterator["Log"]:
    """The process's log; an error that ends it is its last line."""
    from dresfl.runtimes.grpc_runtime import core_lines_as_events

    with core_lines_as_events() as log:
        try:
            yield log
        except DresError as error:
            log("error", reason=str(error), hint=error.hint)
            raise


def _show(result: dict[str, Any], as_json: bool) -> None:
    shown = result if as_json else {key: value for key, value in result.items() if key != "name"}
    display.print_pairs(str(result["name"]), shown, as_json)
