"""Weights on their way to a client: in full, or as differences from those it was sent before, whichever is smaller.

A stream delivers in order, so the base needs no acknowledgement: it is the Task before on the same stream. The machines
know nothing of this: what a client's machine is given is always the whole Weights message.
"""

import struct
import zlib
from typing import final

import numpy as np
import numpy.typing as npt
import torch

from dresfl.errors import MessageError
from dresfl.federation.messages import Delta, Message, Weights
from dresfl.model import weights_sha256

_WIDTHS = (1, 2, 4)
_LEVEL = 1  # of zlib: the differences are small integers, and speed matters more than the last tenth
_KEPT = 4  # rounds whose weights serve as a base
_HEAD = struct.Struct("<18sI")  # of a Task: version, kind and session; then its round

Integers = npt.NDArray[np.int64]


def _split(task: bytes | memoryview) -> tuple[int, Integers]:
    """The round and the weights of an encoded Task."""
    if len(task) < _HEAD.size or (len(task) - _HEAD.size) % 4:
        raise MessageError(f"a Task of {len(task)} bytes came")
    return _HEAD.unpack_from(task)[1], np.frombuffer(task, "<i4", offset=_HEAD.size).astype(np.int64)


def _digest(weights: Integers) -> bytes:
    return bytes.fromhex(weights_sha256(torch.from_numpy(weights)))


@final
class WeightSender:
    """The coordinator's: makes each round's message once in full and once from each base that clients have."""

    def __init__(self) -> None:
        self._recent: dict[int, Integers] = {}
        self._messages: dict[int | None, Message] = {}
        self._round: int | None = None

    def message(self, weights: Weights, base_round: int | None) -> tuple[Message, int]:
        """The message for a client whose last weights on its stream were those of `base_round`; and its new base."""
        if self._messages.get(None) is not weights:
            self._round, self._recent[_split(weights.task)[0]] = _split(weights.task)
            self._messages = {None: weights}
            for old in sorted(self._recent)[:-_KEPT]:
                del self._recent[old]
        if self._round is None:
            raise RuntimeError("no weights were sent yet")
        if base_round not in self._messages:
            self._messages[base_round] = self._smaller(weights, self._round, base_round)
        return self._messages[base_round], self._round

    def _smaller(self, weights: Weights, number: int, base_round: int | None) -> Message:
        if base_round is None or base_round not in self._recent or base_round == number:
            return weights
        new = self._recent[number]
        differences = new - self._recent[base_round]
        reach = int(np.abs(differences).max(initial=0))
        width = next((w for w in _WIDTHS if reach < 2 ** (8 * w - 1)), None)
        if width is None:
            return weights
        packed = zlib.compress(differences.astype(f"<i{width}").tobytes(), _LEVEL)
        delta = Delta(number, base_round, width, _digest(new), packed)
        return delta if len(packed) < len(weights.task) else weights


@final
class WeightReceiver:
    """A client's: follows the weights of one stream, whether they are answered or not."""

    def __init__(self) -> None:
        self._head = b""
        self._round = -1
        self._weights: Integers | None = None

    def take(self, data: bytes | memoryview) -> bytes | memoryview:
        """A message as the machine is to see it: a Delta becomes the Weights that it leads to."""
        if data[:1] == bytes([Delta.KIND]):
            return self._apply(Delta.from_body(memoryview(data)[1:])).encode()
        if data[:1] == bytes([Weights.KIND]):
            self._round, self._weights = _split(data[1:])
            self._head = bytes(data[1:19])
        return data

    def _apply(self, delta: Delta) -> Weights:
        if self._weights is None or delta.base_round != self._round:
            raise MessageError(f"a difference from round {delta.base_round} came, but round {self._round} is held")
        if delta.width not in _WIDTHS:
            raise MessageError(f"differences of {delta.width} bytes are not known")
        wanted = len(self._weights) * delta.width
        unpacker = zlib.decompressobj()
        try:
            raw = unpacker.decompress(delta.packed, wanted + 1)
        except zlib.error as error:
            raise MessageError(f"differences do not decompress: {error}") from error
        if len(raw) != wanted or not unpacker.eof or unpacker.unused_data:
            raise MessageError(f"{wanted} bytes of differences expected, {len(raw)} came")
        moved = self._weights + np.frombuffer(raw, f"<i{delta.width}")
        if int(np.abs(moved).max(initial=0)) >= 2**31 or _digest(moved) != delta.digest:
            raise MessageError(f"the differences do not lead to the weights of round {delta.round_number}")
        self._round, self._weights = delta.round_number, moved
        return Weights(_HEAD.pack(self._head, self._round) + moved.astype("<i4").tobytes())
