"""Masks and public streams are the addressed keystream, exactly uniform; secrets stay secret."""

import copy
import hashlib
import hmac
import itertools
import pickle
import random
import struct

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import FieldError
from dresfl.field import (
    Domain,
    PublicStream,
    ResidueField,
    SecretSeed,
)
from dresfl.field.random import uniform_elements
from dresfl.kernels import key_words
from field.primes import prime_sets

KEY = bytes(range(100, 132))


def keystream(key, first_word, index, count):
    """`count` words of the stream with nonce (first_word, index, 0), from OpenSSL."""
    nonce = struct.pack("<IIII", 0, first_word, index, 0)
    size = -(-count // 16) * 64
    return np.frombuffer(Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(size)), "<u4")[:count]


def plain_uniform(key, row, moduli, count):
    """The definition, word by word: (M,count) integers, and how many attempts each took."""
    streams = []

    def word(attempt, place):
        while len(streams) <= attempt:
            stream = keystream(key, 256 * Domain.MASKS + len(streams), row, len(moduli) * count)
            streams.append([int(w) for w in stream])
        return streams[attempt][place]

    values, attempts = [], []
    for channel, p in enumerate(moduli):
        for j in range(count):
            attempt = 0
            while word(attempt, channel * count + j) >= 2**32 // p * p:
                attempt += 1
            values.append(word(attempt, channel * count + j) % p)
            attempts.append(attempt)
    return values, attempts


def keys_of(*seeds):
    return torch.stack([key_words(seed) for seed in seeds])


