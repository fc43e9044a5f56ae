"""What a run in the hidden mode costs and needs, before anybody shares a row."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from dresfl.coding import CodeParameters
from dresfl.errors import DresError, UsageError
from dresfl.federation.agreement import num_mask_seeds
from dresfl.model import Network
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session
from dresfl.protocol.hidden.plan import SECURITY, HiddenPlan, make_plan, round_seconds
from dresfl.protocol.hidden.range_proof import RangeProofCost, range_proof_cost
from dresfl.protocol.hidden.settings import HiddenSettings, Schedule
from dresfl.protocol.protection import TRUSTED_DEALERS_MEANS, Protection, protections

DEFAULT_TRIP = 0.02  # seconds, which every agreement's plan takes for granted
PlanOf = Callable[[HiddenSettings, float], HiddenPlan]  # settings and the seconds of a round trip


@final
@dataclass(frozen=True)
class HiddenCost:
    """What follows from a network, an optimiser and the sizes of a federation in the hidden mode.

    Bytes are of one client. Seconds are computed, at 100 Mbit/s and one core each.

    >>> import dresfl as dr
    >>> network = dr.mlp((784, 64, 64, 10), input_bits=4, weight_bits=10)
    >>> cost = dr.plan_hidden(network, num_clients=20, rounds=20_000, rows=60_000)
    >>> cost.schedule, cost.answers_needed, cost.max_dropouts, cost.trips
    ('S4', 6, 14, 5)
    """

    num_clients: int
    num_shards: int
    max_colluders: int
    batch_size: int
    max_liars: int
    rounds: int
    num_parameters: int
    schedule: str
    why: str  # this schedule and not the other one
    mask_degree: int
    recovery_threshold: int
    answers_needed: int
    max_dropouts: int
    check: str
    trips: int
    moduli: tuple[int, ...]
    modulus_bits: float
    largest_bits: int  # of a product that is opened under a mask
    upload_bytes: int  # a round
    download_bytes: int  # a round
    seconds_per_round: dict[str, float]  # by milliseconds of a round trip
    kappa: int
    values_opened: int  # under masks, in the whole run
    security_bits: float  # κ less the logarithm of those
    seeds: int  # the most that a client holds
    mask_seeds: int  # n: of so many the mask of one value is made
    largest_rate: float  # at which guards stop a run that diverges before a value outgrows its mask
    momentum: float  # as it is used, a multiple of 1/128
    weight_bits: int
    validation_rows: int
    rows: int
    share_bytes_per_client: int
    range_proofs: RangeProofCost | None  # None: dealers are trusted
    warnings: tuple[str, ...]
    protection: tuple[Protection, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, as `dresfl plan --mode hidden --json` prints them."""
        return dataclasses.asdict(self)


