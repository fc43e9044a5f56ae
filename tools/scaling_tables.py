"""Write the tables of docs/explanation/scaling.md from the records.

python tools/scaling_tables.py
"""

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "scaling.md"
SCALE, TRANSFORMS = ROOT / "results" / "speed" / "scale.jsonl", ROOT / "results" / "speed" / "transforms.jsonl"
GROUPS = ROOT / "results" / "groups.jsonl"

Record = dict[str, Any]


def records(path: Path, what: str) -> list[Record]:
    """The lines of a kind."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line.get("what") == what]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *map(list, rows)]
    return (
        "".join("| " + " | ".join(line) + " |\n" for line in lines).replace("| --- ", "|---").replace("|--- |", "|---|")
    )


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def size(count: int) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def network(record: Record) -> str:
    return "-".join(map(str, record["layers"]))


def rounds() -> str:
    """Rounds of 20 and of 1,000 clients."""
    rows = []
    for what, mode in (("round", "open, coded"), ("hidden round", "hidden, direct")):
        found = records(SCALE, what)
        for few in (record for record in found if record["clients"] == 20):
            many = next(r for r in found if r["clients"] == 1000 and r["layers"] == few["layers"])
            times = milliseconds(few["seconds"]), milliseconds(many["seconds"])
            rows.append([f"{mode}: {network(few)}", *times, f"{many['ratio_to_20']:.2f}"])
    return table(("mode, engine and network, batch 64", "20 clients", "1,000 clients", "ratio"), rows)


def codes() -> str:
    """Rounds by K and T."""
    rows = []
    found = records(SCALE, "code")
    for record in (r for r in found if r["layers"][0] == 64):
        other = [r for r in found if r["layers"][0] == 784 and r["shards"] == record["shards"]]
        large = milliseconds(other[0]["seconds"]) if other else "–"
        ways = milliseconds(record["logarithms_seconds"]), milliseconds(record["products_seconds"])
        both = f"{record['shards']}, {record['colluders']}"
        rows.append([both, str(record["answers"]), milliseconds(record["seconds"]), large, *ways])
    head = ("K, T", "R", "round, 64-32-32-10", "round, 784-64-64-10", "coefficients", "the same by products")
    return table(head, rows)


def transforms() -> str:
    """Encoding by three ways."""
    found = records(TRANSFORMS, "encode")
    rows = []
    for total in sorted({record["shards_and_masks"] for record in found}):
        cells = []
        for clients in (1024, 4096):
            line = [r for r in found if (r["clients"], r["shards_and_masks"]) == (clients, total)]
            ways = ("matrix_ns", "ntt_ns", "fourier_ns")
            cells += [f"{line[0][way]:.3g}" for way in ways] if line else ["–"] * 3
        rows.append([str(total), *cells])
    head = ["K + T"] + [f"{way}, {clients}" for clients in ("1,024", "4,096") for way in ("matrix", "NTT", "Fourier")]
    return table(head, rows)


def designs() -> str:
    """Which groups are large enough, for a million clients."""
    found = [r for r in records(GROUPS, "design") if r["clients"] == 10**6 and r["way"] == "groups"]
    sizes = sorted({record["size"] for record in found})
    rows = []
    for share in sorted({record["colluding_share"] for record in found}):
        held = {r["size"]: r["colluders"] for r in found if r["colluding_share"] == share}
        rows.append([f"**{percent(share)} collude: T**", *(f"**{held[n]}**" for n in sizes)])
        for opening in dict.fromkeys(record["opening"] for record in found):
            cells = []
            for n in sizes:
                (one,) = [r for r in found if (r["colluding_share"], r["opening"], r["size"]) == (share, opening, n)]
                cells.append(f"{one['shards']} ({one['answers']})" if one["feasible"] else "–")
            rows.append([opening, *cells])
    return table(["groups of", *map(str, sizes)], rows)


def costs() -> str:
    """Bytes for a million clients of which 1 % collude, one hidden layer."""
    rows = []
    for record in records(GROUPS, "design"):
        wanted = record["clients"] == 10**6 and record["colluding_share"] == 0.01
        if wanted and record["opening"] == "open mode, one hidden layer" and record["feasible"]:
            way = f"groups of {record['size']}" if record["way"] == "groups" else f"a committee of {record['size']}"
            code = f"{record['colluders']}, {record['shards']}, {record['answers']}"
            moved = size(record["sent_bytes"]), size(record["stored_bytes"]), size(record["upload_bytes"])
            rows.append([way, f"{record['groups']:,}", code, *moved])
    return table(("way", "groups", "T, K, answers", "sent once", "stored", "sent each round"), rows)


def blinding() -> str:
    """What today's masks can blind."""
    rows = []
    for record in records(GROUPS, "blinding"):
        found = str(record["seeds"]) if record["seeds"] else record["reason"].split(": ", 1)[1]
        rows.append([str(record["clients"]), str(record["colluders"]), str(record["answers"]), found])
    return table(("clients", "T", "R", "seeds of a client, or why there is no certificate"), rows)


