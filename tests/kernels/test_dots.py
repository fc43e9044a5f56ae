"""Sums of factors times residues: compiled or not, packed or not, the same as in Python's integers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.field import ByteField, ResidueField, octets_of
from dresfl.kernels.cpu import dots

COMPILED = dots._compiled
FIELDS = [ResidueField(moduli, 1) for moduli in ((101, 251), (251, 65521), (4194301, 16777199, 16777213))]


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def path(request, monkeypatch):
    """Every test runs on both paths; without Numba the compiled one is skipped."""
    if request.param == "torch":
        monkeypatch.setattr(dots, "_compiled", None)
    elif COMPILED is None:
        pytest.skip("Numba is not installed")
    return request.param


def extreme(field, seed, *shape):
    """Residues (M,*shape), many of them the largest or the smallest, and factors alike."""
    generator = np.random.default_rng(seed)
    parts = []
    for p in field.moduli:
        values = generator.integers(-(p // 2), p // 2 + 1, shape)
        values[generator.random(shape) < 0.5] = -1 if seed % 2 else p // 2  # -1 packs as p − 1
        parts.append(values)
    return torch.from_numpy(np.stack(parts)).to(field.dtype)


def factors_of(seed, *shape):
    generator = np.random.default_rng(seed + 1000)
    factors = generator.integers(0, 2**dots.FACTOR_BITS, shape)
    factors[generator.random(shape) < 0.5] = 2**dots.FACTOR_BITS - 1
    return factors.astype(np.int32)


def expected(field, residues, factors):
    """The slow obvious twin: Python's integers."""
    return [
        [sum(int(f) * int(r) for f, r in zip(row, channel, strict=True)) % p for row in factors.tolist()]
        for p, channel in zip(field.moduli, residues.tolist(), strict=True)
    ]


@given(st.sampled_from(FIELDS), st.integers(1, 5000), st.integers(1, 3), st.integers(0, 99))
def test_sums_are_those_of_integers(field, columns, count, seed):
    residues, factors = extreme(field, seed, columns), factors_of(seed, count, columns)
    wanted = expected(field, residues, factors)
    assert field.weighted_sums(residues, factors).tolist() == wanted
    wide = torch.zeros((len(field.moduli), 2 * columns + 1), dtype=residues.dtype)
    wide[:, columns : 2 * columns] = residues
    assert field.weighted_sums(wide[:, columns : 2 * columns], factors).tolist() == wanted  # lies apart
    assert field.weighted_sums(field.checked(field.pack(residues), (columns,)), factors).tolist() == wanted


@pytest.mark.parametrize("columns", [2**14 - 1, 2**14 + 1, 50_000])
def test_long_sums_stay_exact(columns):
    field = FIELDS[2]
    residues, factors = extreme(field, 1, columns), factors_of(1, 2, columns)
    wanted = expected(field, residues, factors)
    assert field.weighted_sums(residues, factors).tolist() == wanted
    assert field.weighted_sums(field.checked(field.pack(residues), (columns,)), factors).tolist() == wanted


def test_residues_in_bytes():
    field = ByteField((101, 251), 1)
    residues, factors = extreme(field, 2, 300), factors_of(2, 9, 300)
    assert field.weighted_sums(residues, factors).tolist() == expected(field, residues, factors)


@given(st.sampled_from(FIELDS), st.integers(1, 12), st.integers(1, 400), st.integers(1, 3), st.integers(0, 99))
def test_rows_as_a_disk_keeps_them(field, rows, columns, count, seed):
    residues = extreme(field, seed, rows, columns)
    of_columns, of_rows = factors_of(seed, count, columns), factors_of(seed + 1, count, rows)
    packed = octets_of(field.pack(residues)).reshape(len(field.moduli), rows, -1).swapaxes(0, 1)  # (rows,M,·)
    found = field.weighted_row_sums(packed, of_columns, of_rows)
    for m, p in enumerate(field.moduli):
        inner = residues[m].to(torch.int64).numpy().astype(object) @ of_columns.T.astype(object)  # (rows,S)
        assert [int(total) % p for total in (inner * of_rows.T.astype(object)).sum(0)] == found[m].tolist()


def test_wide_rows():
    field, rows, columns = FIELDS[2], 2, 5000
    residues = extreme(field, 3, rows, columns)
    of_columns, of_rows = factors_of(3, 2, columns), factors_of(4, 2, rows)
    packed = octets_of(field.pack(residues)).reshape(3, rows, -1).swapaxes(0, 1)
    inner = [np.array(expected(field, residues[:, r], of_columns), dtype=object) for r in range(rows)]  # (M,S)
    wanted = sum(part * of_rows[:, r].astype(object) for r, part in enumerate(inner))
    found = field.weighted_row_sums(packed, of_columns, of_rows)
    assert found.tolist() == [[int(v) % p for v in row] for row, p in zip(wanted, field.moduli, strict=True)]
