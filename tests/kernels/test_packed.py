"""Packed residues: checked by reading, combined and packed in runs of columns; the same as with tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import MessageError
from dresfl.field import PackedResidues, ResidueField, unpacked
from dresfl.kernels.cpu import packed

COMPILED = packed._compiled
FIELDS = [ResidueField(moduli, 1) for moduli in ((101, 251), (251, 65521), (4194301, 16777199, 16777213))]


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def path(request, monkeypatch):
    """Every test runs on both paths; without Numba the compiled one is skipped."""
    if request.param == "torch":
        monkeypatch.setattr(packed, "_compiled", None)
    elif COMPILED is None:
        pytest.skip("Numba is not installed")
    return request.param


def residues(field, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return field.embed(torch.randint(-(2**40), 2**40, shape, generator=generator))


@given(st.sampled_from(FIELDS), st.integers(0, 9), st.data())
def test_the_check_agrees_with_unpacking(field, columns, data):
    """Any bytes: `checked` takes them exactly if `unpack` does, and gives the same residues."""
    size = len(field.moduli) * columns * field.residue_bytes
    octets = data.draw(st.binary(min_size=size, max_size=size))
    if data.draw(st.booleans()):  # mostly in range: else nearly all would be refused
        octets = field.pack(residues(field, columns, seed=size))
    try:
        wanted = field.unpack(octets, (columns,))
    except MessageError as error:
        with pytest.raises(MessageError, match=str(error)):
            field.checked(octets, (columns,))
    else:
        assert torch.equal(field.checked(octets, (columns,)).unpack(), wanted)


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("place", [0, 6, -1])
def test_one_residue_that_is_too_large_is_found(field, place):
    words = [[p - 1] * 7 for p in field.moduli]
    size = field.residue_bytes

    def encoded():
        return b"".join(word.to_bytes(size, "little") for row in words for word in row)

    assert bool((field.checked(encoded(), (7,)).unpack() == -1).all())
    for channel, p in enumerate(field.moduli):
        words[channel][place] = p
        with pytest.raises(MessageError, match="not below its modulus"):
            field.checked(encoded(), (7,))
        words[channel][place] = p - 1
    for wrong in (encoded()[:-1], encoded() + b"\0"):
        with pytest.raises(MessageError, match="bytes of residues expected"):
            field.checked(wrong, (7,))


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_what_is_checked_is_not_copied(field):
    message = memoryview(b"head" + field.pack(residues(field, 50)))[4:]
    kept = field.checked(message, (50,))
    assert np.shares_memory(kept.octets, np.frombuffer(message, np.uint8))
    assert "redacted" in repr(kept)
    for first, last in ((0, 50), (3, 4), (49, 50), (7, 7)):
        assert torch.equal(kept.columns(first, last), kept.unpack()[:, first:last])


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_parts_are_packed_where_they_belong(field):
    whole = residues(field, 40)
    parts = [whole[:, :0], whole[:, :7], whole[:, 7:8], whole[:, 8:40]]
    assert field.pack_after(b"head", parts) == b"head" + field.pack(whole)
    assert torch.equal(unpacked(field.checked(field.pack(whole), (40,))), field.unpack(field.pack(whole), (40,)))
    columns = residues(field, 6, 5).swapaxes(1, 2)  # not contiguous
    assert field.pack(columns) == field.pack(columns.contiguous())


@pytest.mark.parametrize("answers", [1, 3, 70, 300])  # more than float64 adds exactly without a reduction
@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_packed_answers_decode_as_tensors_do(field, answers):
    given_answers = [residues(field, 33, seed=seed) for seed in range(answers)]
    kept = [field.checked(field.pack(answer), (33,)) for answer in given_answers]
    assert all(isinstance(answer, PackedResidues) for answer in kept)
    coefficients = residues(field, answers, seed=999)
    wanted, beyond = field.decode_lift(coefficients, torch.stack(given_answers, 1))
    for first, last in ((0, 33), (5, 20), (32, 33)):
        values, _ = field.decode_lift_packed(coefficients, kept, first, last)
        assert torch.equal(values, wanted[first:last])
    assert int(field.decode_lift_packed(coefficients, kept, 0, 33)[1]) == int(beyond)
