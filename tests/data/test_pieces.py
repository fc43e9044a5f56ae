"""Work on rows, piece by piece over threads."""

import numpy as np
import pytest
import torch

from dresfl.data import map_rows, pieces


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_are_all_rows_once(monkeypatch, threads):
    monkeypatch.setattr(pieces, "_PIECE", 20)
    seen = np.zeros(101, np.int64)
    before = torch.get_num_threads()

    def work(piece):
        seen[piece] += 1
        assert torch.get_num_threads() == 1

    def fail(piece):
        raise ValueError("no")

    try:
        torch.set_num_threads(threads)
        map_rows(work, 101, 3)
        assert torch.get_num_threads() == threads
        with pytest.raises(ValueError, match="no"):
            map_rows(fail, 101, 3)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert (seen == 1).all()
