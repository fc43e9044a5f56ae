"""Simulated dropouts: the paper's rates, traces, and draws that depend on seed and round alone."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import UsageError
from dresfl.field import Domain, PublicStream
from dresfl.runtimes.local import Dropouts, bernoulli, dropout, first_feasible_seed, from_trace, no_dropouts, paper


def test_paper_rates_are_high_for_half_the_clients_and_uniform_for_the_rest():
    rates = [rate for seed in range(5) for rate in paper(2000, seed).rates]
    high = [rate for rate in rates if rate == 0.99]
    low = [rate for rate in rates if rate != 0.99]
    assert abs(len(high) - 5000) < 5 * 10_000**0.5 / 2
    assert 0 <= min(low) < 0.002
    assert 0.098 < max(low) <= 0.1
    assert sum(low) / len(low) == pytest.approx(0.05, abs=5 * 0.1 / (12 * len(low)) ** 0.5)
    quarters = Counter(int(rate * 40) for rate in low)
    assert all(abs(quarters[q] - len(low) / 4) < 5 * (len(low) * 3 / 16) ** 0.5 for q in range(4))


def test_paper_rates_are_drawn_once_per_seed():
    assert paper(20, 5) == paper(20, 5)
    assert paper(20, 5).rates != paper(20, 6).rates


@given(st.integers(0, 2**31), st.integers(0, 2**32 - 1))
def test_draws_depend_on_seed_and_round_alone(seed, round_number):
    dropouts = bernoulli(12, 0.4, seed)
    answering = dropouts.answering(round_number)
    dropouts.answering(round_number ^ 1)
    assert bernoulli(12, 0.4, seed).answering(round_number) == answering
    assert len(set(answering)) == len(answering)
    assert set(answering) <= set(range(12))


@given(st.integers(0, 2**31), st.integers(0, 1000))
def test_a_client_answers_more_rounds_the_lower_its_rate(seed, round_number):
    """The draw is per client and round; the rate only moves its threshold."""
    low, high = (set(bernoulli(12, rate, seed).answering(round_number)) for rate in (0.2, 0.7))
    assert high <= low
    draws = PublicStream(seed).uniform(Domain.DROPOUTS, round_number, 12).tolist()
    assert low == {j for j in range(12) if draws[j] >= 0.2}


def test_each_client_misses_rounds_at_its_own_rate():
    rates = (0.0, 0.05, 0.5, 0.99, 1.0)
    dropouts, rounds = Dropouts(rates, seed=3), 500
    answered = Counter(j for n in range(rounds) for j in dropouts.answering(n))
    assert answered[0] == rounds
    assert answered[4] == 0
    for client, rate in enumerate(rates):
        spread = (rounds * rate * (1 - rate)) ** 0.5
        assert abs(answered[client] - rounds * (1 - rate)) <= 5 * spread


def test_arrivals_come_in_every_order():
    dropouts = no_dropouts(3, seed=1)
    orders = Counter(tuple(dropouts.answering(n)) for n in range(360))
    assert len(orders) == 6
    assert min(orders.values()) > 60 - 5 * (360 * 5 / 36) ** 0.5


def test_without_dropouts_everybody_answers():
    assert all(sorted(no_dropouts(7, seed=s).answering(n)) == list(range(7)) for s in range(5) for n in range(5))


def test_reliable_clients_answer_more_often_than_not():
    assert Dropouts((0.0, 0.49, 0.5, 0.99), 0).num_reliable == 2


@pytest.mark.parametrize("rate", [-0.01, 1.01, float("nan")])
def test_rates_outside_0_to_1_are_refused(rate):
    with pytest.raises(UsageError, match=r"0\.\.1"):
        bernoulli(3, rate, 0)


def test_first_feasible_seed_is_the_first():
    seed, passed = first_feasible_seed(20, 9)
    assert passed == list(range(seed))
    assert paper(20, seed).num_reliable >= 9
    assert all(paper(20, s).num_reliable < 9 for s in passed)
    later, passed_later = first_feasible_seed(20, 15, start=seed)
    assert passed_later == list(range(seed, later))
    assert len(passed_later) > 0


def test_no_feasible_seed_is_said(monkeypatch):
    monkeypatch.setattr(dropout, "paper", lambda num_clients, seed: bernoulli(num_clients, 0.99, seed))
    with pytest.raises(UsageError, match="hardly ever leave 4 reliable") as caught:
        first_feasible_seed(6, 4)
    assert caught.value.hint


# -- traces ----------------------------------------------------------------------------------------------------


def written(folder, text):
    path = folder / "trace.jsonl"
    path.write_text(text)
    return path


def test_a_trace_says_who_answers_and_starts_over(tmp_path):
    dropouts = from_trace(written(tmp_path, "[2, 0]\n\n[]\n [1,2,1] \n"), 3, seed=9)
    assert [dropouts.answering(n) for n in range(4)] == [[2, 0], [], [1, 2], [2, 0]]
    assert dropouts.rates == pytest.approx((2 / 3, 2 / 3, 1 / 3))


@given(st.lists(st.lists(st.integers(0, 4), unique=True), min_size=1, max_size=6))
def test_a_written_trace_is_read_back(tmp_path_factory, rounds):
    path = written(tmp_path_factory.mktemp("trace"), "".join(json.dumps(line) + "\n" for line in rounds))
    dropouts = from_trace(path, 5, seed=0)
    assert [dropouts.answering(n) for n in range(len(rounds))] == rounds


@pytest.mark.parametrize("line", ["[3]", "[-1]", "[0.0]", "[true]", '["1"]', "1", '{"0": 1}', "[0", "null", "[[0]]"])
def test_a_bad_line_is_refused(tmp_path, line):
    with pytest.raises(UsageError, match="cannot read the trace") as caught:
        from_trace(written(tmp_path, f"[0, 1]\n{line}\n"), 3, seed=0)
    assert "[0, 3, 7]" in caught.value.hint


def test_an_empty_missing_or_binary_trace_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is empty"):
        from_trace(written(tmp_path, "\n \n"), 3, seed=0)
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="cannot read the trace"):
            from_trace(path, 3, seed=0)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read the trace"):
        from_trace(tmp_path / "binary", 3, seed=0)
