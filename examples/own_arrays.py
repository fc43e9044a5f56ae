"""Your own arrays: five hospitals with thirty measurements of each patient, and no test set.

python examples/own_arrays.py [rounds]
"""

import sys

import numpy as np

import dresfl as dr


def hospital(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Made-up patients. Real ones come from your database, scaled to about [-1, 1]."""
    generator = np.random.default_rng(number)
    sick = generator.integers(0, 2, 80)
    measurements = generator.normal(0.3 * sick[:, None] - 0.15, 0.25, (80, 30))
    return measurements.clip(-1, 1), sick


def main(rounds: int = 200) -> None:
    hospitals = [hospital(number) for number in range(5)]
    network = dr.Network((dr.Dense(8), dr.Square(), dr.Dense(2)), input_shape=(30,), input_bits=6)
    optimizer = dr.Optimizer(method="adam", learning_rate=0.01, schedule="constant")
    run = dr.simulate(network, hospitals, rounds=rounds, optimizer=optimizer, classes=["healthy", "sick"], threads=1)
    print(f"after {run.summary.rounds} rounds: test_accuracy is {run.summary.test_accuracy}, there is no test set")

    patients, sick = hospital(99)
    found = run.model.predict(patients)
    print(f"{int((found == sick).sum())} of {len(sick)} new patients are classified right")
    print("the first one is", run.model.classes[found[0]])

    try:
        dr.simulate(network, hospitals[:4], rounds=1)
    except dr.InfeasiblePlan as error:
        print(f"four hospitals are too few: {error}; {error.hint}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
