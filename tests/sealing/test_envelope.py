"""Envelopes open for whom and where they are meant, and nowhere else; and they are what the standards say."""

import dataclasses
import json
from functools import cache
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import DresError, MessageError, UsageError
from dresfl.experiments.vectors.sealing_vectors import make_sealing_vectors
from dresfl.sealing import OVERHEAD, Identity, Member, SealContext, SealError, open_sealed, seal
from dresfl.sealing.envelope import envelope_key
from reference import sealing as reference

HERE = SealContext(bytes(range(16)), dealer=3, receiver=5, slice_number=1, num_slices=4)
TEXT = b"a share of somebody's rows" * 3


@cache
def participant(name: str) -> Identity:
    return Identity.create(name)


@cache
def envelope() -> bytes:
    return seal(participant("sender"), participant("receiver").member, HERE, TEXT)


def opened(sealed: bytes, context: SealContext = HERE, receiver: str = "receiver", sender: str = "sender") -> bytes:
    return open_sealed(participant(receiver), participant(sender).member, context, sealed)


@given(st.binary(max_size=300), st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1), st.integers(1, 2**32 - 1))
def test_what_is_sealed_opens(text: bytes, dealer: int, receiver: int, slices: int):
    context = SealContext(bytes(16), dealer, receiver, slices - 1, slices)
    sealed = seal(participant("sender"), participant("receiver").member, context, text)
    assert len(sealed) == len(text) + OVERHEAD
    assert opened(sealed, context) == text


def test_every_changed_bit_is_caught():
    assert opened(envelope()) == TEXT
    for place in range(len(envelope())):
        for bit in range(8):
            altered = bytearray(envelope())
            altered[place] ^= 1 << bit
            with pytest.raises(SealError):
                opened(bytes(altered))


def test_every_other_length_is_caught():
    for length in range(len(envelope())):
        with pytest.raises(SealError, match="too short" if length < OVERHEAD else "does not open"):
            opened(envelope()[:length])
        with pytest.raises(SealError):
            opened(envelope()[length + 1 :])
    with pytest.raises(SealError):
        opened(envelope() + b"\x00")


@given(st.binary(max_size=200))
def test_foreign_bytes_never_open(sealed: bytes):
    with pytest.raises(SealError):
        opened(sealed)
    with pytest.raises(SealError):
        opened(b"\x01" + sealed)


@given(
    st.sampled_from(["sharing_id", "dealer", "receiver", "slice_number", "num_slices"]),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**16 - 1),
)
def test_every_changed_field_of_the_context_is_caught(field: str, sharing_id: bytes, number: int):
    value = {"sharing_id": sharing_id, "slice_number": number % 4, "num_slices": number + 2}.get(field, number)
    other = dataclasses.replace(HERE, **{field: value})
    if other == HERE:
        assert opened(envelope(), other) == TEXT
        return
    with pytest.raises(SealError):
        opened(envelope(), other)


def test_contexts_have_different_bytes():
    fields = dataclasses.asdict(HERE)
    seen = {HERE.encode()}
    for name, value in fields.items():
        changed = bytes(16) if name == "sharing_id" else value + 1
        seen.add(dataclasses.replace(HERE, **{name: changed}).encode())
    assert len(seen) == 6
    assert {len(entry) for entry in seen} == {28}


def test_only_the_receiver_opens():
    with pytest.raises(SealError):
        opened(envelope(), receiver="stranger")
    with pytest.raises(SealError):
        opened(envelope(), receiver="sender")


def test_only_the_sender_can_have_sealed():
    """The relay knows every public key and its own secret ones: what it seals does not pass for another's."""
    forged = seal(participant("relay"), participant("receiver").member, HERE, TEXT)
    assert opened(forged, sender="relay") == TEXT
    with pytest.raises(SealError):
        opened(forged)
    with pytest.raises(SealError):
        opened(envelope(), sender="relay")


