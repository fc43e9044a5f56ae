"""Slices of three rows, so that a small store has several."""

import five_clients
import pytest

from dresfl.party import slices


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_BYTES", five_clients.SLICE_BYTES)
