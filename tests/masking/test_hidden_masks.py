"""What clients expand in the hidden mode: shares of the masks' sums and of zeros, against OpenSSL's keystream."""

import hashlib
import hmac
import itertools
import pickle
import random

import pytest
import torch

from dresfl.coding import LagrangeCode
from dresfl.errors import UsageError
from dresfl.field import Domain, ResidueField, SecretSeed, choose_moduli
from dresfl.kernels import cpu
from dresfl.masking import HiddenMasks, hidden_families, mask_sum, pad
from field.test_random import keystream

FIELD = ResidueField(choose_moduli(100, more_than=40), 5)
SETTINGS = [  # N, K, T, Td, d
    (5, 1, 1, 1, 4),
    (6, 2, 1, 1, 2),
    (9, 2, 1, 1, 4),
    (9, 1, 2, 2, 4),
    (7, 3, 1, 1, 2),
    (12, 1, 2, 3, 2),
    (12, 2, 1, 3, 2),
]
BITS, COUNT = 70, 21


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    """Both ways of the CPU; without Numba the compiled one is skipped."""
    if request.param == "torch":
        monkeypatch.setattr(cpu, "_compiled", None)
    elif cpu._compiled is None:
        pytest.skip("Numba is not installed")


def everybody(setting, field=FIELD):
    """The families, all seeds, and the masks of every client, which is given those it holds."""
    families = hidden_families(field.moduli, *setting)
    seeds = {s: SecretSeed(hashlib.sha256(b"%d" % s).digest()) for s in range(len(families.seed_sets.sets))}
    held = [{s: seeds[s] for s in families.seed_sets.held_by(client)} for client in range(families.num_clients)]
    return families, seeds, [HiddenMasks(field, families, client, held[client]) for client in range(setting[0])]


def at_data_points(setting, degree, shares):
    """The values (K,count), integers, of a polynomial of degree `degree`·T' from several choices of so many shares."""
    num_clients, num_shards, _, mask_degree, _ = setting
    code = LagrangeCode(FIELD, num_clients, num_shards, mask_degree, degree)
    needed, found = code.recovery_threshold, []
    for seed in range(3):
        who = sorted(random.Random(seed).sample(range(num_clients), needed))
        values = code.decode(torch.stack([shares[i] for i in who], 1), who)  # (M,K,count)
        found.append([FIELD.lift_exact(values[:, k]) for k in range(num_shards)])
    assert found[0] == found[1] == found[2]
    return found[0]


