"""The commands as a user runs them, in this process: importing torch anew for each would take minutes."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dresfl.cli import main


@dataclass
class Result:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Result]


@pytest.fixture
def dresfl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """`dresfl(*arguments, cwd=...)`; the test itself is in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, cwd: Path = tmp_path) -> Result:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["dresfl", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        output = capsys.readouterr()
        return Result(int(stop.value.code or 0), output.out, output.err)

    return run


def refused(result: Result, code: int, message: str, hint: str = "") -> None:
    """One error line, at most one hint line, no traceback, the right exit code."""
    complaint = [line for line in result.stderr.splitlines() if line.startswith(("error:", "hint:"))]
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert [line.split(":")[0] for line in complaint] in (["error"], ["error", "hint"])
    assert message in complaint[0]
    assert hint in complaint[-1]
