"""What a coordinator and a site write down: TOML in, frozen and checked once.

Three files. `agreement.toml` is the same at every party, to the last digit. Each party then has one of its own, which
names the agreement, its keys, and what is its own affair. Paths are relative to the file that names them.
docs/reference/network-configuration.md lists every key.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, final

from dresfl.coding import CodeParameters
from dresfl.data import Partition
from dresfl.errors import UsageError
from dresfl.federation import Agreement
from dresfl.model import Layer
from dresfl.optimizers import Optimizer
from dresfl.runtimes.grpc_runtime import Credentials, HubSettings, Pace, SiteSettings
from dresfl.sealing import Identity, Roster

from .toml import load_table, parse


@final
@dataclass(frozen=True)
class AgreedModel:
    """The network, its fixed point, and the inputs it is made for."""

    layers: tuple[Layer, ...]
    input_shape: tuple[int, ...]
    input_bits: int = Agreement.input_bits
    weight_bits: int = Agreement.weight_bits
    shift: float = Agreement.shift
    input_bound: float = Agreement.input_bound  # no |input|, shift included, is larger


@final
@dataclass(frozen=True)
class AgreedFederation:
    """K, T and the batch. N is the length of the roster."""

    num_shards: int = CodeParameters.num_shards
    max_colluders: int = CodeParameters.max_colluders
    batch_size: int = CodeParameters.batch_size


@final
@dataclass(frozen=True)
class AgreementFile:
    """agreement.toml: what all parties must hold alike, beside the roster."""

    rounds: int
    model: AgreedModel
    seed: int = 0
    federation: AgreedFederation = field(default_factory=AgreedFederation)

    def with_roster(self, roster: Roster) -> Agreement:
        """The agreement among the parties of a roster."""
        model, code = self.model, self.federation
        return Agreement(
            layers=model.layers,
            input_shape=model.input_shape,
            num_clients=len(roster.members),
            rounds=self.rounds,
            input_bits=model.input_bits,
            weight_bits=model.weight_bits,
            shift=model.shift,
            input_bound=model.input_bound,
            num_shards=code.num_shards,
            max_colluders=code.max_colluders,
            batch_size=code.batch_size,
            seed=self.seed,
            roster=roster.digest,
        )


@final
@dataclass(frozen=True)
class Keys:
    """Where a party's keys are, whom it trusts, and the roster it has pinned."""

    identity: str  # folder of dresfl keygen
    certificate: str  # PEM, with its chain if there is one
    authority: str  # PEM of the authorities that sign the others' certificates
    roster: str
    roster_sha256: str  # the roster's digest, as compared by telephone


@final
@dataclass(frozen=True)
class Listening:
    """How the coordinator serves."""

    listen: str = "0.0.0.0:7443"
    metrics: str = ""  # address of the health and metrics endpoint, e.g. 127.0.0.1:9464; empty: none
    grace: float = Pace.grace
    deadline: float = Pace.deadline
    on_shortage: Literal["retry", "skip"] = Pace.on_shortage
    spool_bytes: int = HubSettings.spool_bytes
    keepalive: float = HubSettings.keepalive
    linger: float = HubSettings.linger


@final
@dataclass(frozen=True)
class Test:
    """Rows that the coordinator evaluates the model on, if it has any: a data set's test part, or an .npz file."""

    dataset: str = ""
    folder: str = ""
    file: str = ""


@final
@dataclass(frozen=True)
class ServerConfig:
    """fed.toml: a coordinator."""

    name: str
    agreement: str
    folder: str  # of the run: terms, checkpoint, metrics, model, summary
    keys: Keys
    evaluate_every: int = 100
    checkpoint_every: int = 1
    threads: int = 1
    network: Listening = field(default_factory=Listening)
    optimizer: Optimizer = field(default_factory=Optimizer)
    test: Test = field(default_factory=Test)

    def __post_init__(self) -> None:
        for name in ("evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")

    def hub_settings(self) -> HubSettings:
        network = self.network
        return HubSettings(
            listen=network.listen,
            folder=Path(self.folder),
            spool_bytes=network.spool_bytes,
            keepalive=network.keepalive,
            linger=network.linger,
            pace=Pace(network.grace, network.deadline, network.on_shortage),
        )


@final
@dataclass(frozen=True)
class Connecting:
    """How a site reaches the coordinator."""

    server: str
    keepalive: float = SiteSettings.keepalive
    first_delay: float = SiteSettings.first_delay
    longest_delay: float = SiteSettings.longest_delay


@final
@dataclass(frozen=True)
class SiteData:
    """A site's own rows: an .npz file with `inputs` and `labels`; or, for trials, its part of a known data set."""

    file: str = ""
    dataset: str = ""
    folder: str = ""
    partition: Partition = "label-sorted"
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.dataset):
            raise UsageError("give [data] either a file or a dataset", 'for example file = "rows.npz"')


@final
@dataclass(frozen=True)
class SiteConfig:
    """site.toml: one organisation."""

    agreement: str
    folder: str  # the site's store: its secret and its shares
    keys: Keys
    network: Connecting
    data: SiteData
    threads: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    model: str = ""  # where to write the final weights; empty: nowhere

    def site_settings(self) -> SiteSettings:
        return SiteSettings(**dataclasses.asdict(self.network), device=self.device)


_T = TypeVar("_T")
_PATHS = ("agreement", "folder", "identity", "certificate", "authority", "roster", "file", "model")


def load_party(kind: type[_T], path: Path) -> _T:
    """Read a party's file; its paths become absolute."""
    table = load_table(path)
    tables: list[dict[str, Any]] = [table, *(part for part in table.values() if isinstance(part, dict))]
    for part in tables:
        for name in _PATHS:
            if isinstance(part.get(name), str) and part[name]:
                part[name] = str((path.parent / Path(part[name]).expanduser()).resolve())
    return parse(kind, table)


def load_agreement(config: ServerConfig | SiteConfig, roster: Roster) -> Agreement:
    """The agreement that a party's file names, for a roster."""
    return parse(AgreementFile, load_table(Path(config.agreement))).with_roster(roster)


def load_credentials(keys: Keys) -> Credentials:
    """A party's keys, certificate and pinned roster."""
    roster = Roster.load(Path(keys.roster), keys.roster_sha256)
    try:
        certificate, authority = Path(keys.certificate).read_bytes(), Path(keys.authority).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}", "check [keys]") from error
    return Credentials(Identity.load(Path(keys.identity)), certificate, authority, roster)
