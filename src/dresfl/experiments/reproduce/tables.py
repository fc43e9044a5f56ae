"""Table 1 from the records alone: as JSON, Markdown and CSV, the paper's figure beside each of ours."""

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from dresfl.data import data_set_label
from dresfl.experiments.published import LIKE, METHOD_LABELS, METHODS, PAPER, ROWS, recipes

from .cells import other_settings
from .matrix import matrix
from .records import Record, grouped, mean_and_sd

Table = dict[str, dict[str, dict[str, Any]]]

LIKE_FOR_LIKE = frozenset(
    method for method in METHODS if method.startswith(LIKE) or method in ("dresfl", "dresfl-linear", "dresfl-hidden")
)
"""The methods that share features, network sizes, optimiser family and rounds on a data set."""

_CENTRAL = ("centralised", "like-centralised")
_OF_A_RUN = ("decoded_share", "skipped_rounds", "mean_survivors", "seconds", "weights_sha256")


def table(records: Iterable[Record]) -> Table:
    """{dataset: {method: {mean, sd, seeds, rounds, engine, device, commit, ...}}}; accuracies in percent.

    sd is that of a sample (n − 1), and None for a single run; lists are in order of the seeds.
    """
    return {
        dataset: {method: _entry(runs) for method, runs in methods.items()}
        for dataset, methods in grouped(records).items()
    }


def _entry(runs: Sequence[Record]) -> dict[str, Any]:
    mean, sd = mean_and_sd([run.percent for run in runs])
    first = runs[0]
    published = PAPER.get((first.dataset, first.method))
    entry = {
        "mean": mean,
        "sd": sd,
        "seeds": len(runs),
        "rounds": first.header["rounds"],
        **{key: "+".join(dict.fromkeys(run.header[key] for run in runs)) for key in ("engine", "device", "commit")},
        "paper": {"mean": published[0], "sd": published[1]} if published else None,
        "runs": [
            {
                "seed": run.seed,
                "dropout_seed": run.header["dropout_seed"],
                "test_accuracy": round(run.percent, 4),
                "engine": run.header["engine"],
                **{key: run.result[key] for key in _OF_A_RUN},
            }
            for run in runs
        ],
    }
    note = split_note(first)
    return {**entry, "note": note} if note else entry


def split_note(run: Record) -> str:
    """What to say where a data set's rows are not those of its official split; else nothing."""
    rows, official = (run.header["train_rows"], run.header["test_rows"]), ROWS.get(run.dataset)
    if official is None or rows == official:
        return ""
    return (
        f"{data_set_label(run.dataset)}: not the official split, which the paper used: {rows[0]:,} training and "
        f"{rows[1]:,} test rows here, {official[0]:,} and {official[1]:,} there"
    )


def spreadsheet(records: Iterable[Record]) -> str:
    """The table as CSV, a line per cell."""
    text = io.StringIO()
    names = ("mean", "sd", "seeds", "rounds", "engine", "device", "commit")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["dataset", "method", *names, "paper_mean", "paper_sd", "decoded_share", "note"])
    for dataset, methods in table(records).items():
        for method, entry in methods.items():
            published = entry["paper"] or {"mean": "", "sd": ""}
            shares = [run["decoded_share"] for run in entry["runs"] if run["decoded_share"] is not None]
            decoded = f"{statistics.fmean(shares):.4f}" if shares else ""
            rounded = {name: "" if entry[name] is None else f"{entry[name]:.2f}" for name in ("mean", "sd")}
            own = [rounded.get(name, entry[name]) for name in names]
            writer.writerow([dataset, method, *own, published["mean"], published["sd"], decoded, entry.get("note", "")])
    return text.getvalue()


def mean_text(mean: float, sd: float | None) -> str:
    """97.41 ± 0.05, or 97.41, one seed."""
    return f"{mean:.2f}, one seed" if sd is None else f"{mean:.2f} ± {sd:.2f}"


def accuracies(found: Table, *, gap: str = " ", bold: str = "") -> tuple[list[str], list[list[str]]]:
    """The head and the rows: ours, `gap`, and in brackets the paper's; `bold` encloses the best federated ones."""
    rows = []
    for method in METHODS:
        if all(method not in methods for methods in found.values()):
            continue
        row = [METHOD_LABELS[method]]
        for dataset, methods in found.items():
            own, published = methods.get(method), PAPER.get((dataset, method))
            text = mean_text(own["mean"], own["sd"]) if own else "–"
            federated = [entry["mean"] for name, entry in methods.items() if name not in _CENTRAL]
            if own and method not in _CENTRAL and own["mean"] == max(federated):
                text = f"{bold}{text}{bold}"
            row.append(text + (f"{gap}({mean_text(*published)})" if published else ""))
        rows.append(row)
    return ["", *map(data_set_label, found)], rows


