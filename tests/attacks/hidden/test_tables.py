"""The tables of traps and rules name tests that exist: thirteen traps, fifteen rules."""

import re
from pathlib import Path

from . import __doc__ as tables

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def test_every_test_in_the_tables_exists() -> None:
    text = tables or ""
    named = re.findall(r"([\w/]+\.py)(?:::(\w+))?", text)
    assert len(named) > 40
    for path, name in named:
        file = (ROOT if "/" in path else HERE) / path
        assert file.exists(), path
        assert not name or f"def {name}(" in file.read_text(encoding="utf-8"), f"{path}::{name}"


def test_every_trap_and_rule_has_a_line() -> None:
    traps, rules = (tables or "").split("\nRules:\n")
    assert {int(n) for n in re.findall(r"^\| (\d+) ", traps, re.MULTILINE)} == set(range(1, 14))
    assert {int(n) for n in re.findall(r"^\| (\d+) ", rules, re.MULTILINE)} == set(range(1, 16))
