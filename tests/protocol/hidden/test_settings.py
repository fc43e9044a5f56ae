"""Which settings of a hidden run contradict each other."""

import pytest

from dresfl.errors import UsageError
from dresfl.protocol.hidden.settings import HiddenSettings


def test_check_c_with_clients_that_are_said_to_be_honest_is_refused_by_name():
    """R answers would open a hop, and R + T clients would have to confirm it: with N = R no run would ever go on."""
    with pytest.raises(UsageError, match="honest_clients") as found:
        HiddenSettings(honest_clients=True, check="C")
    assert 'check = "A"' in (found.value.hint or "")
    assert HiddenSettings(check="C").check == "C"
    assert HiddenSettings(honest_clients=True).honest_clients
