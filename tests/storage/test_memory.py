"""A store of any size takes no memory of its own: filled, verified and gathered from in a few megabytes."""

import pytest
import torch

from dresfl.federation import Agreement, make_session
from dresfl.model import Dense
from dresfl.protocol import num_slices, row_bytes, slice_range
from dresfl.storage import ShareStore

ROWS, GROWTH = 2000, 20 * 2**20


@pytest.fixture(autouse=True)
def small_slices():
    """Here slices have their real size."""


def resident(kind):
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(f"{kind}:"))


def test_memory_stays_flat(tmp_path):
    session = make_session(Agreement((Dense(2),), (1600,), 4, 10, batch_size=32), (ROWS,) * 4, b"", b"")
    size = 4 * ROWS * row_bytes(session)
    assert size > 5 * GROWTH
    rows = slice_range(session, 0, 0)
    residues = session.field.embed(torch.arange(len(rows) * session.row_width).view(len(rows), -1) % 1000)
    session.field.unpack(session.field.pack(residues), residues.shape[1:])  # whatever is compiled, is now
    before = resident("VmRSS")
    with ShareStore.open(tmp_path / "s", bytes(32)) as store:
        table, _ = store.table(session, 0)
        for dealer in range(4):
            for number in range(num_slices(session, dealer)):
                part = slice_range(session, dealer, number)
                table.put(dealer, part.start, residues[:, : len(part)])
        assert table.complete
        assert resident("VmRSS") - before < GROWTH
    with ShareStore.open(tmp_path / "s", bytes(32)) as store:
        table, _ = store.table(session, 0)
        assert table.complete
        assert resident("VmRSS") - before < GROWTH
        # rows in use are pages of the files, which the system takes back when it needs them; nothing is copied
        anonymous = resident("RssAnon")
        for number in range(200):
            batch = session.batch_rows(number)
            gathered = table.rows(batch.dealers, batch.rows)
            assert torch.equal(gathered, residues[:, batch.rows % len(rows)])
        assert resident("RssAnon") - anonymous < GROWTH