def plain_integers(seed, label, bits, count):
    """A seed's bounded integers by definition."""
    key = hmac.new(seed.reveal(), b"dresfl hidden mask" + label, hashlib.sha256).digest()
    limbs = [keystream(key, 256 * Domain.BOUNDED, i, count).tolist() for i in range(-(-bits // 32))]
    return [sum(words[j] << (32 * i) for i, words in enumerate(limbs)) % 2**bits for j in range(count)]


def plain_sum(families, seeds, label, bits, count, shards):
    """Σ_A h_{A,k} in integers."""
    drawn = [plain_integers(seeds[s], label, bits, shards * count) for s in families.mask_seeds]
    return [[sum(row[k * count + e] for row in drawn) for e in range(count)] for k in range(shards)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_any_shares_of_the_masks_give_their_sum(setting, path):
    families, seeds, masks = everybody(setting)
    shares = [client.bounded(b"h", BITS, COUNT, total=False) for client in masks]
    assert all(go_on is upload for go_on, upload in shares)
    expected = plain_sum(families, seeds, b"h", BITS, COUNT, setting[1])
    assert at_data_points(setting, 1, [go_on for go_on, _ in shares]) == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_masks_of_a_total_are_the_same_at_every_shard(setting, path):
    families, seeds, masks = everybody(setting)
    shares = [client.bounded(b"w", BITS, COUNT, total=True) for client in masks]
    (expected,) = plain_sum(families, seeds, b"w", BITS, COUNT, 1)
    assert at_data_points(setting, 1, [go_on for go_on, _ in shares]) == [expected] * setting[1]
    code = LagrangeCode(FIELD, setting[0], setting[1], setting[3], 1)
    who = list(range(code.recovery_threshold))
    values = code.decode(torch.stack([upload for _, upload in shares], 1)[:, who], who)  # (M,K,count)
    assert FIELD.lift_exact(FIELD.sum(values, 1)) == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_zeros_vanish_where_they_should(setting, path):
    _, _, masks = everybody(setting)
    num_shards, degree = setting[1], setting[4]
    for total in (False, True):
        shares = [client.zeros(b"z", COUNT, total=total) for client in masks]
        assert len({tuple(share.flatten().tolist()) for share in shares}) == setting[0]
        values = at_data_points(setting, degree, shares)
        assert all(sum(column) % FIELD.modulus == 0 for column in zip(*values, strict=True))
        each = [x for row in values for x in row]
        assert any(each) if total and num_shards > 1 else not any(each)


def test_an_upload_opens_what_it_should():
    """z + 2^t·h + l + ζ for two shards: each opened value, and the opened sum, in integers."""
    setting, t = (9, 2, 1, 1, 4), 11
    families, seeds, masks = everybody(setting)
    code = LagrangeCode(FIELD, 9, 2, 1, 4)
    rows = torch.randint(-500, 500, (2, COUNT), generator=torch.Generator().manual_seed(3))
    noise = FIELD.uniform(SecretSeed.fresh().mask_key(b"").view(1, 8), torch.tensor([0]), COUNT)
    shares = code.encode(FIELD.embed(rows), noise)  # (M,N,count)
    squares = FIELD.mul(shares, shares)
    product = FIELD.mul(squares, squares)
    for total in (False, True):
        uploads = []
        for client, mine in enumerate(masks):
            high, low = mine.bounded(b"h", 40, COUNT, total=total)[1], mine.bounded(b"l", t, COUNT, total=total)[1]
            upload = FIELD.add(FIELD.add(product[:, client], FIELD.scale(high, 2**t)), low)
            uploads.append(FIELD.add(upload, mine.zeros(b"z", COUNT, total=total)))
        values = at_data_points(setting, 4, uploads)
        masked = [
            [a * 2**t + b for a, b in zip(h, low, strict=True)]
            for h, low in zip(
                mask_sum([seeds[s] for s in families.mask_seeds], b"h", 40, COUNT, 1 if total else 2),
                mask_sum([seeds[s] for s in families.mask_seeds], b"l", t, COUNT, 1 if total else 2),
                strict=True,
            )
        ]
        fourth = (rows**4).tolist()
        if total:
            opened = [sum(column) % FIELD.modulus for column in zip(*values, strict=True)]
            assert opened == [a + b + c for a, b, c in zip(*fourth, masked[0], strict=True)]
        else:
            assert values == [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(fourth, masked, strict=True)]


@pytest.mark.parametrize("bits", [1, 18, 64, 130])
def test_sums_of_masks_as_integers(bits):
    families, seeds, _ = everybody((6, 2, 1, 1, 2))
    found = mask_sum([seeds[s] for s in families.mask_seeds], b"h", bits, 17, 2)
    assert found == plain_sum(families, seeds, b"h", bits, 17, 2)


def test_labels_and_purposes_have_their_own_values():
    _, _, (one, *_) = everybody((6, 2, 1, 1, 2))
    found = [
        *(one.bounded(label, 130, 9, total=False)[0] for label in (b"a", b"b")),
        *(one.zeros(label, 9, total=total) for label in (b"a", b"b") for total in (False, True)),
        *(one.common(label, 9) for label in (b"a", b"b")),
        *(one.pad(key, label, 9) for label in (b"a", b"b") for key in (b"k", b"q")),
    ]
    assert all(not x.eq(y).any() for x, y in itertools.combinations(found, 2))


def test_all_clients_have_the_same_common_values():
    families, seeds, masks = everybody((5, 1, 1, 1, 4))
    first, *others = [client.common(b"rho", 300) for client in masks]
    assert all(other.equal(first) for other in others)
    key = hashlib.sha256(b"dresfl common key" + b"".join(seeds[s].reveal() for s in families.common_seeds)).digest()
    key = hmac.new(key, b"dresfl hidden mask" + b"rho", hashlib.sha256).digest()
    for channel, p in enumerate(FIELD.moduli):
        words = keystream(key, 256 * Domain.BLINDING, channel, 300)
        assert (words < 2**32 // p * p).all()
        assert (first[channel].to(torch.int64) % p).tolist() == (words % p).tolist()


def test_one_other_seed_changes_the_common_values():
    families, seeds, (one, *_) = everybody((5, 1, 1, 1, 4))
    for number in families.common_seeds:
        other = HiddenMasks(FIELD, families, 0, {**seeds, number: SecretSeed(bytes(32))})
        assert not other.common(b"rho", 8).equal(one.common(b"rho", 8))


def test_a_pad_is_a_function_of_its_key_and_label():
    _, _, masks = everybody((5, 1, 1, 1, 4))
    expected = pad(FIELD, b"some key", b"7", 40)
    assert all(client.pad(b"some key", b"7", 40).equal(expected) for client in masks)
    key = hmac.new(b"some key", b"dresfl pad7", hashlib.sha256).digest()
    words = keystream(key, 256 * Domain.BLINDING, 2, 40)
    assert (expected[2].to(torch.int64) % FIELD.moduli[2]).tolist() == (words % FIELD.moduli[2]).tolist()


def test_masks_after_a_ratchet_are_other_masks_that_still_fit():
    setting = (6, 2, 1, 1, 2)
    families, seeds, masks = everybody(setting)
    later = [client.ratcheted(b"round 1") for client in masks]
    shares = [client.bounded(b"h", BITS, COUNT, total=False)[0] for client in later]
    new = {s: SecretSeed(hmac.digest(x.reveal(), b"dresfl ratchetround 1", "sha256")) for s, x in seeds.items()}
    assert at_data_points(setting, 1, shares) == plain_sum(families, new, b"h", BITS, COUNT, 2)
    assert not masks[0].common(b"", 5).equal(later[0].common(b"", 5))
    assert not masks[0].zeros(b"", 5, total=True).equal(later[0].zeros(b"", 5, total=True))
    assert sorted(later[2].seeds) == list(families.seed_sets.held_by(2))


def test_seeds_that_a_client_does_not_hold_are_not_used():
    families, seeds, masks = everybody((7, 3, 1, 1, 2))
    known = HiddenMasks(FIELD, families, 4, seeds)
    assert known.bounded(b"", 50, 9, total=False)[0].equal(masks[4].bounded(b"", 50, 9, total=False)[0])
    assert known.zeros(b"", 9, total=True).equal(masks[4].zeros(b"", 9, total=True))


def test_a_missing_seed_is_refused():
    families, seeds, _ = everybody((5, 1, 1, 1, 4))
    number = families.seed_sets.held_by(2)[3]
    with pytest.raises(UsageError, match=f"client 2 holds seed {number}"):
        HiddenMasks(FIELD, families, 2, {s: seed for s, seed in seeds.items() if s != number})


def test_masks_are_neither_printed_nor_pickled():
    _, seeds, (one, *_) = everybody((5, 1, 1, 1, 4))
    assert repr(one) == "HiddenMasks(client 0, <redacted>)"
    assert seeds[0].reveal().hex() not in repr(one)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(one)
