"""What a setting costs and whether it works, before anybody shares a row."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, final

from dresfl.coding import CodeParameters, recovery_threshold
from dresfl.errors import InfeasiblePlan, UsageError
from dresfl.field import ResidueSystem
from dresfl.masking import zero_sum_family
from dresfl.model import Network
from dresfl.optimizers import Optimizer
from dresfl.protocol import Answer, LocalPlan, choose_field, make_local_plan
from dresfl.protocol.local_plan import counted
from dresfl.protocol.protection import Protection, protections

_FEW = 0.05  # of the rounds: so many may move nothing at the end of a schedule
_ANY_ROUNDS = 1  # the first rate does not depend on them


@final
@dataclass(frozen=True)
class LocalPrice:
    """What so many local steps a round cost. Bytes are of one client."""

    local_steps: int
    gradient_degree: int
    recovery_threshold: int
    answers_needed: int
    needed_bits: float
    num_moduli: int
    upload_bytes: int  # a round, which takes the place of s rounds
    share_bytes_per_client: int  # once
    feasible: bool


@final
@dataclass(frozen=True)
class Plan:
    """What follows from a network and the sizes of a federation. Bytes are of one client.

    >>> import dresfl as dr
    >>> planned = dr.plan(dr.mlp((784, 64, 10), input_bits=4, weight_bits=10), num_clients=5, rows=60_000)
    >>> planned.feasible, planned.to_dict()["recovery_threshold"]
    (True, 5)
    """

    num_clients: int
    num_shards: int
    max_colluders: int
    batch_size: int
    max_liars: int
    local_steps: int
    num_parameters: int
    gradient_degree: int  # of what is decoded: the gradient, or the move of several local steps
    recovery_threshold: int
    answers_needed: int
    max_dropouts: int
    feasible: bool
    moduli: tuple[int, ...]
    modulus_bits: int
    needed_bits: float
    upload_bytes: int
    rows: int
    share_bytes_per_client: int
    mask_seeds: int | None  # the most that a client holds and expands in each round; None: no certified family
    warnings: tuple[str, ...]
    protection: tuple[Protection, ...]
    local_prices: tuple[LocalPrice, ...] = ()  # of 1 to s local steps, if s > 1

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, as `dresfl plan --json` prints them."""
        return dataclasses.asdict(self)

    def _steps_text(self) -> str:
        return f" {counted(self.local_steps)}" if self.local_steps > 1 else ""

    def check(self) -> None:
        """Raise InfeasiblePlan with the nearest settings that work if so many clients cannot decode."""
        if self.feasible:
            return
        clients, degree = self.num_clients, self.gradient_degree
        shards, colluders, liars = self.num_shards, self.max_colluders, self.max_liars
        honest = max(1, clients - 2 * liars)  # answers that are left to decode if so many liars are to be outvoted
        room = (honest - 1) // degree + 1  # the largest K+T that these clients allow
        nearest = [f"{self.answers_needed} clients"]
        fewer = [price.local_steps for price in self.local_prices if price.feasible]
        if fewer:
            nearest.append(counted(max(fewer)))
        if self.recovery_threshold <= clients:
            nearest.append(f"{(clients - self.recovery_threshold) // 2} liars")
        if room > colluders:
            nearest.append(f"{room - colluders} shards and {colluders} colluders")
        if 2 <= room <= colluders:
            nearest.append(f"1 shard and {room - 1} colluders")
        alone = self.local_steps == 1  # what follows is about the degree of one step
        squares = int(math.log2(max(1, honest - 1) / max(1, shards + colluders - 1))) - 1
        if alone and 2 ** (squares + 1) < degree and squares >= 0:
            nearest.append(f"a network of {squares} square layers, degree {2 ** (squares + 1)}")
        raise InfeasiblePlan(
            f"{clients} clients cannot decode{self._steps_text()}: degree {degree}, K = {shards}"
            + (f", T = {colluders} and A = {liars}" if liars else f" and T = {colluders}")
            + f" need {self.answers_needed} answers",
            "feasible: " + ", or ".join(nearest),
        )


