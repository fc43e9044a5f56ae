"""Cuts and dither on a GPU are those of Python's integers and of the CPU. Without a GPU, Triton's interpreter runs."""

import math
import os
import random

import pytest
import torch

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from dresfl.field import Domain, PublicStream, ResidueField  # noqa: E402
from dresfl.kernels import cut_triton  # noqa: E402
from dresfl.kernels.cut_triton import count_above, cut, word_sums  # noqa: E402
from dresfl.protocol.hidden.clear_rounds import clear_field  # noqa: E402

from .test_int8_triton import numpy_scalars  # noqa: E402, F401

DEVICE = "cuda" if CUDA else "cpu"
FIELDS = [clear_field(109), clear_field(20), ResidueField((101, 103, 107, 1048583), 4)]


def residues_of(field, integers):
    rows = [[(x + p // 2) % p - p // 2 for x in integers] for p in field.moduli]
    return torch.tensor(rows, dtype=torch.float64, device=DEVICE)


def numbers_below(bound, count, seed):
    drawn = random.Random(seed)
    return [drawn.choice((-1, 1)) * drawn.randrange(bound) for _ in range(count)]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{len(field.moduli)}x{field.moduli[-1].bit_length()}")
@pytest.mark.parametrize("shift", [1, 46, 62])
def test_a_cut_is_the_floor_of_pythons_integers(field, shift):
    largest = math.prod(field.moduli) // 4
    values = [*numbers_below(largest, 130, shift), 0, -1, 1, largest, -largest]
    added = numbers_below(min(2**62, largest), len(values), shift + 1)
    bits = largest.bit_length() - 3
    beyond = torch.tensor([5], device=DEVICE)
    found = cut(field.moduli, residues_of(field, values), torch.tensor(added, device=DEVICE), shift, bits, beyond)
    wanted = residues_of(field, [(x + a) >> shift for x, a in zip(values, added, strict=True)])
    assert found.equal(wanted)
    assert int(beyond) == 5 + sum(abs(x) >= 2**bits for x in values)


def test_residues_that_are_not_quite_symmetric_count_the_same():
    field = FIELDS[0]
    values, added = numbers_below(2**100, 40, 3), torch.tensor(numbers_below(2**60, 40, 4), device=DEVICE)
    residues, beyond = residues_of(field, values), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    p = torch.tensor(field.moduli, dtype=torch.float64, device=DEVICE).unsqueeze(1)
    slack = torch.where(residues > p / 2 - 2, residues - p, residues)
    slack[0, 0] = residues[0, 0] = p[0, 0] // 2 + 2
    found = [cut(field.moduli, x, added, 33, 109, beyond) for x in (residues, slack)]
    assert found[0].equal(found[1])


def test_the_field_gives_the_same_where_no_kernel_is_fused():
    field = FIELDS[0]
    values, added = numbers_below(2**112, 50, 7), torch.tensor(numbers_below(2**61, 50, 8))
    mine, theirs = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    residues = residues_of(field, values)
    found = field.cut(residues.cpu(), added, 41, 110, mine)
    fused = cut(field.moduli, residues, added.to(DEVICE), 41, 110, theirs)
    assert field.lift_exact(found) == field.lift_exact(fused.cpu())
    field.count_above(residues.cpu(), 12, mine)
    count_above(field.moduli, residues, 12, theirs)
    assert int(mine) == int(theirs) > 0


@pytest.mark.parametrize("limit", [1, 40, 80])
def test_values_above_a_limit_are_counted(limit):
    field, values = FIELDS[0], [limit, limit + 1, -limit - 1, 2**100, 0, -(2**100), 2**25]
    beyond = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    count_above(field.moduli, residues_of(field, values), limit, beyond)
    assert int(beyond) == 3


@pytest.mark.parametrize("fewest", [2**17, 1], ids=["scattered", "whole"])
@pytest.mark.parametrize(("bits", "terms", "count"), [(12, 20, 1), (32, 3, 50), (42, 2, 48), (62, 3, 32)])
def test_sums_of_words_are_the_streams(monkeypatch, fewest, bits, terms, count):
    monkeypatch.setattr(cut_triton, "FEWEST_WHOLE", fewest)
    stream, index = PublicStream(11), torch.tensor([2**31 + 5])
    wanted = stream.word_sums(Domain.DITHER, index, terms, bits, count, start=-7)
    found = word_sums(stream._key.to(DEVICE), Domain.DITHER, index.to(DEVICE), terms, bits, count, -7)
    assert found.cpu().equal(wanted)
    words = stream.words_of(Domain.DITHER, index, terms * count * -(-bits // 32))[0].view(-1, terms, count).tolist()
    first = sum((sum(words[i][s][0] << (32 * i) for i in range(len(words)))) % 2**bits for s in range(terms))
    assert int(wanted[0]) == (first - 7 + 2**63) % 2**64 - 2**63


def test_what_is_too_large_is_refused():
    with pytest.raises(ValueError, match="moduli"):
        cut_triton.cut_tables(tuple(range(3, 60, 2)))
    with pytest.raises(ValueError, match="too many"):
        word_sums(torch.zeros(8, dtype=torch.int32), 13, torch.tensor([0]), 64, 62, 2**26, 0)
