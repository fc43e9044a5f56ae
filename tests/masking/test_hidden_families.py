"""The families of the hidden mode: words and ranks recomputed by python-flint, and what must be refused."""

import dataclasses
import itertools

import flint
import numpy as np
import pytest

from dresfl.coding import LagrangeCode
from dresfl.errors import InfeasiblePlan, UsageError
from dresfl.field import ResidueField, choose_moduli
from dresfl.masking import MaskFamily, certify_hidden, covers, hidden_families
from dresfl.masking.certificate import coalitions_of, membership, missing_ranks, points_of
from dresfl.masking.codewords import codeword_values

from .exhaustive import evaluations, views

LARGE = choose_moduli(120, more_than=60)  # seven primes


def product(points, p):
    found = flint.nmod_poly([1], p)
    for x in points:
        found *= flint.nmod_poly([-x, 1], p)
    return found


def rank(polynomials, p, length):
    rows = [[int(f[i]) for i in range(length)] for f in polynomials]
    return flint.nmod_mat(len(rows), length, [x for row in rows for x in row], p).rank() if rows else 0


def words_by_flint(families, p):
    """The polynomials of all words by the module's text: masks [set][shard], zeros, sums."""
    beta = range(1, families.num_shards + 1)
    alpha = [families.num_shards + families.mask_degree + 1 + j for j in range(families.num_clients)]
    masks = []
    for members in families.mask_sets:
        vanishing = product([alpha[a] for a in members], p)
        row = []
        for b in beta:
            others = product([x for x in beta if x != b], p)
            row.append(vanishing * others * pow(int(vanishing(b)) * int(others(b)), -1, p))
        masks.append(row)
    zeros = [product([*beta, *(alpha[e] for e in members)], p) for members in families.zero_sets]
    sums = []
    for members in families.sum_sets:
        vanishing = product([alpha[e] for e in members], p)
        a, b = sum(int(vanishing(x)) for x in beta), sum(x * int(vanishing(x)) for x in beta)
        sums.append(vanishing * flint.nmod_poly([b, -a], p))
    return masks, zeros, sums


def check_words(families, p, words):
    """What the module says of the words, and that the tables hold their values at the clients' points."""
    masks, zeros, sums = words
    beta, alpha, opened = families.data_points, families.client_points, families.opened_degree
    clients = range(families.num_clients)
    table = families.mask_words((p,), clients)[0]
    for s, row in enumerate(masks):
        for k, word in enumerate(row):
            assert word.degree() <= families.num_shards + families.mask_degree - 1
            assert [int(word(b)) for b in beta] == [int(b == beta[k]) for b in beta]
            assert [int(word(x)) for x in alpha] == table[s, :, k].tolist()
        assert not table[s, list(families.mask_sets[s])].any()
    for total, polynomials, sets in ((False, zeros, families.zero_sets), (True, sums, families.sum_sets)):
        if not polynomials:
            continue
        (values,) = families.zero_words((p,), total=total)
        for word, members, row in zip(polynomials, sets, values, strict=True):
            assert word.degree() <= opened
            at_data = [int(word(b)) for b in beta]
            assert sum(at_data) % p == 0 if total else not any(at_data)
            assert [int(word(x)) for x in alpha] == row.tolist()
            assert not row[list(members)].any()


def check_ranks(families, p, words):
    """Both conditions of both kinds of hops, for every coalition of T clients."""
    masks, zeros, sums = words
    size, shards, length = families.max_colluders, families.num_shards, families.opened_degree + 1
    kinds = families.mask_sets, families.zero_sets, families.sum_sets
    inside = [np.array([[x in members for x in range(families.num_clients)] for members in sets]) for sets in kinds]
    for coalition in itertools.combinations(range(families.num_clients), size):
        unknown = [np.nonzero(table[:, coalition].all(1))[0] if len(table) else [] for table in inside]
        hiding = [masks[s] for s in unknown[0]]
        zero = [zeros[s] for s in unknown[1]]
        assert rank(zero, p, length) == length - shards - size
        assert rank([*zero, *itertools.chain(*hiding)], p, length) == length - size
        total = [sums[s] for s in unknown[2]] if shards > 1 else zero
        upload = [sum(row, flint.nmod_poly([0], p)) * pow(shards, -1, p) for row in hiding]
        assert rank(total, p, length) == length - 1 - size
        assert rank([*total, *upload], p, length) == length - size


def settings(num_clients):
    for max_colluders, num_shards, degree in itertools.product((1, 2), (1, 2, 3), (2, 4)):
        if degree * (num_shards + max_colluders - 1) < num_clients:
            yield num_clients, num_shards, max_colluders, max_colluders, degree


@pytest.mark.parametrize(
    "setting", [*itertools.chain(*map(settings, (3, 4, 5, 7, 9, 12, 20))), (12, 1, 2, 3, 2), (9, 2, 1, 2, 2)]
)
def test_words_and_ranks_by_flint(setting):
    moduli = (251, LARGE[0], LARGE[-1])
    families = hidden_families(moduli, *setting)
    certify_hidden(moduli, families)
    for p in moduli:
        words = words_by_flint(families, p)
        check_words(families, p, words)
        check_ranks(families, p, words)


