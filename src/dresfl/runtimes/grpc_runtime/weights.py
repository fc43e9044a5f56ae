"""Weights on their way to a client: in full, or as differences from those it was sent before, whichever is smaller.

A stream delivers in order, so the base needs no acknowledgement: it is the Task before on the same stream. The machines
know nothing of this: what a client's machine is given is always the whole Weights message.
"""

import hashlib
import struct
import threading
import zlib
from typing import final

import numpy as np
import numpy.typing as npt

from dresfl.errors import MessageError
from dresfl.federation.messages import Delta, Message, Weights

_WIDTHS = (1, 2, 4)
_SENT_WIDTHS = (1, 2)  # differences of 4 bytes are hardly smaller than the weights
_RECENT_BYTES = 2**24  # of weights that serve as a base; two rounds always do
_MOST_RECENT = 4
_BLOCK = 2**16  # weights looked at together
_HEAD = struct.Struct("<18sI")  # of a Task: version, kind and session; then its round

Integers = npt.NDArray[np.int32]


def _split(task: bytes | memoryview) -> tuple[int, Integers]:
    """The round and the weights of an encoded Task; they share its memory."""
    if len(task) < _HEAD.size or (len(task) - _HEAD.size) % 4:
        raise MessageError(f"a Task of {len(task)} bytes came")
    return _HEAD.unpack_from(task)[1], np.frombuffer(task, "<i4", offset=_HEAD.size)


def _digest(weights: Integers) -> bytes:
    """`weights_sha256`, as bytes."""
    digest = hashlib.sha256()
    for first in range(0, len(weights), _BLOCK):
        digest.update(weights[first : first + _BLOCK].astype("<i8").data)
    return digest.digest()


def _reach(new: Integers, base: Integers) -> int:
    """The largest |difference|; it may take 33 bits."""
    blocks = (slice(first, first + _BLOCK) for first in range(0, len(new), _BLOCK))
    return max((int(np.abs(new[b].astype(np.int64) - base[b]).max()) for b in blocks), default=0)


def _compressed(differences: npt.NDArray[np.signedinteger]) -> bytes:
    """Small integers repeat values, not phrases: a search for phrases takes twice the time and finds less."""
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return packer.compress(differences.data) + packer.flush()


@final
class WeightSender:
    """The coordinator's: makes each round's message once in full and once from each base that clients have.

    Any thread may ask. Each message is made once, whoever asks first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: dict[int, Integers] = {}
        self._messages: dict[int | None, Message] = {}
        self._round: int | None = None

    def message(self, weights: Weights, base_round: int | None) -> tuple[Message, int]:
        """The message for a client whose last weights on its stream were those of `base_round`; and its new base."""
        with self._lock:
            return self._message(weights, base_round)

    def _message(self, weights: Weights, base_round: int | None) -> tuple[Message, int]:
        if self._messages.get(None) is not weights:
            self._round, integers = _split(weights.task)
            self._recent[self._round] = integers
            self._messages = {None: weights}
            kept = min(_MOST_RECENT, max(2, _RECENT_BYTES // max(1, integers.nbytes)))
            for old in sorted(self._recent)[:-kept]:
                del self._recent[old]
        if self._round is None:
            raise RuntimeError("no weights were sent yet")
        if base_round not in self._messages:
            self._messages[base_round] = self._smaller(weights, self._round, base_round)
        return self._messages[base_round], self._round

    def _smaller(self, weights: Weights, number: int, base_round: int | None) -> Message:
        new, base = self._recent.get(number), None if base_round is None else self._recent.get(base_round)
        if new is None or base is None or base_round is None or base_round == number:
            return weights
        reach = _reach(new, base)
        width = next((w for w in _SENT_WIDTHS if reach < 2 ** (8 * w - 1)), None)
        if width is None:
            return weights
        differences = np.empty(len(new), f"<i{width}")
        np.subtract(new, base, out=differences, casting="unsafe")  # they fit
        packed = _compressed(differences)
        return Delta(number, base_round, width, _digest(new), packed) if len(packed) < len(weights.task) else weights


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
            self._round, self._weights = _split(memoryview(data)[1:])
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
        # In 32 bits: a sum that left them would come back as other weights, which have another digest.
        moved = self._weights + np.frombuffer(raw, f"<i{delta.width}")
        if int(moved.min(initial=0)) == -(2**31) or _digest(moved) != delta.digest:
            raise MessageError(f"the differences do not lead to the weights of round {delta.round_number}")
        self._round, self._weights = delta.round_number, moved
        return Weights(_HEAD.pack(self._head, self._round) + moved.astype("<i4", copy=False).data)