@given(
    primes=prime_sets,
    key=st.binary(min_size=32, max_size=32),
    row=st.integers(0, 2**32 - 1) | st.sampled_from([2**31 - 1, 2**31, 2**32 - 1]),
    count=st.integers(1, 40),
)
def test_uniform_is_the_addressed_keystream(primes, key, row, count):
    field = ResidueField(primes, 1)
    got = field.uniform(keys_of(key), torch.tensor([row]), count)
    assert got.shape == (len(primes), 1, count)
    assert got.abs().le(torch.tensor(primes).view(-1, 1, 1) // 2).all()
    values, _ = plain_uniform(key, row, primes, count)
    assert [int(x) % p for channel, p in zip(got, primes, strict=True) for x in channel[0]] == values


def test_uniform_tries_rejected_words_again():
    primes = (16647203, 16711943)  # 2^32 mod p nearly p: one word in 256 is rejected
    rows = range(3)
    got = ResidueField(primes, 1).uniform(keys_of(KEY, KEY, KEY), torch.tensor([*rows]), 3000)
    for row in rows:
        values, attempts = plain_uniform(KEY, row, primes, 3000)
        assert sum(a > 0 for a in attempts) > 10
        assert [int(x) % p for c, p in enumerate(primes) for x in got[c, row]] == values


def uniform_words(moduli, keys, rows, count):
    """uniform_elements as integers in [0, p)."""
    p = torch.tensor(moduli, dtype=torch.float64)
    elements = uniform_elements(p, 1 / p, keys, rows, count)
    return elements.to(torch.int64) % p.to(torch.int64).view(-1, 1, 1)


@pytest.mark.parametrize("moduli", [(2**31 + 11,), (2**31 + 11, 7, 2**31 + 45), (2**32 - 5, 2**30 + 3)])
def test_uniform_tries_as_often_as_it_takes(moduli):
    count = 45
    got = uniform_words(moduli, keys_of(KEY, bytes(32)), torch.tensor([9, 2**31 + 1]), count)
    most = 0
    for place, (key, row) in enumerate([(KEY, 9), (bytes(32), 2**31 + 1)]):
        values, attempts = plain_uniform(key, row, moduli, count)
        assert got[:, place].flatten().tolist() == values
        most = max(most, *attempts)
    assert most >= 2 or 2**31 + 11 not in moduli


def test_uniform_gives_up_on_a_broken_keystream():
    with pytest.raises(FieldError, match="256 rejected words"):
        uniform_words((2**33,), keys_of(KEY), torch.tensor([0]), 1)


@given(seed=st.integers(0, 2**32))
def test_a_row_is_the_same_alone_and_in_a_batch(seed):
    rng = random.Random(seed)
    field = ResidueField((251, 16711943), 1)
    rows = torch.tensor([rng.randrange(2**32) for _ in range(5)])
    keys = keys_of(*(rng.randbytes(32) for _ in range(5)))
    batch = field.uniform(keys, rows, 300)
    for i in rng.sample(range(5), 5):
        assert field.uniform(keys[i : i + 1], rows[i : i + 1], 300).equal(batch[:, i : i + 1])
    assert len({tuple(batch[0, i].tolist()) for i in range(5)}) == 5


def test_channels_rows_and_keys_never_share_masks():
    field = ResidueField((16777199, 16777213), 1)
    got = field.uniform(keys_of(KEY, KEY, bytes(32)), torch.tensor([0, 1, 0]), 64)
    streams = [tuple(got[c, r].tolist()) for c in range(2) for r in range(3)]
    assert all(len(set(a) & set(b)) < 3 for a, b in itertools.combinations(streams, 2))


def test_every_residue_is_equally_likely():
    p = 23
    got = ResidueField((p,), 1).uniform(keys_of(KEY).expand(100, 8), torch.arange(100), 2300)
    counts = torch.bincount(got.flatten().to(torch.int64) + p // 2, minlength=p).to(torch.float64)
    assert counts.shape == (p,)
    chi_square = float(((counts - 10**4) ** 2 / 10**4).sum())
    assert 5 < chi_square < 60  # 22 degrees of freedom


@pytest.mark.parametrize("domain", list(Domain))
def test_public_stream_is_the_addressed_keystream(domain):
    key = hashlib.sha256(b"dresfl public stream 42").digest()
    for index in (0, 5, 2**31, 2**32 - 1):
        words = keystream(key, 256 * domain, index, 40).tolist()
        assert PublicStream(42).words(domain, index, 40).tolist() == words
        assert PublicStream(42).uniform(domain, index, 40).tolist() == [(w + 0.5) / 2**32 for w in words]
    indices = torch.tensor([5, 2**31, 0])
    rows = [PublicStream(42).words(domain, int(index), 7).tolist() for index in indices]
    assert PublicStream(42).words_of(domain, indices, 7).tolist() == rows


def test_domains_are_distinct_bytes():
    assert len({int(d) for d in Domain}) == len(Domain.__members__)
    assert all(0 < int(d) < 2**23 for d in Domain)


# -- secrets -------------------------------------------------------------------------------------------------


def test_secret_seed_is_not_shown():
    shown = f"{SecretSeed(KEY)!r} {SecretSeed(KEY)} {[SecretSeed(KEY)]}"
    assert "redacted" in shown
    assert KEY.hex() not in shown
    assert repr(KEY)[2:10] not in shown
    assert repr(SecretSeed(KEY)) == repr(SecretSeed(bytes(32)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_secret_seed_is_not_pickled(protocol):
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps({"seed": SecretSeed(KEY)}, protocol)


def test_secret_seed_is_not_copied():
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            duplicate(SecretSeed(KEY))


def test_fresh_seeds_differ():
    keys = {tuple(SecretSeed.fresh().mask_key(b"").tolist()) for _ in range(50)}
    assert len(keys) == 50
    assert all(len(key) == 8 for key in keys)


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_secret_seed_of_a_wrong_length_is_refused(length):
    with pytest.raises(FieldError, match="32 bytes"):
        SecretSeed(bytes(length))


def test_a_ratchet_goes_one_way_and_needs_its_label():
    seed = SecretSeed(KEY)
    first = seed.ratchet(b"round 1")
    assert first.reveal() == hmac.digest(KEY, b"dresfl ratchetround 1", "sha256")
    others = [seed, seed.ratchet(b"round 2"), first.ratchet(b"round 1"), seed.derive(b"round 1"), seed.ratchet(b"")]
    assert len({first.reveal(), *(other.reveal() for other in others)}) == 6
