"""What the coordinator and a coalition see, over all values of all seeds: for fields small enough to count in."""

import numpy as np


def evaluations(polynomials, points, p):
    """Polynomials (F,R) by coefficients, at points -> (F,points) modulo p."""
    powers = np.array([[pow(z, i, p) for z in points] for i in range(polynomials.shape[1])])
    return polynomials @ powers % p


def views(p, table, family, coalition, answers):
    """For each row of answers f(α_j) (F,N): every view (blinded answers, seeds held), sorted: (F,p^S) integers.

    table (S,N): the codewords. A view is one integer, its digits the N blinded answers and the values of the seeds that
    some client of the coalition holds.
    """
    seeds = len(family.sets)
    values = np.stack(np.meshgrid(*[np.arange(p)] * seeds, indexing="ij"), -1).reshape(-1, seeds)  # (p^S,S)
    blinding = np.zeros((len(values), family.num_clients), dtype=np.int64)
    for client in range(family.num_clients):
        held = list(family.seed_sets.held_by(client))
        blinding[:, client] = values[:, held] @ table[held, client]
    known = sorted({s for client in coalition for s in family.seed_sets.held_by(client)})
    seen = np.zeros(len(values), dtype=np.int64)
    for s in known:
        seen = seen * p + values[:, s]
    found = np.empty((len(answers), len(values)), dtype=np.int64)
    for row, answer in enumerate(answers):
        code = seen.copy()
        for client in range(family.num_clients):
            code = code * p + (blinding[:, client] + answer[client]) % p
        found[row] = np.sort(code)
    return found
