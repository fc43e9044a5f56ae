"""A coordinator's and a site's run over Flower, from the same files as over gRPC: fed.toml and site.toml.

Of these files Flower has no use for [network] server, keepalive and delays, nor for certificate and authority: its own
SuperLink and SuperNodes have theirs. A site's ClientApp imports this for every message; hence the imports inside.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dresfl.errors import DresError, UsageError
from dresfl.runtimes.flower_runtime.worker import Forwarder

if TYPE_CHECKING:
    from dresfl.protocol import Task
    from dresfl.runtimes.flower_runtime.apps import Handler
    from dresfl.runtimes.flower_runtime.post import Carrier
    from dresfl.runtimes.flower_runtime.site import Site

Config = Mapping[str, Any]


def open_site(node: Config, run: Config) -> "Handler":
    """The site that a node stands for: its worker, if one runs, else the site itself, in this process.

    node: --node-config of the SuperNode. With `socket`: the worker that listens there, and nothing else of the site.
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
    """Where the worker of a site listens: beside its configuration."""
    return site.with_suffix(".socket")


def load_site(path: Path, store: str = "") -> "Site":
    """A site from its files. store: another folder for its shares than the file says."""
    import torch

    from dresfl.runtimes.flower_runtime.site import Site
    from dresfl.sealing import Identity, Roster

    from .settings import SiteConfig, load_agreement, load_party

    config = load_party(SiteConfig, path)
    torch.set_num_threads(config.threads)
    roster = Roster.load(Path(config.keys.roster), config.keys.roster_sha256)
    identity = Identity.load(Path(config.keys.identity))
    agreement = load_agreement(config, roster)

    def rows() -> Any:
        from .rows import site_rows

        return site_rows(config.data, agreement, roster.index_of(identity.member))

    def keep(final: "Task") -> None:
        from .model import keep_model

        keep_model(config.model, agreement, final)

    return Site(agreement, identity, roster, Path(store or config.folder), rows, config.device, keep)


def run_worker(path: Path, socket: Path | None, group: str, on_ready: Callable[[Path], None]) -> None:
    """Serve a site's letters until interrupted: what its ClientApps pass on."""
    from dresfl.runtimes.flower_runtime.worker import serve

    place = (socket or socket_path(path)).resolve()
    serve(place, load_site(path).handle, group, lambda: on_ready(place))


def coordinate(carrier: "Carrier", run: Config) -> dict[str, Any]:
    """Run a coordinator to the end of its run, or go on with it after a stop; return the summary."""
    from dresfl.kernels.threads import torch_threads
    from dresfl.runtimes.flower_runtime.coordinator import Coordinator, Settings
    from dresfl.runtimes.flower_runtime.post import Post
    from dresfl.runtimes.grpc_runtime import log_to
    from dresfl.sealing import Identity, Roster

    from .rows import test_rows
    from .serve import Recorder, check_same
    from .settings import ServerConfig, load_agreement, load_party

    config = load_party(ServerConfig, Path(str(run["server"])))
    roster = Roster.load(Path(config.keys.roster), config.keys.roster_sha256)
    agreement = load_agreement(config, roster)
    folder = Path(config.folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_same(folder / "agreement.json", agreement)
    network = config.network
    settings = Settings(network.grace, network.deadline, network.on_shortage, network.linger)
    with torch_threads(config.threads), open(folder / "log.jsonl", "a", buffering=1, encoding="utf-8") as lines:

        def write(line: str) -> None:
            lines.write(line + "\n")
            print(line, flush=True)  # for `flwr log`

        log = log_to(write)
        recorder = Recorder(config, agreement, test_rows(config.test, agreement), log, engine="flower")
        identity = Identity.load(Path(config.keys.identity))
        coordinator = Coordinator(
            settings, agreement, identity, roster, folder, recorder.make_training, recorder.watch, log
        )
        try:
            server = coordinator.run(Post(carrier, settings.ttl))
        except DresError as error:
            log("error", reason=str(error), hint=error.hint)
            raise
        finally:
            recorder.close()
        summary = recorder.finish(server)
        counted = dataclasses.asdict(coordinator.counters)
        answered = counted.pop("last_answered")
        late = [client for client, number in sorted(answered.items()) if number < server.rounds - 1]
        log("done", weights_sha256=summary["weights_sha256"], **counted, not_in_last_round=late)
        return summary
