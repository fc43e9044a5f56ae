"""The benchmark of range proofs: what it plans is MNIST's size, and it measures what a client publishes."""

import pytest
import torch

from dresfl.experiments.bench import range_proofs


def test_it_measures_a_clients_part(monkeypatch):
    monkeypatch.setattr(range_proofs, "_MEASURED", 2)
    torch.set_num_threads(1)
    found = range_proofs.proof(seconds=0.0)
    assert (found["primes"], found["bits_a_row"], found["growth"]) == (7, 3930, pytest.approx(4.95, abs=0.01))
    assert found["share_bytes"] == 20 * 3000 * 3930 * 7 * 3
    assert found["ns_per_bit"] > 0
    assert found["squares"] * 20 >= 40 + 20 + 8  # bits that a bad dealer has against it, and the choices it has