def test_an_envelope_sent_back_to_its_sender_does_not_open():
    with pytest.raises(SealError):
        open_sealed(participant("sender"), participant("receiver").member, HERE, envelope())


def test_limit_n9_what_stolen_keys_do():
    """With r the secret of any sender's envelope to R can be computed; with s alone that of no envelope."""
    thief = participant("receiver")  # has r, not the sender's s
    ephemeral, member = X25519PrivateKey.generate(), participant("sender").member
    public = ephemeral.public_key().public_bytes_raw()
    secret = thief.exchange(public) + thief.exchange(member.sealing_key)
    key = envelope_key(secret, public, member, thief.member, HERE)
    forged = b"\x01" + public + ChaCha20Poly1305(key).encrypt(bytes(12), b"not from the sender", HERE.encode())
    assert opened(forged) == b"not from the sender"
    thief, member = participant("sender"), participant("receiver").member  # has s, not r; e is gone
    for guess in (thief.exchange(member.sealing_key), thief.exchange(envelope()[1:33])):
        key = envelope_key(guess + thief.exchange(member.sealing_key), envelope()[1:33], thief.member, member, HERE)
        with pytest.raises(InvalidTag):
            ChaCha20Poly1305(key).decrypt(bytes(12), envelope()[33:], HERE.encode())


@pytest.mark.parametrize("field", ["name", "signing_key", "spki_sha256"])
def test_the_same_sealing_key_under_another_name_or_with_other_keys_is_another_participant(field: str):
    twin = participant("twin").member
    sender = dataclasses.replace(participant("sender").member, **{field: getattr(twin, field)})
    with pytest.raises(SealError):
        open_sealed(participant("receiver"), sender, HERE, envelope())


def test_two_envelopes_of_the_same_text_have_nothing_in_common():
    first, second = (seal(participant("sender"), participant("receiver").member, HERE, bytes(64)) for _ in range(2))
    assert first[1:33] != second[1:33]
    assert first[33:] != second[33:]
    assert TEXT not in envelope()


# The points of order 1, 2, 4 and 8 on the curve and its twist, and their other spellings.
LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
    (2**256 - 1 - 18).to_bytes(32, "little"),
]


@pytest.mark.parametrize("point", LOW_ORDER)
def test_points_of_low_order_are_refused_everywhere(point: bytes):
    with pytest.raises(SealError):
        opened(b"\x01" + point + envelope()[33:])
    member = participant("sender").member
    with pytest.raises(DresError, match="not a sound X25519 key"):
        dataclasses.replace(member, sealing_key=point)


def test_a_second_spelling_of_a_key_is_refused():
    member = participant("sender").member
    twin = member.sealing_key[:31] + bytes([member.sealing_key[31] | 128])
    with pytest.raises(DresError, match="not a sound X25519 key"):
        dataclasses.replace(member, sealing_key=twin)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sharing_id": bytes(15)},
        {"dealer": -1},
        {"receiver": 2**16},
        {"slice_number": 4},
        {"slice_number": -1},
        {"num_slices": 0},
        {"num_slices": 2**32},
    ],
)
def test_impossible_contexts_are_refused(wrong: dict[str, object]):
    with pytest.raises(UsageError):
        dataclasses.replace(HERE, **wrong)


def test_errors_say_where_and_nothing_secret():
    with pytest.raises(SealError, match="slice 2 of 4 by sender does not open for receiver") as caught:
        opened(envelope(), dataclasses.replace(HERE, slice_number=2))
    assert isinstance(caught.value, MessageError)
    assert "telephone" in caught.value.hint
    assert caught.value.__cause__ is None


# -- against the standards -------------------------------------------------------------------------------------


