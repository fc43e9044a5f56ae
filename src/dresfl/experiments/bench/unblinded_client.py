"""A client that does not blind its answers, as a process of its own: for benchmarks, and for nothing else.

python -m dresfl.experiments.bench.unblinded_client --config site.toml --json
"""

import argparse
import json
import sys
from pathlib import Path

from dresfl.deploy.join import join
from dresfl.deploy.settings import ClientConfig, load_settings
from dresfl.runtimes.log import log_to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    log = log_to(lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(join(load_settings(ClientConfig, options.config), log, blinded=False), indent=2))


if __name__ == "__main__":
    main()
