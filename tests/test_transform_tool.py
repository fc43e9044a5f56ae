"""tools/transform_crossover.py: each way that it times gives the right residues. It stops by itself if one does not."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from dresfl.kernels.threads import torch_threads

pytest.importorskip("numba")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[1] / "tools" / "transform_crossover.py"
    spec = importlib.util.spec_from_file_location("transform_crossover", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("size", [2, 8, 32])
def test_encoding_is_checked_and_timed(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(tool, "VALUES", 2**10)
    with torch_threads(1):
        found = tool.encoding(64, size, 0.0)
    assert all(found[f"{way}_ns"] > 0 for way in ("matrix", "fourier", "ntt"))


def test_decoding_is_checked_and_timed(tool: ModuleType) -> None:
    with torch_threads(1):
        found = tool.decoding(64, 4, 40, 0.0)
    assert all(found[f"{way}_ns"] > 0 for way in ("matrix", "fourier", "sum"))


def test_a_wrong_transform_is_noticed(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    transform = tool.RootsOfUnity(tool.friendly_primes(16)[0], 4, 16)
    transform.check()
    transform.twists[1, 2] += 1
    with pytest.raises(SystemExit, match="is wrong"):
        transform.check()
