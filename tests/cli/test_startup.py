"""Commands that compute nothing start without torch and numpy."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "grpc")

PROGRAM = f"""
import sys
from dresfl.cli import main
sys.argv = ["dresfl", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""


def run(*arguments: str, cwd: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["train", "--help"], ["reproduce", "table1", "--help"], ["join", "--help"]]
)
def test_help_starts_light(tmp_path: Path, arguments: list[str]) -> None:
    run(*arguments, cwd=tmp_path)


def test_keys_and_rosters_start_light(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    for name in ("hub", "one", "two"):
        run("keygen", name, "--out", name, cwd=tmp_path)
    cards = [f"{name}/{name}.card.json" for name in ("one", "two", "hub")]
    create = ["--server", cards[2], "--sign-with", "hub", "--out", "roster.json"]
    run("roster", "create", *cards[:2], *create, cwd=tmp_path)
    run("roster", "verify", "roster.json", cwd=tmp_path)
    run("ca", "init", "ca", cwd=tmp_path)
