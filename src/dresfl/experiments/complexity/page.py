"""The measured costs as a Markdown page and as terminal tables, from the records alone."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from dresfl.experiments.bench.page import Table, bytes_text, time_text

from .growth import ENTRIES, Entry, Quantity, Record, Total, cheaper_after, growth, total
from .phases import BLOCK_ROWS, EXTRAS, METHOD_NAMES, Method
from .settings import Setting

SWEEPS = {"clients": "N", "shards": "K", "colluders": "T", "parameters": "d", "batch": "b", "answers": "R"}
_ALIKE = 0.15  # two times a round that differ by less are not told apart
Crossing = int | None | Literal["alike", "infeasible"]  # rounds after which DReS-FL costs less; None: never
BOTH: tuple[Quantity, Quantity] = ("sent", "received")
QUANTITIES: dict[str, tuple[str, tuple[Quantity, ...], bool]] = {
    "bytes that a client sends": ("client", ("sent",), False),
    "bytes that a client receives": ("client", ("received",), False),
    "both": ("client", BOTH, False),
    "a client's seconds": ("client", ("seconds",), False),
    "the same, with blinding": ("client", ("seconds",), True),
    "the coordinator's seconds": ("coordinator", ("seconds",), False),
}
"""What is compared over rounds: its name, whose it is, what is added up, and whether our additions count."""

_READING = """
## What was found

The paper's tables say that both methods upload O(d) a round, and that DReS-FL saves the masks. They leave out how many
bits a value has. LightSecAgg sums rounded values, which takes a few bits more than one value. DReS-FL decodes an exact
gradient, whose bits grow with every square layer. So DReS-FL saves masks, and pays for wide values and for rows that
all clients compute on. Which is more depends on the setting. Half of LightSecAgg's bytes are those of its overflow
alarm; a field of 32 bits without an alarm would take 4 bytes a value. More that differs from the paper's tables:

- The coordinator of LightSecAgg also adds N masked vectors. The paper's cell for it does not grow with N.
- A coded row hides K rows: coding costs less as K grows, while the paper's cell rises.
- This code multiplies by matrices, not by fast polynomial arithmetic: the paper's logarithms are no part of it. Packing
  and reading messages is a large part of every phase. FedAvg's own update is mostly the overhead of a small batch.
- What one gets differs. LightSecAgg gives the sum of the clients that are there, DReS-FL the gradient of rows of all.
- LightSecAgg may choose R freely: the larger, the fewer bytes, and the fewer clients may be missing. DReS-FL's R
  follows from K, T and the depth.

After how many rounds DReS-FL costs less than FedAvg with LightSecAgg:

