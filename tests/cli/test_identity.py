"""keygen, ca and roster as a user runs them."""

import json
import os
import re
import stat
import sys
from pathlib import Path

import pytest

import commands
from commands import Result, Run
from dresfl.sealing import Card, Identity, Roster, check_certificate

FINGERPRINT = r"\d{5}( \d{5}){7}"


def refused(result: Result, code: int, message: str, hint: str = "") -> None:
    """As every refusal, and nothing on stdout."""
    commands.refused(result, code, message, hint)
    assert result.stdout == ""


@pytest.fixture
def participants(dresfl: Run) -> None:
    """hub and three hospitals, each with its keys in a folder of its name."""
    for name in ("hub", "h-1", "h-2", "h-3"):
        assert dresfl("keygen", name, "--out", name).returncode == 0


def create(dresfl: Run, *names: str, out: str = "roster.json", maker: str = "h-1") -> Result:
    cards = [f"{name}/{name}.card.json" for name in names or ("h-1", "h-2")]
    return dresfl(
        "roster", "create", *cards, "--coordinator", "hub/hub.card.json", "--sign-with", maker, "--out", out, "--json"
    )


def test_keygen_writes_secrets_for_oneself_and_a_card_for_others(dresfl: Run):
    result = dresfl("keygen", "hospital-1", "--out", "keys", "--json")
    shown = json.loads(result.stdout)
    assert result.returncode == 0
    assert sorted(path.name for path in Path("keys").iterdir()) == [
        "hospital-1.card.json",
        "hospital-1.csr.pem",
        "identity.json",
        "tls.key.pem",
    ]
    identity = Identity.load(Path("keys"))
    assert Card.load(Path(shown["card"])) == identity.card
    assert shown["fingerprint"] == identity.member.fingerprint
    if os.name == "posix":
        assert stat.S_IMODE(os.stat("keys").st_mode) == 0o700
        assert stat.S_IMODE(os.stat("keys/identity.json").st_mode) == 0o600
    secrets = json.loads(Path("keys/identity.json").read_text())
    public = result.stdout + result.stderr + "".join(Path(shown[file]).read_text() for file in ("card", "request"))
    assert secrets["sealing_key"] not in public
    assert secrets["signing_key"] not in public
    assert "PRIVATE" not in public


def test_keygen_shows_a_fingerprint(dresfl: Run):
    result = dresfl("keygen", "hospital-1", "--out", "keys")
    assert re.search(FINGERPRINT, result.stdout)


@pytest.mark.parametrize("left", ["identity.json", "tls.key.pem", "h-1.card.json", "h-1.csr.pem"])
def test_keygen_never_writes_over(dresfl: Run, left: str):
    Path("keys").mkdir()
    Path("keys", left).write_text("precious")
    refused(dresfl("keygen", "h-1", "--out", "keys"), 1, f"{left} exists already", "choose another")
    assert Path("keys", left).read_text() == "precious"


def test_keygen_refuses_bad_names_and_writes_nothing(dresfl: Run):
    for name in ("Hospital 1", "../h", ""):
        refused(dresfl("keygen", name, "--out", "keys"), 1, "cannot be a participant's name", "a-z")
    assert not Path("keys").exists()


def test_an_authority_in_two_commands(dresfl: Run, participants: None):
    assert dresfl("ca", "init", "ca").returncode == 0
    signed = dresfl("ca", "sign", "ca", "h-1/h-1.csr.pem", "--out", "h-1.pem", "--days", "30", "--json")
    member = Identity.load(Path("h-1")).member
    assert json.loads(signed.stdout)["names"] == "h-1"
    assert json.loads(signed.stdout)["tls_spki_sha256"] == member.spki_sha256.hex()
    check_certificate(Path("h-1.pem").read_bytes(), member)
    hosts = ("--server", "localhost", "--server", "127.0.0.1")
    signed = dresfl("ca", "sign", "ca", "hub/hub.csr.pem", "--out", "hub.pem", *hosts, "--json")
    assert json.loads(signed.stdout)["names"] == "hub, localhost"


def test_ca_refuses(dresfl: Run, participants: None):
    dresfl("ca", "init", "ca")
    sign = ("ca", "sign", "ca")
    refused(dresfl("ca", "init", "ca"), 1, "ca.key.pem exists already")
    refused(dresfl(*sign, "none.pem", "--out", "x.pem"), 1, "cannot read none.pem")
    refused(dresfl(*sign, "h-1/h-1.card.json", "--out", "x.pem"), 1, "not a certificate request", "keygen")
    refused(dresfl(*sign, "h-1/h-1.csr.pem", "--out", "hub/hub.csr.pem"), 1, "exists already")
    refused(dresfl(*sign, "h-1/h-1.csr.pem", "--out", "x.pem", "--days", "0"), 2, "1 to 36500 days")
    refused(dresfl(*sign, "hub/hub.csr.pem", "--out", "x.pem", "--server", "*"), 1, "cannot be")
    Path("ca/ca.key.pem").chmod(0o644)
    refused(dresfl(*sign, "h-1/h-1.csr.pem", "--out", "x.pem"), 1, "mode 0644", "chmod 600 ca/ca.key.pem")
    assert not Path("x.pem").exists()


