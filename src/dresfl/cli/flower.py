"""Commands for organisations that run Flower: the app for `flwr run`, and a client's worker."""

from pathlib import Path
from typing import Annotated

import typer

from . import display

app = typer.Typer(no_args_is_help=True, help="Run over Flower's SuperLink and SuperNodes (extra `flower`).")


@app.command("init", epilog="Example: `dresfl flower init app`, then `flwr run app my-superlink --stream`")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
) -> None:
    """Write an app folder for stock `flwr run`."""
    from dresfl.runtimes.flower_runtime.template import write_app

    for path in write_app(folder):
        print(path)


@app.command("worker", epilog="Example: `dresfl flower worker --config site.toml`")
def worker_command(
    config: Annotated[Path, typer.Option("--config", metavar="FILE.toml", help="The client's configuration.")],
    socket: Annotated[Path | None, typer.Option(help="Where to listen; default: beside the configuration.")] = None,
    group: Annotated[str, typer.Option(help="A group whose members may connect, for the SuperNode's user.")] = "",
) -> None:
    """Hold a client's keys, rows and shares, and answer what its SuperNode passes on.

    Flower runs code that the coordinator sends. As another user than the worker's it reaches nothing of the client.
    """
    from dresfl.deploy.flower import run_worker

    run_worker(config, socket, group, lambda path: display.note(f"ready: {path}"))