def test_the_reference_agrees_with_the_rfcs():
    # RFC 7748, 5.2: one product, then a thousand, each with the last two results
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    product = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert reference.x25519(scalar, point).hex() == product
    k = u = (9).to_bytes(32, "little")
    for _ in range(1000):
        k, u = reference.x25519(k, u), k
    assert k.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"
    # RFC 5869, A.1 and A.3
    okm = reference.hkdf(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)
    assert okm.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    okm = reference.hkdf(b"\x0b" * 22, b"", b"", 42)
    assert okm.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    # RFC 8439, 2.8.2
    text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
    text += b"sunscreen would be it."
    nonce, associated = bytes.fromhex("070000004041424344454647"), bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    sealed = reference.aead_encrypt(bytes(range(0x80, 0xA0)), nonce, text, associated)
    assert sealed[:16].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"


COMMITTED = Path(__file__).parents[1] / "vectors" / "round.json"


def test_the_committed_vectors_follow_from_the_standards():
    """Every number of the file from its secrets, by the reference; the library made them."""
    file = json.loads(COMMITTED.read_text())["sealing"]
    participants = {entry["name"]: entry for entry in file["participants"]}
    base = (9).to_bytes(32, "little")
    for name, entry in participants.items():
        assert reference.x25519(bytes.fromhex(entry["sealing_secret"]), base).hex() == entry["sealing_key"]
        keys = (bytes.fromhex(entry[key]) for key in ("sealing_key", "signing_key", "tls_spki_sha256"))
        public = reference.member_bytes(name, *keys)
        assert public.hex() == entry["public_bytes"]
        assert reference.member_fingerprint(public) == entry["fingerprint"]
    for entry in file["envelopes"]:
        sender, receiver = participants[entry["sender"]], participants[entry["receiver"]]
        context = bytes.fromhex(entry["sharing_id"])
        context += entry["dealer"].to_bytes(2, "little") + entry["receiver_number"].to_bytes(2, "little")
        context += entry["slice_number"].to_bytes(4, "little") + entry["num_slices"].to_bytes(4, "little")
        assert context.hex() == entry["context"]
        sealed = reference.seal(
            bytes.fromhex(entry["ephemeral_secret"]),
            bytes.fromhex(sender["sealing_secret"]),
            bytes.fromhex(sender["public_bytes"]),
            bytes.fromhex(receiver["public_bytes"]),
            bytes.fromhex(receiver["sealing_key"]),
            context,
            bytes.fromhex(entry["plaintext"]),
        )
        assert sealed.hex() == entry["sealed"]


def test_the_committed_vectors_open_or_do_not():
    file = json.loads(COMMITTED.read_text())["sealing"]
    participants = {entry["name"]: entry for entry in file["participants"]}

    def member(name: str) -> Member:
        entry = participants[name]
        keys = (bytes.fromhex(entry[key]) for key in ("sealing_key", "signing_key", "tls_spki_sha256"))
        return Member(name, *keys)

    def attempt(entry: dict[str, str]) -> bytes:
        context = bytes.fromhex(entry["context"])
        numbers = (int.from_bytes(context[a:b], "little") for a, b in ((16, 18), (18, 20), (20, 24), (24, 28)))
        receiver = participants[entry["receiver"]]
        secrets = (bytes.fromhex(receiver[key]) for key in ("sealing_secret", "signing_secret"))
        identity = Identity(receiver["name"], *secrets, tls_key(receiver["tls_secret"]))
        assert identity.member == member(entry["receiver"])
        return open_sealed(
            identity, member(entry["sender"]), SealContext(context[:16], *numbers), bytes.fromhex(entry["sealed"])
        )

    for entry in file["envelopes"]:
        assert attempt(entry).hex() == entry["plaintext"]
    assert len(file["refused"]) > 10
    for entry in file["refused"]:
        with pytest.raises(SealError):
            attempt(entry)


def tls_key(secret: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int(secret, 16), ec.SECP256R1())


def test_vectors_are_the_same_each_time():
    assert make_sealing_vectors() == make_sealing_vectors()
