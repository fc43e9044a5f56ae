"""Coded training gives the weights of centralised training, to the last bit.

    python examples/compare_with_centralised.py [rounds]

"direct" computes the same gradients on everybody's rows in one place, without any code. A client that holds all rows
is centralised training in the usual sense. Its batches are drawn in another order, so its weights differ a little.
"""

import sys

import numpy as np

import dresfl as dr


def main(rounds: int = 200) -> None:
    digits = dr.load_dataset("digits")
    clients = dr.partition(digits.train, 9, "dirichlet", alpha=0.3)
    test = digits.test.inputs, digits.test.labels
    network = dr.mlp((64, 32, 10), input_bits=4, weight_bits=10)
    optimizer = dr.Optimizer(method="momentum", learning_rate=0.03)

    coded = dr.simulate(network, clients, rounds=rounds, optimizer=optimizer, test=test, threads=1)
    direct = dr.simulate(network, clients, rounds=rounds, optimizer=optimizer, test=test, threads=1, engine="direct")
    print("coded: ", coded.summary.test_accuracy, coded.model.weights_sha256[:16])
    print("direct:", direct.summary.test_accuracy, direct.model.weights_sha256[:16])
    print("equal weights:", bool(np.array_equal(coded.model.weights, direct.model.weights)))

    everything = [(digits.train.inputs, digits.train.labels)]
    central = dr.simulate(
        network, everything, rounds=rounds, optimizer=optimizer, max_colluders=0, test=test, threads=1, engine="direct"
    )
    print("one client with all rows:", central.summary.test_accuracy)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
