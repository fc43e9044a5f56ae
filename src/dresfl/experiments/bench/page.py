"""The results as tables and as a Markdown page, from the dictionary alone: a stored JSON renders the same."""

import json
from collections.abc import Iterator
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
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def read_results(path: Path) -> dict[str, Any]:
    """The results in a JSON file that `dresfl bench --json` wrote."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
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
        lines += ["", f"## {table.title}", "", table.note, "", *_markdown(table)]
    return "\n".join(lines) + "\n"


def _markdown(table: Table) -> Iterator[str]:
    yield "| " + " | ".join(table.columns) + " |"
    yield "|" + "|".join(["---"] + ["---:"] * (len(table.columns) - 1)) + "|"
    for row in table.rows:
        yield "| " + " | ".join(row) + " |"


def tables(results: dict[str, Any]) -> list[Table]:
    """Everything measured, as text."""
    found = [_products(results)]
    if results["int8"]:
        found.append(_bytes(results["int8"]))
    return [*found, _whole(results), _stages(results["stages"]), _growth(results["growth"]), _memory(results["memory"])]


def _products(results: dict[str, Any]) -> Table:
    rows: list[tuple[str, ...]] = []
    for shape, gemm in results["gemm"].items():
        if gemm.get("path") == "int8":  # its ratio is to the float64 products, as the others' are
            rows.append((f"{shape}: {_exact(gemm)}, int8", time_text(gemm["seconds"]), *_ratios(gemm), ""))
        rows += [
            (f"{shape}: {_exact(path)}", time_text(path["seconds"]), *_ratios(path), "")
            for path in (gemm.get("float64", gemm), gemm["unsplit"])
        ]
        rows.append((f"{shape}: float64 products alone", time_text(gemm["limit_seconds"]), "1.00", "1.00", ""))
        for name, peer in gemm["peers"].items():
            rows.append((f"{shape}: {name}", time_text(peer["seconds"]), "", "", f"{peer['speedup']:.1f}×"))
        rows += [(f"{shape}: {name}", "too slow for this run", "", "", "") for name in gemm["left_out"]]
    return Table(
        "Exact product",
        "(rows × inner) @ (inner × columns), both factors secret. Ours stays in residues modulo a product of primes; "
        "others compute modulo 2^200 − 75 on the CPU, with as many threads (NumPy objects and galois use one). No "
        "conversion is timed. 24-bit primes are those of the `mnist` setting: sums of 784 products of them are split. "
        "The limit is the nine bare products by torch's or NumPy's BLAS, whichever is faster. Each speed-up is that of "
        "the first path listed, from turns of its own.",
        ("what", "time", "to limit", "best to best", "dresfl is faster"),
        tuple(rows),
    )


def _exact(gemm: dict[str, Any]) -> str:
    return f"dresfl, {gemm['channels']} × {gemm['bits'] / gemm['channels']:.1f} bits"


def _bytes(found: dict[str, Any]) -> Table:
    return Table(
        "Exact int8 product",
        "A byte per residue on tensor cores, reduction included; the limit is the vendor's product without one.",
        ("shape", "channels", "bits", "time", "TOPS", "vendor's TOPS", "to limit"),
        tuple(
            (
                shape,
                str(row["channels"]),
                f"{row['bits']:.0f}",
                time_text(row["seconds"]),
                f"{row['tops']:.0f}",
                f"{row['limit_tops']:.0f}",
                _ratio(row["ratio_to_limit"]),
            )
            for shape, row in found.items()
        ),
    )


def _whole(results: dict[str, Any]) -> Table:
    gradient, whole = results["gradient"], results["round"]
    return Table(
        "Gradient and round",
        f"{'-'.join(map(str, gradient['layers']))}, batch {gradient['batch']}, {gradient['channels']} channels. "
        f"The round: {whole['clients']} clients in one process, {whole['answers_computed']} answers computed; "
        "masks, encode, gradients, decode, lift and step.",
        ("what", "time", "limit", "to limit", "best to best", "plain PyTorch fp32 step", "to that"),
        (
            (
                "one client's gradient",
                time_text(gradient["seconds"]),
                time_text(gradient["limit_seconds"]),
                *_ratios(gradient),
                time_text(gradient["torch_fp32_seconds"]),
                _ratio(gradient["ratio_to_torch_fp32"]),
            ),
            (
                "a coded round",
                time_text(whole["seconds"]),
                time_text(whole["limit_seconds"]),
                *_ratios(whole),
                "",
                "",
            ),
        ),
    )


def _stages(found: dict[str, Any]) -> Table:
    return Table(
        "Stages against a memory copy",
        "GB/s of the larger of what a stage reads and what it writes, compared with copies of the same bytes: "
        "into fresh memory (`clone`), and into memory that is there already. Encode: a batch for R clients; decode: "
        "R answers; masks: ChaCha20, exactly uniform.",
        ("stage", "MB", "time", "GB/s", "clone GB/s", "copy GB/s", "to clone"),
        tuple(
            (
                name.replace("_", " "),
                f"{row['bytes'] / 1e6:.1f}",
                time_text(row["seconds"]),
                f"{row['gb_per_s']:.2f}",
                f"{row['copy_gb_per_s']:.2f}",
                f"{row['copy_into_gb_per_s']:.2f}",
                _ratio(row["ratio_to_copy"]),
            )
            for name, row in found.items()
        ),
    )


def _growth(found: dict[str, Any]) -> Table:
    rows: list[tuple[str, ...]] = []
    for name, fitted in found.items():
        stages = list(fitted["points"])
        sizes = ", ".join(fitted["points"][stages[0]])
        rows.append((f"{name}: {sizes}", *(f"{fitted[stage]:.2f}" for stage in stages)))
    return Table(
        "Growth",
        "The exponent e in time ~ size^e, fitted over the sizes named, all else fixed. Encode: shares for all clients; "
        "gradient: one client's; decode: R answers, R = degree·(K+T−1) + 1; a round computes R answers.",
        ("size", "encode", "gradient", "decode", "round"),
        tuple(rows),
    )


def _memory(found: dict[str, Any]) -> Table:
    over = found["server_decode_over_uploads"]
    return Table(
        "Memory",
        "Bytes at the peak of a stage, without those that it is given.",
        ("stage", "given", "peak", "part of it"),
        (
            ("client: gradient", _size(found["client_rows"]), _size(found["client_gradient"]), ""),
            (
                "coordinator: decode and step",
                _size(found["uploads"]),
                _size(found["server_decode"]),
                "unknown" if over is None else f"{100 * over:.0f} %",
            ),
        ),
    )


def time_text(seconds: float) -> str:
    """A time for people: 2.75 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}"


def _ratios(row: dict[str, Any]) -> tuple[str, str]:
    """To the limit: the ratio of the medians, and of the bests, which other work on the machine disturbs less."""
    return _ratio(row["ratio_to_limit"]), _ratio(row["best_ratio_to_limit"])


def _size(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e6:.1f} MB"
