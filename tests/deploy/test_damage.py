"""Flipped bits and cut files in every folder of a federation: a named error or a repair, and never other weights."""

import shutil
from pathlib import Path

import pytest

from .damage import Case, Stopped


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return Stopped(tmp_path_factory.mktemp("stopped"))


def test_forty_damages_by_chance(stopped: Stopped, tmp_path: Path) -> None:
    for number, case in enumerate(stopped.cases(40, seed=11)):
        try:
            stopped.examine(case, tmp_path / str(number))
        except Exception as error:
            raise AssertionError(f"after {case}") from error
        shutil.rmtree(tmp_path / str(number))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_damages_by_chance(stopped: Stopped, tmp_path: Path) -> None:
    for number, case in enumerate(stopped.cases(1000, seed=0)):
        try:
            stopped.examine(case, tmp_path / str(number))
        except Exception as error:
            raise AssertionError(f"after {case}") from error
        shutil.rmtree(tmp_path / str(number))


@pytest.mark.parametrize("stop", ["training", "sealed training"])
def test_a_bit_in_the_momentum_or_in_a_weight_no_longer_passes(stopped: Stopped, tmp_path: Path, stop: str) -> None:
    """The first used to end in other weights everywhere, the second in an endless wait."""
    path = stopped.federations[stop].folder / "coordinator" / "checkpoint.safetensors"
    size = path.stat().st_size
    for number, byte in enumerate((size - 300, size - 40)):
        case = Case(stop, "coordinator/checkpoint.safetensors", bit=8 * byte)
        assert stopped.examine(case, tmp_path / str(number)) == "earlier checkpoint"


def test_a_checkpoint_that_is_gone_offers_the_one_before(stopped: Stopped, tmp_path: Path) -> None:
    federation = stopped.federations["training"].copy(tmp_path / "run")
    (federation.folder / "coordinator" / "checkpoint.safetensors").unlink()
    outcome = federation.start()
    assert "is missing; the one before it is sound" in str(outcome.errors["coordinator"])
    assert set(federation.start(use_earlier=True).weights.values()) == {stopped.expected}


def test_two_damaged_checkpoints_are_said_to_be_so(stopped: Stopped, tmp_path: Path) -> None:
    federation = stopped.federations["training"].copy(tmp_path / "run")
    for name in ("checkpoint", "checkpoint-before"):
        path = federation.folder / "coordinator" / f"{name}.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    for use_earlier in (False, True):
        error = federation.start(use_earlier=use_earlier).errors["coordinator"]
        assert "no earlier one to go on from" in str(error)
        assert "backup" in error.hint


def test_without_any_checkpoint_the_run_is_played_again_to_the_same_weights(stopped: Stopped, tmp_path: Path) -> None:
    federation = stopped.federations["training"].copy(tmp_path / "run")
    for name in ("checkpoint", "checkpoint-before"):
        (federation.folder / "coordinator" / f"{name}.safetensors").unlink()
    assert set(federation.start().weights.values()) == {stopped.expected}


def test_a_damaged_agreement_file_is_written_again(stopped: Stopped, tmp_path: Path) -> None:
    federation = stopped.federations["training"].copy(tmp_path / "run")
    path = federation.folder / "coordinator" / "agreement.json"
    path.write_bytes(b"x")
    outcome = federation.start()
    assert set(outcome.weights.values()) == {stopped.expected}
    assert outcome.of("file mended")
    assert path.read_bytes() == stopped.consortium.agreement.encode()


def test_the_files_of_another_run_are_told_apart(stopped: Stopped, tmp_path: Path) -> None:
    """A checkpoint, or terms, of another run of the same agreement used to be taken up."""
    other = stopped.federations["ended"].folder / "coordinator"
    federation = stopped.federations["training"].copy(tmp_path / "run")
    shutil.copy(other / "checkpoint.safetensors", federation.folder / "coordinator")
    assert "is of another run" in str(federation.start().errors["coordinator"])
    assert "is of another run" in str(federation.start(use_earlier=True).errors["coordinator"])
