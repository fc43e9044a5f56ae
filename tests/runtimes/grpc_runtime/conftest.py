"""Little of what is relayed stays in memory: so tests meet both ways that a slice may take."""

import pytest

from dresfl.storage import spool


@pytest.fixture(autouse=True)
def slices_in_memory_and_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MEMORY_BYTES", 2000)