@pytest.mark.parametrize(("mask_degree", "masks"), [(4, 3876), (6, 400), (8, 110)])
def test_four_colluders_of_twenty(mask_degree, masks):
    families = hidden_families(LARGE, 20, 1, 4, mask_degree, 2)
    certify_hidden(LARGE, families)
    held = [sum(client not in members for members in families.mask_sets) for client in range(20)]
    assert max(held) <= masks
    covered = {c for members in families.mask_sets for c in itertools.combinations(members, 4)}
    assert len(covered) == 4845


def test_a_ramp_by_flint():
    families = hidden_families(LARGE[:1], 20, 1, 3, 6, 2)
    words = words_by_flint(families, LARGE[0])
    check_ranks(families, LARGE[0], words)


@pytest.mark.slow
@pytest.mark.parametrize("mask_degree", [4, 6, 8])
def test_four_colluders_of_twenty_by_flint(mask_degree):
    families = hidden_families(LARGE, 20, 1, 4, mask_degree, 2)
    check_ranks(families, LARGE[0], words_by_flint(families, LARGE[0]))


# -- rule: ranks modulo every prime --------------------------------------------------------------------------------


def windows(num_clients, width):
    return tuple(tuple(sorted((s + i) % num_clients for i in range(width))) for s in range(num_clients))


def primes_that_fail(num_clients, num_shards, degree, mask_points):
    """Primes below 256 modulo which windows leave some client's coalition too little in weight hops."""
    opened = degree * num_shards
    sets, found = windows(num_clients, opened - 1), []
    points = range(1, num_shards + 1), range(num_shards + mask_points + 1, num_shards + mask_points + num_clients + 1)
    for p in (q for q in range(points[1].stop, 256) if flint.fmpz(q).is_prime()):
        values = codeword_values((p,), sets, *points)
        members, coalitions = membership(sets, num_clients), coalitions_of(num_clients, 1)
        if missing_ranks((p,), values, members, coalitions, opened + 1).any():
            found.append(p)
    return found


def test_windows_fail_at_small_primes_in_weight_hops():
    """Where the clients' points follow the data points at once, these are known."""
    assert primes_that_fail(20, 2, 4, 0) == [47, 61, 83]
    assert primes_that_fail(20, 3, 2, 0) == [31, 47, 61, 107, 173]


@pytest.mark.parametrize(
    ("num_shards", "degree", "expected"), [(2, 4, [17, 31, 41, 53, 67]), (3, 2, [17, 19, 23, 107])]
)
def test_families_are_repaired_there(num_shards, degree, expected):
    """The points of this mode, mask points in between: other primes fail, and more sets repair them."""
    assert primes_that_fail(9, num_shards, degree, 1) == expected
    plain = windows(9, degree * num_shards - 1)
    for p in expected:
        families = hidden_families((p,), 9, num_shards, 1, 1, degree)
        assert families.sum_sets[:9] == plain
        assert len(families.sum_sets) > 9
        check_ranks(families, p, words_by_flint(families, p))
        with pytest.raises(InfeasiblePlan, match="sum words hide too little from the coordinator with clients"):
            certify_hidden((p,), dataclasses.replace(families, sum_sets=plain))


def test_a_prime_without_a_family_is_refused(monkeypatch):
    hidden_families.cache_clear()
    monkeypatch.setattr(covers, "_PASSES", 1)
    with pytest.raises(InfeasiblePlan, match=r"9 clients, 2 shards.*\(weight hops\): modulo 17") as caught:
        hidden_families((17,), 9, 2, 1, 1, 4)
    assert "larger primes" in caught.value.hint


# -- what the coordinator and a coalition see, counted -------------------------------------------------------------


@pytest.mark.parametrize("total", [False, True])
def test_uploads_tell_what_is_opened_and_no_more(total):
    """All values of all zero seeds, two shards modulo 11: the views of two polynomials are the same if and only if
    what is opened and what the colluder knows are the same.
    """
    p, families = 11, hidden_families((11,), 5, 2, 1, 1, 2)
    sets = families.sum_sets if total else families.zero_sets
    assert len(sets) == 5
    (table,) = families.zero_words((p,), total=total)
    threshold = len(sets[0]) + 2
    every = np.stack(np.meshgrid(*[np.arange(p)] * 5, indexing="ij"), -1).reshape(-1, 5)
    opened = evaluations(every, families.data_points, p)
    opened = opened.sum(1, keepdims=True) % p if total else opened
    for client in (0, 3):
        seen = np.concatenate((opened, evaluations(every, [families.client_points[client]], p)), 1)
        same = np.nonzero((seen == seen[1234]).all(1))[0][:3]
        other = np.nonzero((seen[:, -1] == seen[1234, -1]) & (seen[:, 0] != seen[1234, 0]))[0][:2]
        assert (len(same), len(other)) == (3, 2)
        answers = evaluations(every[[*same, *other]], families.client_points, p)
        found = views(p, table, MaskFamily(5, threshold, 1, sets), [client], answers)
        assert [bool((row == found[0]).all()) for row in found] == [True, True, True, False, False]


