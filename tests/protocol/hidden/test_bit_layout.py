"""Rows as bits: exact ranges, and sums of shares that are shares of the rows."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import DataError, UsageError
from dresfl.field import ResidueField
from dresfl.model import mlp
from dresfl.protocol.hidden.bit_layout import BitLayout

FIELD = ResidueField((101, 103, 107), 2)


@given(st.integers(-40, 40), st.integers(1, 70))
def test_the_sums_of_the_weights_are_the_range_and_nothing_else(low, span):
    layout = BitLayout(1, 1, low, low + span)
    sums = {low + sum(chosen) for chosen in itertools.product(*((0, c) for c in layout.weights))}
    assert sums == set(range(low, low + span + 1))


@given(st.integers(-300, 300), st.integers(1, 600), st.data())
def test_bits_collapse_to_the_rows_that_they_are_of(low, span, data):
    layout = BitLayout(3, 2, low, low + span)
    values = st.integers(low, low + span)
    rows = torch.tensor([[*(data.draw(values) for _ in range(3)), 0, 1], [low, low + span, low, 1, 0]])
    bits = layout.encode(rows)
    assert tuple(bits.shape) == (2, layout.num_bits)
    assert set(bits.unique().tolist()) <= {0, 1}
    assert FIELD.lift(layout.collapse(FIELD, FIELD.embed(bits))).tolist() == rows.tolist()


def test_shares_collapse_to_shares():
    """The sum is linear, so it commutes with encoding: for K = 2 shards and arbitrary residues."""
    layout, generator = BitLayout(2, 2, -5, 11), torch.Generator().manual_seed(1)
    polynomial = [FIELD.embed(torch.randint(-50, 50, (4, layout.num_bits), generator=generator)) for _ in range(3)]
    factors = FIELD.embed(torch.tensor([3, -2, 1])).unsqueeze(2).unsqueeze(3)  # (M,3,1,1); they sum to 2
    shares = FIELD.sum(FIELD.mul(torch.stack(polynomial, 1), factors), 1)
    rows = torch.stack([layout.collapse(FIELD, part) for part in polynomial], 1)
    expected = FIELD.sum(FIELD.mul(rows, factors), 1)
    low = FIELD.add_integer(torch.zeros_like(expected), layout.low)
    low[..., layout.num_inputs :] = 0
    assert FIELD.lift(FIELD.sub(FIELD.sub(expected, low), layout.collapse(FIELD, shares))).count_nonzero() == 0


@pytest.mark.parametrize(
    ("bounds", "weights"),
    [((0.0, 1.0), (1, 2, 4, 8, 1)), ((-1.0, 1.0), (1, 2, 4, 8, 16, 1)), ((0.0, 0.9375), (1, 2, 4, 8))],
)
def test_the_layout_of_a_network(bounds, weights):
    layout = BitLayout.of(mlp((784, 64, 10), input_bits=4, weight_bits=10), *bounds)
    assert layout.weights == weights
    assert (layout.num_bits, layout.row_width) == (784 * len(weights) + 10, 794)


@pytest.mark.parametrize("row", [[17, 0, 1, 0], [-1, 0, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 2, -1]])
def test_rows_that_do_not_fit_are_refused(row):
    with pytest.raises(DataError):
        BitLayout(2, 2, 0, 16).encode(torch.tensor([row]))


def test_wrong_arguments_are_refused():
    with pytest.raises(DataError, match="rows of 3"):
        BitLayout(2, 2, 0, 16).encode(torch.zeros((1, 3), dtype=torch.int64))
    with pytest.raises(UsageError, match="shares of 3 bits"):
        BitLayout(2, 2, 0, 16).collapse(FIELD, torch.zeros((3, 1, 3)))
    for bounds in ((3, 3), (0, 2**22)):
        with pytest.raises(UsageError, match="cannot be dealt"):
            BitLayout(2, 2, *bounds)


@given(st.integers(1, 300), st.data())
def test_targets_that_are_numbers_collapse_too(limit, data):
    layout = BitLayout(2, 2, 0, 16, target_limit=limit)
    drawn = st.integers(-limit, limit)
    rows = torch.tensor([[3, 16, data.draw(drawn), data.draw(drawn)], [0, 1, -limit, limit]])
    bits = layout.encode(rows)
    assert bits.shape[1] == layout.num_bits == layout.first_label
    assert set(bits.unique().tolist()) <= {0, 1}
    found = [int(v) for v in FIELD.lift(layout.collapse(FIELD, FIELD.embed(bits))).flatten()]
    assert found == rows.flatten().tolist()
    with pytest.raises(DataError, match="a target reaches"):
        layout.encode(torch.tensor([[0, 0, 0, limit + 1]]))


def test_targets_beyond_all_ranges_are_refused():
    with pytest.raises(UsageError, match="cannot be dealt as bits"):
        BitLayout(1, 1, 0, 1, target_limit=2**21)


def test_the_layout_of_a_regression_and_of_a_sign():
    one = mlp((3, 1), input_bits=4, weight_bits=10)
    assert BitLayout.of(one, 0.0, 1.0).target_limit == 1
    assert BitLayout.of(replace(one, target_bits=6, target_magnitude=1.0), 0.0, 1.0).bounds == [0, 16, 128]
    assert BitLayout.of(mlp((3, 2), input_bits=4, weight_bits=10), 0.0, 1.0).bounds == [0, 16]
