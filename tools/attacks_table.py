"""Make docs/results/attacks.md from results/attacks.jsonl, which `make attacks` writes.

python tools/attacks_table.py
"""

import ast
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINES = ROOT / "results" / "attacks.jsonl"
PAGE = ROOT / "docs" / "results" / "attacks.md"
HEAD = """# Attacks, measured: on the open mode and on the hidden one

`make attacks` runs the attacks of `tests/attacks` in full. It writes what each found to `results/attacks.jsonl`, and
this page is made of that file. The [threat model](../explanation/threat-model.md) says what follows.

Every attack uses only what its attacker sees: a transcript that the participant wrote (`dresfl train --record`), or
the messages themselves. *Found* is the share of rows for which the true row that is nearest to the computed one is the
right one. Where the attack is exact it is the share of rows found to the last pixel. An attack can try only those rows
that the rounds happen to separate. *Prior* is what the attacker finds
before it has seen anything. The *control* of the open mode is the same program in a setting where it has to fail. In
the hidden mode the attack has to fail, and its control has to succeed: the same attack where one rule is left out.
"""
HIDDEN_HEAD = """
# The hidden mode

The attackers see all that the coordinator and one client see together: every published value of every hop, the client's
own shares, masks and answers, the opened quotients and the final model. The first attacks are those of the open mode.
They subtract all masks that the client knows. They find what they knew before; without masks the same program finds the
rows. The others cheat. The table in `tests/attacks/hidden/__init__.py` says which rule stops each of them, and which
test fails without it.
"""
HIDDEN = "hidden/"


def title(attack: str) -> str:
    """The first line of the attack's own description."""
    folder, _, name = attack.rpartition("/")
    source = (ROOT / "tests" / "attacks" / folder / f"test_{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def entry(line: dict[str, Any]) -> str:
    more = [line["rows"]] if "rows" in line else []
    more += [f"{percent(line['exact'])} exact"] if "exact" in line else []
    more += [f"error {line['error']:.3f} of full scale"] if "error" in line else []
    more += [f"labels {percent(line['labels_found'])}"] if "labels_found" in line else []
    found = percent(line["found"]) + (f" ({', '.join(more)})" if more else "")
    control = f"{percent(line.get('control_found'))} ({line['control']})" if "control" in line else ""
    cells = line["setting"], found, percent(line.get("prior_found")), control, f"{line['seconds']:.0f}"
    return "| " + " | ".join(cells) + " |"


def page(lines: list[dict[str, Any]]) -> str:
    """The page of these results."""
    text, attacks = HEAD, list(dict.fromkeys(line["attack"] for line in lines))
    for attack in sorted(attacks, key=lambda name: name.startswith(HIDDEN)):  # the open mode first
        own = [line for line in lines if line["attack"] == attack]
        if attack.startswith(HIDDEN) and HIDDEN_HEAD not in text:
            text += HIDDEN_HEAD
        name = attack.removeprefix(HIDDEN).replace("_", " ").capitalize()
        text += f"\n## {name}\n\n{title(attack)}\n\n"
        text += "| setting | found | prior | control | seconds |\n|---|---|---|---|---|\n"
        text += "".join(entry(line) + "\n" for line in own)
    processors = sorted({line["processor"] for line in lines})
    return text + f"\nSeconds with the control, on {'; '.join(processors)}, shared with other work.\n"


if __name__ == "__main__":
    results = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    PAGE.write_text(page(results), encoding="utf-8")
