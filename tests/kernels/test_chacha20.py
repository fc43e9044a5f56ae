"""The keystream is RFC 8439's, block for block."""

import random
import struct

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from dresfl.kernels import chacha20_blocks, key_words
from dresfl.kernels.chacha20 import _PASS

VECTORS = [
    (
        "2.3.2",
        bytes(range(32)),
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        "2.4.2 first block",
        bytes(range(32)),
        1,
        "000000000000004a00000000",
        "224f51f3401bd9e12fde276fb8631ded8c131f823d2c06e27e4fcaec9ef3cf78"
        "8a3b0aa372600a92b57974cded2b9334794cba40c63e34cdea212c4cf07d41b7",
    ),
    (
        "2.4.2 second block",
        bytes(range(32)),
        2,
        "000000000000004a00000000",
        "69a6749f3f630f4122cafe28ec4dc47e26d4346d70b98c73f3e9c53ac40c5945398b6eda1a832c89c167eacd901d7e2bf363",
    ),
    (
        "A.1 #1",
        bytes(32),
        0,
        "000000000000000000000000",
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        "A.1 #2",
        bytes(32),
        1,
        "000000000000000000000000",
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
]


def signed(word):
    return word - 2**32 if word >= 2**31 else word


def blocks(addresses):
    """Keystream bytes of [(key, counter, nonce)], one call of the kernel."""
    keys = torch.stack([key_words(key) for key, _, _ in addresses])
    counters = torch.tensor([signed(counter) for _, counter, _ in addresses], dtype=torch.int32)
    nonces = torch.stack([torch.frombuffer(bytearray(nonce), dtype=torch.int32) for _, _, nonce in addresses])
    out = chacha20_blocks(keys, counters, nonces)
    assert out.dtype == torch.int32
    assert out.shape == (len(addresses), 16)
    return [row.numpy().astype("<i4").tobytes() for row in out]


def openssl(key, counter, nonce, count=1):
    full = struct.pack("<I", counter) + nonce
    return Cipher(algorithms.ChaCha20(key, full), None).encryptor().update(bytes(64 * count))


@pytest.mark.parametrize(("section", "key", "counter", "nonce", "stream"), VECTORS, ids=[v[0] for v in VECTORS])
def test_rfc_8439_vectors(section, key, counter, nonce, stream):
    expected = bytes.fromhex(stream)
    assert blocks([(key, counter, bytes.fromhex(nonce))])[0].startswith(expected)
    assert openssl(key, counter, bytes.fromhex(nonce)).startswith(expected)


counters = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1])
addresses = st.tuples(st.binary(min_size=32, max_size=32), counters, st.binary(min_size=12, max_size=12))


@given(st.lists(addresses, min_size=1, max_size=8))
def test_every_block_has_its_own_key_counter_and_nonce(chosen):
    assert blocks(chosen) == [openssl(*address) for address in chosen]


@pytest.mark.parametrize("counter", [2**31 - 2, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])
def test_counters_past_the_int32_sign(counter):
    key, nonce = bytes(range(32)), b"\xff" * 12
    assert blocks([(key, counter, nonce)]) == [openssl(key, counter, nonce)]


@pytest.mark.parametrize("count", [_PASS - 1, _PASS, _PASS + 1, 2 * _PASS + 3])
def test_pass_boundaries(count):
    rng = random.Random(count)
    key, nonce = rng.randbytes(32), rng.randbytes(12)
    words = torch.frombuffer(bytearray(nonce), dtype=torch.int32)
    counters = torch.arange(count, dtype=torch.int32)
    out = chacha20_blocks(key_words(key).expand(count, 8), counters, words.expand(count, 3))
    assert out.numpy().astype("<i4").tobytes() == openssl(key, 0, nonce, count)


def test_no_blocks():
    empty = torch.empty(0, dtype=torch.int32)
    assert chacha20_blocks(empty.view(0, 8), empty, empty.view(0, 3)).shape == (0, 16)


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_wrong_key_length_is_refused(length):
    with pytest.raises(ValueError, match="32 bytes"):
        key_words(bytes(length))
