"""A coordinator and its clients as real processes, in the hidden mode, with fresh keys; one client is killed.

    python examples/federation_of_processes.py [clients] [rounds]

This is what `dresfl federate` does. It needs the extra `network`: pip install 'dresfl[network]'.
"""

import sys
import tempfile
from pathlib import Path

import dresfl as dr
from dresfl.experiments.trials.grpc_trial import Trial, federate


def main(clients: int = 5, rounds: int = 40) -> None:
    layers = 'model.layers=[{ kind = "dense", units = 10 }]'  # any four of five clients suffice, whatever the layers
    trial = Trial("digits", clients, kill=1, settings=(f"rounds={rounds}", f"evaluate_every={rounds}", layers))
    with tempfile.TemporaryDirectory() as folder:
        result = federate(trial, Path(folder), print)
        model = dr.load_model(Path(folder) / "coordinator" / "run" / "model.safetensors")
    digits = dr.load_dataset("digits").test
    right = float((model.predict(digits.inputs) == digits.labels).mean())
    print(f"killed {result['killed']}, restarted {result['restarted']}; all ended alike: {result['clients_agree']}")
    print(f"the coordinator measured {result['test_accuracy']:.4f}, the model file gives {right:.4f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