"""


def _amount(value: float, quantity: Quantity) -> str:
    return "–" if not value else time_text(value) if quantity == "seconds" else bytes_text(value)


def cases(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The phases of each case, by its name."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if "case" in record and "phase" in record:
            found.setdefault(record["case"], []).append(record)
    return found


def compared(records: Sequence[Record], party: str, quantities: Sequence[Quantity], extras: bool) -> dict[str, Any]:
    """Totals of the three methods in one case, and after how many rounds DReS-FL costs less than LightSecAgg."""
    totals = {method: total(records, method, party, quantities, extras=extras) for method in METHOD_NAMES}
    found: dict[str, Any] = {str(method): own for method, own in totals.items()}
    ours, theirs = totals["dresfl"], totals["lightsecagg"]
    alike = "seconds" in quantities and abs(ours.per_round / theirs.per_round - 1) < _ALIKE
    crossing: Crossing = "alike" if alike else cheaper_after(ours, theirs)
    if extras and all(record["phase"] != "blinding" for record in records):
        crossing = "infeasible"  # this package has no masks for so many colluders
    return found | {"cheaper_after": crossing}


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """What `--json` prints: crossings of all cases, exponents of all cells, whole runs, accuracies."""
    crossings = {
        name: {text: compared(found, *wanted)["cheaper_after"] for text, wanted in QUANTITIES.items()}
        for name, found in cases(records).items()
    }
    exponents = []
    for entry in ENTRIES:
        fits = {sweep: fit for sweep in SWEEPS if (fit := growth(records, entry, sweep)) is not None}
        line = {"table": entry.table, "method": entry.method, "column": entry.column, "paper": entry.paper_text}
        exponents.append({**line, "exponents": {sweep: vars(fit) for sweep, fit in fits.items()}})
    others = [record for record in records if record.get("part") in ("whole runs", "accuracy")]
    return {"header": records[0], "cheaper_after": crossings, "growth": exponents, "runs": others}


def tables(records: Sequence[Record]) -> list[Table]:
    """All tables, as text."""
    found: list[Table] = []
    for name, own in cases(records).items():
        found += [_costs(name, own), _totals(name, own)]
    found += [_crossings(records), _growth(records, "computation"), _growth(records, "communication")]
    found += [_whole(records), _accuracy(records)]
    return [table for table in found if table.rows]


def _costs(name: str, records: Sequence[Record]) -> Table:
    setting = records[0]["setting"]
    note = (
        f"{'-'.join(map(str, setting['layers']))}, d = {setting['num_parameters']:,}, N = {setting['num_clients']}, "
        f"K = {setting['num_shards']}, T = {setting['max_colluders']}, b = {setting['global_batch']}, "
        f"{setting['rows_per_client']:,} rows a client. DReS-FL needs {setting['recovery_threshold']} answers and "
        f"sends {setting['value_bytes_dresfl']} bytes a value. LightSecAgg needs {setting['mask_answers']} answers and "
        f"sends {setting['value_bytes_lightsecagg']} bytes a value. FedAvg sends 4."
    )
    rows = [
        [
            METHOD_NAMES[record["method"]],
            record["phase"] + ("*" if record["phase"] in EXTRAS else ""),
            record["party"],
            record["per"],
            *(_amount(record[quantity], quantity) for quantity in ("seconds", "sent", "received")),
        ]
        for record in records
    ]
    columns = ["method", "phase", "party", "per", "seconds", "sends", "receives"]
    return Table(f"Costs: {name}", note, columns, rows)


def _totals(name: str, records: Sequence[Record]) -> Table:
    rows = []
    for text, (party, quantities, extras) in QUANTITIES.items():
        found = compared(records, party, quantities, extras)
        kind = quantities[0]
        ours: Total = found["dresfl"]
        rows.append(
            [
                text,
                _amount(found["fedavg"].per_round, kind),
                _amount(found["lightsecagg"].per_round, kind),
                _amount(ours.once, kind),
                _amount(ours.per_round, kind),
                crossing_text(records, text),
            ]
        )
    columns = ["", "FedAvg, a round", "LightSecAgg, a round", "DReS-FL, once", "DReS-FL, a round"]
    note = (
        "The last column: after how many rounds DReS-FL costs less than FedAvg with LightSecAgg. `alike`: the times of "
        f"a round differ by less than {_ALIKE:.0%}."
    )
    return Table(f"Over many rounds: {name}", note, [*columns, "DReS-FL costs less"], rows)


def _crossings(records: Sequence[Record]) -> Table:
    """The crossings at every size of every sweep."""
    found: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        if record.get("sweep", "answers") != "answers":  # which varies LightSecAgg alone
            found.setdefault((record["sweep"], record["size"]), []).append(record)
    rows = [
        [
            f"{SWEEPS[sweep]} = {size:,}",
            *(crossing_text(own, text) for text in QUANTITIES),
        ]
        for (sweep, size), own in found.items()
    ]
    base = next((record["setting"] for record in records if record.get("sweep") == "batch"), None)
    note = (
        "After how many rounds DReS-FL costs less than FedAvg with LightSecAgg, at every size that was measured. "
        "`infeasible`: this package has no blinding for so many colluders."
    )
    if base:
        note += (
            f" All else: {'-'.join(map(str, base['layers']))}, N = {base['num_clients']}, K = {base['num_shards']}, "
            f"T = {base['max_colluders']}, {base['rows_per_client']:,} rows a client, b = {Setting().global_batch}; "
            "LightSecAgg needs as many answers as DReS-FL. One line of each sweep has this very setting: their "
            "differences show how far times scatter."
        )
    return Table("Over many rounds: every size", note, ["", *QUANTITIES], rows)


def _growth(records: Sequence[Record], table: str) -> Table:
    def cell(entry: Entry, sweep: str) -> str:
        fit = growth(records, entry, sweep)
        return "" if fit is None else f"{fit.measured:.2f} ({fit.paper:.2f}; {fit.code:.2f})".replace("-0.00", "0.00")

    rows = [
        [
            METHOD_NAMES[entry.method],
            f"{entry.column}, {entry.counted}",
            f"O({entry.paper_text})",
            f"O({entry.code_text})",
            *(cell(entry, sweep) for sweep in SWEEPS),
        ]
        for entry in ENTRIES
        if entry.table == table
    ]
    note = (
        "Each cell: the exponent e of size^e as measured, and in brackets the exponents of the paper's formula and of "
        "the formula of what this code does, over the same sizes. A formula has no constants: all its terms count "
        "alike. R = deg·(K+T−1) + 1 grows with K and T; LightSecAgg takes the same R, except in the last column. "
        "Rounds enter every cell of a round as a factor."
    )
    columns = ["method", "what", "the paper's, a round", "this code's", *SWEEPS.values()]
    return Table(f"Growth: {table}", note, columns, rows)


def _whole(records: Sequence[Record]) -> Table:
    rows, names = [], ("client_sent", "client_received", "coordinator_sent", "coordinator_received")
    note = ""
    for record in records:
        if record.get("part") != "whole runs":
            continue
        setting = record["setting"]
        note = (
            f"Whole runs in one process, {'-'.join(map(str, setting['layers']))}, {setting['num_clients']} clients, "
            f"{setting['rows_per_client']} rows each; the time is that of all participants together. Bytes are "
            "counted message by message."
        )
        method: Method = record["method"]
        cells = [bytes_text(record[name]) for name in names]
        rows.append([METHOD_NAMES[method], str(record["rounds"]), time_text(record["seconds"]), *cells])
    columns = ["method", "rounds", "seconds", "a client sends", "receives", "the coordinator sends", "receives"]
    return Table("Whole runs", note, columns, rows)


def _accuracy(records: Sequence[Record]) -> Table:
    names = {
        "lightsecagg": "FedAvg with LightSecAgg",
        "fedavg": "FedAvg",
        "fedavg, the same rounds skipped": "FedAvg that skips the same rounds",
    }
    found = [record for record in records if record.get("part") == "accuracy"]
    rows = [
        [
            names[record["method"]],
            f"{100 * record['test_accuracy']:.2f} %",
            str(record["rounds"]),
            str(record["skipped_rounds"]),
        ]
        for record in found
    ]
    needed = found[0]["answers_needed"] if found else 0
    note = (
        f"scikit-learn's digits, the preset's network with ReLU, dropouts and rows, one seed. LightSecAgg skips rounds "
        f"with fewer than {needed} answers. What is left of the difference is the rounding of the sum."
    )
    return Table("Accuracy", note, ["method", "test accuracy", "rounds", "skipped"], rows)


def page(records: Sequence[Record], path: Path, source: Path, figure: str) -> str:
    """The Markdown page at `path`, made from the records in `source`; `figure` lies beside it."""
    header, place = records[0], os.path.relpath(source, path.parent)
    machine, load = header["machine"], header["load_average"]
    command = f"`dresfl reproduce complexity{' --quick' if header['quick'] else ''}`"
    loaded = "" if load is None else f", load average {load:.1f} at the start: other work shared the cores"
    lines = [
        "# What each method costs",
        "",
        "The paper's complexity tables, measured: bytes and seconds by phase and participant, for FedAvg, FedAvg with",
        "LightSecAgg, and DReS-FL in the open mode.",
        f"{command} made this page from [its records]({place}).",
        "",
        f"- machine: {machine['cpu']}, {machine['cores']} cores{loaded}; threads: {header['threads']}",
        f"- date: {header['date']}; commit: {header['commit']}",
        "- a time is the processor time of one participant: other programs and waiting for a network do not count. It",
        "  is the median of calls in turns: all phases and sizes share a slow moment",
        "- calls make and read the real messages; messages are counted before sealing",
        "- phases marked * are this package's additions to the paper's protocol; totals leave them out, except in the",
        "  line that names them",
        f"- DReS-FL's coded rows: the time of a block of {BLOCK_ROWS} rows, times the number of blocks",
        "- sums of N vectors: all N clients are there; DReS-FL decodes R of their N answers",
        "- shares are read and checked, not stored; rows of a round are not fetched from a disk",
        "",
        f"![costs over rounds, and growth]({figure})",
        *_findings(records),
    ]
    for table in tables(records):
        head, *rows = ("| " + " | ".join(row) + " |" for row in (table.columns, *table.rows))
        lines += ["", f"## {table.title}", "", table.note, "", head, "|---" * len(table.columns) + "|", *rows]
    return "\n".join(lines) + "\n"


def _findings(records: Sequence[Record]) -> list[str]:
    """How to read the tables, and the sentences that the records themselves decide."""
    found = _READING.splitlines()
    for name, own in cases(records).items():
        wanted = [text for text in QUANTITIES if text != "bytes that a client receives"]
        sent, both, seconds, blinded, leader = (crossing_text(own, text) for text in wanted)
        found.append(
            f"- **{name}.** Bytes that a client sends: {sent}. Sends and receives: {both}. "
            f"A client's seconds: {seconds}; with blinding: {blinded}. The coordinator's seconds: {leader}."
        )
    coded = {r["case"]: r["seconds"] for r in records if r.get("phase") == "coded rows" and "case" in r}
    found += [
        f"- {record['case']}: coding all rows of a client took {time_text(record['whole_coding_seconds'])}, once; from "
        f"one block, {time_text(coded[record['case']])} were expected."
        for record in records
        if "whole_coding_seconds" in record
    ]
    return found


def when(crossing: Crossing) -> str:
    """A crossing for people.

    >>> [when(crossing) for crossing in (None, "alike", 1, 5000)]
    ['never', 'alike', 'at once', 'after 5,000 rounds']
    """
    if not isinstance(crossing, int):
        return "never" if crossing is None else crossing
    return f"after {crossing:,} rounds" if crossing > 1 else "at once"


def _about(crossing: Crossing) -> str:
    """The same of times: two digits of it, since another run of the command finds another number."""
    if not isinstance(crossing, int) or crossing <= 1:
        return when(crossing)
    return when(int(float(f"{crossing:.1e}"))).replace("after", "after about")


def crossing_text(records: Sequence[Record], text: str) -> str:
    """After how many rounds DReS-FL costs less in one of the quantities."""
    found: Crossing = compared(records, *QUANTITIES[text])["cheaper_after"]
    return _about(found) if "seconds" in QUANTITIES[text][1] else when(found)
