"""Groups of clients: the probabilities are exact, designs keep their promises, and sums of groups train one model."""

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from dresfl.errors import UsageError
from dresfl.experiments.groups import (
    OPENINGS,
    Grouping,
    Opening,
    Population,
    blinding,
    colluder_draws,
    design,
    dropout_draws,
    least_colluders,
    separate_models,
    train_in_groups,
)
from dresfl.experiments.groups import __main__ as script
from dresfl.experiments.groups import training as group_training
from dresfl.experiments.groups.design import fewer_than, more_than
from dresfl.kernels.threads import torch_threads


@pytest.mark.parametrize(
    ("clients", "colluding", "size"), [(10, 2, 5), (30, 7, 12), (12, 12, 4), (9, 0, 3), (20, 15, 18)]
)
def test_colluders_of_a_random_group_are_counted_exactly(clients: int, colluding: int, size: int) -> None:
    counts = [
        Fraction(math.comb(colluding, x) * math.comb(clients - colluding, size - x), math.comb(clients, size))
        for x in range(size + 1)
    ]
    assert sum(counts) == 1
    for limit in range(size):
        assert more_than(limit, clients, colluding, size) == pytest.approx(float(sum(counts[limit + 1 :])), abs=1e-12)


@pytest.mark.parametrize(("size", "away"), [(5, 0.1), (20, 0.5), (12, 0.99), (7, 0.0)])
def test_answers_of_a_group_are_counted_exactly(size: int, away: float) -> None:
    there = 1 - Fraction(away)
    counts = [math.comb(size, x) * there**x * Fraction(away) ** (size - x) for x in range(size + 1)]
    for needed in range(size + 2):
        assert fewer_than(needed, size, away) == pytest.approx(float(sum(counts[:needed])), abs=1e-12)


def test_far_tails_keep_their_digits() -> None:
    exact = sum(Fraction(math.comb(100, x) * math.comb(9900, 60 - x), math.comb(10_000, 60)) for x in range(13, 61))
    assert more_than(12, 10_000, 100, 60) == pytest.approx(float(exact), rel=1e-8)
    assert float(exact) < 1e-12


