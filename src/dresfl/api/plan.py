"""What a setting costs and whether it works, before anybody shares a row."""

import math
from typing import Any

from dresfl.coding import CodeParameters, recovery_threshold
from dresfl.errors import InfeasiblePlan, UsageError
from dresfl.model import Network
from dresfl.protocol import Answer, choose_field


def plan(
    network: Network, *, num_clients: int, num_shards: int, max_colluders: int, batch_size: int, rows: int
) -> dict[str, Any]:
    """The plan of a federation: threshold, moduli, sizes and warnings. Infeasible settings are planned too.

    >>> from dresfl.model import mlp
    >>> network = mlp((784, 64, 64, 10), input_bits=4, weight_bits=10)
    >>> p = plan(network, num_clients=20, num_shards=1, max_colluders=1, batch_size=64, rows=60_000)
    >>> p["gradient_degree"], p["recovery_threshold"], p["max_dropouts"], p["feasible"]
    (8, 9, 11, True)
    """
    for name, value, least in (
        ("clients", num_clients, 1),
        ("shards", num_shards, 1),
        ("colluders", max_colluders, 0),
        ("batch", batch_size, 1),
        ("rows", rows, 1),
    ):
        if value < least:
            raise UsageError(f"{name} must be at least {least}, not {value}")
    needed = recovery_threshold(network.gradient_degree, num_shards, max_colluders)
    field = choose_field(network, CodeParameters(num_clients, num_shards, max_colluders, batch_size))
    residues = len(field.moduli) * field.residue_bytes
    return {
        "num_clients": num_clients,
        "num_shards": num_shards,
        "max_colluders": max_colluders,
        "num_parameters": network.num_parameters,
        "gradient_degree": network.gradient_degree,
        "recovery_threshold": needed,
        "max_dropouts": max(0, num_clients - needed),
        "feasible": needed <= num_clients,
        "moduli": list(field.moduli),
        "modulus_bits": field.modulus.bit_length(),
        "needed_bits": round(network.needed_bits(batch_size * num_shards), 1),
        "upload_bytes": Answer.size(field, network.num_parameters),
        "rows": rows,
        "share_bytes_per_client": math.ceil(rows / num_shards) * (network.input_size + network.num_classes) * residues,
        "warnings": warnings(network, num_clients - needed, max_colluders, batch_size),
    }


def check_feasible(planned: dict[str, Any]) -> None:
    """Raise InfeasiblePlan with the nearest feasible settings if a plan cannot decode."""
    if planned["feasible"]:
        return
    clients, degree = planned["num_clients"], planned["gradient_degree"]
    shards, colluders = planned["num_shards"], planned["max_colluders"]
    room = (clients - 1) // degree + 1  # the largest K+T these clients allow
    nearest = [f"--clients {planned['recovery_threshold']}"]
    if room > colluders:
        nearest.append(f"--shards {room - colluders} --colluders {colluders}")
    if room >= 2 and room <= colluders:
        nearest.append(f"--shards 1 --colluders {room - 1}")
    squares = int(math.log2(max(1, clients - 1) / max(1, shards + colluders - 1))) - 1
    if 2 ** (squares + 1) < degree and squares >= 0:
        nearest.append(f"a network of {squares} square layer(s), degree {2 ** (squares + 1)}")
    raise InfeasiblePlan(
        f"{clients} clients cannot decode: degree {degree}, K = {shards} and T = {colluders} need "
        f"{planned['recovery_threshold']} answers",
        "feasible: " + ", or ".join(nearest),
    )


def warnings(network: Network, dropouts: int, max_colluders: int, batch_size: int) -> list[str]:
    """What a reader should know about a setting before using it."""
    found: list[str] = []
    first = network.parameters[0]
    terms = batch_size * first.layer.positions(first.place.in_shape)  # of one shard: the server can tell them apart
    if terms <= first.fan[1]:
        found.append(
            f"a round sums {terms} input rows into a first layer {first.fan[1]} wide: the gradient reveals the span of "
            "those rows to the server, and up to rounding to the clients; use a batch larger than that layer is wide"
        )
    if max_colluders == 0:
        found.append("0 colluders means no masks: every client can read the others' rows; use at least 1")
    if dropouts == 0:
        found.append("every client must answer in every round: one missing client skips the round")
    return found
