"""Commands for organisations that run Flower: the app for `flwr run`, and a site's worker."""

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
    from dresfl.flower.template import write_app

    for path in write_app(folder):
        print(path)


@app.command("worker", epilog="Example: `dresfl flower worker --config site.toml`")
def worker_command(
    config: Annotated[Path, typer.Option("--config", metavar="FILE.toml", help="The site's configuration.")],
) -> None:
    """Stay beside a SuperNode and answer its messages, which otherwise each start from nothing. Optional."""
    from dresfl.experiments.network.flower import run_worker

    run_worker(config, lambda: display.note(f"ready: {config.with_suffix('.socket')}"))
