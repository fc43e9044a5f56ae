"""Identities and cards: keys stay where they are, files are refused when they should be."""

import copy
import dataclasses
import json
import os
import pickle
import re
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import IdentityError
from dresfl.sealing import Card, CertificateAuthority, Identity, spoken
from dresfl.sealing.identity import IDENTITY_FILE, TLS_KEY_FILE, CardFile, check_name
from dresfl.sealing.typed_json import parse_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Identity.create("hospital-1").save(tmp_path / "keys")
    return tmp_path / "keys"


def test_what_is_saved_loads(folder: Path):
    first, second = Identity.load(folder), Identity.load(folder)
    assert first.member == second.member
    assert first.card == second.card
    assert first.tls_key_pem() == second.tls_key_pem()
    assert Identity.create("hospital-1").member != first.member


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_modes_whatever_the_umask(tmp_path: Path):
    before = os.umask(0)
    try:
        Identity.create("a").save(tmp_path / "keys")
        CertificateAuthority.create().save(tmp_path / "ca")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {
        "keys": 0o700,
        IDENTITY_FILE: 0o600,
        TLS_KEY_FILE: 0o600,
        "ca": 0o700,
        "ca.key.pem": 0o600,
        "ca.cert.pem": 0o644,
    }


@pytest.mark.skipif(os.name != "posix", reason="file modes")
@pytest.mark.parametrize("name", [IDENTITY_FILE, TLS_KEY_FILE])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_key_files_that_others_may_touch_are_refused(folder: Path, name: str, mode: int):
    (folder / name).chmod(mode)
    with pytest.raises(IdentityError, match=f"mode {mode:04o}") as caught:
        Identity.load(folder)
    assert f"chmod 600 {folder / name}" in caught.value.hint
    (folder / name).chmod(0o400)
    Identity.load(folder)


def test_nothing_is_written_over(folder: Path):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(IdentityError, match="exists already"):
        Identity.create("hospital-1").save(folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_dangling_link_is_not_followed(tmp_path: Path):
    (tmp_path / "card.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IdentityError, match="exists already"):
        Identity.create("a").card.save(tmp_path / "card.json")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("damage", ["", "{}", "[]", "null", "\x00", '{"format": "dresfl identity 2"}', "[" * 9999])
def test_a_damaged_identity_is_refused(folder: Path, damage: str):
    (folder / IDENTITY_FILE).write_text(damage)
    with pytest.raises(IdentityError):
        Identity.load(folder)


def test_a_damaged_tls_key_is_refused_and_not_quoted(folder: Path):
    text = (folder / TLS_KEY_FILE).read_text()
    (folder / TLS_KEY_FILE).write_text(text.replace("A", "B"))
    with pytest.raises(IdentityError, match="elliptic-curve") as caught:
        Identity.load(folder)
    assert not any(line in str(caught.value) for line in text.splitlines()[1:-1])


def test_a_wrong_identity_file_is_not_quoted(folder: Path):
    path = folder / IDENTITY_FILE
    fields = json.loads(path.read_text())
    secret = fields["sealing_key"]
    for wrong in (
        {"sealing_key": secret[:-1]},
        {"extra": secret},
        {"name": 7},
        {"signing_key": secret + "\n"},
        {"format": secret},
        {secret: "extra"},
    ):
        path.write_text(json.dumps({**fields, **wrong}))
        with pytest.raises(IdentityError) as caught:
            Identity.load(folder)
        assert secret[:16] not in str(caught.value)
        assert caught.value.__cause__ is None


def test_missing_pipe_and_huge_files_are_refused(folder: Path, tmp_path: Path):
    with pytest.raises(IdentityError, match="cannot read"):
        Identity.load(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IdentityError, match="not a regular file"):
        Card.load(tmp_path / "pipe")
    with pytest.raises(IdentityError):
        Card.load(tmp_path)
    (tmp_path / "huge").write_bytes(b" " * 20_000)
    with pytest.raises(IdentityError, match="larger than"):
        Card.load(tmp_path / "huge")


def test_an_identity_shows_and_pickles_nothing(folder: Path):
    identity = Identity.load(folder)
    fields = json.loads((folder / IDENTITY_FILE).read_text())
    for shown in (repr(identity), str(identity), f"{identity}"):
        assert shown == "Identity('hospital-1', <redacted>)"
    public = json.dumps([str(identity.card), str(identity.member)])
    for key in ("sealing_key", "signing_key"):
        assert fields[key] not in public
        assert repr(bytes.fromhex(fields[key])) not in public
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            attempt(identity)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(CertificateAuthority.create())


# -- cards -----------------------------------------------------------------------------------------------------


@pytest.fixture
def card_file(tmp_path: Path) -> Path:
    Identity.create("hospital-1").card.save(tmp_path / "card.json")
    return tmp_path / "card.json"


def test_a_card_travels(card_file: Path):
    card = Card.load(card_file)
    card.save(card_file.with_name("copy.json"))
    assert Card.load(card_file.with_name("copy.json")) == card


def test_every_altered_field_of_a_card_is_caught(card_file: Path):
    fields = json.loads(card_file.read_text())
    Identity.create("hospital-2").card.save(card_file.with_name("other.json"))
    other = json.loads(card_file.with_name("other.json").read_text())
    for name in fields.keys() - {"format"}:
        card_file.write_text(json.dumps({**fields, name: other[name]}))
        with pytest.raises(IdentityError, match="not signed by"):
            Card.load(card_file)


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "dresfl card 2"},
        {"name": None},
        {"name": ["a"]},
        {"sealing_key": 5},
        {"sealing_key": ""},
        {"sealing_key": "g" * 64},
        {"sealing_key": "A" * 64},
        {"sealing_key": " " + "a" * 63},
        {"signature": "00" * 63},
        {"more": 1},
    ],
)
def test_cards_of_another_shape_are_refused(card_file: Path, wrong: dict[str, object]):
    card_file.write_text(json.dumps({**json.loads(card_file.read_text()), **wrong}))
    with pytest.raises(IdentityError):
        Card.load(card_file)


