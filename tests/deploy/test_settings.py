"""The files of real participants, and their rows."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from dresfl.deploy import settings as config
from dresfl.deploy.rows import own_rows, read_npz
from dresfl.deploy.settings import ClientConfig, ClientData, CoordinatorConfig, Keys
from dresfl.deploy.toml import to_toml
from dresfl.errors import DataError, IdentityError, UsageError
from dresfl.experiments.prepare import prepare
from dresfl.experiments.trials.grpc_trial import Trial
from dresfl.federation import Agreement
from dresfl.model import Dense, mlp
from dresfl.sealing import Roster

from .trial_files import write_nine_clients

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "network-configuration.md"
KINDS = (
    config.AgreementFile,
    config.AgreedModel,
    config.AgreedFederation,
    config.Keys,
    config.Listening,
    config.Test,
    config.CoordinatorConfig,
    config.Connecting,
    config.ClientData,
    config.ClientConfig,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_key_is_documented(kind: type) -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = [field.name for field in dataclasses.fields(kind)]
    assert [name for name in names if f"`{name}`" not in text and f"[{name}]" not in text] == []


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete set of files for nine clients."""
    return write_nine_clients(tmp_path_factory.mktemp("trial") / "trial")


def test_the_files_of_a_trial(trial: Path) -> None:
    """Paths are those of the file, keys are checked, and both sides come to the same agreement."""
    coordinator = config.load_settings(CoordinatorConfig, trial / "coordinator" / "fed.toml")
    client = config.load_settings(ClientConfig, trial / "site-4" / "site.toml")
    assert Path(coordinator.folder) == trial / "coordinator" / "run"
    assert Path(client.keys.roster) == trial / "roster.json"
    ours, theirs = config.load_credentials(coordinator.keys), config.load_credentials(client.keys)
    assert theirs.roster.index_of(theirs.identity.member) == 4
    agreement = config.load_agreement(coordinator, ours.roster)
    assert config.load_agreement(client, theirs.roster).digest == agreement.digest
    assert "private" not in repr(ours).lower()


@pytest.mark.parametrize(
    ("kind", "file"), [(CoordinatorConfig, "coordinator/fed.toml"), (ClientConfig, "site-4/site.toml")]
)
def test_the_path_of_the_storage_key_is_that_of_the_file(trial: Path, tmp_path: Path, kind: type, file: str) -> None:
    text = (trial / file).read_text()
    assert 'storage_key = ""' in text
    (tmp_path / "own.toml").write_text(text.replace('storage_key = ""', 'storage_key = "disk.key"'))
    assert config.load_settings(kind, tmp_path / "own.toml").storage_key == str(tmp_path / "disk.key")


def test_several_local_steps_are_refused_over_a_network(trial: Path, tmp_path: Path) -> None:
    text = (trial / "agreement.toml").read_text()
    (tmp_path / "agreement.toml").write_text(text.replace("[federation]", "[federation]\nlocal_steps = 2"))
    client = config.load_settings(ClientConfig, trial / "site-4" / "site.toml")
    client = dataclasses.replace(client, agreement=str(tmp_path / "agreement.toml"))
    with pytest.raises(UsageError, match="over a network a round has one step") as caught:
        config.load_agreement(client, Roster.load(trial / "roster.json"))
    assert "dresfl train" in caught.value.hint


def test_a_client_has_the_rows_that_one_process_gives_it(trial: Path) -> None:
    client = config.load_settings(ClientConfig, trial / "site-4" / "site.toml")
    agreement = config.load_agreement(client, Roster.load(trial / "roster.json"))
    everybody = prepare(Trial("digits", clients=9, mode="open").run_config(), None).client_data()
    ours = own_rows(client.data, agreement, 4)
    assert all(torch.equal(one, other) for one, other in zip(ours, everybody[4], strict=True))


def test_a_swapped_roster(trial: Path) -> None:
    client = config.load_settings(ClientConfig, trial / "site-4" / "site.toml")
    with pytest.raises(IdentityError, match="pinned"):
        config.load_credentials(dataclasses.replace(client.keys, roster_sha256="0" * 64))


def test_unknown_and_missing_keys(tmp_path: Path, trial: Path) -> None:
    text = (trial / "site-4" / "site.toml").read_text()
    (tmp_path / "site.toml").write_text("treads = 2\n" + text)
    with pytest.raises(UsageError, match="treads") as raised:
        config.load_settings(ClientConfig, tmp_path / "site.toml")
    assert "threads" in raised.value.hint
    with pytest.raises(UsageError, match="either a file or a dataset"):
        ClientData()
    with pytest.raises(UsageError, match="list of integers"):
        config.parse(config.AgreedModel, {"layers": [], "input_shape": 5})


