"""The sizes of a code are checked when they are made, and never change."""

import dataclasses

import pytest

from dresfl.coding import CodeParameters
from dresfl.errors import UsageError


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_clients": 0}, "num_clients must be at least 1, not 0"),
        ({"num_clients": 65536}, "at most 65535 clients, not 65536"),
        ({"num_shards": 0}, "num_shards must be at least 1, not 0"),
        ({"max_colluders": -1}, "max_colluders must not be negative, not -1"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
    ],
)
def test_senseless_sizes_are_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        CodeParameters(**({"num_clients": 5} | wrong))


@pytest.mark.parametrize("edge", [{"num_clients": 1}, {"num_clients": 65535}, {"max_colluders": 0}, {"batch_size": 1}])
def test_the_edges_are_allowed(edge):
    parameters = CodeParameters(**({"num_clients": 5} | edge))
    assert {name: getattr(parameters, name) for name in edge} == edge


def test_parameters_do_not_change():
    parameters = CodeParameters(20)
    with pytest.raises(dataclasses.FrozenInstanceError):
        parameters.num_clients = 21
    assert parameters == CodeParameters(20, num_shards=1, max_colluders=1, batch_size=64)
