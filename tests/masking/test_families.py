"""Families: the algorithm's steps one by one in plain Python, the settings in use, balance, and refusals."""

import itertools

import flint
import pytest

from dresfl.coding import CodeParameters
from dresfl.errors import InfeasiblePlan, UsageError
from dresfl.field import choose_moduli
from dresfl.masking import MaskFamily, certify, covers, families, zero_sum_family
from dresfl.model import mlp
from dresfl.protocol.session import choose_field

from .test_covers import plain_fill

BYTES = 256


def primes(num_points, limit=2**24):
    """Nine large primes, or for a limit of 256 all primes with room for the points."""
    if limit == BYTES:
        return tuple(p for p in range(num_points + 1, BYTES) if flint.fmpz(p).is_prime())
    return choose_moduli(180, more_than=num_points, limit=limit)


# -- the definition ------------------------------------------------------------------------------------------------


def rank_of(p, sets, num_clients, num_shards, first):
    """The rank modulo p of the sets' codewords, from polynomials of python-flint."""
    rows = []
    for members in sets:
        vanishing = flint.nmod_poly([1], p)
        for e in members:
            vanishing *= flint.nmod_poly([-(first + e), 1], p)
        a = sum(int(vanishing(k)) for k in range(1, num_shards + 1))
        b = sum(k * int(vanishing(k)) for k in range(1, num_shards + 1))
        codeword = vanishing * flint.nmod_poly([b, -a], p)
        rows += [int(codeword(first + j)) for j in range(num_clients)]
    return flint.nmod_mat(len(sets), num_clients, rows, p).rank() if sets else 0


def plain_family(moduli, num_clients, num_shards, max_colluders, threshold):
    """Steps 1 to 5 of the module's text."""
    size, width = min(max_colluders, threshold - 2), threshold - 2
    clients, sets = range(num_clients), []
    need = dict.fromkeys(itertools.combinations(clients, size), threshold - 1 - size)  # step 1
    if size == 1:  # step 2
        sets = [tuple(sorted((s + i) % num_clients for i in range(width))) for s in clients]
        need = dict.fromkeys(need, 0)
    for _ in range(64):
        plain_fill(num_clients, width, sets, need)  # step 3
        for c in need:  # steps 4 and 5
            inside = [s for s in sets if set(s).issuperset(c)]
            lowest = min(rank_of(p, inside, num_clients, num_shards, num_shards + max_colluders + 1) for p in moduli)
            need[c] = threshold - 1 - size - lowest
        if not any(need.values()):
            return tuple(sets)
    return None


@pytest.mark.parametrize(
    ("moduli", "num_clients", "num_shards", "max_colluders", "threshold"),
    [
        (primes(30), 8, 1, 2, 5),
        (primes(11, BYTES), 8, 1, 2, 5),
        (primes(10, BYTES)[:12], 6, 2, 2, 5),
        ((13, 17), 8, 3, 1, 8),
        (primes(17, BYTES)[:20], 12, 2, 1, 9),
        ((29, 31), 7, 1, 3, 7),
        ((11,), 5, 2, 0, 4),
        ((11,), 6, 1, 1, 2),
    ],
)
def test_the_family_is_the_one_that_the_text_defines(moduli, num_clients, num_shards, max_colluders, threshold):
    setting = num_clients, num_shards, max_colluders, threshold
    assert zero_sum_family(moduli, *setting).sets == plain_family(moduli, *setting)


def test_a_family_never_changes():
    """Other implementations must arrive at the same."""
    assert zero_sum_family((101, 103), 6, 1, 2, 5).sets == (
        *((0, 1, 2), (0, 3, 4), (0, 1, 5), (1, 2, 3), (1, 4, 5)),
        *((2, 4, 5), (0, 3, 5), (0, 2, 4), (1, 3, 4), (2, 3, 5)),
    )


# -- the settings in use -------------------------------------------------------------------------------------------


def settings(num_clients):
    """(K, T, R) for K, T of 1 and 2 and degrees 2, 4 and 8, where so many clients can decode."""
    for num_shards, max_colluders, degree in itertools.product((1, 2), (1, 2), (2, 4, 8)):
        threshold = degree * (num_shards + max_colluders - 1) + 1
        if threshold <= num_clients:
            yield num_clients, num_shards, max_colluders, threshold


@pytest.mark.parametrize("limit", [2**24, BYTES])
@pytest.mark.parametrize("setting", [*settings(12), *settings(20)])
def test_settings_in_use(setting, limit):
    num_clients, num_shards, max_colluders, threshold = setting
    moduli = primes(num_clients + num_shards + max_colluders, limit)
    family = zero_sum_family(moduli, *setting)
    certify(moduli, family, num_shards)
    held = [len(family.seed_sets.held_by(client)) for client in range(num_clients)]
    if max_colluders == 1 and limit > BYTES:
        assert held == [num_clients - threshold + 2] * num_clients  # the fewest possible
    assert max(held) - min(held) <= 3
    dealt = [len(family.seed_sets.dealt_by(client)) for client in range(num_clients)]
    assert max(dealt) - min(dealt) <= max_colluders
    assert sum(dealt) == len(family.sets)