def test_toml_out_and_in(trial: Path) -> None:
    coordinator = config.load_settings(CoordinatorConfig, trial / "coordinator" / "fed.toml")
    (trial / "again.toml").write_text(to_toml(coordinator))
    assert config.load_settings(CoordinatorConfig, trial / "again.toml") == coordinator


# -- rows of one's own -----------------------------------------------------------------------------------------

AGREEMENT = Agreement((Dense(3),), (4,), num_clients=3, rounds=1)


def test_rows_of_an_archive(tmp_path: Path) -> None:
    inputs, labels = np.linspace(0, 1, 20).reshape(5, 4), np.array([0, 1, 2, 1, 0])
    np.savez(tmp_path / "rows.npz", inputs=inputs, labels=labels)
    integers, targets = own_rows(ClientData(file=str(tmp_path / "rows.npz")), AGREEMENT, 0)
    assert integers.tolist() == np.round(16 * inputs.astype(np.float32)).astype(int).tolist()
    assert targets.argmax(1).tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("inputs", "labels", "reason"),
    [
        (np.full((2, 4), 1.5), [0, 1], "beyond the agreed input_bound"),
        (np.zeros((2, 5)), [0, 1], "rows of 5 values"),
        (np.zeros((2, 4)), [0, 3], "label of row 1"),
        (np.zeros((2, 4)), [0.5, 1.0], "labels integers"),
        (np.full((2, 4), np.nan), [0, 1], "NaN"),
    ],
)
def test_rows_that_do_not_fit(tmp_path: Path, inputs: np.ndarray, labels: list[float], reason: str) -> None:
    np.savez(tmp_path / "rows.npz", inputs=inputs, labels=np.array(labels))
    with pytest.raises(DataError, match=reason):
        own_rows(ClientData(file=str(tmp_path / "rows.npz")), AGREEMENT, 0)


def test_archives_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_bytes(b"not an archive")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "objects.npz", inputs=np.array([{}]), labels=np.array([0]))
    for name in ("text.npz", "other.npz", "objects.npz", "absent.npz"):
        with pytest.raises(DataError, match="cannot read"):
            read_npz(tmp_path / name, mlp((2, 3), input_bits=4, weight_bits=10))


def test_skipped_rounds_need_a_checkpoint_each() -> None:
    """Played again after a crash, a decoded round might be skipped: clients have seen what followed from it."""
    keys = Keys("keys", "c.pem", "ca.pem", "roster.json", "00")
    network = config.Listening(on_shortage="skip")
    assert CoordinatorConfig("run", "a.toml", "run", keys, network=network).checkpoint_every == 1
    with pytest.raises(UsageError, match="checkpoint_every = 1"):
        CoordinatorConfig("run", "a.toml", "run", keys, checkpoint_every=2, network=network)


def agreed(**changes: object) -> Agreement:
    return Agreement((Dense(1),), (2,), num_clients=3, rounds=1, **changes)  # type: ignore[arg-type]


def test_rows_of_a_regression_and_of_a_sign(tmp_path: Path) -> None:
    inputs = np.array([[0.5, 0.25], [1.0, 0.0]])
    np.savez(tmp_path / "real.npz", inputs=inputs, targets=np.array([0.5, -2.0]))
    np.savez(tmp_path / "sign.npz", inputs=inputs, labels=np.array([1, 0]))
    real, sign = (config.ClientData(file=str(tmp_path / name)) for name in ("real.npz", "sign.npz"))
    wide = agreed(target_bits=3, target_bound=2.0)
    assert [part.tolist() for part in own_rows(real, wide, 0)] == [[[8, 4], [16, 0]], [[4], [-16]]]
    with pytest.raises(DataError, match=r"a target reaches 2, beyond the agreed target_bound of 1"):
        own_rows(real, agreed(target_bits=3), 0)
    with pytest.raises(DataError, match="no targets"):
        own_rows(sign, wide, 0)
    assert own_rows(sign, agreed(), 0)[1].tolist() == [[1], [-1]]
    assert own_rows(sign, agreed(class_weights=(1, 3)), 0)[1].tolist() == [[1], [1], [1], [-1]]
    with pytest.raises(DataError, match="no labels"):
        own_rows(real, agreed(), 0)


def test_a_helper_brings_no_rows() -> None:
    assert [tuple(part.shape) for part in own_rows(config.ClientData(helper=True), agreed(), 1)] == [(0, 2), (0, 1)]
    with pytest.raises(UsageError, match="a helper has no rows"):
        config.ClientData(helper=True, file="rows.npz")
    with pytest.raises(UsageError, match="either a file or a dataset"):
        config.ClientData()
