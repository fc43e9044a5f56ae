"""What an opening knows of time and of who has answered."""

import pytest

from dresfl.errors import UsageError
from dresfl.federation import CoordinatorSettings, RoundTiming, Windows
from dresfl.federation.opening import Opening
from dresfl.protocol import RoundRecord


def test_each_client_counts_once_and_in_its_round_only():
    opening = Opening(number=3, until=10.0)
    assert opening.takes(1, 3)
    opening.answered.add(1)
    assert not opening.takes(1, 3)
    assert opening.takes(2, 3)
    for other in (2, 4):
        assert not opening.takes(2, other)


def test_closing_gives_slower_clients_their_grace():
    opening = Opening(number=3, until=10.0)
    record = RoundRecord(3, "stepped", (1, 2))
    opening.close(record, 12.5)
    assert (opening.record, opening.until) == (record, 12.5)
    assert opening.takes(4, 3)


@pytest.mark.parametrize(
    "values", [{"grace": -1.0}, {"deadline": 0.0}, {"deadline": float("nan")}, {"on_shortage": "wait"}], ids=str
)
def test_impossible_timings_are_refused(values):
    with pytest.raises(UsageError):
        RoundTiming(**values)


@pytest.mark.parametrize("values", [{"linger": -1.0}, {"windows": Windows(asked_bytes=0)}, {"windows": Windows(1, 0)}])
def test_impossible_settings_are_refused(values):
    with pytest.raises(UsageError):
        CoordinatorSettings(**values)
