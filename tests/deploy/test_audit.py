"""The audit of folders: of a real small federation, of stopped, damaged and sealed ones, and of a simulation."""

import dataclasses
import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from commands import Run
from consortium import Consortium
from dresfl.deploy.audit import AS_FAR, SOUND, Audit, audit
from dresfl.deploy.settings import AgreedFederation, AgreedModel, AgreementFile, ClientConfig, ClientData, Connecting
from dresfl.deploy.toml import to_toml
from dresfl.errors import UsageError
from dresfl.files import write_record
from dresfl.masking import zero_sum_family
from dresfl.runtimes.coordinator_host import CoordinatorHost
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.share_store import ShareStore

from .small_federation import SmallFederation

CLIENTS, ROUNDS = 6, 4


def half(host: CoordinatorHost) -> bool:
    return host.machine.training is not None and host.machine.training.round_number >= ROUNDS // 2


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return Consortium(tmp_path_factory.mktemp("consortium"), clients=CLIENTS, rounds=ROUNDS)


@pytest.fixture(scope="module")
def ended(consortium: Consortium, tmp_path_factory: pytest.TempPathFactory) -> SmallFederation:
    """A federation whose run is complete."""
    federation = SmallFederation(consortium, tmp_path_factory.mktemp("ended"))
    assert not federation.start().errors
    return federation


@pytest.fixture(scope="module")
def sealed(consortium: Consortium, tmp_path_factory: pytest.TempPathFactory) -> SmallFederation:
    """A federation with a storage key that was stopped half-way, with the files of its coordinator and a client."""
    folder = tmp_path_factory.mktemp("sealed")
    StorageKey.create(folder / "storage.key")
    federation = SmallFederation(consortium, folder, folder / "storage.key")
    assert not federation.start(half).errors
    agreed, code = consortium.agreement, consortium.agreement.parameters
    file = AgreementFile(
        agreed.rounds,
        AgreedModel(agreed.layers, agreed.input_shape, agreed.input_bits, agreed.weight_bits),
        agreed.mode,
        rows_can_be_computed=agreed.rows_can_be_computed,
        federation=AgreedFederation(code.num_shards, code.max_colluders, code.batch_size, code.max_liars),
    )
    (folder / "agreement.toml").write_text(to_toml(file))
    consortium.roster.save(folder / "roster.json")
    keys = dataclasses.replace(federation.config.keys, roster="roster.json", roster_sha256=consortium.roster.digest)
    own = dataclasses.replace(federation.config, agreement="agreement.toml", keys=keys)
    (folder / "fed.toml").write_text(to_toml(own))
    site = ClientConfig(
        "agreement.toml", "client-1", keys, Connecting("x:1"), ClientData("rows.npz"), storage_key="storage.key"
    )
    (folder / "site.toml").write_text(to_toml(site))
    return federation


def contents(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Everything that an audit must leave as it is."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file()
    }


# -- a sound federation ----------------------------------------------------------------------------------------


def test_the_coordinator_of_a_complete_run(ended: SmallFederation, consortium: Consortium) -> None:
    before = contents(ended.folder)
    found = audit(ended.folder / "coordinator")
    assert contents(ended.folder) == before
    assert (found.verdict, found.kind, found.state, found.mode, found.consent) == (
        SOUND, "coordinator", "complete", "open", True,
    )  # fmt: skip
    rows = sum(len(inputs) for inputs, _ in consortium.rows)
    expected = (CLIENTS, 1, 1, 5, 0, 5, ROUNDS, 8, rows)
    assert tuple(found.parameters.values()) == expected
    assert (found.rounds["done"], found.rounds["skipped"], found.rounds["refused"]) == (ROUNDS, 0, 0)
    assert not found.rounds["liars"]
    assert found.storage_key == ""
    assert all((file.state, file.mode) == (SOUND, "0600") for file in found.files)
    assert {file.file for file in found.files} == {
        path.name for path in (ended.folder / "coordinator").iterdir() if path.name not in ("lock", "spool")
    }
    session = consortium.agreement
    moduli = _moduli(consortium)
    family = zero_sum_family(moduli, CLIENTS, session.num_shards, session.max_colluders, 5)
    wanted = {"sets": len(family.sets), "coalitions": CLIENTS, "primes": len(moduli)}
    assert found.certificates["mask family"] == wanted
    assert "Rows of others can be computed" in found.could_see["each client"]


