"""A client's answer to a hop, byte by byte, and the key that its pad is made from.

    round u32 | hop u16 | chain 32 | tag 16 | key residues (M,12) | residues (M,E), all as the field packs them

The chain says what the client has seen published so far; an answer with another chain than the coordinator's counts as
none. The tag is a hash of the pad's key, the same at all honest clients. `check` says what the key is for.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import final

from torch import Tensor

from dresfl.errors import MessageError
from dresfl.field import Residues, ResidueSystem

from ..session import Session
from .check import KEY_WORDS
from .ledger import Position
from .plan import Hop
from .published import num_values

TAG = 16  # bytes
_HEAD = struct.Struct(f"<IH32s{TAG}s")


@final
@dataclass(frozen=True, eq=False)
class HopAnswer:
    """One client's values of a hop, blinded and padded, with its share of the pad's key."""

    client: int
    position: Position
    tag: bytes
    key: Tensor  # (M,2·KEY_WORDS)
    residues: Residues  # (M,E)

    def __repr__(self) -> str:
        return f"HopAnswer({self.client}, {self.position.order})"

    def encode(self, field: ResidueSystem) -> bytes:
        if not isinstance(self.residues, Tensor):
            raise TypeError("an answer that came is not sent on")
        head = _HEAD.pack(*self.position.order, self.position.chain, self.tag)
        return field.pack_after(head + field.pack(self.key), [self.residues])

    @staticmethod
    def size(session: Session, hop: Hop) -> int:
        """The bytes of an answer to a hop."""
        field = session.field
        return _HEAD.size + len(field.moduli) * (2 * KEY_WORDS + num_values(hop)) * field.residue_bytes

    @staticmethod
    def position_of(data: bytes | memoryview) -> Position:
        """Which hop an answer is to. MessageError if it is too short to say."""
        if len(data) < _HEAD.size:
            raise MessageError(f"an answer to a hop of {len(data)} bytes is too short")
        round_number, hop, chain, _ = _HEAD.unpack_from(data)
        return Position(round_number, hop, chain)

    @classmethod
    def decode_from(cls, client: int, data: bytes | memoryview, session: Session, hop: Hop) -> "HopAnswer":
        """A client's answer to this hop. MessageError if it has another form; its values are checked when opened."""
        if len(data) != cls.size(session, hop):
            raise MessageError(f"an answer to a hop has {cls.size(session, hop)} bytes, {len(data)} came")
        field, view = session.field, memoryview(data)
        round_number, number, chain, tag = _HEAD.unpack_from(data)
        key_end = _HEAD.size + len(field.moduli) * 2 * KEY_WORDS * field.residue_bytes
        key = field.unpack(view[_HEAD.size : key_end], (2 * KEY_WORDS,))
        residues = field.checked(view[key_end:], (num_values(hop),))
        return cls(client, Position(round_number, number, chain), tag, key, residues)


def pad_key(field: ResidueSystem, words: Tensor) -> bytes:
    """The key of all clients' pads of a hop, from Q (M,K+1,KEY_WORDS)."""
    return hashlib.sha256(b"dresfl hidden pad" + field.pack(words)).digest()


def pad_label(label: bytes, client: int) -> bytes:
    """What makes one client's pad of a hop another than those of the others."""
    return label + struct.pack("<H", client)


def tag_of(key: bytes, label: bytes) -> bytes:
    """What everybody may know of a pad's key."""
    return hashlib.sha256(b"dresfl hidden tag" + label + key).digest()[:TAG]