def plan(
    network: Network,
    *,
    num_clients: int,
    num_shards: int = CodeParameters.num_shards,
    max_colluders: int = CodeParameters.max_colluders,
    batch_size: int = CodeParameters.batch_size,
    max_liars: int = CodeParameters.max_liars,
    local_steps: int = CodeParameters.local_steps,
    rows: int,
    optimizer: Optimizer | None = None,
) -> Plan:
    """The plan of a federation: threshold, moduli, sizes and warnings. Infeasible settings are planned too.

    rows: of all clients together. optimizer: with several local steps the bits depend on its rate; None: the default.

    >>> import dresfl as dr
    >>> network = dr.mlp((784, 64, 64, 10), input_bits=4, weight_bits=10)
    >>> planned = plan(network, num_clients=20, rows=60_000)
    >>> planned.gradient_degree, planned.recovery_threshold, planned.max_dropouts, planned.feasible
    (8, 9, 11, True)
    """
    code = CodeParameters(num_clients, num_shards, max_colluders, batch_size, max_liars, local_steps)
    if rows < 1:
        raise UsageError(f"rows must be at least 1, not {rows}")
    local = make_local_plan(network, code, optimizer or Optimizer(), _ANY_ROUNDS)
    degree = network.gradient_degree if local is None else local.steps.degree
    threshold = recovery_threshold(degree, code.num_shards, code.max_colluders)
    needed = threshold + 2 * code.max_liars
    field = choose_field(network, code, local=local)
    seeds, found = _mask_seeds(field.moduli, code, threshold) if needed <= code.num_clients else (None, [])
    return Plan(
        **dataclasses.asdict(code),
        num_parameters=network.num_parameters,
        gradient_degree=degree,
        recovery_threshold=threshold,
        answers_needed=needed,
        max_dropouts=max(0, code.num_clients - needed),
        feasible=needed <= code.num_clients,
        moduli=field.moduli,
        modulus_bits=field.modulus.bit_length(),
        needed_bits=round(_needed_bits(network, code, local), 1),
        upload_bytes=Answer.size(field, network.num_parameters),
        rows=rows,
        share_bytes_per_client=_share_bytes(network, code, field, rows),
        mask_seeds=seeds,
        warnings=(*warnings(network, code, local), *found),
        protection=protections(code.max_colluders, code.max_liars),
        local_prices=() if local is None else _prices(network, code, local.optimizer, rows),
    )


def _needed_bits(network: Network, code: CodeParameters, local: LocalPlan | None) -> float:
    return network.needed_bits(code.batch_size * code.num_shards) if local is None else local.steps.needed_bits


def _share_bytes(network: Network, code: CodeParameters, field: ResidueSystem, rows: int) -> int:
    """Bytes of all shares that a client keeps."""
    width = network.input_size + network.num_classes
    return math.ceil(rows / code.num_shards) * width * len(field.moduli) * field.residue_bytes


def _prices(network: Network, code: CodeParameters, optimizer: Optimizer, rows: int) -> tuple[LocalPrice, ...]:
    """What 1 to s local steps cost, one line each."""
    prices: list[LocalPrice] = []
    for steps in range(1, code.local_steps + 1):
        fewer = dataclasses.replace(code, local_steps=steps)
        local = make_local_plan(network, fewer, optimizer, _ANY_ROUNDS)
        degree = network.gradient_degree if local is None else local.steps.degree
        threshold = recovery_threshold(degree, code.num_shards, code.max_colluders)
        needed, field = threshold + 2 * code.max_liars, choose_field(network, fewer, local=local)
        prices.append(
            LocalPrice(
                local_steps=steps,
                gradient_degree=degree,
                recovery_threshold=threshold,
                answers_needed=needed,
                needed_bits=round(_needed_bits(network, fewer, local), 1),
                num_moduli=len(field.moduli),
                upload_bytes=Answer.size(field, network.num_parameters),
                share_bytes_per_client=_share_bytes(network, code, field, rows),
                feasible=needed <= code.num_clients,
            )
        )
    return tuple(prices)


def _mask_seeds(moduli: tuple[int, ...], code: CodeParameters, threshold: int) -> tuple[int | None, list[str]]:
    """How many mask seeds a client holds at most; or a warning that a network refuses the setting."""
    try:
        family = zero_sum_family(moduli, code.num_clients, code.num_shards, code.max_colluders, threshold)
    except InfeasiblePlan as error:
        return None, [f"over a network this setting is refused, since answers cannot be blinded: {error}"]
    return max(len(family.seed_sets.held_by(client)) for client in range(code.num_clients)), []


def warnings(network: Network, code: CodeParameters, local: LocalPlan | None = None) -> list[str]:
    """What a reader should know about a setting before using it."""
    found: list[str] = []
    first = network.parameters[0]
    terms = (
        code.batch_size * code.local_steps * first.layer.positions(first.place.in_shape)
    )  # of one shard: they can be told apart
    if terms <= first.fan[1]:
        found.append(
            f"a round sums {terms} input rows into a first layer {first.fan[1]} wide: the gradient reveals the span of "
            "those rows to the coordinator, and up to rounding to the clients; use a batch larger than that layer"
        )
    if code.max_colluders == 0:
        found.append("0 colluders means no masks: every client can read the others' rows; use at least 1")
    degree = network.gradient_degree if local is None else local.steps.degree
    threshold = recovery_threshold(degree, code.num_shards, code.max_colluders)
    if code.num_clients == threshold + 2 * code.max_liars:
        found.append("every client must answer in every round: one missing client skips the round")
    still = 0 if local is None else local.rounds - local.last_moving_round - 1
    if local is not None and still > local.rounds * _FEW:
        found.append(
            f"the learning rate of the last {still} rounds is so small that it is 0 in the field: they move nothing; "
            "use a schedule that ends at 1/4096 of its first rate or above"
        )
    return found
