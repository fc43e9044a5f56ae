"""What random groups look like: drawn, to compare with the formulas of `design`, and with the paper's dropouts."""

from typing import Any

import numpy as np

from dresfl.runtimes.local import paper

from .design import Population, fewer_than, more_than


def colluder_draws(population: Population, size: int, draws: int, seed: int) -> dict[str, Any]:
    """The most colluders in any group, over many draws of the groups; beside the union bound for each number."""
    groups = population.clients // size
    generator = np.random.default_rng(seed)
    counts = generator.multivariate_hypergeometric(
        [size] * groups, population.colluding, size=draws, method="marginals"
    )  # (draws,groups)
    most = counts.max(1)
    middle = int(np.median(most))
    clients, colluding = population.clients, population.colluding
    return {
        "clients": population.clients,
        "colluding_share": population.colluding_share,
        "size": size,
        "groups": groups,
        "draws": draws,
        "mean_in_a_group": float(counts.mean()),
        "median_of_the_most": middle,
        "largest_of_the_most": int(most.max()),
        "drawn": {str(t): float((most > t).mean()) for t in range(middle, middle + 4)},
        "bound": {str(t): min(1.0, groups * more_than(t, clients, colluding, size)) for t in range(middle, middle + 4)},
    }


def dropout_draws(clients: int, size: int, needed: int, rounds: int, seed: int) -> dict[str, Any]:
    """How often groups decode if clients drop out as in the paper: half of them are nearly always away.

    Which clients those are is drawn once. So a group with fewer reliable clients than `needed` hardly ever decodes, and
    the rows of all its clients are lost.
    """
    dropouts, groups = paper(clients, seed), clients // size
    grouped = np.arange(groups * size).reshape(groups, size)  # rates are independent, so any groups will do
    reliable = (np.array(dropouts.rates) < 0.5)[grouped].sum(1)
    decoded = np.zeros((rounds, groups), dtype=np.bool_)
    for number in range(rounds):
        there = np.zeros(clients, dtype=np.bool_)
        there[dropouts.answering(number)] = True
        decoded[number] = there[grouped].sum(1) >= needed
    return {
        "clients": clients,
        "size": size,
        "answers": needed,
        "groups": groups,
        "rounds": rounds,
        "seed": seed,
        "decoded_share": float(decoded.mean()),
        "worst_round": float(decoded.mean(1).min()),
        "groups_with_too_few_reliable": float((reliable < needed).mean()),
        "expected_of_these": fewer_than(needed, size, 0.5),
    }
