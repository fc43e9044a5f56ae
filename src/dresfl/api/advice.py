"""Which settings reach a goal: so many clients may be missing, so many may collude, in the open and the hidden mode.

D, T and K pull against each other: D = N − 2A − d(K+T−1) − 1 clients may be missing in the open mode, where d doubles
with every square layer. In the hidden mode d is 4 or 2 at any depth.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from dresfl.coding import CodeParameters, recovery_threshold
from dresfl.errors import DresError, InfeasiblePlan, UsageError
from dresfl.model import Network, mlp
from dresfl.protocol.hidden.settings import HiddenSettings, Schedule

from .plan import plan
from .plan_hidden import plan_hidden
from .round_times import HiddenSpeed, hidden_speed, open_round

BYTES_PER_SECOND = 12.5e6  # 100 Mbit/s, as in the plans
_WEIGHT_BYTES = 4  # of a weight that the coordinator sends
Watch = Callable[[str], None]  # is told what is measured next


@final
@dataclass(frozen=True)
class Goal:
    """What a federation must bear.

    >>> Goal.parse("dropouts=8, colluders=2")
    Goal(dropouts=8, colluders=2, liars=0)
    """

    dropouts: int  # clients that may be missing in every round
    colluders: int = 1
    liars: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 0:
                raise UsageError(f"{field.name} of a goal must not be negative", _EXAMPLE)

    @classmethod
    def parse(cls, text: str) -> "Goal":
        """A goal as the command line writes it."""
        known = [field.name for field in dataclasses.fields(cls)]
        values: dict[str, int] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or name not in known or name in values or not value.isdecimal():
                raise UsageError(f"the goal {text!r} is not a list of {', '.join(known)}", _EXAMPLE)
            values[name] = int(value)
        if "dropouts" not in values:
            raise UsageError("a goal says how many clients may be missing", _EXAMPLE)
        return cls(**values)


_EXAMPLE = 'for example --goal "dropouts=8,colluders=2"'


@final
@dataclass(frozen=True)
class Choice:
    """One setting that reaches a goal, with its cost. Bytes are of one client and one round."""

    mode: Literal["open", "hidden"]
    schedule: str  # of the hidden mode
    num_shards: int
    max_colluders: int
    layers: tuple[int, ...]
    hidden_layers: int
    batch_size: int  # coded rows of a client in a round
    rows_per_round: int  # K · batch size: the rows that a step sees
    recovery_threshold: int
    answers_needed: int
    max_dropouts: int
    bits: float
    upload_bytes: int
    download_bytes: int
    share_bytes: int  # at each client, once
    trips: int
    client_seconds: float  # computing, a round
    coordinator_seconds: float
    seconds: float  # a round, with the round trips and the bytes
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return dataclasses.asdict(self)


def depths(sizes: Sequence[int], *, input_bits: int, weight_bits: int) -> list[Network]:
    """The network of these sizes, and the shallower ones that leave out its last hidden layers.

    >>> [len(network.layers) for network in depths((784, 64, 64, 10), input_bits=4, weight_bits=10)]
    [5, 3, 1]
    """
    kept = [(*sizes[: 1 + depth], sizes[-1]) for depth in range(len(sizes) - 2, -1, -1)]
    return [mlp(each, input_bits=input_bits, weight_bits=weight_bits) for each in kept]


def advise(
    networks: Sequence[Network],
    *,
    num_clients: int,
    goal: Goal,
    batch_size: int = CodeParameters.batch_size,
    rows: int,
    rounds: int = 1000,
    round_trip: float = 0.02,
    watch: Watch = lambda text: None,
) -> list[Choice]:
    """The settings that reach a goal, best first: the deepest network, then the shortest time for each row.

    networks: the deepest first, at least one. batch_size: rows a round with one shard. Every K comes with as many rows
    a round, and with K times as many. round_trip: seconds. Raises InfeasiblePlan with what could be reached, if nothing
    reaches the goal.

    >>> networks = depths((16, 8, 4), input_bits=4, weight_bits=10)
    >>> found = advise(networks, num_clients=8, goal=Goal(2, 1), batch_size=8, rows=800)
    >>> {(choice.mode, choice.hidden_layers) for choice in found} >= {("open", 0), ("hidden", 1)}
    True
    """
    if goal.dropouts >= num_clients:
        raise UsageError(f"{goal.dropouts} of {num_clients} clients cannot be missing", _EXAMPLE)
    found: list[Choice] = []
    for each in networks:
        for code in _candidates(each.gradient_degree, num_clients, goal, batch_size):
            watch(f"open mode: {_named(each, code)}")
            found.append(_open_choice(each, code, rows, round_trip))
    speed: HiddenSpeed | None = None
    for each in networks:
        for schedule, degree in (("S4", 4), ("S2", 2)):
            for code in _candidates(degree, num_clients, goal, batch_size):
                if speed is None:
                    watch("hidden mode: two short runs, for this machine's speed")
                    speed = hidden_speed(networks[0], batch_size)
                watch(f"hidden mode, {schedule}: {_named(each, code)}")
                choice = _hidden_choice(each, code, rows, rounds, round_trip, schedule, speed)  # type: ignore[arg-type]
                if choice is not None and choice.max_dropouts >= goal.dropouts:
                    found.append(choice)
    if not found:
        raise _unreachable(num_clients, goal, networks)
    return sorted(found, key=lambda c: (-c.hidden_layers, c.seconds / c.rows_per_round, -c.max_dropouts))


def _candidates(degree: int, num_clients: int, goal: Goal, batch_size: int) -> Iterator[CodeParameters]:
    """Codes of a degree that reach the goal: K in powers of two and the largest, T as wanted and the largest."""
    room = (num_clients - goal.dropouts - 2 * goal.liars - 1) // degree  # the largest K+T−1
    most = room + 1 - goal.colluders
    shards = [k for k in (1, 2, 4, 8, 16, 32) if k < most] + [most] * (most > 0)
    for count in shards:
        for colluders in sorted({goal.colluders, room + 1 - count}):
            for size in sorted({max(1, -(-batch_size // count)), batch_size}):
                yield CodeParameters(num_clients, count, colluders, size, goal.liars)


def _named(network: Network, code: CodeParameters) -> str:
    return f"{len(network.parameters) - 1} hidden layers, K = {code.num_shards}, T = {code.max_colluders}"


def _open_choice(network: Network, code: CodeParameters, rows: int, round_trip: float) -> Choice:
    planned = plan(network, **dataclasses.asdict(code), rows=rows)
    client, coordinator = open_round(network, code, planned.mask_seeds or 1)
    download = _WEIGHT_BYTES * network.num_parameters
    moved = (planned.upload_bytes + download) / BYTES_PER_SECOND
    return Choice(
        mode="open",
        schedule="",
        **_of_the_code(network, code),
        recovery_threshold=planned.recovery_threshold,
        answers_needed=planned.answers_needed,
        max_dropouts=planned.max_dropouts,
        bits=planned.needed_bits,
        upload_bytes=planned.upload_bytes,
        download_bytes=download,
        share_bytes=planned.share_bytes_per_client,
        trips=1,
        client_seconds=client,
        coordinator_seconds=coordinator,
        seconds=client + coordinator + moved + round_trip,
        warnings=planned.warnings,
    )


def _of_the_code(network: Network, code: CodeParameters) -> dict[str, Any]:
    return {
        "num_shards": code.num_shards,
        "max_colluders": code.max_colluders,
        "layers": (network.input_size, *(p.fan[1] for p in network.parameters)),
        "hidden_layers": len(network.parameters) - 1,
        "batch_size": code.batch_size,
        "rows_per_round": code.batch_size * code.num_shards,
    }


def _hidden_choice(
    network: Network,
    code: CodeParameters,
    rows: int,
    rounds: int,
    round_trip: float,
    schedule: Schedule,
    speed: HiddenSpeed,
) -> Choice | None:
    """None: there is no plan (too few clients for the answers that are needed, no certified masks, too many bits)."""
    settings = HiddenSettings(schedule=schedule)
    sizes = {
        name: value for name, value in dataclasses.asdict(code).items() if name != "local_steps"
    }  # of the open mode
    try:
        cost = plan_hidden(network, **sizes, rows=rows, rounds=rounds, settings=settings, round_trips=[round_trip])
    except DresError:
        return None
    client, coordinator = speed.seconds(cost.upload_bytes, cost.seeds, cost.answers_needed)
    moved = (cost.upload_bytes + cost.download_bytes) / BYTES_PER_SECOND
    return Choice(
        mode="hidden",
        schedule=cost.schedule,
        **_of_the_code(network, code),
        recovery_threshold=cost.recovery_threshold,
        answers_needed=cost.answers_needed,
        max_dropouts=cost.max_dropouts,
        bits=cost.modulus_bits,
        upload_bytes=cost.upload_bytes,
        download_bytes=cost.download_bytes,
        share_bytes=cost.share_bytes_per_client,
        trips=cost.trips,
        client_seconds=client,
        coordinator_seconds=coordinator,
        seconds=client + coordinator + moved + cost.trips * round_trip,
        warnings=cost.warnings,
    )


def _unreachable(num_clients: int, goal: Goal, networks: Sequence[Network]) -> InfeasiblePlan:
    """What could be reached instead: the most dropouts of the shallowest network, and the clients that would do."""
    least = min(recovery_threshold(degree, 1, goal.colluders) for degree in (2, *(n.gradient_degree for n in networks)))
    least += 2 * goal.liars
    most, wanted = num_clients - least, goal.dropouts + least
    hint = f"at most {most} may be missing" if most >= 0 else f"{least} clients are the fewest that decode"
    return InfeasiblePlan(
        f"no setting of {num_clients} clients bears {goal.dropouts} missing, {goal.colluders} colluding and "
        f"{goal.liars} lying ones",
        f"{hint}; with {wanted} clients or a little more there are settings",
    )


def frontier(num_clients: int, degree: int, num_shards: int, liars: int = 0) -> list[tuple[int, int]]:
    """(T, D) for every T that a code of this degree allows: the trade-off between collusion and dropouts.

    >>> frontier(20, 8, 1)
    [(1, 11), (2, 3)]
    """
    found = [
        (colluders, num_clients - 2 * liars - recovery_threshold(degree, num_shards, colluders))
        for colluders in range(1, num_clients)
    ]
    return [(colluders, dropouts) for colluders, dropouts in found if dropouts >= 0]
