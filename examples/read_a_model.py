"""Read the model of any run: predict with it, and take it to torch.

    python examples/read_a_model.py [model.safetensors]

Without an argument it trains a small model first.
"""

import sys
import tempfile
from pathlib import Path

import torch

import dresfl as dr


def trained(path: Path) -> Path:
    digits = dr.load_dataset("digits")
    network = dr.mlp((64, 10), input_bits=4, weight_bits=10)
    optimizer = dr.Optimizer(method="momentum", learning_rate=0.03, schedule="cosine")
    clients = dr.partition(digits.train, 3)
    dr.simulate(network, clients, rounds=60, optimizer=optimizer, threads=1).model.save(path)
    return path


def main(path: Path) -> None:
    model = dr.load_model(path)
    print(model, "layers:", [layer.to_dict()["kind"] for layer in model.network.layers])

    digits = dr.load_dataset("digits").test
    print("predictions:", model.predict(digits.inputs[:10]).tolist())
    print("labels:     ", digits.labels[:10].tolist())

    module = model.to_torch()
    for name, parameter in module.named_parameters():
        print(name, tuple(parameter.shape))
    outputs = module(torch.from_numpy(digits.inputs)).detach().numpy()
    print("the same outputs in torch:", bool((outputs == model.decision_function(digits.inputs)).all()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1]) if sys.argv[1:] else trained(Path(folder) / "model.safetensors"))
