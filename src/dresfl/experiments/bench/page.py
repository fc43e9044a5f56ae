"""The results as tables and as a Markdown page, from the dictionary alone: a stored JSON renders the same."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from dresfl.errors import UsageError

FORMAT = "dresfl bench 1"


@final
@dataclass(frozen=True)
class Table:
    """A title, what its columns mean, and its cells as text."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]


def read_results(path: Path) -> dict[str, Any]:
    """The results in a JSON file that `dresfl bench --json` wrote."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the results {path}: {error}", "write them: dresfl bench --json FILE") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UsageError(f"{path} does not hold {FORMAT!r}", "write fresh ones: dresfl bench --json FILE")
    return found


def page(results: dict[str, Any]) -> str:
    """The Markdown page: machine, versions, date, method, tables."""
    machine = results["machine"]
    place = f"{machine['cpu']}, {machine['cores']} cores"
    if results["device"] == "cuda":
        place = f"{machine['gpu']} ({place})"
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    command = f"dresfl bench --device {results['device']} --threads {results['threads']}"
    lines = [
        "# Benchmarks",
        "",
        f"Measured with `{command}{' --quick' if results['quick'] else ''}`; this page is made from its JSON.",
        "",
        f"- machine: {place}, {machine['system']}; CPU threads: {results['threads']}",
        f"- versions: {versions}",
        f"- date: {results['date']}",
        f"- not installed, so not measured: {', '.join(results['not_installed']) or 'none'}",
        "",
        "A call and what it is compared with run in turns (A, B, A, B, …) for a fixed time. A ratio is that of the",
        "medians. The limit is the products alone in the same run: same shapes, channels, threads and device. 1.00 is",
        "the limit; lower is better.",
    ]
    for table in tables(results):
        head, *rows = ("| " + " | ".join(row) + " |" for row in (table.columns, *table.rows))
        rule = "|---" + "|---:" * (len(table.columns) - 1) + "|"
        lines += ["", f"## {table.title}", "", table.note, "", head, rule, *rows]
    return "\n".join(lines) + "\n"


def tables(results: dict[str, Any]) -> list[Table]:
    """Everything measured, as text."""
    gradient, whole, growth = results["gradient"], results["round"], results["growth"]
    found = [
        _table(
            "Exact product",
            "(rows × inner) @ (inner × columns), both factors secret. Ours stays in residues modulo a product of "
            "primes; others compute modulo 2^200 − 75 on the CPU, with as many threads (NumPy objects and galois use "
            "one). No conversion is timed. 24-bit primes are those of the `mnist` setting: sums of 784 products of "
            "them are split. The limit is the nine bare products by torch's or NumPy's BLAS, whichever is faster. Each "
            "speed-up is that of the first path listed, from turns of its own.",
            {"what": "", "time": "seconds", **_TO_LIMIT, "dresfl is faster": "speedup"},
            _products(results["gemm"]),
        ),
        _table(
            "Exact int8 product",
            "A byte per residue on tensor cores, reduction included; the limit is the vendor's product without one.",
            {"shape": "", "channels": "channels", "bits": "bits", "time": "seconds", "TOPS": "tops"}
            | {"vendor's TOPS": "limit_tops", "to limit": "ratio_to_limit"},
            results["int8"],
        ),
        _table(
            "Gradient and round",
            f"{'-'.join(map(str, gradient['layers']))}, batch {gradient['batch']}, {gradient['channels']} channels. "
            f"The round: {whole['clients']} clients in one process, {whole['answers_computed']} answers computed; "
            "masks, encode, gradients, decode, lift and step.",
            {"what": "", "time": "seconds", "limit": "limit_seconds", **_TO_LIMIT}
            | {"plain PyTorch fp32 step": "torch_fp32_seconds", "to that": "ratio_to_torch_fp32"},
            {"one client's gradient": gradient, "a coded round": whole},
        ),
        _table(
            "Stages against a memory copy",
            "GB/s of the larger of what a stage reads and what it writes, compared with copies of the same bytes: "
            "into fresh memory (`clone`), and into memory that is there already. Encode: a batch for R clients; "
            "decode: R answers; masks: ChaCha20, exactly uniform.",
            {"stage": "", "MB": "megabytes", "time": "seconds", "GB/s": "gb_per_s", "clone GB/s": "copy_gb_per_s"}
            | {"copy GB/s": "copy_into_gb_per_s", "to clone": "ratio_to_copy"},
            {
                name.replace("_", " "): {**stage, "megabytes": stage["bytes"] / 1e6}
                for name, stage in results["stages"].items()
            },
        ),
        _table(
            "Growth",
            "The exponent e in time ~ size^e, fitted over the sizes named, all else fixed. Encode: shares for all "
            "clients; gradient: one client's; decode: R answers, R = degree·(K+T−1) + 1; a round computes R answers.",
            {"size": "", "encode": "encode", "gradient": "gradient", "decode": "decode", "round": "round"},
            {f"{name}: {', '.join(fitted['points']['encode'])}": fitted for name, fitted in growth.items()},
        ),
        _table(
            "Memory",
            "Bytes at the peak of a stage, without those that it is given.",
            {"stage": "", "given": "given", "peak": "peak", "part of it": "part"},
            _memory(results["memory"]),
        ),
    ]
    return [table for table in found if table.rows]


_TO_LIMIT = {"to limit": "ratio_to_limit", "best to best": "best_ratio_to_limit"}
"""The ratio of the medians, and of the bests, which other work on the machine disturbs less."""

_FORMATS = {"channels": "d", "bits": ".0f", "tops": ".0f", "limit_tops": ".0f", "megabytes": ".1f"}


def _table(title: str, note: str, columns: dict[str, str], rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """A table whose columns have these heads and show these keys of each row; the first one shows the row's name."""
    _, *keys = columns.values()
    cells = [[name, *(_text(key, row.get(key, "")) for key in keys)] for name, row in rows.items()]
    return Table(title, note, list(columns), cells)


