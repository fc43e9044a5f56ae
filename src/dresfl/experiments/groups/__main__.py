"""Every figure of docs/explanation/scaling.md about groups. Prints JSON lines; two minutes on one quiet core.

python -m dresfl.experiments.groups --out results/groups.jsonl
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dresfl.experiments.bench.run import machine
from dresfl.files import write_atomic
from dresfl.kernels.threads import torch_threads

from .design import OPENINGS, Population, blinding, design
from .draws import colluder_draws, dropout_draws
from .training import FORMATIONS, Grouping, separate_models, train_in_groups

FORMAT = "dresfl groups 1"

POPULATIONS = (10_000, 100_000, 1_000_000)
SHARES = (0.001, 0.01, 0.05, 0.1)
SIZES = (50, 100, 200, 500, 1000)


def lines() -> Iterator[dict[str, Any]]:
    """Everything, line by line."""
    yield {"format": FORMAT, "machine": machine(), "threads": 1}
    for clients in POPULATIONS:
        for share in SHARES:
            for opening in OPENINGS:
                for size in SIZES:
                    yield {"what": "design", **design(Population(clients, share), size, opening).to_dict()}
                yield {"what": "design", **design(Population(clients, share), 1000, opening, "committee").to_dict()}
    for clients, colluders in ((1031, 1), (1032, 1), (115, 2), (140, 2), (50, 3), (51, 3)):
        yield {"what": "blinding", **blinding(clients, colluders, degree=8)}
    for clients in POPULATIONS:
        found = colluder_draws(Population(clients, 0.01), 100, draws=2000 if clients < 10**6 else 200, seed=1)
        yield {"what": "colluders", **found}
    for clients, rounds in ((10_000, 100), (1_000_000, 4)):
        for size in (20, 50, 100):
            yield {"what": "dropouts", **dropout_draws(clients, size, 9, rounds, seed=0)}
    for seed, size, formation in itertools.product(range(5), (20, 50, 100, 1000), FORMATIONS):
        if size < 1000 or formation == "random":  # one group is one group
            grouping = Grouping(1000, size, formation, seed)
            yield {"what": "training", **train_in_groups(grouping, rounds=600, batch=100)}
    for seed, formation in itertools.product(range(3), FORMATIONS):
        yield {"what": "separate models", **separate_models(Grouping(1000, 100, formation, seed), rounds=600, batch=64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a file for the lines; without it they go to stdout")
    options = parser.parse_args()
    written = []
    with torch_threads(1):
        for line in lines():
            text = json.dumps(json.loads(json.dumps(line), parse_float=lambda digits: float(f"{float(digits):.5g}")))
            written.append(text)
            if options.out is None:
                print(text, flush=True)
            print(text[:120], file=sys.stderr)
    if options.out is not None:
        write_atomic(options.out, ("\n".join(written) + "\n").encode())


if __name__ == "__main__":
    main()
