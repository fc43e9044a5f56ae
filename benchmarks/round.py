"""How long a coded round of the `mnist` setting takes, beside the bare float64 products it contains.

    python benchmarks/round.py [--threads 1] [--rounds 20] [--clients 20]

Synthetic rows of MNIST's shape; no data set is needed. The limit is every float64 product of the round alone (encode,
each layer forward and backward, decode), same shapes, same threads, same run. Prints one JSON line.
"""

import argparse
import json
import platform
import resource
import statistics
import time
from collections.abc import Callable

import torch

from dresfl.local import LocalFederation, no_dropouts
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Server, Session


def seconds(run: Callable[[], object], times: int) -> float:
    """The median of `times` runs after two to warm up."""
    run()
    run()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def bare_products(session: Session) -> Callable[[], None]:
    """The float64 products of one round, and nothing else."""
    moduli, answers = len(session.field.moduli), session.recovery_threshold
    batch, hidden = session.batch_size, session.num_shards + session.max_colluders
    network = session.network

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64)

    encode = random(moduli, answers, hidden), random(moduli, hidden, batch * session.row_width)
    decode = random(moduli, 1, answers), random(moduli, answers, network.num_parameters)
    layers = []
    for parameters in network.parameters:
        fan_in, fan_out = parameters.fan
        inputs, deltas = random(moduli, answers, batch, fan_in), random(moduli, answers, batch, fan_out)
        layers.append((inputs, random(fan_in, fan_out), deltas))

    def run() -> None:
        torch.matmul(*encode)
        for depth, (inputs, weights, deltas) in enumerate(layers):
            torch.matmul(inputs, weights)
            torch.matmul(inputs.swapaxes(-1, -2), deltas)
            if depth:
                torch.matmul(deltas, weights.T)
        torch.matmul(*decode)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    network = mlp((784, 64, 64, 10), input_bits=4, weight_bits=10)
    rows = (3000,) * arguments.clients
    session = Session(network, arguments.clients, 1, 1, 64, rows, seed=1)
    generator = torch.Generator().manual_seed(1)
    data = []
    for count in rows:
        inputs = torch.randint(17, (count, 784), generator=generator, dtype=torch.int32)
        labels = torch.randint(10, (count,), generator=generator)
        data.append((inputs, torch.nn.functional.one_hot(labels, 10).to(torch.int32)))
    server = Server(session, Optimizer(), rounds=10**6)
    federation = LocalFederation(session, server, data, no_dropouts(arguments.clients, 1), "coded")
    products = seconds(bare_products(session), arguments.rounds)
    whole = seconds(federation.run_round, arguments.rounds)
    print(
        json.dumps(
            {
                "round_seconds": round(whole, 5),
                "bare_products_seconds": round(products, 5),
                "ratio_to_limit": round(whole / products, 3),
                "answers_computed": session.recovery_threshold,
                "clients": arguments.clients,
                "threads": arguments.threads,
                "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "torch": torch.__version__,
                "machine": platform.machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
