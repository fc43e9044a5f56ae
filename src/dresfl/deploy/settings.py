"""What a coordinator and a client write down: TOML in, frozen and checked once.

There are three kinds of files. `agreement.toml` is the same everywhere, to the last digit. The coordinator and each
client also have a file of their own, which names the agreement, their keys, and what concerns nobody else. Paths are
relative to the file that names them.
docs/reference/network-configuration.md lists every key.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, final

from dresfl.coding import CodeParameters
from dresfl.data import Partition
from dresfl.errors import UsageError
from dresfl.federation import Agreement, CoordinatorSettings, RoundTiming, Windows
from dresfl.federation.agreement import ACCEPTED, Mode
from dresfl.model import Layer
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.grpc_runtime import ConnectSettings, Credentials, ListenSettings
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
    target_bits: int = Agreement.target_bits  # of a regression
    target_bound: float = Agreement.target_bound  # no |target| of a regression is larger
    class_weights: tuple[int, ...] = Agreement.class_weights  # how often clients repeat their rows of each class


@final
@dataclass(frozen=True)
class AgreedFederation:
    """K, T and the batch. N is the length of the roster."""

    num_shards: int = CodeParameters.num_shards
    max_colluders: int = CodeParameters.max_colluders
    batch_size: int = CodeParameters.batch_size
    max_liars: int = CodeParameters.max_liars


_MODE_HINT = (
    'write mode = "hidden" (or leave it out: it is the default), which shows nobody a gradient or a weight before the '
    'final model; or mode = "open" if every participant may see the weights of every round, and '
    f'rows_can_be_computed = "{ACCEPTED}" if all of you accept that rows of others can be computed from them'
)


@final
@dataclass(frozen=True)
class AgreementFile:
    """agreement.toml: what all must hold alike, together with the roster.

    [hidden] and [optimizer] are of the hidden mode alone. In the open mode the optimiser stands in fed.toml.
    """

    rounds: int
    model: AgreedModel
    mode: Mode = field(default="hidden", metadata={"hint": _MODE_HINT})
    seed: int = 0
    rows_can_be_computed: str = Agreement.rows_can_be_computed
    record: bool = Agreement.record
    federation: AgreedFederation = field(default_factory=AgreedFederation)
    hidden: HiddenSettings = field(default_factory=HiddenSettings)
    optimizer: Optimizer = field(default_factory=Optimizer)

    def __post_init__(self) -> None:
        if self.mode == "open" and self.hidden != HiddenSettings():
            raise UsageError("[hidden] has settings, but the agreement's mode is open", "take the table out")
        if self.mode == "open" and self.optimizer != Optimizer():
            raise UsageError(
                "[optimizer] stands in the agreement, but its mode is open",
                "in the open mode the optimiser is the coordinator's: write the table into fed.toml",
            )

    def with_roster(self, roster: Roster) -> Agreement:
        """The agreement among the members of a roster."""
        model, code, hidden = self.model, self.federation, self.mode == "hidden"
        return Agreement(
            layers=model.layers,
            input_shape=model.input_shape,
            num_clients=len(roster.members),
            rounds=self.rounds,
            input_bits=model.input_bits,
            weight_bits=model.weight_bits,
            shift=model.shift,
            input_bound=model.input_bound,
            target_bits=model.target_bits,
            target_bound=model.target_bound,
            class_weights=model.class_weights,
            num_shards=code.num_shards,
            max_colluders=code.max_colluders,
            batch_size=code.batch_size,
            seed=self.seed,
            roster=roster.digest,
            max_liars=code.max_liars,
            mode=self.mode,
            rows_can_be_computed=self.rows_can_be_computed,
            record=self.record,
            hidden=self.hidden if hidden else None,
            optimizer=self.optimizer if hidden else None,
        )


@final
@dataclass(frozen=True)
class Keys:
    """Where the own keys are, whom to trust, and the roster that is pinned."""

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
    grace: float = RoundTiming.grace
    deadline: float = RoundTiming.deadline
    on_shortage: Literal["retry", "skip"] = RoundTiming.on_shortage
    spool_bytes: int = Windows.stored_bytes
    keepalive: float = ListenSettings.keepalive
    handshake: float = ListenSettings.handshake
    linger: float = CoordinatorSettings.linger


@final
@dataclass(frozen=True)
class Test:
    """Rows that the coordinator evaluates the model on, if it has any: a data set's test part, or an .npz file."""

    dataset: str = ""
    folder: str = ""
    file: str = ""


