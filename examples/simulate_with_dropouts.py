"""Twenty clients with skewed data, half of them nearly always absent: the training does not notice.

python examples/simulate_with_dropouts.py [rounds]
"""

import sys

import dresfl as dr


def main(rounds: int = 300) -> None:
    digits = dr.load_dataset("digits")
    clients = dr.partition(digits.train, 20)  # sorted by label: most clients hold one or two classes
    network = dr.mlp((64, 32, 10), input_bits=4, weight_bits=10)

    planned = dr.plan(network, num_clients=20, rows=digits.train.num_rows)
    print(f"{planned.recovery_threshold} of 20 clients must answer a round; {planned.max_dropouts} may be missing")

    def show(progress: dr.Progress) -> None:
        if progress.round_number % 100 == 0:
            print(f"round {progress.round_number}: {progress.mean_survivors:.1f} answers a round")

    runs = {
        name: dr.simulate(
            network,
            clients,
            rounds=rounds,
            optimizer=dr.Optimizer(method="momentum", learning_rate=0.03, schedule="cosine"),
            dropouts=dropouts,
            test=(digits.test.inputs, digits.test.labels),
            threads=1,
            progress=show,
        )
        for name, dropouts in {"all answer": None, "half are absent": dr.paper_dropouts(20, seed=0)}.items()
    }
    for name, run in runs.items():
        print(f"{name}: accuracy {run.summary.test_accuracy}, weights {run.model.weights_sha256[:16]}")
    skipped = runs["half are absent"].summary.skipped_rounds
    same = len({run.model.weights_sha256 for run in runs.values()}) == 1
    print(f"{skipped} rounds were skipped; the weights are {'the same' if same else 'different'}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
