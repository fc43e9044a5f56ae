"""Slices of three rows, so that a small store has several."""

import pytest

import five_clients
from dresfl.protocol import slices


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_BYTES", five_clients.SLICE_BYTES)
