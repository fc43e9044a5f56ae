"""A coordinator's and a client's run over Flower, from the same files as over gRPC: fed.toml and site.toml.

Flower ignores [network] coordinator, keepalive and delays, certificate and authority in these files: its SuperLink and
SuperNodes have their own. A ClientApp imports this for every bundle; hence the imports inside.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dresfl.errors import DresError, UsageError
from dresfl.runtimes.flower_runtime.worker import Forwarder

if TYPE_CHECKING:
    from dresfl.runtimes.coordinator_host import CoordinatorHost
    from dresfl.runtimes.flower_runtime.apps import Handler
    from dresfl.runtimes.flower_runtime.client import FlowerClient
    from dresfl.runtimes.flower_runtime.post import Carrier

Config = Mapping[str, Any]


def open_site(node: Config, run: Config) -> "Handler":
    """The client that a node stands for: its worker, if one runs, else the client itself, in this process.

    node: --node-config of the SuperNode. With `socket`: the worker that listens there, and nothing else of the client.
    With `site`: the path of site.toml, and, if the store is not where that says, `store-dir`. In a simulation, where
    nodes have only a number, run: `sites`, a folder of site-0/site.toml and so on.
    """
    if node.get("socket"):
        return Forwarder(Path(str(node["socket"])))
    path = site_path(node, run)
    return Forwarder.reached(socket_path(path)) or load_site(path, str(node.get("store-dir", "")))


def site_path(node: Config, run: Config) -> Path:
    """Where a node's site.toml is."""
    if node.get("site"):
        return Path(str(node["site"]))
    if run.get("sites") and "partition-id" in node:
        return Path(str(run["sites"])) / f"site-{int(node['partition-id'])}" / "site.toml"
    raise UsageError("this node does not know its site", "start it with --node-config \"site='/path/to/site.toml'\"")


def socket_path(site: Path) -> Path:
    """Where the worker of a client listens: beside its configuration."""
    return site.with_suffix(".socket")


def load_site(path: Path, store: str = "") -> "FlowerClient":
    """A client from its files. store: another folder for its shares than the file says."""
    import torch

    from dresfl.runtimes.flower_runtime.client import FlowerClient
    from dresfl.runtimes.log import log_to
    from dresfl.sealing import Identity, Roster
    from dresfl.storage.at_rest import StorageKey

    from .consent import consented_agreement
    from .settings import ClientConfig, load_settings

    config = load_settings(ClientConfig, path)
    log = log_to(partial(print, file=sys.stderr, flush=True))
    torch.set_num_threads(config.threads)
    roster = Roster.load(Path(config.keys.roster), config.keys.roster_sha256)
    identity = Identity.load(Path(config.keys.identity))
    agreement = consented_agreement(config, roster, log)

    def rows() -> Any:
        from .rows import own_rows

        return own_rows(config.data, agreement, roster.index_of(identity.member))

    def keep(final: Any) -> None:
        from .model import keep_model

        keep_model(config.model, agreement, final)

    folder = Path(store or config.folder)
    key = StorageKey.find(config.storage_key)
    return FlowerClient(agreement, identity, roster, folder, rows, log, device=config.device, keep_model=keep, key=key)


def run_worker(path: Path, socket: Path | None, group: str, on_ready: Callable[[Path], None]) -> None:
    """Answer a client's bundles until interrupted: what its ClientApps pass on."""
    from dresfl.runtimes.flower_runtime.worker import serve
    from dresfl.runtimes.log import log_to

    from .settings import ClientConfig, load_settings
    from .storage_key import find_storage_key

    find_storage_key(load_settings(ClientConfig, path), log_to(partial(print, file=sys.stderr, flush=True)))
    place = (socket or socket_path(path)).resolve()
    serve(place, load_site(path).handle, group, lambda: on_ready(place))


def coordinate(carrier: "Carrier", run: Config) -> dict[str, Any]:
    """Run a coordinator to the end of its run, or go on with it after a stop; return the summary."""
    from dresfl.files import make_private_folder, open_private
    from dresfl.runtimes.flower_runtime.coordinator import WINDOWS, FlowerCoordinator
    from dresfl.runtimes.flower_runtime.post import Post
    from dresfl.runtimes.log import log_thread
    from dresfl.sealing import Identity, Roster

    from .consent import consented_agreement
    from .serve import run_coordinator
    from .settings import CoordinatorConfig, load_settings

    config = load_settings(CoordinatorConfig, Path(str(run["coordinator"])))
    roster = Roster.load(Path(config.keys.roster), config.keys.roster_sha256)
    identity = Identity.load(Path(config.keys.identity))
    folder, deadline = Path(config.folder), config.network.deadline
    make_private_folder(folder)
    with open(folder / "log.jsonl", "a", buffering=1, encoding="utf-8", opener=open_private) as lines:

        def write(line: str) -> None:
            lines.write(line + "\n")
            print(line, flush=True)  # for `flwr log`

        def carry_out(host: "CoordinatorHost") -> None:
            post = Post(carrier, ttl=max(3600.0, 10 * deadline))  # given up for good long after the deadline
            FlowerCoordinator(host, identity, roster, log, deadline).run(post)

        with log_thread(write) as log:
            try:
                agreement = consented_agreement(config, roster, log)
                summary = run_coordinator(config, agreement, identity, roster, log, "flower", carry_out, WINDOWS)
            except DresError as error:
                log("error", reason=str(error), hint=error.hint)
                raise
            log("done", weights_sha256=summary["weights_sha256"])
            return summary