def plan_hidden(
    network: Network,
    *,
    num_clients: int,
    rounds: int,
    rows: int,
    num_shards: int = CodeParameters.num_shards,
    max_colluders: int = CodeParameters.max_colluders,
    batch_size: int = CodeParameters.batch_size,
    max_liars: int = CodeParameters.max_liars,
    settings: HiddenSettings | None = None,
    optimizer: Optimizer | None = None,
    round_trips: Sequence[float] = (0.001, 0.02, 0.05),
) -> HiddenCost:
    """The plan of a federation in the hidden mode. InfeasiblePlan or UsageError, with what would do, if there is none.

    rows: of all clients together. round_trips: seconds; the schedule is chosen for the largest of them, unless
    `settings` says it. optimizer: momentum with a constant rate of 0.02, if none is given.

    >>> import dresfl as dr
    >>> network = dr.mlp((64, 32, 32, 10), input_bits=4, weight_bits=10)
    >>> plan_hidden(network, num_clients=4, rounds=600, rows=1_400).max_dropouts
    0
    """
    code = CodeParameters(num_clients, num_shards, max_colluders, batch_size, max_liars)
    if rows < num_clients:
        raise UsageError(f"rows must be at least {num_clients}, one of each client, not {rows}")
    if not round_trips or min(round_trips) < 0:
        raise UsageError("a plan needs round trips of at least 0 seconds")
    settings = settings or HiddenSettings()
    optimizer = optimizer or Optimizer(method="momentum", learning_rate=0.02, schedule="constant")
    client_rows = tuple(rows // num_clients + (i < rows % num_clients) for i in range(num_clients))
    trip = max(round_trips)

    def plan_of(chosen: HiddenSettings, seconds: float) -> HiddenPlan:
        masks = num_mask_seeds(code, chosen)
        return make_plan(
            network, code, chosen, optimizer, rounds, client_rows=client_rows, num_masks=masks, round_trip=seconds
        )

    plan = plan_of(settings, trip)
    session = Session(network=plan.network, parameters=code, client_rows=client_rows, seed=0, hidden=plan)
    coded = [session.coded_rows(client) for client in range(num_clients)]
    proofs = None if session.range_proof is None else range_proof_cost(session.field, session.range_proof, coded)
    residues = len(plan.moduli) * session.field.residue_bytes
    held = max(len(session.seed_sets.held_by(client)) for client in range(num_clients))
    items = [item for hop in plan.hops(1 if rounds > 1 else 0) for item in hop.items if item.shift is not None]
    return HiddenCost(
        num_clients=num_clients,
        num_shards=num_shards,
        max_colluders=max_colluders,
        batch_size=batch_size,
        max_liars=max_liars,
        rounds=rounds,
        num_parameters=plan.network.num_parameters,
        schedule=plan.settings.schedule,
        why=_why(plan, settings, plan_of, trip),
        mask_degree=plan.mask_degree,
        recovery_threshold=plan.recovery_threshold,
        answers_needed=plan.answers_needed,
        max_dropouts=num_clients - plan.answers_needed,
        check=plan.settings.check,
        trips=_trips(plan),
        moduli=plan.moduli,
        modulus_bits=round(plan.modulus_bits, 1),
        largest_bits=max(item.bits for item in items),
        upload_bytes=plan.upload_bytes,
        download_bytes=plan.download_bytes,
        seconds_per_round={f"{1000 * trip:g}": round(_seconds(plan, trip), 3) for trip in round_trips},
        kappa=plan.kappa,
        values_opened=plan.values_opened,
        security_bits=round(plan.security_bits, 1),
        seeds=held,
        mask_seeds=plan.num_masks,
        largest_rate=plan.largest_rate,
        momentum=plan.momentum,
        weight_bits=plan.settings.weight_bits,
        validation_rows=plan.validation_rows,
        rows=rows,
        share_bytes_per_client=sum(coded) * session.row_width * residues,
        range_proofs=proofs,
        warnings=tuple(_warnings(plan, plan_of, settings, optimizer)),
        protection=protections(max_colluders, max_liars, plan.settings),
    )


def _trips(plan: HiddenPlan) -> int:
    """Round trips of a round: check C has clients tell each other after every hop."""
    return plan.trips * (2 if plan.settings.check == "C" else 1)


def _seconds(plan: HiddenPlan, round_trip: float) -> float:
    return round_seconds(plan, round_trip) + (_trips(plan) - plan.trips) * round_trip


def _why(plan: HiddenPlan, settings: HiddenSettings, plan_of: PlanOf, trip: float) -> str:
    """Why this schedule: what the other one would need."""
    chosen, clients = plan.settings.schedule, plan.parameters.num_clients
    other: Schedule = "S2" if chosen == "S4" else "S4"
    said = "said so in the settings" if settings.schedule else f"chosen for round trips of {1000 * trip:g} ms"
    try:
        second = plan_of(dataclasses.replace(settings, schedule=other), trip)
    except DresError as error:
        return f"{said}; {other} is not possible: {error}"
    away = clients - second.answers_needed
    return (
        f"{said}; {other} would take {_trips(second)} trips and {_seconds(second, trip):.2f} s a round, and "
        f"{away} of {clients} clients could be missing"
    )


def _warnings(plan: HiddenPlan, plan_of: PlanOf, settings: HiddenSettings, optimizer: Optimizer) -> list[str]:
    found: list[str] = []
    if plan.answers_needed == plan.parameters.num_clients:
        found.append("every client must answer in every hop: one missing client halts the run until it is back")
    if not settings.schedule:
        usual = plan_of(settings, DEFAULT_TRIP).settings.schedule
        if usual != plan.settings.schedule:
            found.append(
                f"an agreement without a schedule takes {usual}, for round trips of {1000 * DEFAULT_TRIP:g} ms: write "
                f'schedule = "{plan.settings.schedule}" under [hidden]'
            )
    if plan.settings.trusted_dealers:
        found.append(f"dealers are trusted: {TRUSTED_DEALERS_MEANS}")
    if plan.settings.honest_clients:
        found.append("clients are said to be honest: one that lies can read rows of others off the hops that follow")
    if optimizer.method == "momentum" and plan.momentum != optimizer.momentum:
        found.append(f"the momentum {optimizer.momentum:g} is used as {plan.momentum:g}, a multiple of 1/128")
    if plan.security_bits < SECURITY + 1:
        found.append(f"{plan.security_bits:.1f} bits of security are left, little more than the {SECURITY} wanted")
    return found
