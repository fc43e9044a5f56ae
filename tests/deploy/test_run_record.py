"""A coordinator's folder: one process, private, of one agreement and of one set of settings that decide the weights."""

import dataclasses
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from consortium import Consortium
from dresfl.deploy.run_record import check_run, note_run, run_folder_of, weight_settings
from dresfl.deploy.settings import CoordinatorConfig, Listening
from dresfl.errors import CheckpointError, DresError, StoreError
from dresfl.optimizers import Optimizer
from dresfl.storage import spool
from dresfl.storage.at_rest import StorageKey

from .small_federation import SmallFederation

KEY, OTHER = StorageKey(bytes(range(32))), StorageKey(bytes(32))


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return Consortium(tmp_path_factory.mktemp("consortium"), clients=5, rounds=4)


@pytest.fixture
def config(consortium: Consortium, tmp_path: Path) -> CoordinatorConfig:
    return SmallFederation(consortium, tmp_path).config


def silent(event: str, **fields: object) -> None:
    """A log that nobody reads."""


def enter(config: CoordinatorConfig, consortium: Consortium, key: StorageKey | None = None) -> list[str]:
    """Open the run's folder, begin a run in it, and leave it; the events that were logged."""
    events: list[str] = []
    with run_folder_of(config, consortium.agreement, key, lambda event, **fields: events.append(event)) as folder:
        note_run(folder, consortium.agreement, weight_settings(config), key)
        return events


# -- what decides the weights ----------------------------------------------------------------------------------


def test_every_value_of_the_optimiser_is_compared(config: CoordinatorConfig, consortium: Consortium) -> None:
    """A changed learning rate used to be taken silently."""
    enter(config, consortium)
    others = {"method": "adam", "schedule": "step", "decay_every": 7}
    for field in dataclasses.fields(Optimizer):
        old = getattr(config.optimizer, field.name)
        new = others.get(field.name) or old / 2 + 0.1
        changed = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, **{field.name: new}))
        with pytest.raises(CheckpointError, match=rf"optimizer\.{field.name} was .* and is now") as caught:
            enter(changed, consortium)
        assert "put the old values back" in caught.value.hint
    enter(config, consortium)


def test_what_a_shortage_leads_to_is_compared(config: CoordinatorConfig, consortium: Consortium) -> None:
    enter(config, consortium)
    changed = dataclasses.replace(config, network=dataclasses.replace(config.network, on_shortage="skip"))
    with pytest.raises(CheckpointError, match=r'network\.on_shortage was "retry" and is now "skip"'):
        enter(changed, consortium)


def test_all_other_keys_may_change(config: CoordinatorConfig, consortium: Consortium) -> None:
    enter(config, consortium)
    network = Listening("127.0.0.1:1", "127.0.0.1:2", 1.0, 2.0, config.network.on_shortage, 3, 4.0, 5.0)
    changed = dataclasses.replace(
        config, name="x", evaluate_every=3, checkpoint_every=4, threads=2, network=network, agreement="elsewhere"
    )
    assert enter(changed, consortium) == []
    # a new key has to be put on one side or the other, here and in `weight_settings`
    free = {"name", "agreement", "folder", "keys", "evaluate_every", "checkpoint_every"}
    free |= {"threads", "storage_key", "test", "rows_can_be_computed"}
    assert {field.name for field in dataclasses.fields(CoordinatorConfig)} == free | {"network", "optimizer"}
    assert {f"optimizer.{field.name}" for field in dataclasses.fields(Optimizer)} < weight_settings(config).keys()


def test_a_whole_run_refuses_another_learning_rate(consortium: Consortium, tmp_path: Path) -> None:
    federation = SmallFederation(consortium, tmp_path)
    federation.start(lambda host: host.machine.training is not None and host.machine.training.round_number >= 2)
    federation.changes = {"optimizer": dataclasses.replace(federation.config.optimizer, learning_rate=0.01)}
    for _ in range(2):
        error = federation.start().errors["coordinator"]
        assert isinstance(error, CheckpointError)
        assert "optimizer.learning_rate was 0.05 and is now 0.01" in str(error)
        (tmp_path / "coordinator" / "run.json").unlink(missing_ok=True)  # then the checkpoint says so
    federation.changes = {}
    assert set(federation.start().weights.values()) == {consortium.expected()}


def test_another_agreement_or_storage_key_is_refused(config: CoordinatorConfig, consortium: Consortium) -> None:
    enter(config, consortium, KEY)
    folder, settings = Path(config.folder), weight_settings(config)
    other = dataclasses.replace(consortium.agreement, rounds=9)
    with pytest.raises(CheckpointError, match="rounds: 9 here, 4 there"):
        check_run(folder, other, settings, KEY, silent)
    with pytest.raises(StoreError, match="and none is given"):
        enter(config, consortium)
    with pytest.raises(StoreError, match=f"but {OTHER.mark.hex()} is given"):
        enter(config, consortium, OTHER)


