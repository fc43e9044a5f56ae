"""What a client keeps between messages: the shares that it was dealt, and which rounds it answered for which weights.

Both are small interfaces. A simulated client keeps them in memory, and a real one on its disk (`dresfl.storage`). Here
are the interfaces and the versions in memory.
"""

from abc import ABC, abstractmethod
from typing import NoReturn, final

import torch
from torch import Tensor

from dresfl.errors import MessageError
from dresfl.field import Octets, Residues, octets_of, unpacked

from .session import Session


class ShareTable(ABC):
    """The coded rows that one client was dealt, by dealer and row. The client has checked dealer, rows and shape."""

    @abstractmethod
    def put(self, dealer: int, first_row: int, residues: Residues) -> None:
        """Keep rows first_row … of a dealer: residues (M,rows,W). Rows that are held already must be the same."""

    @abstractmethod
    def rows(self, dealers: Tensor, rows: Tensor) -> Tensor:
        """Gather rows, all of them held: dealers (B,) and rows (B,) int64 -> residues (M,B,W)."""

    @abstractmethod
    def packed_rows(self, dealer: int, first: int, last: int) -> Octets:
        """Rows first … last − 1 of a dealer, all of them held: (rows,M,W·residue_bytes), packed as on the wire."""

    @abstractmethod
    def missing(self, dealer: int) -> list[range]:
        """The ranges of a dealer's rows that are not held, ascending; nothing missing: empty."""

    @abstractmethod
    def put_set_up(self, dealer: int, data: bytes) -> None:
        """Keep a dealer's set-up values (set_up.py). Those that are held already must be the same."""

    @abstractmethod
    def set_up(self, dealer: int) -> bytes | None:
        """A dealer's set-up values; None if they are not held."""

    @abstractmethod
    def flush(self) -> None:
        """Put everything kept so far on the disk for good, if there is a disk."""


class AnsweredRounds(ABC):
    """Which rounds of one run a client has answered, and for which weights."""

    @abstractmethod
    def claim(self, round_number: int, weights: bytes) -> bool:
        """Note that the round is answered for weights of this SHA-256; False if it was for others."""


@final
class MemoryTable(ShareTable):
    """Shares in memory: for tests, simulations and small data."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._held: dict[int, Tensor] = {}
        self._set_up: dict[int, bytes] = {}
        self._absent = [torch.ones(session.coded_rows(d), dtype=torch.bool) for d in range(session.num_clients)]

    def __repr__(self) -> str:
        return "MemoryTable(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("shares are not pickled")

    def put(self, dealer: int, first_row: int, residues: Residues) -> None:
        coming = unpacked(residues).to("cpu", torch.int32)
        moduli, count, width = coming.shape
        if dealer not in self._held:
            self._held[dealer] = torch.zeros((moduli, self._session.coded_rows(dealer), width), dtype=torch.int32)
        place = slice(first_row, first_row + count)
        held, known = self._held[dealer][:, place], ~self._absent[dealer][place]
        if not torch.equal(held[:, known], coming[:, known]):
            raise MessageError(f"dealer {dealer} sent other residues for rows it had shared already")
        held.copy_(coming)
        self._absent[dealer][place] = False

    def rows(self, dealers: Tensor, rows: Tensor) -> Tensor:
        gathered = [self._held[d][:, r] for d, r in zip(dealers.tolist(), rows.tolist(), strict=True)]
        return torch.stack(gathered, 1)

    def packed_rows(self, dealer: int, first: int, last: int) -> Octets:
        rows = self._held[dealer][:, first:last]
        packed = octets_of(self._session.field.pack(rows)).reshape(rows.shape[0], rows.shape[1], -1)
        return packed.swapaxes(0, 1)

    def missing(self, dealer: int) -> list[range]:
        return runs_of(self._absent[dealer])

    def put_set_up(self, dealer: int, data: bytes) -> None:
        if self._set_up.setdefault(dealer, data) != data:
            raise MessageError(f"dealer {dealer} sent other set-up values than before")

    def set_up(self, dealer: int) -> bytes | None:
        return self._set_up.get(dealer)

    def flush(self) -> None:
        """Nothing to do: memory has no disk."""


@final
class MemoryAnswers(AnsweredRounds):
    """Answered rounds in memory: forgotten with the process, so only for one that never restarts."""

    def __init__(self) -> None:
        self._answered: dict[int, bytes] = {}

    def claim(self, round_number: int, weights: bytes) -> bool:
        return self._answered.setdefault(round_number, weights) == weights


def runs_of(marked: Tensor) -> list[range]:
    """The stretches of True in a vector.

    >>> runs_of(torch.tensor([True, True, False, True]))
    [range(0, 2), range(3, 4)]
    """
    if not bool(marked.any()):
        return []
    edges = torch.diff(torch.nn.functional.pad(marked.to(torch.int8), (1, 1)))
    starts, stops = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten()
    return [range(a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