def _moduli(consortium: Consortium) -> tuple[int, ...]:
    from dresfl.federation import make_session

    return make_session(consortium.agreement, (1,) * CLIENTS, b"", b"").field.moduli


def test_a_client_of_a_complete_run(ended: SmallFederation) -> None:
    before = contents(ended.folder)
    found = audit(ended.folder / "client-2")
    assert contents(ended.folder) == before
    assert (found.verdict, found.kind, found.mode) == (SOUND, "client", None)
    (sharing,) = found.sharings
    assert (sharing["client"], sharing["clients"], sharing["shares"]) == (2, CLIENTS, "whole")
    assert (sharing["rounds_answered"], sharing["runs"][0]["last"]) == (ROUNDS, ROUNDS - 1)
    assert any("give --config site.toml" in what for what in found.cannot_see)


def test_no_secret_is_shown(ended: SmallFederation, sealed: SmallFederation) -> None:
    for federation in (ended, sealed):
        for client in range(CLIENTS):
            folder = federation.folder / f"client-{client}"
            said = json.dumps(audit(folder).to_dict())
            secret = (folder / "secret").read_bytes()
            assert secret[16:48].hex() not in said
            assert secret[16:48].hex()[:16] not in said.replace(found_mark(folder), "")


def found_mark(folder: Path) -> str:
    return str(audit(folder).storage_key or "-")


