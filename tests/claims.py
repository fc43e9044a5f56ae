"""The list of claims in results/README.md: which words of which page rest on which record, and how to compute them.

A section of the list is a record. Its title names the file below results/. The line below has the command and commit
that made it. Each row of its table is a claim:

    | page | words | numbers |
    |---|---|---|
    | README.md | 97.81 %, after 77 s | `p2(test_accuracy)` `f0(seconds)` |

Every number in the words must be what a query gives, or be named in `given(...)`: a setting, not a result. A query is
FORMAT(TERM) or FORMAT(TERM - TERM), with / and * too, from left to right. A term is a number, or
[AGGREGATE] KEY[NAME=VALUE, ...]:

    FORMAT      n (1,086), f0 to f3 (decimals), p0 to p2 (a share, in percent)
    AGGREGATE   mean, sd, median, min, max, sum, count, first, last; none: exactly one line has that value
    KEY         of a JSON object, with dots between levels; a list counts as all its values
    NAME=VALUE  the lines of a JSONL that count; NAME!=VALUE: those that do not
"""

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]

NUMBER = re.compile(r"(?<![\w.^·×/−-])\d(?:[\d,]*\d)?(?:\.\d+)?(?![\w^×]|[.,]\d|-\d)")
"""A number in words. What is part of a name, a power, a range of sizes or a version is none."""

_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "sd": statistics.stdev,
    "median": statistics.median,
    "min": min,
    "max": max,
    "sum": sum,
    "count": len,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
_TERM = re.compile(r"(?:(?P<aggregate>\w+) )?(?P<key>[^\[\]]+?)(?:\[(?P<where>[^\]]*)\])?")


@dataclass(frozen=True)
class Claim:
    """Words of a page, and the queries that give their numbers."""

    record: str
    page: str
    words: str
    queries: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A record, how it was made, and what rests on it."""

    record: str
    command: str
    commit: str
    claims: tuple[Claim, ...]


def sections(text: str) -> list[Section]:
    """The records and claims of results/README.md."""
    found = []
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        title, *lines = re.split(r"^# ", part, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
        record = title.strip(" `")
        made = next((line for line in lines if line.startswith("Made by ")), "")
        command, commit = re.findall(r"`([^`]+)`", made)[:1], re.findall(r"commit ([^.]+)\.", made)
        rows = [_cells(line) for line in lines if line.startswith("| ") and not line.startswith("| page |")]
        claims = tuple(
            Claim(record, page, words, tuple(re.findall(r"`([^`]+)`", numbers))) for page, words, numbers in rows
        )
        found.append(Section(record, "".join(command), "".join(commit), claims))
    return found


def without_record(text: str) -> list[tuple[str, str]]:
    """Page and words of the numbers that rest on no record, as the list says itself."""
    part = text.partition("# Numbers without a record")[2]
    rows = [_cells(line) for line in part.splitlines() if line.startswith("| ") and not line.startswith("| page |")]
    return [(page, words) for page, words, _ in rows]


def earlier_recipes(text: str) -> dict[tuple[str, str], set[str]]:
    """{(data set, method): settings} of the records that ran with other settings than the recipes have today."""
    part = text.partition("# Records of earlier recipes")[2].partition("\n# ")[0]
    rows = [_cells(line) for line in part.splitlines() if line.startswith("| ") and not line.startswith("| data sets")]
    return {
        (dataset, method): set(settings.split(", "))
        for datasets, methods, settings, _ in rows
        for dataset in datasets.split(", ")
        for method in methods.split(", ")
    }


def _cells(line: str) -> list[str]:
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip("| "))]


def flat(page: str) -> str:
    """The text of a page on one line, without the marks of a quotation."""
    return " ".join(re.sub(r"^> ", "", page, flags=re.MULTILINE).split())


def measured(page: str) -> list[re.Match[str]]:
    """The numbers with a unit in a page on one line, outside code and the tables that are made from records."""
    text = re.sub(r"```.*?```|`[^`]*`|<!-- ([\w-]+) -->.*?<!-- /\1 -->|\]\([^)]*\)", lambda m: " " * len(m[0]), page)
    units = r"(?: |(?= (?:and|to|or) " + NUMBER.pattern + r"))(?:(?:and|to|or) " + NUMBER.pattern + r" )?"
    return list(re.finditer(f"({NUMBER.pattern}){units}(?:%|s|ms|minutes|MB|GB|TOPS|times|points)(?![\\w-])", text))


def rows(path: Path) -> list[Row]:
    """The lines of a record. Of a folder of runs: of each, its header and its result as one line."""
    if path.is_dir():
        found = []
        for file in sorted(path.glob("*.jsonl")):
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            found.append({**lines[0], **lines[-1], "evaluations": lines[1:-1]} if "kind" in lines[0] else lines[-1])
        return found
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]


def computed(query: str, lines: Sequence[Row]) -> list[str]:
    """The numbers that a query gives, as they stand in words."""
    kind, body = re.fullmatch(r"(\w+)\((.*)\)", query).groups()  # type: ignore[union-attr]
    if kind == "given":
        return [one.strip() for one in re.split(r",(?!\d{3})", body)]
    first, *rest = re.split(r" ([-/*]) ", body)
    value = _value(first, lines)
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        other = _value(term, lines)
        value = {"-": value - other, "/": value / other, "*": value * other}[sign]
    if kind == "n":
        return [f"{round(value):,}"]
    scale = {"f": 1, "p": 100}[kind[0]]
    return [f"{scale * value:,.{int(kind[1])}f}"]


def _value(term: str, lines: Sequence[Row]) -> float:
    if re.fullmatch(r"[\d.]+", term):
        return float(term)
    match = _TERM.fullmatch(term)
    assert match, f"{term!r} is no term"
    aggregate, key, where = match["aggregate"], match["key"], match["where"]
    if aggregate not in _AGGREGATES:
        aggregate, key = None, f"{aggregate} {key}" if aggregate else key
    conditions = [condition.strip().partition("=") for condition in where.split(",")] if where else []
    chosen = [line for line in lines if all(_holds(line, name, value) for name, _, value in conditions)]
    values: list[float] = []
    for line in chosen:
        found = _at(line, key)
        values += found if isinstance(found, list) else [] if found is None else [found]
    assert values, f"no line has {term!r}"
    if aggregate is None:
        assert len(set(values)) == 1, f"{term!r} has {len(values)} values: choose an aggregate"
        return float(values[0])
    return float(_AGGREGATES[aggregate](values))


def _holds(line: Row, name: str, value: str) -> bool:
    """Whether NAME=VALUE holds for a line; NAME!=VALUE: whether it does not."""
    return (str(_at(line, name.removesuffix("!"))) == value) != name.endswith("!")


def _at(line: Row, key: str) -> Any:
    found: Any = line
    for name in key.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
