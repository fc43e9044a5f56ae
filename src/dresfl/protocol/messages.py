"""The messages of the protocol, byte by byte. All integers are little-endian and unsigned unless said.

    version u8 = 2 | kind u8 | identity 16 bytes | then by kind
    1 Share    dealer u16 | receiver u16 | first_row u32 | rows u32 | residues M·rows·W
    2 Task     round u32 | weights P · i32
    3 Answer   round u32 | client u16 | residues M·P

The identity is the sharing's for a Share, which outlives a run, and the session's for the others.
Residues are packed in 1, 2 or 3 bytes each, channel-major. A wrong version, kind, identity, length or number, or a
residue not below its modulus: refused with MessageError, before anything is used.

What is decoded shares the memory of the message: residues stay packed, and nothing of a large model is copied.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, final

import numpy as np
import torch
from torch import Tensor

from dresfl.errors import MessageError
from dresfl.field import PackedResidues, Residues, ResidueSystem

from .session import Session

VERSION = 2
_HEADER = struct.Struct("<BB16s")
_SHARE = struct.Struct("<HHII")
_TASK = struct.Struct("<I")
_ANSWER = struct.Struct("<IH")


def _open(
    data: bytes | memoryview, identity: bytes, kind: int, body: struct.Struct
) -> tuple[tuple[int, ...], memoryview]:
    """Check the header; return the body's fixed fields and what follows them."""
    if len(data) < _HEADER.size + body.size:
        raise MessageError(f"a message of {len(data)} bytes is too short")
    version, found, claimed = _HEADER.unpack_from(data)
    if version != VERSION:
        raise MessageError(f"version {version} is not spoken here", f"use a dresfl that speaks version {VERSION}")
    if found != kind:
        raise MessageError(f"message kind {kind} expected, {found} came")
    if claimed != identity:
        kind_of = "sharing" if kind == Share.KIND else "session"
        raise MessageError(
            f"the message belongs to another {kind_of}",
            "compare network, code, rows, batch, moduli, seed and nonces",
        )
    return body.unpack_from(data, _HEADER.size), memoryview(data)[_HEADER.size + body.size :]


def _encoded(head: bytes, residues: Residues, field: ResidueSystem) -> bytes:
    if isinstance(residues, PackedResidues):
        return head + residues.octets.tobytes()
    return field.pack_after(head, [residues.reshape(len(field.moduli), -1)])


def _client(session: Session, index: int) -> int:
    if index >= session.num_clients:
        raise MessageError(f"client {index} does not exist among {session.num_clients}")
    return index


@final
@dataclass(frozen=True, eq=False)
class Share:
    """A dealer's coded rows first_row … for one receiver: residues (M,rows,W). Secret: sealed on any network."""

    dealer: int
    receiver: int
    first_row: int
    residues: Residues

    KIND = 1

    def __repr__(self) -> str:
        return f"Share(dealer={self.dealer}, receiver={self.receiver}, first_row={self.first_row}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Share is not pickled")

    def encode(self, session: Session) -> bytes:
        head = _HEADER.pack(VERSION, self.KIND, session.sharing_id)
        body = _SHARE.pack(self.dealer, self.receiver, self.first_row, self.residues.shape[1])
        return _encoded(head + body, self.residues, session.field)

    @classmethod
    def decode(cls, data: bytes | memoryview, session: Session) -> "Share":
        (dealer, receiver, first, rows), rest = _open(data, session.sharing_id, cls.KIND, _SHARE)
        _client(session, receiver)
        there = session.coded_rows(_client(session, dealer))
        if (rows < 1 and there) or first + rows > there:  # a client without rows deals none
            raise MessageError(f"rows {first}..{first + rows} do not exist at client {dealer}")
        return cls(dealer, receiver, first, session.field.checked(rest, (rows, session.row_width)))


@final
@dataclass(frozen=True, eq=False)
class Task:
    """The coordinator's request for one round: the integer weights (P,)."""

    round_number: int
    weights: Tensor

    KIND = 2

    def encode(self, session: Session) -> bytes:
        weights = self.weights.cpu()
        low, high = (int(bound) for bound in weights.aminmax()) if weights.numel() else (0, 0)
        if low <= -(2**31) or high >= 2**31:
            raise MessageError("a weight does not fit 32 bits", "the training diverged: lower the learning rate")
        head = _HEADER.pack(VERSION, self.KIND, session.session_id) + _TASK.pack(self.round_number)
        return head + weights.to(torch.int32).numpy().astype("<i4", copy=False).data

    @classmethod
    def decode(cls, data: bytes | memoryview, session: Session) -> "Task":
        (round_number,), rest = _open(data, session.session_id, cls.KIND, _TASK)
        expected = 4 * session.network.num_parameters
        if len(rest) != expected:
            raise MessageError(f"{expected} bytes of weights expected, {len(rest)} came")
        weights = np.frombuffer(rest, "<i4").astype(np.int64)
        if int(weights.min(initial=0)) == -(2**31):
            raise MessageError("a weight of -2^31 is never sent")
        return cls(round_number, torch.from_numpy(weights))

    @classmethod
    def size(cls, num_parameters: int) -> int:
        """The bytes of one task."""
        return _HEADER.size + _TASK.size + 4 * num_parameters


@final
@dataclass(frozen=True, eq=False)
class Answer:
    """One client's coded gradient for one round: residues (M,P), still packed if they came in a message."""

    round_number: int
    client: int
    residues: Residues

    KIND = 3

    def __repr__(self) -> str:
        return f"Answer(round_number={self.round_number}, client={self.client}, <redacted>)"

    def encode(self, session: Session) -> bytes:
        head = _HEADER.pack(VERSION, self.KIND, session.session_id)
        return _encoded(head + _ANSWER.pack(self.round_number, self.client), self.residues, session.field)

    @classmethod
    def encode_parts(cls, round_number: int, client: int, parts: Sequence[Tensor], session: Session) -> bytes:
        """The message of an answer whose residues are runs of columns (M,·)."""
        head = _HEADER.pack(VERSION, cls.KIND, session.session_id) + _ANSWER.pack(round_number, client)
        return session.field.pack_after(head, parts)

    @classmethod
    def decode(cls, data: bytes | memoryview, session: Session) -> "Answer":
        (round_number, client), rest = _open(data, session.session_id, cls.KIND, _ANSWER)
        residues = session.field.checked(rest, (session.network.num_parameters,))
        return cls(round_number, _client(session, client), residues)

    @classmethod
    def decode_from(cls, client: int, data: bytes | memoryview, session: Session) -> "Answer":
        """An answer that came from this client, as the transport knows: it must say the same."""
        answer = cls.decode(data, session)
        if answer.client != client:
            raise MessageError(f"client {client} answered in the name of client {answer.client}")
        return answer

    @classmethod
    def size(cls, field: ResidueSystem, num_parameters: int) -> int:
        """The bytes of one answer."""
        return _HEADER.size + _ANSWER.size + len(field.moduli) * num_parameters * field.residue_bytes