def brief(found: Table, block: str) -> str:
    """A table of README: `table1`, the paper's methods, or `like`, those that ran like for like; empty if none did."""
    like = block == "like"
    methods = [
        method
        for method in METHODS
        if (method in LIKE_FOR_LIKE if like else method not in LIKE_FOR_LIKE or method == "dresfl")
        and method != "fedavg-is-unbiased"
        and any(method in entries for entries in found.values())
    ]
    if like and methods == ["dresfl"]:
        return ""
    rows = []
    for method in methods:
        bold = "**" if method == "dresfl" else ""
        label = "centralised ReLU" if method == "centralised" else METHOD_LABELS[method].removesuffix(", like for like")
        row = [f"{bold}{label}{bold}"]
        for dataset, entries in found.items():
            own, published = entries.get(method), PAPER.get((dataset, method))
            text = "–" if own is None else mean_text(own["mean"], own["sd"]) if like else f"{own['mean']:.1f}"
            theirs = f" ({published[0]:.1f})" if published and not like else ""
            row.append((f"{bold}{text}{bold}" if own else text) + theirs)
        rows.append(row)
    columns = [
        data_set_label(dataset).removesuffix("-MNIST") + "†" * any("note" in entry for entry in entries.values())
        for dataset, entries in found.items()
    ]
    head = "test accuracy, %" + ("" if like else " (the paper's)")
    lines = [" | ".join(row) for row in ([head, *columns], *rows)]
    return "\n".join([f"| {lines[0]} |", "|---" * (len(columns) + 1) + "|", *(f"| {line} |" for line in lines[1:])])


def markdown(records: Sequence[Record]) -> str:
    """The table as a Markdown page: accuracies, how each cell ran, dropouts, notes."""
    found = table(records)
    notes = dict.fromkeys(note for record in records if (note := split_note(record)))
    sections = [
        "# Table 1: test accuracy (%)\n\n"
        "Mean ± standard deviation over the seeds; below each figure of ours, in brackets, the paper's. "
        "Bold: the best method, centralised training left aside. Made from the records in `jsonl/`.",
        _grid(*accuracies(found, gap="<br>", bold="**")),
        *(f"**Note.** {note}." for note in notes),
        *_older(records),
        *_perturbed(records, found),
        *_rising(records, found),
        "## How each cell ran",
        _grid(["data set", "methods", "seeds", "rounds", "engine", "device", "commit"], _ways(found)),
        "`coded` is the whole protocol; `direct` computes the same integers without coding, and the weights come out "
        "bit-identical (by test). `real`: the baselines, ReLU networks in floating point.",
        *_data(records, found),
        *_dropouts(records, found),
    ]
    return "\n\n".join(sections) + "\n"


def _older(records: Sequence[Record]) -> list[str]:
    """Which runs had other settings than the recipes have now. Rounds stand in the table of how each cell ran."""
    named: dict[tuple[str, str], list[str]] = {}
    for dataset, methods in grouped(records).items():
        if dataset not in recipes():
            continue
        for cell in matrix([dataset], list(methods), seeds=1):
            method = cell.method
            differing = {name for run in methods[method] for name in other_settings(run, cell)}
            what = ", ".join(sorted(differing - {"rounds", "seed", "dropout"}))
            if what:
                named.setdefault((what, METHOD_LABELS[method]), []).append(data_set_label(dataset))
    lines = [f"- {method}, {', '.join(datasets)}: {what}" for (what, method), datasets in sorted(named.items())]
    return ["\n".join(["**Older settings.** These runs differ from today's recipes:", "", *lines])] if lines else []


def _perturbed(records: Sequence[Record], found: Table) -> list[str]:
    """How far runs of one seed end from each other if their first weights differ by 1e-9."""
    lines = []
    for dataset, methods in found.items():
        for method, entry in methods.items():
            own = [run for run in records if (run.dataset, run.method, run.feasible) == (dataset, method, True)]
            seeds = {run.seed for run in own if run.perturbation}
            if not seeds:
                continue
            percents = [run.percent for run in own if run.seed in seeds]
            lines.append(
                f"- {data_set_label(dataset)}, {METHOD_LABELS[method]}: {min(percents):.2f} to {max(percents):.2f} % "
                f"over {len(percents)} runs of one seed; over the seeds {mean_text(entry['mean'], entry['sd'])} %"
            )
    if not lines:
        return []
    intro = "SCAFFOLD can be chaotic. Here are runs of one seed whose first weights differ by 1e-9, all in float64:"
    return ["\n".join([intro, "", *lines])]


