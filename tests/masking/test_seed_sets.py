"""Who holds and who makes which seed, against the definition in plain Python."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import UsageError
from dresfl.masking import SeedSets

CLIENTS = 5
EVERY_SET = [s for size in range(CLIENTS) for s in itertools.combinations(range(CLIENTS), size)]


@given(st.lists(st.sampled_from(EVERY_SET), max_size=40))
def test_holders_and_dealers_follow_the_definition(sets):
    seeds = SeedSets(CLIENTS, tuple(sets))
    dealt, common = [0] * CLIENTS, 0
    for s, members in enumerate(sets):
        outside = [client for client in range(CLIENTS) if client not in members]
        assert seeds.holders(s) == tuple(outside)
        if members:
            fewest = min(dealt[client] for client in outside)
            turn = [client % CLIENTS for client in range(s, s + CLIENTS)]
            expected = next(client for client in turn if client in outside and dealt[client] == fewest)
            dealt[expected] += 1
        else:
            expected, common = common % CLIENTS, common + 1
        assert seeds.dealer(s) == expected
    for client in range(CLIENTS):
        assert seeds.held_by(client) == tuple(s for s, members in enumerate(sets) if client not in members)
        assert seeds.dealt_by(client) == tuple(s for s in range(len(sets)) if seeds.dealer(s) == client)


def test_every_client_makes_one_of_the_seeds_that_all_hold():
    seeds = SeedSets(4, ((0, 1), (2,), *[()] * 4))
    assert [seeds.dealer(s) for s in range(2, 6)] == [0, 1, 2, 3]
    assert all(seeds.holders(s) == (0, 1, 2, 3) for s in range(2, 6))


@pytest.mark.parametrize("members", [(1, 0), (1, 1), (-1, 0), (0, 4), (0, 1, 2, 3)])
def test_what_is_no_set_of_clients_is_refused(members):
    with pytest.raises(UsageError, match="is not a set"):
        SeedSets(4, ((0,), members))