def test_a_damaged_record_says_what_to_do(config: CoordinatorConfig, consortium: Consortium) -> None:
    enter(config, consortium)
    path = Path(config.folder) / "run.json"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(StoreError, match="is damaged") as caught:
        enter(config, consortium)
    assert "written again" in caught.value.hint
    path.unlink()
    enter(config, consortium)
    assert path.exists()


# -- one process -----------------------------------------------------------------------------------------------


def test_a_second_coordinator_is_refused_with_the_firsts_pid(config: CoordinatorConfig, consortium: Consortium) -> None:
    with (
        run_folder_of(config, consortium.agreement, None, silent) as folder,
        pytest.raises(StoreError, match=rf"in use by another process \(pid {os.getpid()}\)") as caught,
    ):
        enter(config, consortium)
    assert "stop that coordinator first" in caught.value.hint
    enter(config, consortium)  # it is free again
    code = "import sys; from dresfl.files import *; take_lock(Path(sys.argv[1]), 'x'); os._exit(1)"
    holder = subprocess.run([sys.executable, "-c", code, str(folder / "lock")], check=False)
    assert holder.returncode == 1
    enter(config, consortium)  # the lock has gone with the process that died


def test_the_whole_coordinator_holds_the_lock(consortium: Consortium, tmp_path: Path) -> None:
    federation, second = SmallFederation(consortium, tmp_path), list[DresError]()

    def stop(host: object) -> bool:
        if not second:
            second.append(SmallFederation(consortium, tmp_path).start().errors["coordinator"])
        return False

    assert set(federation.start(stop).weights.values()) == {consortium.expected()}
    assert f"pid {os.getpid()}" in str(second[0])


# -- private ---------------------------------------------------------------------------------------------------


def with_modes(folder: Path) -> list[tuple[Path, int]]:
    return [(path, stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")]


def modes(folder: Path) -> dict[str, int]:
    return {path.name: mode for path, mode in with_modes(folder)}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_nobody_else_may_look_whatever_the_umask(consortium: Consortium, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        outcome = SmallFederation(consortium, tmp_path).start()
    finally:
        os.umask(before)
    assert not outcome.errors
    folder = tmp_path / "coordinator"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    found = modes(folder)
    assert {name for name, mode in found.items() if mode not in (0o600, 0o700)} == set()
    assert {"metrics.jsonl", "model.safetensors", "summary.json", "checkpoint.safetensors", "run.json"} <= set(found)
    assert {"model-card.json", "model-card.md"} <= set(found)
    assert {name for name, mode in found.items() if mode == 0o700 and (folder / name).is_file()} == set()


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_slices_on_their_way_are_private_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    monkeypatch.setattr(spool, "MEMORY_BYTES", 0)
    before = os.umask(umask)
    try:
        spool.Spool(tmp_path / "spool", b"sharing").put(1, 2, 3, b"sealed")
    finally:
        os.umask(before)
    found = {path.relative_to(tmp_path).as_posix(): mode for path, mode in with_modes(tmp_path / "spool")}
    assert found == {
        f"spool/{b'sharing'.hex()}": 0o700,
        f"spool/{b'sharing'.hex()}/1": 0o700,
        f"spool/{b'sharing'.hex()}/1/2.3": 0o600,
    }


def test_an_open_folder_of_a_run_is_closed_and_that_is_said(config: CoordinatorConfig, consortium: Consortium) -> None:
    enter(config, consortium)
    folder = Path(config.folder)
    folder.chmod(0o755)
    assert "folder closed" in enter(config, consortium)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "somebody else's").touch()
    folder.chmod(0o755)
    with pytest.raises(StoreError, match="0755 lets other users at it") as caught:
        enter(config, consortium)
    assert caught.value.hint == f"chmod 700 {folder}"


# -- what the log says -----------------------------------------------------------------------------------------


def test_the_log_says_once_what_it_means_that_nothing_is_sealed(consortium: Consortium, tmp_path: Path) -> None:
    (said,) = SmallFederation(consortium, tmp_path / "open").start().of("not sealed at rest")
    assert "whoever reads this disk" in str(said["meaning"])
    key = StorageKey.create(tmp_path / "key")
    sealed = SmallFederation(consortium, tmp_path / "sealed", tmp_path / "key").start()
    assert sealed.of("not sealed at rest") == []
    assert [fields["key"] for fields in sealed.of("sealed at rest")] == [key.mark.hex()]
    assert set(sealed.weights.values()) == {consortium.expected()}
    for name in ("terms.json", "checkpoint.safetensors", "checkpoint-before.safetensors"):
        assert (tmp_path / "sealed" / "coordinator" / name).read_bytes().startswith(b"dresfl sealed 1\n")