def _rising(records: Sequence[Record], found: Table) -> list[str]:
    """Of cells with one seed: how far their curve still rises at the end, from one sixth of the rounds to the next."""
    rows = []
    for dataset, methods in found.items():
        for method in [name for name, entry in methods.items() if entry["sd"] is None]:
            run = next(run for run in records if (run.dataset, run.method, run.feasible) == (dataset, method, True))
            rounds = run.header["rounds"]
            sixths = [
                [line["test_accuracy"] for line in run.evaluations if start < 6 * line["round"] / rounds <= start + 1]
                for start in (3, 4, 5)
            ]
            if all(sixths):
                means = [100 * statistics.fmean(values) for values in sixths]
                steps = [f"{later - before:+.2f}" for before, later in pairwise(means)]
                rows.append(
                    [data_set_label(dataset), METHOD_LABELS[method], f"{rounds:,}", f"{run.percent:.2f}", *steps]
                )
    if not rows:
        return []
    head = ["data set", "method", "rounds", "at the end (%)", "fifth sixth, points", "last sixth, points"]
    intro = "Cells with one seed. How far the mean accuracy of a sixth of the rounds is above that of the sixth before:"
    return ["## Do the curves still rise?", intro, _grid(head, rows)]


def _ways(found: Table) -> list[list[str]]:
    """How the cells ran; methods of a data set that ran alike share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for dataset, methods in found.items():
        for method, entry in methods.items():
            engines = sorted({run["engine"] for run in entry["runs"]})
            engine = "; ".join(_engine_text(entry, name) if len(engines) > 1 else name for name in engines)
            commits = " ".join(
                commit[:12] + "-dirty" * commit.endswith("-dirty") for commit in entry["commit"].split("+")
            )
            way = str(entry["seeds"]), f"{entry['rounds']:,}", engine, entry["device"], commits
            rows.setdefault((data_set_label(dataset), *way), []).append(METHOD_LABELS[method])
    return [[dataset, "; ".join(names), *way] for (dataset, *way), names in rows.items()]


def _data(records: Sequence[Record], found: Table) -> list[str]:
    """The digests of what the runs were made from, as far as the records have them."""
    rows = []
    for dataset in found:
        headers = [run.header for run in records if run.dataset == dataset and run.header.get("data_sha256")]
        if headers:
            data = headers[0]["data_sha256"]
            weights = sorted({header["extractor_sha256"][:16] for header in headers if header["extractor_sha256"]})
            images = [data[f"{part}_inputs"][:16] for part in ("train", "test")]
            rows.append([data_set_label(dataset), *images, ", ".join(weights) or "–"])
    if not rows:
        return []
    head = ["data set", "training images", "test images", "extractor's weights"]
    return ["## Data", "How the SHA-256 digests of the arrays begin; records have them in full:", _grid(head, rows)]


def _engine_text(entry: dict[str, Any], engine: str) -> str:
    seeds = [str(run["seed"]) for run in entry["runs"] if run["engine"] == engine]
    return f"{engine} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})"


def _dropouts(records: Sequence[Record], found: Table) -> list[str]:
    """The draws, those passed over, what was decoded under each, and the infeasible one."""
    draws = {record.seed: record for record in records if record.feasible}
    passed = sorted({seed for record in records for seed in record.header["passed_over"]})
    used = ", ".join(
        f"seed {seed}: draw {record.header['dropout_seed']} ({record.result['reliable_clients']} reliable clients)"
        for seed, record in sorted(draws.items())
    )
    sections = [
        "## Dropouts",
        "A client's dropout rate is 0.99 with probability ½, else uniform in [0, 0.1], drawn once a run. Taken are the "
        f"first draws that leave at least 9 of 20 clients with a rate below ½. {used}. "
        f"Passed over as infeasible: {', '.join(map(str, passed)) or 'none'}.",
    ]
    shares = [
        [data_set_label(dataset), METHOD_LABELS[method], *_shares(entry, sorted(draws))]
        for dataset, methods in found.items()
        for method, entry in methods.items()
        if entry["runs"][0]["decoded_share"] is not None
    ]
    if shares:
        sections += [
            "Share of the rounds that had enough answers, and answers a round:",
            _grid(["data set", "method", *(f"seed {seed}" for seed in sorted(draws))], shares),
        ]
    sections += [_infeasible(record) for record in records if not record.feasible]
    return sections


def _shares(entry: dict[str, Any], seeds: Sequence[int]) -> list[str]:
    runs = {run["seed"]: run for run in entry["runs"]}
    return [
        f"{100 * runs[seed]['decoded_share']:.1f} % ({runs[seed]['mean_survivors']:.1f})" if seed in runs else "–"
        for seed in seeds
    ]


def _infeasible(record: Record) -> str:
    result = record.result
    return (
        f"An infeasible draw for comparison, {data_set_label(record.dataset)}, {METHOD_LABELS[record.method]}, draw "
        f"{record.header['dropout_seed']}: {result['reliable_clients']} reliable clients, "
        f"{result['mean_survivors']:.1f} answers a round, {100 * result['decoded_share']:.1f} % of "
        f"{record.header['rounds']:,} rounds decoded, {record.percent:.2f} % test accuracy. "
        "About a quarter of all draws leave fewer than 9 reliable clients."
    )


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
