"""The examples run, say what they promise, and are well typed from outside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytestmark = pytest.mark.timeout(600)  # processes that import torch, and mypy without its cache, on a busy machine

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}

RUNS = {
    "rows_from_weights.py": (["60"], ["from the weights:", "control, wrong batches:"]),
    "simulate_with_dropouts.py": (["40"], ["5 of 20 clients must answer", "the weights are the same"]),
    "own_arrays.py": (["60"], ["test_accuracy is None", "classified right", "four hospitals are too few"]),
    "compare_with_centralised.py": (["30"], ["equal weights: True", "one client with all rows"]),
    "federation_of_processes.py": (["4", "12"], ["killed 1", "all ended alike: True"]),
    "read_a_model.py": ([], ["layers.0.weight (64, 10)", "the same outputs in torch: True"]),
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_an_example_says_what_it_promises(name: str, tmp_path: Path) -> None:
    arguments, promised = RUNS[name]
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    options = {"capture_output": True, "text": True, "timeout": 540, "check": False}
    done = subprocess.run(command, **options, env=ENVIRONMENT, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in promised:
        assert words in done.stdout, done.stdout


def test_examples_are_well_typed_from_outside(tmp_path: Path) -> None:
    """As a user's own mypy sees them, with the types that the package ships and none of this project's settings."""
    pytest.importorskip("mypy")
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(tmp_path / "mypy.ini"), "--follow-imports=silent"]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "examples"), str(EXAMPLES)]
    environment = {**ENVIRONMENT, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
