"""The audit of what the hidden mode keeps: a client's budget, progress and seeds, a coordinator's published hops."""

from pathlib import Path

import pytest

from dresfl.deploy.audit import AS_FAR, SOUND, audit
from dresfl.deploy.audit.report import Audit
from dresfl.deploy.audit.run import _hops
from dresfl.field import SecretSeed
from dresfl.protocol.hidden.client import Progress
from dresfl.protocol.hidden.ledger import Position
from dresfl.storage import ShareStore, data_digest
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.broadcasts import Broadcast, BroadcastStore
from dresfl.storage.hidden_state import Allowance
from five_clients import rows_of, session_of

INDEX = 2
SEEDS = {number: SecretSeed(bytes([number + 1]) * 32) for number in range(3)}
SESSION = session_of(b"run")


def store_of(folder: Path, key: StorageKey | None = None, stopped: str = "") -> Path:
    """A client's folder in the middle of its one run."""
    digest = data_digest(*rows_of(INDEX))
    with ShareStore.open(folder, digest, key=key, allowance=Allowance(runs=2)) as store:
        store.table(SESSION, INDEX)
        store.mask_secret(SESSION)
        run = store.begin_hidden(SESSION, SEEDS)
        run.keep(Progress(Position(6, 1, bytes(32)), b"check", stopped))
        run.keep_seeds(4, SEEDS)
    return folder


def only(found: Audit) -> dict[str, object]:
    (sharing,) = found.sharings
    (run,) = sharing["runs"]
    return {**sharing, **run}


def test_a_run_under_way(tmp_path: Path) -> None:
    found = audit(store_of(tmp_path / "s"))
    assert found.verdict == SOUND
    run = only(found)
    assert (run["mode"], run["answered"], run["last"], run["hop"], run["ended"]) == ("hidden", 7, 6, 1, False)
    assert run["budget"] == {"models": 0, "trials or stopped": 1}
    assert run["seeds_of_round"] == 4
    names = {Path(file.file).name for file in found.files}
    assert {"runs.json", "mask.secret", f"{SESSION.session_id.hex()}.hop"} <= names
    assert found.state == "one sharing; 7 rounds answered in the longest run"


def test_no_secret_is_shown(tmp_path: Path) -> None:
    shown = str(audit(store_of(tmp_path / "s")).to_dict())
    assert not any(seed.reveal().hex() in shown or str(seed.reveal()) in shown for seed in SEEDS.values())
    assert b"check".hex() not in shown


def test_sealed_files_are_named_and_opened_with_their_key(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", StorageKey.create(tmp_path / "key"))
    found = audit(store)
    assert found.verdict == AS_FAR
    assert only(found)["last"] is None
    assert any("how far run" in line for line in found.cannot_see)


@pytest.mark.parametrize("suffix", [".hop", ".seeds"])
def test_a_missing_or_damaged_state_is_to_be_looked_at(tmp_path: Path, suffix: str) -> None:
    store = store_of(tmp_path / "s")
    (path,) = store.rglob(f"*{suffix}")
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))
    assert any(path.name in line and "damaged" in line for line in audit(store).look_at)
    path.unlink()
    assert any(path.name in line and "out of that run" in line for line in audit(store).look_at)


@pytest.mark.parametrize("name", ["runs.json", "mask.secret"])
def test_a_damaged_count_or_secret_is_to_be_looked_at(tmp_path: Path, name: str) -> None:
    store = store_of(tmp_path / "s")
    (path,) = store.rglob(name)
    path.write_bytes(path.read_bytes()[:-3] + b"000")
    assert any(name in line for line in audit(store).look_at)


def test_a_client_that_left_its_run_is_to_be_looked_at(tmp_path: Path) -> None:
    found = audit(store_of(tmp_path / "s", stopped="a hop was not published truly"))
    assert only(found)["stopped"] == "a hop was not published truly"
    assert any("left the run" in line for line in found.look_at)


# -- the coordinator's hops ----------------------------------------------------------------------------------------


def hops_of(folder: Path, key: StorageKey | None = None) -> Path:
    store = BroadcastStore(folder, b"r" * 32, key)
    for round_number in range(2):
        for hop in range(3):
            store.put(Broadcast(round_number, hop, bytes(50)))
    store.close()
    return folder / "hops"


def test_published_hops_are_counted(tmp_path: Path) -> None:
    folder = hops_of(tmp_path)
    found = Audit(tmp_path, "coordinator", private=True)
    _hops(found, folder, None)
    assert found.rounds["last_hop"] == [1, 2]
    assert [file.state for file in found.files] == [SOUND] * 2
    assert not found.look_at


def test_damaged_and_sealed_hops_are_named(tmp_path: Path) -> None:
    folder = hops_of(tmp_path)
    path = folder / "00000000.hops"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    found = Audit(tmp_path, "coordinator", private=True)
    _hops(found, folder, None)
    assert any("00000000.hops" in line for line in found.look_at)
    sealed = hops_of(tmp_path / "sealed", StorageKey(bytes(32)))
    found = Audit(tmp_path / "sealed", "coordinator", private=True)
    _hops(found, sealed, None)
    assert all("sealed" in file.state for file in found.files)
    opened = Audit(tmp_path / "sealed", "coordinator", private=True)
    _hops(opened, sealed, StorageKey(bytes(32)))
    assert opened.rounds["last_hop"] == [1, 2]
