"""The sizes of a federation's code: what everybody must agree on before anything is shared."""

from dataclasses import dataclass
from typing import final

from dresfl.errors import UsageError

_MAX_CLIENTS = 2**16 - 1  # messages number clients in two bytes


@final
@dataclass(frozen=True)
class CodeParameters:
    """N, K, T, B, A and s of a federation, with their defaults. Checked here, once, and nowhere else.

    Whether so many clients can decode depends on the network's degree too: `LagrangeCode` checks that.

    >>> CodeParameters(num_clients=20)
    CodeParameters(num_clients=20, num_shards=1, max_colluders=1, batch_size=64, max_liars=0, local_steps=1)
    """

    num_clients: int
    num_shards: int = 1
    max_colluders: int = 1
    batch_size: int = 64
    max_liars: int = 0
    local_steps: int = 1  # s: mini-batches of a round, on which clients step before they answer

    def __post_init__(self) -> None:
        for name in ("num_clients", "num_shards", "batch_size", "local_steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_colluders < 0:
            raise UsageError(f"max_colluders must not be negative, not {self.max_colluders}")
        if self.max_liars < 0:
            raise UsageError(f"max_liars must not be negative, not {self.max_liars}")
        if self.num_clients > _MAX_CLIENTS:
            raise UsageError(f"messages number at most {_MAX_CLIENTS} clients, not {self.num_clients}")
