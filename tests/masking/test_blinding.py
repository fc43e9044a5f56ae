"""A client's blinding values lie on a zero-sum polynomial, and decoding does not see them."""

import hashlib
import hmac

import pytest
import torch

from dresfl.coding import LagrangeCode
from dresfl.errors import UsageError
from dresfl.field import ByteField, ResidueField, SecretSeed, choose_moduli
from dresfl.masking import Blinding, codewords, zero_sum_family

FIELDS = [ResidueField(choose_moduli(60, more_than=25), 3), ByteField(choose_moduli(60, more_than=25, limit=256), 5)]


def blindings(field, num_clients, num_shards, max_colluders, degree):
    """Every client's Blinding, from seeds that exactly the holders know."""
    code = LagrangeCode(field, num_clients, num_shards, max_colluders, degree)
    family = zero_sum_family(field.moduli, num_clients, num_shards, max_colluders, code.recovery_threshold)
    table = codewords(field, family, code.data_points, code.client_points)
    seeds = [SecretSeed(bytes([s]) * 32) for s in range(len(family.sets))]
    held = [list(family.seed_sets.held_by(j)) for j in range(num_clients)]
    return code, [Blinding(field, table[:, held[j], j], [seeds[s] for s in held[j]]) for j in range(num_clients)]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("num_clients", "num_shards", "max_colluders", "degree"), [(12, 1, 1, 4), (12, 2, 1, 4), (9, 1, 2, 2), (4, 1, 1, 1)]
)
def test_any_r_blinded_answers_give_the_sum(field, num_clients, num_shards, max_colluders, degree):
    code, all_of_them = blindings(field, num_clients, num_shards, max_colluders, degree)
    values = torch.stack([b.values(b"label", 20) for b in all_of_them], 1)  # (M,N,20)
    assert len({tuple(values[0, j].tolist()) for j in range(num_clients)}) == num_clients
    first = list(range(code.recovery_threshold))
    last = list(range(num_clients - code.recovery_threshold, num_clients))
    for survivors in (first, last):
        assert field.lift(code.decode_sum(values[:, survivors], survivors)).eq(0).all()
    if num_shards > 1:
        assert field.lift_checked(code.decode(values[:, first], first))[0].ne(0).any()


def test_another_label_gives_other_values():
    _, (one, *_) = blindings(FIELDS[0], 5, 1, 1, 2)
    assert one.values(b"a", 9).equal(one.values(b"a", 9))
    assert one.values(b"a", 20)[:, :9].equal(one.values(b"a", 9))
    assert not one.values(b"a", 9).equal(one.values(b"b", 9))


def test_keys_are_hmacs_of_the_label():
    seed = bytes(range(32))
    expected = hmac.new(seed, b"dresfl blinding" + b"round 7", hashlib.sha256).digest()
    mac = SecretSeed(seed).blinding_mac()
    mac.update(b"round 7")
    assert mac.digest() == expected


def test_a_wrong_number_of_coefficients_is_refused():
    field = FIELDS[0]
    with pytest.raises(UsageError, match="coefficients"):
        Blinding(field, field.embed(torch.tensor([1, 2])), [SecretSeed.fresh()])


def test_no_seeds_no_blinding():
    field = FIELDS[0]
    assert Blinding(field, torch.empty((len(field.moduli), 0)), []).values(b"", 4).eq(0).all()