def test_the_command(ended: SmallFederation, dresfl: Run, tmp_path: Path) -> None:
    result = dresfl("audit", str(ended.folder / "coordinator"))
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, SOUND)
    assert "who could see what" in result.stdout
    shown = json.loads(dresfl("audit", str(ended.folder / "client-0"), "--json").stdout)
    assert (shown["verdict"], shown["versions"]["protocol"] >= 3) == (SOUND, True)
    shutil.copytree(ended.folder / "coordinator", tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    result = dresfl("audit", "run", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].startswith("look at: model.safetensors: is missing")


@pytest.mark.parametrize("messages", [4, 40, 75])
def test_a_federation_stopped_early_is_sound(consortium: Consortium, tmp_path: Path, messages: int) -> None:
    """While clients introduce themselves, while shares travel, and while dealers are checked."""
    seen = iter(range(messages))
    SmallFederation(consortium, tmp_path).start(lambda host: next(seen, None) is None)
    folders = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(folders) == CLIENTS + 1
    assert {audit(folder).verdict for folder in folders} == {SOUND}


# -- sealed ----------------------------------------------------------------------------------------------------


def test_a_sealed_and_stopped_run_without_its_key_says_what_it_cannot_see(sealed: SmallFederation) -> None:
    found = audit(sealed.folder / "coordinator")
    assert found.verdict == AS_FAR
    assert found.storage_key == StorageKey.find(str(sealed.storage_key)).mark.hex()  # type: ignore[union-attr]
    assert sum("storage key" in what for what in found.cannot_see) == 3  # the terms and two checkpoints
    found = audit(sealed.folder / "client-1")
    assert found.verdict == AS_FAR
    assert found.sharings[0]["shares"] == "whole"  # digests are those of sealed rows


def test_with_the_key_everything_is_seen(sealed: SmallFederation) -> None:
    found = audit(sealed.folder / "coordinator", sealed.folder / "fed.toml")
    assert (found.verdict, found.rounds["done"]) == (SOUND, ROUNDS // 2)
    assert found.state == f"stopped or under way, after {ROUNDS // 2} of {ROUNDS} rounds"
    found = audit(sealed.folder / "client-1", sealed.folder / "site.toml")
    assert (found.verdict, found.mode, found.parameters["num_clients"]) == (SOUND, "open", CLIENTS)
    assert found.sharings[0]["of this agreement"] is True


def test_another_key_or_agreement_is_named(sealed: SmallFederation, ended: SmallFederation, tmp_path: Path) -> None:
    shutil.copytree(sealed.folder, tmp_path / "s")
    (tmp_path / "s" / "storage.key").write_bytes(bytes(32))
    text = (tmp_path / "s" / "fed.toml").read_text()
    (tmp_path / "s" / "fed.toml").write_text(text.replace(str(sealed.folder), str(tmp_path / "s")))
    found = audit(tmp_path / "s" / "coordinator", tmp_path / "s" / "fed.toml")
    assert "terms.json: was sealed with the storage key" in found.verdict
    agreement = tmp_path / "s" / "agreement.toml"
    agreement.write_text(agreement.read_text().replace(f"rounds = {ROUNDS}", "rounds = 99"))
    found = audit(ended.folder / "coordinator", tmp_path / "s" / "fed.toml")
    assert "of another agreement than --config names: rounds: 99 here, 4 there" in found.verdict


# -- damage ----------------------------------------------------------------------------------------------------


def test_every_damage_by_chance_is_named_and_none_is_a_traceback(
    ended: SmallFederation, sealed: SmallFederation, tmp_path: Path
) -> None:
    """Flipped bits and cut files. A summary and the list of rounds have no digest of their own.

    The terms' digest is of their values, not of the spaces between them.
    """
    chance = random.Random(3)
    places = [(ended, "coordinator", None), (ended, "client-1", None)]
    places += [(sealed, "coordinator", "fed.toml"), (sealed, "client-1", "site.toml")]
    for number in range(80):
        federation, name, config = places[number % len(places)]
        place = tmp_path / str(number)
        shutil.copytree(federation.folder / name, place)
        files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.stat().st_size]
        path = chance.choice([path for path in files if path.name != "lock"])
        whole = path.read_bytes()
        data = bytearray(whole)
        if chance.random() < 0.7:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            data = data[: chance.choice((0, len(data) - 1, chance.randrange(len(data))))]
        path.write_bytes(data)
        found = audit(place, None if config is None else federation.folder / config)
        if path.name not in ("summary.json", "rounds.jsonl") and (
            path.name != "terms.json" or data.split() != whole.split()
        ):
            assert f"{path.relative_to(place)}: " in found.verdict, (number, path, found.verdict)
        shutil.rmtree(place)


def test_a_missing_file_is_named(ended: SmallFederation, tmp_path: Path) -> None:
    for place, name in (("coordinator", "terms.json"), ("coordinator", "model.safetensors"), ("client-0", "secret")):
        shutil.copytree(ended.folder / place, tmp_path / name)
        (tmp_path / name / name).unlink()
        assert f"{name}: is missing" in audit(tmp_path / name).verdict


def test_open_modes_are_named(ended: SmallFederation, tmp_path: Path) -> None:
    shutil.copytree(ended.folder / "client-0", tmp_path / "store")
    (tmp_path / "store").chmod(0o750)
    (tmp_path / "store" / "secret").chmod(0o644)
    verdict = audit(tmp_path / "store").verdict
    assert "store: its mode 0750 lets other users at it" in verdict
    assert "store/secret: its mode 0644 lets other users at it" in verdict


# -- what a person should look at ------------------------------------------------------------------------------


def with_lines(ended: SmallFederation, place: Path, *lines: dict[str, Any]) -> Audit:
    """The audit of a run whose metrics go on with these lines."""
    shutil.copytree(ended.folder / "coordinator", place)
    (place / "summary.json").unlink()
    with open(place / "metrics.jsonl", "a") as metrics:
        metrics.writelines(json.dumps(line) + "\n" for line in lines)
    return audit(place)


def test_liars_are_named(ended: SmallFederation, tmp_path: Path) -> None:
    found = with_lines(
        ended, tmp_path / "run", {"round": 1, "liars": [2]}, {"round": 3, "liars": [2, 5]}, {"round": 4, "liars": {}}
    )
    assert found.rounds["liars"] == {"2": 2, "5": 1}
    assert "false answers" in found.verdict


def test_the_dealers_verdict_of_a_client(ended: SmallFederation, tmp_path: Path) -> None:
    shutil.copytree(ended.folder / "client-0", tmp_path / "store")
    (sharing,) = (path for path in (tmp_path / "store").iterdir() if path.is_dir())
    write_record(sharing / "verdict.json", {"excluded": [], "deviating": []})
    assert audit(tmp_path / "store").verdict == SOUND
    write_record(sharing / "verdict.json", {"excluded": [3], "deviating": []})
    found = audit(tmp_path / "store")
    assert "found excluded clients [3]" in found.verdict
    assert found.sharings[0]["dealers"] == {"excluded": [3], "deviating": []}


def test_the_dealers_verdict_of_a_coordinator(ended: SmallFederation, tmp_path: Path) -> None:
    shutil.copytree(ended.folder / "coordinator", tmp_path / "run")
    path = tmp_path / "run" / "terms.json"
    fields = json.loads(path.read_bytes())
    del fields["sha256"]
    fields["verdict"] = {"excluded": [], "deviating": [1]}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    path.write_text(json.dumps({**fields, "sha256": hashlib.sha256(canonical).hexdigest()}))
    assert "the check of the dealers found deviating clients [1]" in audit(tmp_path / "run").verdict


def test_shares_that_have_not_come_or_were_forgotten_are_no_fault(
    ended: SmallFederation, consortium: Consortium, tmp_path: Path
) -> None:
    shutil.copytree(ended.folder / "client-0", tmp_path / "store")
    (sharing,) = (path for path in (tmp_path / "store").iterdir() if path.is_dir())
    index = bytearray((sharing / "shares.index").read_bytes())
    index[64 * 3 : 64 * 4] = bytes(64)  # as if the slice of dealer 3 had not come
    (sharing / "shares.index").write_bytes(index)
    found = audit(tmp_path / "store")
    assert (found.verdict, found.sharings[0]["shares"]) == (SOUND, f"{CLIENTS - 1} of {CLIENTS} slices are here")
    with ShareStore.open(tmp_path / "store", data=b"") as store:
        store.forget(sharing.name)
    found = audit(tmp_path / "store")
    assert found.verdict == SOUND
    assert found.sharings[0]["rounds_answered"] == ROUNDS


# -- other folders ---------------------------------------------------------------------------------------------

TOY = """
name = "toy"
rounds = 6
evaluate_every = 3
checkpoint_every = 3
threads = 1
[federation]
num_clients = 6
[model]
layers = [{ kind = "dense", units = 4 }, { kind = "square" }, { kind = "dense", units = 10 }]
[optimizer]
learning_rate = 0.001
"""


def test_a_simulation_complete_and_stopped(dresfl: Run, tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(TOY)
    assert dresfl("train", "toy.toml", "--out", "run").returncode == 0
    found = audit(tmp_path / "run")
    assert (found.verdict, found.kind, found.state) == (SOUND, "simulation", "complete")
    assert (found.parameters["num_clients"], found.parameters["answers_needed"]) == (6, 5)
    assert found.could_see == {"this process": "every row, every share and every secret. A simulation protects nobody"}
    for name in ("summary.json", "model.safetensors"):
        (tmp_path / "run" / name).unlink()
    found = audit(tmp_path / "run")
    assert (found.verdict, found.state) == (SOUND, "stopped or under way, after 6 of 6 rounds")


def test_folders_that_are_none(tmp_path: Path, dresfl: Run) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError):
            audit(folder)
    assert dresfl("audit", str(tmp_path)).returncode == 2
