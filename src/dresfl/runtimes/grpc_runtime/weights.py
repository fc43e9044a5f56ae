"""Weights on their way to a site: in full, or as differences from those it was sent before, whichever is smaller.

A stream delivers in order, so the base needs no acknowledgement: it is the Task before on the same stream.
"""

import hashlib
import zlib
from typing import final

import numpy as np
import numpy.typing as npt
import torch

from dresfl.errors import MessageError
from dresfl.protocol import Session, Task

from .frames import Delta, Weights

_WIDTHS = (1, 2, 4)
_LEVEL = 1  # of zlib: the differences are small integers, and speed matters more than the last tenth
_KEPT = 4  # rounds whose weights serve as a base


@final
class WeightSender:
    """The coordinator's: encodes each round's Task once in full and once from each base that sites have."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recent: dict[int, npt.NDArray[np.int32]] = {}
        self._frames: dict[int | None, bytes] = {}
        self.round_number: int | None = None

    def publish(self, task: Task) -> None:
        """Take the weights of a new round."""
        full = Weights(task.encode(self._session)).encode()  # refuses weights beyond 32 bits
        self.round_number = task.round_number
        self._frames = {None: full}
        self._recent[self.round_number] = task.weights.to("cpu", torch.int32).numpy()
        for old in sorted(self._recent)[:-_KEPT]:
            del self._recent[old]

    def frame(self, base_round: int | None) -> bytes:
        """The frame for a site whose last Task on this stream was `base_round`'s."""
        if base_round is not None and base_round not in self._frames:
            self._frames[base_round] = self._smaller(base_round)
        return self._frames[base_round]

    def _smaller(self, base_round: int) -> bytes:
        full = self._frames[None]
        if self.round_number is None or base_round not in self._recent or base_round == self.round_number:
            return full
        new = self._recent[self.round_number]
        differences = new.astype(np.int64) - self._recent[base_round]
        reach = int(np.abs(differences).max(initial=0))
        width = next((w for w in _WIDTHS if reach < 2 ** (8 * w - 1)), None)
        if width is None:
            return full
        packed = zlib.compress(differences.astype(f"<i{width}").tobytes(), _LEVEL)
        delta = Delta(self.round_number, base_round, width, _digest(new), packed).encode()
        return min(full, delta, key=len)


@final
class WeightReceiver:
    """A site's: follows the Tasks of one stream, whether it computes them or not."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._round = -1
        self._weights: npt.NDArray[np.int32] | None = None

    def take(self, frame: Weights | Delta) -> Task:
        """The Task that a frame stands for."""
        task = Task.decode(frame.task, self._session) if isinstance(frame, Weights) else self._apply(frame)
        self._round, self._weights = task.round_number, task.weights.to(torch.int32).numpy()
        return task

    def _apply(self, delta: Delta) -> Task:
        if self._weights is None or delta.base_round != self._round:
            raise MessageError(f"a difference from round {delta.base_round} came, but round {self._round} is held")
        if delta.width not in _WIDTHS:
            raise MessageError(f"differences of {delta.width} bytes are not known")
        wanted = self._session.network.num_parameters * delta.width
        unpacker = zlib.decompressobj()
        try:
            raw = unpacker.decompress(delta.packed, wanted + 1)
        except zlib.error as error:
            raise MessageError(f"differences do not decompress: {error}") from error
        if len(raw) != wanted or not unpacker.eof or unpacker.unused_data:
            raise MessageError(f"{wanted} bytes of differences expected, {len(raw)} came")
        moved = self._weights + np.frombuffer(raw, f"<i{delta.width}").astype(np.int64)
        if int(np.abs(moved).max(initial=0)) >= 2**31 or _digest(moved.astype(np.int32)) != delta.digest:
            raise MessageError(f"the differences do not lead to the weights of round {delta.round_number}")
        return Task(delta.round_number, torch.from_numpy(moved))


def _digest(weights: npt.NDArray[np.int32]) -> bytes:
    return hashlib.sha256(weights.astype("<i4").tobytes()).digest()
