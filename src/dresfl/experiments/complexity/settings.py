"""Which federations the cost tables measure: one setting that all sweeps start from, and what each sweep varies."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

from dresfl.baselines import SecureSum
from dresfl.coding import CodeParameters
from dresfl.model import Network, mlp
from dresfl.protocol import Session

SweepName = Literal["clients", "shards", "colluders", "parameters", "batch", "answers"]


@final
@dataclass(frozen=True)
class Setting:
    """A federation whose costs are measured. The letters are the paper's: N, K, T, d_w, b_g, R."""

    layers: tuple[int, ...] = (784, 64, 10)
    num_clients: int = 40
    num_shards: int = 1
    max_colluders: int = 1
    global_batch: int = 320  # b_g: original rows in a round, of all clients together
    rows_per_client: int = 1600
    mask_answers: int = 0  # R of LightSecAgg; 0: that of DReS-FL, so that both may lose the same number of clients

    @cached_property
    def network(self) -> Network:
        return mlp(self.layers, input_bits=4, weight_bits=10)

    @property
    def num_parameters(self) -> int:
        """d_w."""
        return self.network.num_parameters

    @cached_property
    def session(self) -> Session:
        """DReS-FL: b_g/K coded rows hide the b_g rows of a round."""
        batch = -(-self.global_batch // self.num_shards)
        code = CodeParameters(self.num_clients, self.num_shards, self.max_colluders, batch)
        return Session(self.network, code, (self.rows_per_client,) * self.num_clients, seed=1)

    @cached_property
    def secure_sum(self) -> SecureSum:
        """LightSecAgg for sums of d_w values."""
        needed = self.mask_answers or self.session.recovery_threshold
        return SecureSum(self.num_clients, self.max_colluders, needed, self.num_parameters)

    @property
    def own_batch(self) -> int:
        """FedAvg: each client's rows in a round, b_g/N."""
        return -(-self.global_batch // self.num_clients)

    def to_dict(self) -> dict[str, Any]:
        """The setting and what follows from it, for a record."""
        return {
            **dataclasses.asdict(self),
            "layers": list(self.layers),
            "num_parameters": self.num_parameters,
            "recovery_threshold": self.session.recovery_threshold,
            "mask_answers": self.secure_sum.recovery_threshold,
            "value_bytes_dresfl": len(self.session.field.moduli) * self.session.field.residue_bytes,
            "value_bytes_lightsecagg": len(self.secure_sum.field.moduli) * self.secure_sum.field.residue_bytes,
        }


@final
@dataclass(frozen=True)
class Sweep:
    """One size that varies; all else is as in `base`. Sizes of `parameters` are widths of the hidden layer."""

    name: SweepName
    sizes: tuple[int, ...]
    base: Setting = dataclasses.field(default_factory=Setting)

    def at(self, size: int) -> Setting:
        """The setting at one size."""
        names = {"clients": "num_clients", "shards": "num_shards", "colluders": "max_colluders"}
        names |= {"batch": "global_batch", "answers": "mask_answers", "parameters": "layers"}
        value: Any = (self.base.layers[0], size, self.base.layers[-1]) if self.name == "parameters" else size
        return dataclasses.replace(self.base, **{names[self.name]: value})

    def measured_size(self, size: int) -> int:
        """What growth is fitted over: the size itself, or d_w."""
        return self.at(size).num_parameters if self.name == "parameters" else size


@final
@dataclass(frozen=True)
class Plan:
    """What one run of the command measures, and how long it takes over it."""

    sweeps: tuple[Sweep, ...]
    cases: dict[str, Setting]  # whose totals over rounds are compared
    whole: Setting  # small enough for whole runs
    rounds: tuple[int, ...]  # of the whole runs
    accuracy_rounds: int  # of FedAvg with LightSecAgg on digits
    seconds: float  # for each sweep and each case


_MNIST = Setting((784, 64, 64, 10), num_clients=20, global_batch=64, rows_per_client=3000)
_WHOLE = Setting((64, 32, 10), num_clients=10, global_batch=40, rows_per_client=80)

FULL = Plan(
    sweeps=(
        Sweep("clients", (10, 20, 40, 80)),
        Sweep("shards", (1, 2, 4, 8)),
        Sweep("colluders", (1, 2, 4, 8)),
        Sweep("parameters", (16, 64, 256, 1024)),
        Sweep("batch", (80, 160, 320, 640)),
        Sweep("answers", (5, 10, 20, 40)),
    ),
    cases={
        "MNIST, K = 1, as many dropouts": _MNIST,
        "MNIST, K = 1, LightSecAgg with R = 0.7 N": dataclasses.replace(_MNIST, mask_answers=14),
        "MNIST, K = 2, as many dropouts": dataclasses.replace(_MNIST, num_shards=2),
        "one hidden layer, 40 clients, K = 1": Setting(),
        "one hidden layer, 40 clients, K = 8": Setting(num_shards=8),
        "no hidden layer, 40 clients, K = 1": Setting((784, 10)),
    },
    whole=_WHOLE,
    rounds=(10, 40, 80),
    accuracy_rounds=600,
    seconds=24.0,
)
QUICK = Plan(
    sweeps=tuple(dataclasses.replace(sweep, sizes=sweep.sizes[:2]) for sweep in FULL.sweeps),
    cases={"MNIST, K = 1, as many dropouts": _MNIST},
    whole=_WHOLE,
    rounds=(5, 10),
    accuracy_rounds=60,
    seconds=2.0,
)