@final
@dataclass(frozen=True)
class CoordinatorConfig:
    """fed.toml: a coordinator."""

    name: str
    agreement: str
    folder: str  # of the run: terms, checkpoint, metrics, model, summary
    keys: Keys
    evaluate_every: int = 100
    checkpoint_every: int = 1
    threads: int = 1
    storage_key: str = ""  # file of dresfl storage-key: seals checkpoints and terms at rest
    rows_can_be_computed: str = ""  # "accepted": this participant's own consent to the open mode
    network: Listening = field(default_factory=Listening)
    optimizer: Optimizer = field(default_factory=Optimizer)
    test: Test = field(default_factory=Test)

    def __post_init__(self) -> None:
        _check_word(self.rows_can_be_computed)
        for name in ("evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.checkpoint_every > 1 and self.network.on_shortage == "skip":
            raise UsageError(
                'on_shortage = "skip" needs checkpoint_every = 1: played again after a crash, a round may be skipped',
                'set checkpoint_every = 1, or on_shortage = "retry"',
            )

    def listen_settings(self) -> ListenSettings:
        return ListenSettings(self.network.listen, self.network.keepalive, self.network.handshake)

    def machine_settings(self, windows: Windows | None = None) -> CoordinatorSettings:
        """How the machine waits and what it allows itself. windows: those of a runtime, if it has its own."""
        network = self.network
        timing = RoundTiming(network.grace, network.deadline, network.on_shortage)
        own = dataclasses.replace(windows or Windows(), stored_bytes=network.spool_bytes)
        return CoordinatorSettings(timing, network.linger, own)


@final
@dataclass(frozen=True)
class Connecting:
    """How a client reaches the coordinator."""

    coordinator: str
    keepalive: float = ConnectSettings.keepalive
    first_delay: float = ConnectSettings.first_delay
    longest_delay: float = ConnectSettings.longest_delay


@final
@dataclass(frozen=True)
class ClientData:
    """A client's own rows: an .npz file with `inputs` and `labels`; or, for trials, its part of a known data set.

    The file of a regression has `targets` in the place of the labels. A helper has no rows: it holds shares of the
    others' rows and computes on them.
    """

    file: str = ""
    dataset: str = ""
    folder: str = ""
    partition: Partition = "label-sorted"
    alpha: float = 0.5
    helper: bool = False

    def __post_init__(self) -> None:
        if self.helper and (self.file or self.dataset):
            raise UsageError("a helper has no rows", "take the file or the dataset out of [data], or helper = true")
        if not self.helper and bool(self.file) == bool(self.dataset):
            raise UsageError(
                "give [data] either a file or a dataset",
                'for example file = "rows.npz"; a client without rows has helper = true',
            )


@final
@dataclass(frozen=True)
class ClientConfig:
    """site.toml: one client."""

    agreement: str
    folder: str  # the client's store: its secret and its shares
    keys: Keys
    network: Connecting
    data: ClientData
    threads: int = 1
    storage_key: str = ""  # file of dresfl storage-key: seals the secret and the shares at rest
    rows_can_be_computed: str = ""  # "accepted": this participant's own consent to the open mode
    device: Literal["cpu", "cuda"] = "cpu"
    model: str = ""  # where to write the final weights; empty: nowhere

    def __post_init__(self) -> None:
        _check_word(self.rows_can_be_computed)

    def connect_settings(self) -> ConnectSettings:
        return ConnectSettings(**dataclasses.asdict(self.network))


def _check_word(word: str) -> None:
    if word not in ("", ACCEPTED):
        raise UsageError(f"rows_can_be_computed = {word!r} is not known", f'write "{ACCEPTED}" or nothing')


_T = TypeVar("_T")
_PATHS = ("agreement", "folder", "identity", "certificate", "authority", "roster", "file", "model", "storage_key")


def load_settings(kind: type[_T], path: Path) -> _T:
    """Read the file of a coordinator or a client; its paths become absolute."""
    table = load_table(path)
    tables: list[dict[str, Any]] = [table, *(part for part in table.values() if isinstance(part, dict))]
    for part in tables:
        for name in _PATHS:
            if isinstance(part.get(name), str) and part[name]:
                part[name] = _absolute(path.parent, part[name])
    return parse(kind, table)


def _absolute(folder: Path, name: str) -> str:
    try:
        return str((folder / Path(name).expanduser()).resolve())
    except (OSError, ValueError, RuntimeError) as error:  # a null character, an unknown user, links in a circle
        raise UsageError(f"{name!r} cannot be a path: {error}") from error


def load_agreement(config: CoordinatorConfig | ClientConfig, roster: Roster) -> Agreement:
    """The agreement that a file names, for a roster."""
    table = load_table(Path(config.agreement))
    federation = table.get("federation", {})
    if isinstance(federation, dict) and "local_steps" in federation:
        raise UsageError(
            "an agreement has no federation.local_steps: over a network a round has one step, the coordinator's",
            "take the key out; `dresfl train` simulates several local steps",
        )
    return parse(AgreementFile, table).with_roster(roster)


def load_credentials(keys: Keys) -> Credentials:
    """The own keys and certificate, and the pinned roster."""
    roster = Roster.load(Path(keys.roster), keys.roster_sha256)
    try:
        certificate, authority = Path(keys.certificate).read_bytes(), Path(keys.authority).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}", "check [keys]") from error
    return Credentials(Identity.load(Path(keys.identity)), certificate, authority, roster)