def colluders() -> str:
    """Drawn groups beside the bound."""
    rows = []
    for record in records(GROUPS, "colluders"):
        (t, *_) = (t for t, share in record["drawn"].items() if share < 0.5)
        shares = percent(record["drawn"][t], 2), percent(record["bound"][t], 2)
        most = str(record["median_of_the_most"]), str(record["largest_of_the_most"])
        rows.append([f"{record['clients']:,}", f"{record['draws']:,}", *most, t, *shares])
    head = ("clients", "draws", "most in a group, median", "largest", "t", "draws with more than t", "bound")
    return table(head, rows)


def dropouts() -> str:
    """Groups under the paper's dropouts."""
    rows = []
    for record in records(GROUPS, "dropouts"):
        lost = percent(record["groups_with_too_few_reliable"], 2), percent(record["expected_of_these"], 2)
        place = f"{record['clients']:,}", str(record["size"])
        rows.append([*place, percent(record["decoded_share"], 2), *lost])
    return table(("clients", "groups of", "decoded", "too few reliable, drawn", "by formula"), rows)


def training() -> str:
    """One model by sums of groups."""
    found = records(GROUPS, "training")
    rows = []
    for n, formation in dict.fromkeys((r["size"], r["formation"]) for r in found):
        runs = [r for r in found if (r["size"], r["formation"]) == (n, formation)]
        right = [100 * r["test_accuracy"] for r in runs]
        name = "one group of 1,000" if n == 1000 else f"groups of {n}, {formation}"
        means = (percent(statistics.mean(r[key] for r in runs)) for key in ("decoded_share", "lost_clients"))
        rows.append([name, *means, f"{statistics.mean(right):.1f} ± {statistics.stdev(right):.1f} %"])
    return table(("groups", "sums decoded", "clients in lost groups", "test accuracy"), rows)


def separate() -> str:
    """Models of groups, averaged."""
    found = records(GROUPS, "separate models")
    rows = []
    for formation in dict.fromkeys(r["formation"] for r in found):
        runs = [r for r in found if r["formation"] == formation]
        means = (percent(statistics.mean(r[key] for r in runs)) for key in ("mean_of_the_groups", "test_accuracy"))
        rows.append([f"groups of {runs[0]['size']}, {formation}", *means])
    return table(("groups", "one group's model", "average of all models"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "rounds": rounds,
    "codes": codes,
    "transforms": transforms,
    "blinding": blinding,
    "designs": designs,
    "costs": costs,
    "colluders": colluders,
    "dropouts": dropouts,
    "training": training,
    "separate": separate,
}


def rendered(page: str) -> str:
    """The page with every table made anew."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise SystemExit(f"the page has not one place for the table {name}")
        before, rest = page.split(begin)
        page = before + begin + make() + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