def test_no_fewer_colluders_would_do() -> None:
    population = Population(10_000, 0.01)
    most = least_colluders(population, size=200, groups=50)
    assert 50 * more_than(most, 10_000, 100, 200) <= 2.0**-40 < 50 * more_than(most - 1, 10_000, 100, 200)
    assert least_colluders(Population(10_000, 0.0), 200, 50) == 1
    assert least_colluders(Population(100, 0.5), 100, 1) == 50  # everybody is in the one group


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize(("size", "share"), [(100, 0.001), (100, 0.05), (500, 0.001), (500, 0.05)])
def test_a_design_keeps_its_promises(opening: Opening, size: int, share: float) -> None:
    population = Population(100_000, share)
    found = design(population, size, opening)
    assert found.colluders == least_colluders(population, size, 100_000 // size)
    assert found.answers == opening.answers(max(1, found.shards), found.colluders)
    if found.feasible:
        assert found.answers + found.may_be_away == size
        assert found.failure <= 1e-6
        if found.shards < population.rows:
            assert fewer_than(opening.answers(found.shards + 1, found.colluders), size, population.away) > 1e-6
        assert min(found.stored_bytes, found.sent_bytes, found.upload_bytes) > 0
    else:
        assert found.failure > 1e-6
        assert found.stored_bytes == 0


def test_a_committee_stores_everybody_and_a_group_its_own() -> None:
    population, opening = Population(10_000, 0.001), OPENINGS[0]
    groups, committee = (design(population, 1000, opening, way) for way in ("groups", "committee"))
    assert (groups.groups, committee.groups) == (10, 1)
    assert committee.colluders <= groups.colluders
    assert committee.stored_bytes == 10 * groups.stored_bytes


def test_senseless_designs_are_refused() -> None:
    with pytest.raises(UsageError, match="no population"):
        Population(10, 1.5)
    with pytest.raises(UsageError, match="no groups of 11"):
        design(Population(10, 0.1), 11, OPENINGS[0])
    with pytest.raises(UsageError, match="not known"):
        design(Population(10, 0.1), 5, OPENINGS[0], "tribes")
    with pytest.raises(UsageError, match="do not make groups of 3"):
        Grouping(10, 3, "random", 0)
    with pytest.raises(UsageError, match="equal batches"):
        train_in_groups(Grouping(100, 20, "random", 0), rounds=1, batch=7)


def test_blinding_says_its_seeds_or_why_there_is_none() -> None:
    assert blinding(30, 1, degree=8) == {"clients": 30, "colluders": 1, "answers": 9, "seeds": 23, "reason": ""}
    refused = blinding(60, 3, degree=8)
    assert refused["seeds"] is None
    assert "34220 coalitions" in refused["reason"]


def test_drawn_groups_stay_below_the_bound() -> None:
    found = colluder_draws(Population(10_000, 0.01), 100, draws=1000, seed=1)
    assert found["mean_in_a_group"] == pytest.approx(1.0)
    for t, share in found["drawn"].items():
        assert share <= found["bound"][t] + 0.12  # beyond this by chance: less than 1e-12


def test_groups_with_too_few_reliable_clients_seldom_decode() -> None:
    found = dropout_draws(2000, 20, 9, rounds=10, seed=3)
    assert 0 < found["groups_with_too_few_reliable"] < 0.6
    assert found["decoded_share"] < 1 - found["groups_with_too_few_reliable"] / 2
    many = dropout_draws(2000, 100, 9, rounds=10, seed=3)
    assert (many["decoded_share"], many["groups_with_too_few_reliable"]) == (1.0, 0.0)


def test_random_groups_hold_everybody_once_and_neighbours_stay_together() -> None:
    drawn, near = (Grouping(60, 20, formation, 1).groups() for formation in group_training.FORMATIONS)
    assert sorted(client for group in drawn for client in group) == list(range(60))
    assert near == [list(range(20)), list(range(20, 40)), list(range(40, 60))]
    assert drawn != near


def test_sums_of_groups_train_one_model() -> None:
    with torch_threads(1):
        found = train_in_groups(Grouping(100, 50, "random", 0), rounds=60, batch=64)
        assert found["answers"] == 9
        assert found["decoded_share"] == 1.0
        assert found["test_accuracy"] > 0.5
        again = train_in_groups(Grouping(100, 50, "random", 0), rounds=60, batch=64)
    assert found == again


def test_the_sum_of_the_groups_that_decode_is_the_gradient_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group's own coded session decodes to the same integers."""
    data, _ = group_training.digits_by_client(40)
    group = group_training._Group(list(range(20, 40)), data, 8, seed=5)
    rows = group.batches(1)[0]  # (B,W)
    session = group.session
    weights = session.network.initial_weights(session.stream)
    field, code = session.field, session.code
    shards = field.embed(rows).unsqueeze(1)  # (M,1,B,W)
    masks = field.embed(torch.randint(-(2**20), 2**20, (1, *rows.shape), generator=torch.Generator().manual_seed(1)))
    answers = group_training.coded_gradient(session, weights, code.encode(shards, masks))  # (M,N,P)
    survivors = [3, 19, 0, 7, 11, 12, 2, 5, 8]
    decoded = field.lift(code.decode_sum(answers[:, survivors], survivors))
    assert torch.equal(decoded, field.lift(group_training.coded_gradient(session, weights, shards)[:, 0]))


def test_models_of_groups_are_averaged() -> None:
    with torch_threads(1):
        found = separate_models(Grouping(100, 50, "neighbours", 0), rounds=20, batch=16)
    assert 0 <= found["test_accuracy"] <= 1
    assert 0 <= found["mean_of_the_groups"] <= 1


def test_the_script_writes_a_line_for_each_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "lines", lambda: iter([{"format": script.FORMAT}, {"what": "x", "share": 1 / 3}]))
    monkeypatch.setattr("sys.argv", ["groups", "--out", str(tmp_path / "groups.jsonl")])
    script.main()
    written = [json.loads(line) for line in (tmp_path / "groups.jsonl").read_text().splitlines()]
    assert written == [{"format": "dresfl groups 1"}, {"what": "x", "share": 0.33333}]
