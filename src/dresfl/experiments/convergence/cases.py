"""The runs that show the bounds: what is trained, how fine the grid is, which rate, how many steps."""

from dataclasses import dataclass
from typing import final

from dresfl.model import Network, mlp

NUM_CLIENTS = 10
MAX_COLLUDERS = 1
DROPOUT_RATE = 0.5  # of every client in every round: rounds with too few answers are skipped, and no steps
DATASET = "digits"
INPUT_BITS = 4
EVERY = 3  # the run has every third training row: all rows are looked at before every step


@final
@dataclass(frozen=True)
class Case:
    """One setting. Several seeds of it give both sides of the bound as means."""

    group: str
    sizes: tuple[int, ...]
    weight_bits: int
    batch_size: int
    num_shards: int
    learning_rate: float
    steps: int

    @property
    def name(self) -> str:
        """The settings in one word."""
        sizes = "-".join(map(str, self.sizes))
        return (
            f"{self.group}:{sizes}:bits{self.weight_bits}:batch{self.batch_size}:shards{self.num_shards}"
            f":rate{self.learning_rate:g}:steps{self.steps}"
        )

    @property
    def is_least_squares(self) -> bool:
        """Whether there is no activation: then the loss is a quadratic, and its constants are known."""
        return len(self.sizes) == 2

    def network(self) -> Network:
        """The network."""
        return mlp(self.sizes, input_bits=INPUT_BITS, weight_bits=self.weight_bits)


_LINEAR = (64, 10)
_ALL_ROWS = 479  # as many draws as rows: the strata hold a row each, and the batch gradient has no variance
_HORIZONS = ((16, 0.04), (64, 0.02), (256, 0.01), (1024, 0.005))  # η = 0.16/√τ

CASES = (
    *(Case("batch noise", _LINEAR, 20, 8, 2, rate, 512) for rate in (0.04, 0.02, 0.01)),
    *(Case("rounding", _LINEAR, 4, _ALL_ROWS, 1, rate, 512) for rate in (0.04, 0.02, 0.01)),
    *(Case("rate and steps", _LINEAR, bits, 64, 1, rate, steps) for bits in (20, 4) for steps, rate in _HORIZONS),
    *(Case("network", (64, 16, 10), bits, 16, 1, 0.005, 512) for bits in (10, 6)),
)