def test_create_add_verify(dresfl: Run, participants: None):
    made = json.loads(create(dresfl).stdout)
    assert [client["name"] for client in made["clients"]] == ["h-1", "h-2"]
    assert made["coordinator"]["name"] == "hub"
    more = ("h-3/h-3.card.json", "--sign-with", "h-1", "--out", "roster-2.json", "--json")
    grown = json.loads(dresfl("roster", "add", "roster.json", *more).stdout)
    assert grown["clients"][:2] == made["clients"]
    assert grown["clients"][2]["name"] == "h-3"
    assert grown["sha256"] != made["sha256"]
    assert Roster.load(Path("roster-2.json")).digest == grown["sha256"]
    checked = dresfl(
        "roster", "verify", "roster-2.json", "--card", "h-3/h-3.card.json", "--sha256", grown["sha256"], "--json"
    )
    assert json.loads(checked.stdout) == grown
    assert "h-3 is client 2" in checked.stderr
    checked = dresfl("roster", "verify", "roster.json", "--card", "hub/hub.card.json")
    assert "hub is the coordinator" in checked.stderr
    assert f'roster_sha256 = "{made["sha256"]}"' in checked.stdout
    for participant in (made["coordinator"], *made["clients"]):
        assert participant["fingerprint"] in checked.stdout
    assert re.search(f"roster's fingerprint: {FINGERPRINT}", checked.stdout)


def test_verify_refuses(dresfl: Run, participants: None):
    create(dresfl)
    verify = ("roster", "verify", "roster.json")
    refused(dresfl(*verify, "--card", "h-3/h-3.card.json"), 1, "h-3 is not among the 2 clients")
    dresfl("keygen", "h-2", "--out", "again")
    refused(dresfl(*verify, "--card", "again/h-2.card.json"), 1, "h-2 is listed with other keys", "new identity")
    refused(dresfl(*verify, "--sha256", "0" * 64), 1, "another roster", "telephone")
    text = Path("roster.json").read_text()
    swapped = json.loads(text)
    swapped["clients"][1] = json.loads(Path("again/h-2.card.json").read_text())
    Path("roster.json").write_text(json.dumps(swapped))
    refused(dresfl(*verify), 1, "the roster is not signed by h-1", "altered")
    Path("roster.json").write_text(text[:-20])
    refused(dresfl(*verify), 1, "roster.json:", "unaltered copy")


def test_create_refuses(dresfl: Run, participants: None):
    create(dresfl)
    refused(create(dresfl), 1, "roster.json exists already")
    refused(create(dresfl, "h-1", "h-1", out="r"), 1, "h-1 and h-1 have the same name")
    refused(create(dresfl, "h-1", "hub", out="r"), 1, "hub and hub have the same name")
    refused(create(dresfl, maker="none", out="r"), 1, "cannot read none/identity.json")
    card = json.loads(Path("h-2/h-2.card.json").read_text())
    Path("h-2/h-2.card.json").write_text(json.dumps({**card, "sealing_key": "ab" * 31 + "0b"}))
    refused(create(dresfl, out="r"), 1, "the card is not signed by h-2")
    Path("h-1/identity.json").chmod(0o644)
    refused(create(dresfl, "h-3", out="r"), 1, "mode 0644", "chmod 600 h-1/identity.json")
    assert not Path("r").exists()


def test_only_its_maker_adds_to_a_roster(dresfl: Run, participants: None):
    create(dresfl)
    grown = dresfl("roster", "add", "roster.json", "h-3/h-3.card.json", "--sign-with", "h-2", "--out", "r")
    refused(grown, 1, "was made by h-1", "roster create")
    assert not Path("r").exists()


@pytest.mark.parametrize(
    "command", [("keygen",), ("ca", "sign"), ("ca", "init"), ("roster", "create"), ("roster", "add")]
)
def test_help_shows_an_example(dresfl: Run, command: tuple[str, ...]):
    result = dresfl(*command, "--help")
    assert result.returncode == 0
    assert f"dresfl {' '.join(command)}" in " ".join(result.stdout.split())


def test_without_the_extra_the_hint_names_it(dresfl: Run, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("dresfl.sealing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    refused(dresfl("keygen", "h-1", "--out", "keys"), 2, "msgspec is not installed", "pip install 'dresfl[network]'")
    assert dresfl("plan", "--clients", "20", "--layers", "4,4,3", "--json").returncode == 0


def test_a_storage_key_is_made_once_and_shown_by_its_mark(dresfl: Run):
    result = dresfl("storage-key", "storage.key", "--json")
    shown = json.loads(result.stdout)
    secret = Path("storage.key").read_bytes()
    assert result.returncode == 0
    assert (len(secret), stat.S_IMODE(os.stat("storage.key").st_mode)) == (32, 0o600)
    assert len(shown["mark"]) == 16
    assert secret.hex() not in result.stdout + result.stderr
    refused(dresfl("storage-key", "storage.key"), 1, "exists already")
    assert Path("storage.key").read_bytes() == secret