# -- the families as a value ---------------------------------------------------------------------------------------


def test_points_are_the_codes():
    families = hidden_families(LARGE, 12, 2, 1, 2, 2)
    code = LagrangeCode(ResidueField(LARGE, 6), 12, 2, 2, 2)
    assert tuple(families.data_points) == code.data_points
    assert tuple(families.client_points) == code.client_points
    assert families.opened_degree + 1 == code.recovery_threshold


@pytest.mark.parametrize("setting", [(7, 1, 1, 1, 4), (9, 2, 1, 1, 2), (12, 1, 2, 3, 2)])
def test_seeds_are_numbered_by_purpose(setting):
    families = hidden_families(LARGE, *setting)
    seeds, num_clients = families.seed_sets, setting[0]
    purposes = [families.mask_seeds, families.zero_seeds(total=False), families.common_seeds]
    if families.num_shards > 1:
        purposes.insert(2, families.zero_seeds(total=True))
    else:
        assert families.zero_seeds(total=True) == families.zero_seeds(total=False)
        assert families.sum_sets == ()
    assert [s for purpose in purposes for s in purpose] == list(range(len(seeds.sets)))
    assert families.num_masks == len(families.mask_seeds)
    for client, number in enumerate(families.common_seeds):
        assert seeds.dealer(number) == client
        assert seeds.holders(number) == tuple(range(num_clients))


def test_families_never_change():
    """Other implementations must arrive at the same."""
    families = hidden_families(LARGE, 8, 1, 2, 3, 2)
    assert families.mask_sets == MASK_SETS
    assert families.zero_sets == ZERO_SETS


MASK_SETS = (
    *((0, 1, 2), (0, 3, 4), (0, 5, 6), (0, 1, 7), (1, 3, 5), (1, 4, 6)),
    *((2, 3, 7), (2, 4, 5), (2, 6, 7), (3, 4, 6), (4, 5, 7)),
)
ZERO_SETS = (
    *((0, 1, 2, 3, 4), (0, 1, 5, 6, 7), (2, 3, 4, 5, 6), (0, 2, 3, 5, 7), (1, 2, 4, 6, 7), (0, 1, 3, 4, 5)),
    *((0, 3, 4, 6, 7), (0, 1, 2, 5, 6), (1, 2, 3, 5, 7), (1, 3, 4, 6, 7), (0, 2, 4, 5, 7), (0, 2, 3, 5, 6)),
    (1, 4, 5, 6, 7),
)


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [("mask_sets", "hold all seeds"), ("zero_sets", "zero words hide"), ("sum_sets", "sum words hide")],
)
def test_families_without_one_of_their_sets_are_refused(kind, words):
    families = hidden_families(LARGE, 9, 2, 1, 1, 2)
    sets = getattr(families, kind)
    assert len(sets) == 9
    for dropped in range(len(sets)):
        rest = sets[:dropped] + sets[dropped + 1 :]
        with pytest.raises(InfeasiblePlan, match=words):
            certify_hidden(LARGE, dataclasses.replace(families, **{kind: rest}))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ((5, 1, 0, 1, 2), "at least one colluder"),
        ((5, 1, 2, 1, 2), "at least one colluder"),
        ((5, 1, 5, 5, 2), "more clients than that"),
        ((5, 0, 1, 1, 2), "at least one shard"),
        ((5, 1, 1, 1, 1), "degree 2"),
        ((8, 1, 2, 2, 4), "9 answers are needed"),
        ((60, 1, 4, 4, 2), "487635 coalitions"),
        ((26, 1, 4, 4, 2), "12650 seeds"),
    ],
)
def test_refusals_name_the_setting(setting, words):
    with pytest.raises(InfeasiblePlan, match=words):
        hidden_families(LARGE, *setting)


def test_primes_without_room_for_the_points_are_refused():
    with pytest.raises(UsageError, match="no room for 7 distinct points"):
        hidden_families((7, 101), 5, 1, 1, 1, 2)


def test_sets_of_another_size_are_refused():
    families = hidden_families(LARGE, 5, 1, 1, 1, 2)
    with pytest.raises(UsageError, match="a set of 1 clients"):
        dataclasses.replace(families, mask_sets=((0, 1),))


def test_zero_words_with_one_shard_are_multiples_of_the_open_modes():
    families = hidden_families((101,), 7, 1, 1, 1, 4)
    (zeros,) = families.zero_words((101,), total=False)
    (open_mode,) = codeword_values((101,), families.zero_sets, *points_of(7, 1, 1))
    for a, b in zip(zeros.tolist(), open_mode.tolist(), strict=True):
        factor = next(y * pow(x, -1, 101) % 101 for x, y in zip(a, b, strict=True) if x)
        assert [factor * x % 101 for x in a] == b
