"""Several local steps in a round of the open mode: which rates they have, and what cannot be done with them.

A round has s mini-batches. Every client takes s steps of gradient descent on its coded rows and answers with the move
Δ = w_0 − w_s, a polynomial in the data. The coordinator decodes Σ_k Δ_k, the sum of the moves that the K shards would
make on their own rows, divides it by K and subtracts it. So each gradient enters with η/(BK), as without local steps.
Inside the field stands η/B, as an integer over a power of two: a·2^−e.
"""

import bisect
import dataclasses
import math
from dataclasses import dataclass, replace
from typing import final

from dresfl.coding import CodeParameters, recovery_threshold
from dresfl.errors import InfeasiblePlan, UsageError
from dresfl.model import LocalSteps, Network
from dresfl.optimizers import Optimizer

# The first rate of a run is rounded to so many bits. Later ones, which are smaller, are rounded to the same multiples.
RATE_BITS = 12

# Lifting ends at 900 bits of moduli, of which 20 to 43 are headroom.
MOST_BITS = 850


@final
@dataclass(frozen=True)
class LocalPlan:
    """The local steps of a run. Every participant derives it from the session's parameters and the optimiser."""

    steps: LocalSteps
    optimizer: Optimizer
    rounds: int

    def multiplier(self, round_number: int) -> int:
        """a: the round's rate is a·2^−e in the field. 0 if the rate is below half of 2^−e: the round moves nothing."""
        rate = self.optimizer.rate(round_number, self.rounds)
        return round(math.ldexp(rate / self.steps.batch_size, self.steps.rate_shift))

    def rate(self, round_number: int) -> float:
        """η as the field has it: a·2^−e·B. It differs from the optimiser's by at most half of 2^−e·B."""
        return math.ldexp(self.multiplier(round_number) * self.steps.batch_size, -self.steps.rate_shift)

    @property
    def last_moving_round(self) -> int:
        """The last round whose rate is not 0 in the field. Rates never grow, so that all rounds before it move."""
        return bisect.bisect_left(range(self.rounds), True, key=lambda number: self.multiplier(number) == 0) - 1

    def to_dict(self) -> dict[str, object]:
        """What decides the moves, as plain values: for digests and transcripts."""
        return {"optimizer": dataclasses.asdict(self.optimizer), "rounds": self.rounds}


def make_local_plan(
    network: Network, parameters: CodeParameters, optimizer: Optimizer, rounds: int
) -> LocalPlan | None:
    """The plan of a run with s local steps; None for s = 1, where the coordinator takes the steps.

    UsageError if the optimiser is not plain gradient descent, or the integers outgrow every field.
    """
    if parameters.local_steps == 1:
        return None
    check_optimizer(optimizer)
    batch, shards = parameters.batch_size, parameters.num_shards
    shift, multiplier = _rate(optimizer.rate(0, rounds) / batch, exact=optimizer.schedule == "constant")
    steps = LocalSteps(network, parameters.local_steps, shift, batch, shards, multiplier)
    if steps.needed_bits > MOST_BITS:
        shorter = (replace(steps, num_steps=s) for s in range(1, parameters.local_steps))
        fewer = [local.num_steps for local in shorter if local.needed_bits <= MOST_BITS]
        raise UsageError(
            f"{parameters.local_steps} local steps of this network need {steps.needed_bits:.0f} bits, and a field "
            f"holds {MOST_BITS} at most",
            f"use {counted(max(fewer))}, fewer square layers, or fewer weight_bits"
            if fewer
            else "use fewer weight_bits",
        )
    return LocalPlan(steps, optimizer, rounds)


def counted(steps: int) -> str:
    """So many local steps, in words.

    >>> counted(1), counted(2)
    ('1 local step', '2 local steps')
    """
    return f"{steps} local step{'s' if steps > 1 else ''}"


def _rate(constant: float, exact: bool) -> tuple[int, int]:
    """(e, a): the constant as a·2^−e, a of RATE_BITS bits. exact: later rates are the same, so that zeros can go.

    >>> _rate(0.1 / 64, exact=True), _rate(2**-3 / 64, exact=True), _rate(2**-3 / 64, exact=False)
    ((21, 3277), (9, 1), (20, 2048))
    """
    shift = max(0, RATE_BITS - 1 - math.floor(math.log2(constant)))
    multiplier = round(math.ldexp(constant, shift))
    while exact and shift > 0 and multiplier % 2 == 0:
        shift, multiplier = shift - 1, multiplier // 2
    return shift, multiplier


def check_optimizer(optimizer: Optimizer) -> None:
    """UsageError if local steps cannot use an optimiser: what is not a polynomial of the rows has no coded form."""
    if optimizer.method != "sgd":
        why = "it divides by roots of the gradient" if optimizer.method == "adam" else "it keeps a state between steps"
        raise UsageError(
            f"local steps cannot use {optimizer.method}: {why}, and clients see coded gradients only",
            'set optimizer.method = "sgd", or federation.local_steps = 1',
        )
    if optimizer.max_norm:
        raise UsageError(
            "local steps cannot clip gradients: a norm is no polynomial of the rows",
            "set optimizer.max_norm = 0 and a smaller learning rate, or federation.local_steps = 1",
        )
    if optimizer.weight_decay:
        raise UsageError(
            "local steps have no weight decay: they are plain gradient descent",
            "set optimizer.weight_decay = 0, or federation.local_steps = 1",
        )


def refuse_infeasible(parameters: CodeParameters, plan: LocalPlan) -> None:
    """InfeasiblePlan if so many clients cannot decode so many local steps; it says how many they could."""
    code, degree = parameters, plan.steps.degree
    needed = recovery_threshold(degree, code.num_shards, code.max_colluders) + 2 * code.max_liars
    if needed <= code.num_clients:
        return
    most = most_local_steps(plan.steps.network, code)
    raise InfeasiblePlan(
        f"{code.num_clients} clients cannot decode {code.local_steps} local steps: degree {degree}, "
        f"K = {code.num_shards}, T = {code.max_colluders} and A = {code.max_liars} need {needed} answers",
        f"use at least {needed} clients"
        + (f", or {counted(most)}" if most else ", or fewer shards, colluders or squares"),
    )


def most_local_steps(network: Network, parameters: CodeParameters) -> int:
    """The most local steps, up to those of the parameters, that so many clients can decode; 0: not even one.

    >>> from dresfl.model import mlp
    >>> most_local_steps(mlp((3, 2), input_bits=4, weight_bits=10), CodeParameters(num_clients=7, local_steps=4))
    3
    """
    code = parameters
    for steps in range(code.local_steps, 0, -1):
        degree = LocalSteps(network, steps, rate_shift=0, batch_size=1).degree  # depends on the layers alone
        if recovery_threshold(degree, code.num_shards, code.max_colluders) + 2 * code.max_liars <= code.num_clients:
            return steps
    return 0
