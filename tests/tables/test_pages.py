"""What the pages say of schemas and of [data], held against the code."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from dresfl.deploy.toml import parse
from dresfl.experiments.config import Data, RunConfig
from dresfl.tables import Column, Label, parse_schema

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference" / "schema.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
HOW_TO = (ROOT / "docs" / "how-to" / "use-your-own-table.md").read_text(encoding="utf-8")


def documented(section: str) -> dict[str, str]:
    """Key -> default, as a table has them."""
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            found |= dict.fromkeys(re.findall(r"`(\w+)`", cells[0]), cells[1].strip("`"))
    return found


def section_of(page: str, start: str, end: str) -> str:
    return page.split(start, 1)[1].split(end, 1)[0]


@pytest.mark.parametrize(
    ("kind", "section"),
    [
        (Label, section_of(REFERENCE, "## `[label]`", "\n## ")),
        (Column, section_of(REFERENCE, "## `[[columns]]`", "\n## ")),
        (Data, section_of(CONFIGURATION, "**`[data]`**", "**`[")),
    ],
)
def test_every_key_and_its_default(kind: type, section: str) -> None:
    page = documented(section)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    assert set(page) == set(fields)
    for name, written in page.items():
        default = fields[name].default
        if written == "required":
            assert default is dataclasses.MISSING
        elif written == "none":
            assert default in (None, ())
        else:
            value = tomllib.loads(f"x = {written}")["x"]
            assert (tuple(value) if isinstance(value, list) else value) == default


def test_the_schema_of_the_reference() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", REFERENCE, re.S)
    schema = parse_schema(text).check_complete()
    assert schema.num_features == 1 + 5 + 1 + 1


def test_the_configuration_of_the_how_to() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", HOW_TO, re.S)
    assert parse(RunConfig, tomllib.loads(text)).data.schema == "schema.toml"
