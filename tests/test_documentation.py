"""What the pages say of configuration files and logs, held against the code: keys, defaults, whole files, events."""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dresfl.deploy import settings as config
from dresfl.deploy.toml import parse
from dresfl.experiments.config import parse_model
from dresfl.protocol.hidden.settings import HiddenSettings

ROOT = Path(__file__).parents[1]
REFERENCE = (ROOT / "docs" / "reference" / "network-configuration.md").read_text(encoding="utf-8")
HOW_TO = (ROOT / "docs" / "how-to" / "run-on-real-machines.md").read_text(encoding="utf-8")

# heading -> the dataclass of its top level, and those of its tables
PARTS: dict[str, dict[str, type]] = {
    "agreement.toml": {
        "": config.AgreementFile,
        "model": config.AgreedModel,
        "federation": config.AgreedFederation,
        "hidden": HiddenSettings,
    },
    "fed.toml": {"": config.CoordinatorConfig, "network": config.Listening, "test": config.Test},
    "site.toml": {"": config.ClientConfig, "network": config.Connecting, "data": config.ClientData},
}
ELSEWHERE = {"keys", "optimizer"}  # a section and a page of their own


def documented(heading: str) -> dict[str, dict[str, str]]:
    """Table -> key -> default, as the page's table has them."""
    section = re.search(rf"^## {heading}.*?\n(.*?)(?=^## |\Z)", REFERENCE, re.M | re.S)
    assert section
    found: dict[str, dict[str, str]] = {"": {}}
    part = ""
    for line in section[1].splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 3 or cells[0] == "key" or cells[0].startswith("---"):
            continue
        if head := re.fullmatch(r"\*\*`\[(\w+)\]`\*\*", cells[0]):
            part = head[1]
            found[part] = {}
            continue
        keys, defaults = re.findall(r"`(\w+)`", cells[0]), cells[1].split(", ")
        found[part] |= dict(zip(keys, defaults if len(defaults) > 1 else defaults * len(keys), strict=True))
    return found


@pytest.mark.parametrize("heading", PARTS)
def test_every_key_and_its_default(heading: str) -> None:
    page = documented(heading)
    tables = set(PARTS[heading]) - {""}
    assert set(page) - ELSEWHERE - {""} == tables
    for part, kind in PARTS[heading].items():
        fields = {field.name: field for field in dataclasses.fields(kind)}
        assert set(page[part]) == set(fields) - tables - ELSEWHERE, f"{heading} [{part}]"
        for name, default in page[part].items():
            written = default.strip("`")
            if written == "required":
                assert fields[name].default is dataclasses.MISSING, f"{heading} [{part}] {name}"
            else:
                value = tomllib.loads(f"x = {written}")["x"]
                value = tuple(value) if isinstance(value, list) else value
                assert value == fields[name].default, f"{heading} [{part}] {name}"


def test_the_keys_of_every_participant() -> None:
    section = REFERENCE.split("## `[keys]`")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", section, re.M) == [field.name for field in dataclasses.fields(config.Keys)]


def files() -> list[dict[str, Any]]:
    return [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", HOW_TO, re.S)]


def test_the_files_of_the_how_to() -> None:
    agreement, fed, site = files()
    assert parse(config.AgreementFile, agreement).rounds == 200
    assert parse(config.CoordinatorConfig, fed).network.listen.endswith(":7443")
    assert parse(config.ClientConfig, site).network.coordinator.endswith(":7443")


def test_an_agreement_can_be_planned(tmp_path: Path) -> None:
    """As step 1 of the how-to does."""
    path = tmp_path / "agreement.toml"
    path.write_text(re.findall(r"```toml\n(.*?)```", HOW_TO, re.S)[0])
    assert parse_model(path, input_bits=1, weight_bits=1).gradient_degree == 8
    path.write_text(path.read_text().replace("input_bound = 1.0", "input_bound = 4.0"))
    assert parse_model(path, input_bits=1, weight_bits=1).input_magnitude == 2.0


def test_every_event_is_documented() -> None:
    """Those of the machine, the gRPC runtime and the commands."""
    source = ""
    for folder in ("federation", "runtimes", "runtimes/grpc_runtime", "deploy", "cli"):
        paths = (ROOT / "src" / "dresfl" / folder).glob("*.py")
        source += "".join(path.read_text(encoding="utf-8") for path in paths if path.stem != "flower")
    events = set(re.findall(r'\blog\(\s*"([a-z ]+)"', source)) | set(re.findall(r'_log\(\s*"([a-z ]+)"', source))
    events |= set(re.findall(r'return \(?"(\w+)", \{', source))
    section = REFERENCE.split("## Logs")[1].split("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for cell in first_cells for name in re.findall(r"`([a-z ]+)`", cell)}
    assert {"refused", "transport", "stream failed", "shortage"} <= events
    assert events - named == set()
    assert named - events == set()


def test_every_metric_is_in_the_how_to() -> None:
    source = (ROOT / "src" / "dresfl" / "deploy" / "metrics.py").read_text(encoding="utf-8")
    metrics = re.findall(r'MetricFamily\(\s*"(\w+)"', source)
    assert len(metrics) >= 10
    assert [name for name in metrics if name not in HOW_TO] == []


def test_every_promise_of_the_threat_model_names_its_test() -> None:
    page = (ROOT / "docs" / "explanation" / "threat-model.md").read_text(encoding="utf-8")
    promises = re.findall(r"^### (P\d+)\. (.*?)(?=^##)", page, re.M | re.S)
    assert [name for name, _ in promises] == [f"P{number}" for number in range(1, len(promises) + 1)]
    assert [name for name, text in promises if "`tests/" not in text] == []
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert f"(P1 to P{len(promises)})" in security