def test_a_missing_field_is_named(card_file: Path):
    fields = json.loads(card_file.read_text())
    for name in fields:
        card_file.write_text(json.dumps({key: value for key, value in fields.items() if key != name}))
        with pytest.raises(IdentityError, match=name):
            Card.load(card_file)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_no_card(data: bytes):
    with pytest.raises(IdentityError):
        parse_json(data, CardFile, "the card")


def test_a_signature_counts_for_its_purpose_only():
    identity, message = Identity.create("a"), b"hello"
    signature = identity.sign("greeting", message)
    identity.member.check_signature("greeting", message, signature)
    for purpose, text, mark in (
        ("card", message, signature),
        ("greetin", b"g" + message, signature),
        ("greeting", b"Hello", signature),
        ("greeting", message, signature[:-1]),
        ("greeting", message, b""),
    ):
        with pytest.raises(IdentityError, match=f"the {purpose} is not signed by a"):
            identity.member.check_signature(purpose, text, mark)
    with pytest.raises(IdentityError):
        Identity.create("a").member.check_signature("greeting", message, signature)


def test_a_signature_is_plain_ed25519_over_the_bytes_of_the_reference():
    identity = Identity.create("a")
    key = Ed25519PublicKey.from_public_bytes(identity.member.signing_key)
    key.verify(identity.card.signature, b"dresfl signature 1\x04card" + identity.member.encode())


# -- names and fingerprints ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "0", "hospital-1", "fl.hospital-1.example", "x" * 63])
def test_names_that_pass(name: str):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "-a",
        "a-",
        ".a",
        "a.",
        "a..b",
        "a/b",
        "../a",
        "a b",
        "a\n",
        "a_b",
        "ä",
        "\u0430",
        "x" * 64,
        "*",
        "a\x00",
    ],
)
def test_names_that_do_not(name: str):
    with pytest.raises(IdentityError, match="cannot be a participant's name"):
        check_name(name)


@given(st.binary(min_size=32, max_size=32))
def test_fingerprints_can_be_read_aloud(digest: bytes):
    assert re.fullmatch(r"\d{5}( \d{5}){7}", spoken(digest))


@pytest.mark.parametrize("field", ["sealing_key", "signing_key", "spki_sha256"])
def test_keys_of_another_length_are_refused(field: str):
    member = Identity.create("a").member
    for wrong in (b"", getattr(member, field)[:-1], getattr(member, field) + b"\x00"):
        with pytest.raises(IdentityError, match=f"{len(wrong)} bytes instead of 32"):
            dataclasses.replace(member, **{field: wrong})


def test_a_fingerprint_stands_for_every_key_and_the_name():
    one, two = (Identity.create(name).member for name in ("one", "two"))
    changed = [dataclasses.replace(one, **{field.name: getattr(two, field.name)}) for field in dataclasses.fields(one)]
    assert len({member.fingerprint for member in (one, two, *changed)}) == 6
