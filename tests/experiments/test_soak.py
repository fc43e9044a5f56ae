"""The soak: a short run is flat, and what is not flat is found."""

import os

from dresfl.experiments.bench.soak import footprint, grown, soak


def test_a_short_run_is_flat() -> None:
    """Descriptors and the log. Memory still grows in so short a run, while everything is used for the first time."""
    found = soak(rounds=40, clients=4, sample_seconds=0.05)
    assert [line for line in found["wrong"] if "bytes" not in line] == []
    assert found["log_bytes"] < 20_000
    assert set(found["processes"]) == {"coordinator", "site-0", "site-1", "site-2", "site-3"}


def test_growth_is_seen() -> None:
    seen = [(1_000_000 * sample, 10 + sample // 10) for sample in range(100)]
    found = grown(seen)
    assert found["bytes_more"] == 60_000_000
    assert found["descriptors_more"] == 6
    assert grown([(5, 7)]) == {"bytes": 5, "bytes_more": 0, "descriptors": 7, "descriptors_more": 0}


def test_the_footprint_of_a_process() -> None:
    before = footprint(os.getpid())
    with open(os.devnull) as one, open(os.devnull) as other:
        after = footprint(os.getpid())
        assert before is not None
        assert after is not None
        assert after[1] == before[1] + 2
        assert one is not other
    assert before[0] > 10_000_000
    assert footprint(2**22 + 1) is None
