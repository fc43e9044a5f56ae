"""The roster: order, pins, and everything a coordinator might do to it."""

import contextlib
import dataclasses
import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import IdentityError
from dresfl.sealing import Card, Identity, Roster, SealContext, SealError, open_sealed, seal
from reference import sealing as reference

NAMES = ("zeta", "alpha", "mid")


@cache
def participant(name: str) -> Identity:
    return Identity.create(name)


def made(*names: str, maker: str = "zeta") -> Roster:
    return Roster.create(
        participant(maker), participant("hub").card, [participant(name).card for name in names or NAMES]
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made().save(tmp_path / "roster.json")
    return tmp_path / "roster.json"


def test_a_roster_travels_and_keeps_its_order(path: Path):
    roster = Roster.load(path)
    assert roster == made()
    assert tuple(member.name for member in roster.members) == NAMES
    assert roster.server == participant("hub").member
    for place, name in enumerate(NAMES):
        assert roster.index_of(participant(name).member) == place
        assert roster.index_of_spki(participant(name).member.spki_sha256) == place
    assert roster.index_of_spki(participant("hub").member.spki_sha256) is None
    assert roster.index_of_spki(bytes(32)) is None


def test_digest_and_signature_are_those_of_the_reference():
    roster = made()
    maker, server, *clients = (
        reference.member_bytes(m.name, m.sealing_key, m.signing_key, m.spki_sha256)
        for m in (participant("zeta").member, roster.server, *roster.members)
    )
    digest = hashlib.sha256(b"dresfl roster 1" + maker + server + b"\x03\x00\x00\x00" + b"".join(clients)).digest()
    assert roster.digest == digest.hex()
    assert roster.fingerprint == reference.fingerprint(digest)
    key = Ed25519PublicKey.from_public_bytes(participant("zeta").member.signing_key)
    key.verify(roster.signature, b"dresfl signature 1\x06roster" + digest)


def test_the_digest_stands_for_members_order_server_and_maker():
    digests = {
        made().digest,
        made("alpha", "zeta", "mid").digest,
        made("zeta", "alpha").digest,
        made(maker="hub").digest,
        Roster.create(participant("zeta"), participant("other-hub").card, made().client_cards).digest,
    }
    assert len(digests) == 5


def test_a_pinned_roster_is_accepted_and_another_refused(path: Path, tmp_path: Path):
    digest = made().digest
    assert Roster.load(path, digest).digest == digest
    assert Roster.load(path, digest.upper()).digest == digest
    for wrong in (made(maker="hub").digest, "", digest[:-1], "é" * 64):
        with pytest.raises(IdentityError, match="another roster") as caught:
            Roster.load(path, wrong)
        assert "telephone" in caught.value.hint


def edit(path: Path, change: Any) -> None:
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def as_file(identity: Identity) -> dict[str, str]:
    member = identity.member
    return {
        "format": "dresfl card 1",
        "name": member.name,
        "sealing_key": member.sealing_key.hex(),
        "signing_key": member.signing_key.hex(),
        "tls_spki_sha256": member.spki_sha256.hex(),
        "signature": identity.card.signature.hex(),
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f["clients"].reverse(),
        lambda f: f["clients"].pop(),
        lambda f: f["clients"].append(as_file(participant("foreign"))),
        lambda f: f["clients"].__setitem__(1, as_file(Identity.create("alpha"))),  # same name, the server's keys
        lambda f: f.update(server=as_file(participant("foreign"))),
        lambda f: f.update(maker=as_file(participant("alpha"))),
        lambda f: f.update(signature="00" * 64),
        lambda f: f["clients"][1].update(sealing_key=participant("foreign").member.sealing_key.hex()),
        lambda f: f["clients"][1].update(tls_spki_sha256="ab" * 32),
        lambda f: f["clients"][1].update(name="beta"),
        lambda f: f["clients"][1].update(signature="00" * 64),
        lambda f: f["server"].update(tls_spki_sha256="ab" * 32),
        lambda f: f["maker"].update(sealing_key=participant("foreign").member.sealing_key.hex()),
    ],
)
def test_a_tampered_roster_is_refused(path: Path, change: Any):
    edit(path, change)
    with pytest.raises(IdentityError, match=r"not signed by|listed with other keys"):
        Roster.load(path)