def _text(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return time_text(value) if key.endswith("seconds") else format(value, _FORMATS.get(key, ".2f"))


def _products(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for shape, gemm in found.items():
        if gemm.get("path") == "int8":  # its ratio is to the float64 products, as the others' are
            rows[f"{shape}: {_exact(gemm)}, int8"] = gemm
        for path in (gemm.get("float64", gemm), gemm["unsplit"]):
            rows[f"{shape}: {_exact(path)}"] = path
        limit = {"seconds": gemm["limit_seconds"], "ratio_to_limit": 1.0, "best_ratio_to_limit": 1.0}
        rows[f"{shape}: float64 products alone"] = limit
        for name, peer in gemm["peers"].items():
            rows[f"{shape}: {name}"] = {**peer, "speedup": f"{peer['speedup']:.1f}×"}
        rows |= {f"{shape}: {name}": {"seconds": "too slow for this run"} for name in gemm["left_out"]}
    return rows


def _exact(gemm: dict[str, Any]) -> str:
    return f"dresfl, {gemm['channels']} × {gemm['bits'] / gemm['channels']:.1f} bits"


def _memory(found: dict[str, Any]) -> dict[str, dict[str, str]]:
    def size(key: str) -> str:
        return "unknown" if found[key] is None else f"{found[key] / 1e6:.1f} MB"

    over = found["server_decode_over_uploads"]
    part = "unknown" if over is None else f"{100 * over:.0f} %"
    return {
        "client: gradient": {"given": size("client_rows"), "peak": size("client_gradient")},
        "coordinator: decode and step": {"given": size("uploads"), "peak": size("server_decode"), "part": part},
    }


def bytes_text(count: float) -> str:
    """A byte count for people: 1.5 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def time_text(seconds: float) -> str:
    """A time for people: 2.75 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
