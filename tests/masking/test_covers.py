"""Covers: every coalition lies in as many sets as it needs, and the greedy choice is the one that the text defines."""

import itertools

import numpy as np
import pytest

from dresfl.errors import InfeasiblePlan
from dresfl.masking.covers import Cover, certified_sets, check_seeds

SETTINGS = [(6, 3, 2, 1), (8, 5, 2, 3), (9, 4, 3, 1), (10, 6, 3, 2), (12, 8, 4, 1), (7, 3, 1, 2), (5, 4, 3, 1)]


def plain_fill(num_clients, width, sets, needs):
    """Step 3 of `families`, in sets and dictionaries: appends to the sets, and brings the needs down."""
    clients = range(num_clients)
    while max(needs.values()) > 0:
        first = max(needs, key=needs.get)
        members = set(first)
        while len(members) < width:
            choices = []
            for x in set(clients) - members:
                grown = members | {x}
                if len(grown) == width and tuple(sorted(grown)) in sets:
                    continue
                gain = sum(n for c, n in needs.items() if x in c and grown.issuperset(c))
                choices.append((-gain, sum(x in s for s in sets), x))
            if not choices:
                break
            members.add(min(choices)[2])
        found = tuple(sorted(members))
        if len(found) < width or found in sets:
            needs[first] = 0
            continue
        sets.append(found)
        for c in needs:
            if members.issuperset(c) and needs[c] > 0:
                needs[c] -= 1


@pytest.mark.parametrize(("num_clients", "width", "size", "need"), SETTINGS)
def test_the_sets_are_those_that_the_text_defines(num_clients, width, size, need):
    cover = Cover(num_clients, width, size, need)
    assert cover.fill() == len(cover.sets)
    sets = []
    plain_fill(num_clients, width, sets, dict.fromkeys(itertools.combinations(range(num_clients), size), need))
    assert cover.sets == sets
    for coalition in itertools.combinations(range(num_clients), size):
        assert sum(set(coalition) <= set(members) for members in cover.sets) >= need
    assert cover.most_held() == max(sum(x not in s for s in cover.sets) for x in range(num_clients))


def powers(moduli, sets):
    """Words that have nothing to do with a code: one dimension for each set, up to four."""
    return np.stack([[np.eye(8, dtype=np.int64)[s % 4] for s in range(len(sets))] for _ in moduli])


def test_ranks_that_no_set_repairs_are_refused():
    with pytest.raises(InfeasiblePlan, match="a setting: modulo 101") as caught:
        certified_sets((101, 103), 8, 6, 1, powers, 100, "a setting")
    assert caught.value.hint


def test_more_seeds_than_a_client_may_hold_are_refused():
    with pytest.raises(InfeasiblePlan, match="a setting: a client would hold 2 seeds"):
        certified_sets((101,), 8, 6, 1, powers, 1, "a setting")
    check_seeds(5, 5, "a setting")
    with pytest.raises(InfeasiblePlan, match="at most 5 are supported"):
        check_seeds(6, 5, "a setting")