@pytest.mark.parametrize("layers", [(784, 10), (784, 64, 10), (784, 64, 64, 10), (4096, 512, 10)])
def test_the_moduli_of_sessions(layers):
    network = mlp(layers, input_bits=4, weight_bits=10)
    for num_shards, max_colluders in itertools.product((1, 2), (1, 2)):
        threshold = network.gradient_degree * (num_shards + max_colluders - 1) + 1
        if threshold <= 20:
            moduli = choose_field(network, CodeParameters(20, num_shards, max_colluders)).moduli
            assert (moduli[-1] < BYTES) == (layers[0] == 4096)
            certify(moduli, zero_sum_family(moduli, 20, num_shards, max_colluders, threshold), num_shards)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2**24, BYTES])
@pytest.mark.parametrize("setting", [*settings(50), (20, 1, 3, 7), (20, 1, 3, 13), (20, 1, 4, 9), (20, 1, 4, 17)])
def test_larger_settings(setting, limit):
    num_clients, num_shards, max_colluders, _ = setting
    moduli = primes(num_clients + num_shards + max_colluders, limit)
    certify(moduli, zero_sum_family(moduli, *setting), num_shards)


@pytest.mark.parametrize("threshold", [3, 9])
def test_a_thousand_clients(threshold):
    moduli = primes(1002)[:2]
    family = zero_sum_family(moduli, 1000, 1, 1, threshold)
    assert len(family.sets) == 1000


# -- the family as a value -----------------------------------------------------------------------------------------


def test_holders_and_dealers():
    family = zero_sum_family((101,), 7, 1, 1, 5)
    assert family.sets[5] == (0, 5, 6)
    for s, members in enumerate(family.sets):
        assert sorted([*members, *family.seed_sets.holders(s)]) == list(range(7))
        assert family.seed_sets.dealer(s) in family.seed_sets.holders(s)
        assert s in family.seed_sets.dealt_by(family.seed_sets.dealer(s))
    for client in range(7):
        assert family.seed_sets.held_by(client) == tuple(s for s in range(7) if client in family.seed_sets.holders(s))
        assert len(family.seed_sets.dealt_by(client)) == 1


@pytest.mark.parametrize("setting", [(12, 1, 1, 5), (12, 2, 2, 7), (9, 1, 3, 7)])
def test_no_coalition_deals_a_seed_that_it_may_not_know(setting):
    num_clients, _, max_colluders, _ = setting
    family = zero_sum_family(primes(20), *setting)
    for coalition in itertools.combinations(range(num_clients), max_colluders):
        known = {s for client in coalition for s in family.seed_sets.held_by(client)}
        dealt = {s for client in coalition for s in family.seed_sets.dealt_by(client)}
        assert dealt <= known < set(range(len(family.sets)))


def test_threshold_two_has_one_seed_that_everybody_holds():
    family = zero_sum_family((101,), 5, 1, 1, 2)
    assert family.sets == ((),)
    assert family.seed_sets.holders(0) == (0, 1, 2, 3, 4)
    assert family.seed_sets.dealt_by(0) == (0,)


@pytest.mark.parametrize(
    ("threshold", "sets"), [(4, ((0, 1), (0,))), (4, ((1, 0),)), (4, ((0, 5),)), (3, ((0,), (0,))), (3, ()), (1, ((),))]
)
def test_what_is_no_family_is_refused(threshold, sets):
    with pytest.raises(UsageError):
        MaskFamily(5, threshold, 1, sets)


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (((101,), 5, 1, 1, 1), "nothing to blind"),
        (((101,), 5, 1, 1, 6), "must lie between"),
        (((101,), 9, 3, 2, 4), "must lie between"),
        (((101,), 60, 1, 4, 17), "487635 coalitions"),
        ((choose_moduli(60, more_than=400), 150, 1, 2, 9), "seeds"),
    ],
)
def test_refusals_name_the_setting(setting, words):
    with pytest.raises(InfeasiblePlan, match=words) as caught:
        zero_sum_family(*setting)
    assert caught.value.hint


@pytest.mark.parametrize("moduli", [(7, 101), ()])
def test_primes_without_room_for_the_points_are_refused(moduli):
    with pytest.raises(UsageError, match="no room for 7 distinct points"):
        zero_sum_family(moduli, 5, 1, 1, 3)


def test_after_too_many_passes_there_is_no_family(monkeypatch):
    zero_sum_family.cache_clear()
    monkeypatch.setattr(covers, "_PASSES", 1)
    with pytest.raises(InfeasiblePlan, match="8 clients, 3 shards, 1 colluders, threshold 8: modulo 13"):
        zero_sum_family((13,), 8, 3, 1, 8)


def test_more_seeds_than_a_client_may_hold_while_the_family_grows(monkeypatch):
    zero_sum_family.cache_clear()
    monkeypatch.setattr(families, "MOST_SEEDS", 2)
    assert len(zero_sum_family((101,), 8, 1, 1, 8).sets) == 8
    with pytest.raises(InfeasiblePlan, match="hold 3 seeds"):
        zero_sum_family((13,), 8, 3, 1, 8)