@given(st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(data: st.DataObject):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "roster.json"
        made().save(path)
        altered = bytearray(path.read_bytes())
        altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(altered)
        with contextlib.suppress(IdentityError):
            assert Roster.load(path) == made()  # white space


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.update(extra=1),
        lambda f: f.pop("server"),
        lambda f: f.update(clients={}),
        lambda f: f.update(clients=[]),
        lambda f: f.update(clients=[None]),
        lambda f: f.update(format="dresfl roster 2"),
        lambda f: f.update(signature=5),
    ],
)
def test_a_roster_of_another_shape_is_refused(path: Path, change: Any):
    edit(path, change)
    with pytest.raises(IdentityError):
        Roster.load(path)


def test_a_roster_beyond_the_size_limit_is_not_read(path: Path):
    with open(path, "ab") as file:
        file.write(b" " * 2**22)
    with pytest.raises(IdentityError, match="larger than"):
        Roster.load(path)


def test_a_roster_that_the_server_made_anew_has_another_digest_and_cannot_open_anything(path: Path):
    """The coordinator puts its own keys under a client's name: the pin catches it, and otherwise it reads nothing."""
    impostor = Identity.create("alpha")
    forged = Roster.create(
        participant("hub"), participant("hub").card, [participant("zeta").card, impostor.card, participant("mid").card]
    )
    path.unlink()
    forged.save(path)
    assert Roster.load(path).members[1].name == "alpha"  # it verifies: anybody can make a roster
    with pytest.raises(IdentityError, match="another roster"):
        Roster.load(path, made().digest)
    with pytest.raises(IdentityError, match="alpha is listed with other keys"):
        Roster.load(path).index_of(participant("alpha").member)
    context = SealContext(bytes(16), 0, 1, 0, 1)
    sealed = seal(participant("zeta"), made().members[1], context, b"share")
    with pytest.raises(SealError):
        open_sealed(impostor, made().members[0], context, sealed)
    assert open_sealed(participant("alpha"), made().members[0], context, sealed) == b"share"


def test_a_foreign_card_is_not_listed():
    with pytest.raises(IdentityError, match="foreign is not among the 3 clients"):
        made().index_of(participant("foreign").member)


@pytest.mark.parametrize("field", ["name", "sealing_key", "signing_key", "spki_sha256"])
def test_two_parties_with_the_same_name_or_key_are_refused(field: str):
    twin = Identity.create("twin")
    stolen = {field: getattr(participant("alpha").member, field)}
    if field == "signing_key":  # a card shows that its owner has this key, so only alpha itself could make one
        member = dataclasses.replace(twin.member, **stolen)
        card = Card(member, participant("alpha").sign("card", member.encode()))
    else:
        member = dataclasses.replace(twin.member, **stolen)
        card = Card(member, twin.sign("card", member.encode()))
    for cards in ([participant("alpha").card, card], [card, participant("alpha").card]):
        with pytest.raises(IdentityError, match=f"have the same {field}"):
            Roster.create(participant("zeta"), participant("hub").card, cards)
    with pytest.raises(IdentityError, match=f"have the same {field}"):
        Roster.create(participant("zeta"), participant("alpha").card, [card])


def test_the_same_card_twice_is_refused():
    with pytest.raises(IdentityError, match="have the same name"):
        made("alpha", "alpha")
    with pytest.raises(IdentityError, match="have the same name"):
        made("alpha", "hub")


def test_a_maker_under_a_listed_name_must_be_that_participant():
    impostor = Identity.create("alpha")
    with pytest.raises(IdentityError, match="the maker alpha is listed with other keys"):
        Roster.create(impostor, participant("hub").card, made().client_cards)


def test_a_roster_needs_a_client():
    with pytest.raises(IdentityError, match="not 0"):
        Roster.create(participant("zeta"), participant("hub").card, [])


def test_a_roster_is_not_written_over(path: Path):
    with pytest.raises(IdentityError, match="exists already"):
        made().save(path)
