"""What every message is: a kind and a body. Nothing of a body is used before its length and form are found right."""

import struct
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, Self

from dresfl.errors import MessageError

from ..agreement import MOST_SLICES

TEXT_BYTES = 1000  # the longest text in a message
HOLDING_BYTES = MOST_SLICES // 8
HEAD_BYTES = 128  # no message has more before its payload: a Hello has 126

Octets = bytes | memoryview  # a part of a message that came stays where it is


def head_of(form: struct.Struct, body: memoryview, name: str) -> tuple[tuple[Any, ...], memoryview]:
    """The fixed fields at the start of a body, and what follows them, in the memory of the message."""
    if len(body) < form.size:
        raise MessageError(f"a {name} message of {len(body)} bytes is too short")
    return form.unpack_from(body), body[form.size :]


class Message(ABC):
    """One message. A connection that is slow is sent only the latest of those that are `newest_only`."""

    KIND: ClassVar[int]
    newest_only: ClassVar[bool] = False

    @abstractmethod
    def body(self) -> tuple[Octets, ...]:
        """The bytes after the kind, in parts: so a large payload is copied once, where they are joined."""

    @classmethod
    @abstractmethod
    def from_body(cls, body: memoryview) -> Self:
        """The message with this body; MessageError if there is none."""

    def parts(self) -> tuple[Octets, ...]:
        """The whole message, in parts."""
        return bytes([self.KIND]), *self.body()

    def encode(self) -> bytes:
        return b"".join(self.parts())


class Plain(Message):
    """A message of fixed fields and, if `REST` says so, one field more that takes all bytes that are left."""

    FORM: ClassVar[struct.Struct]
    REST: ClassVar[Literal["nothing", "bytes", "text", "bits"]] = "nothing"
    __match_args__: ClassVar[tuple[str, ...]]  # a dataclass has the names of its fields here

    def body(self) -> tuple[Octets, ...]:
        values = [getattr(self, name) for name in self.__match_args__]
        if self.REST == "nothing":
            return (self.FORM.pack(*values),)
        *fixed, rest = values
        if self.REST == "text":
            rest = rest.encode("utf-8", "replace")[:TEXT_BYTES]
        elif self.REST == "bits":
            rest = rest.to_bytes(-(-rest.bit_length() // 8), "little")
        return self.FORM.pack(*fixed), rest

    @classmethod
    def from_body(cls, body: memoryview) -> Self:
        fixed, rest = head_of(cls.FORM, body, cls.__name__)
        most = {"nothing": 0, "text": TEXT_BYTES, "bits": HOLDING_BYTES}.get(cls.REST, len(rest))
        if len(rest) > most:
            raise MessageError(f"a {cls.__name__} message of {len(body)} bytes is too long")
        values: list[Any] = [*fixed]
        if cls.REST == "bytes":
            values.append(rest)
        elif cls.REST == "text":
            text = bytes(rest).decode("utf-8", "replace")  # for logs and errors: nothing that a terminal would obey
            values.append("".join(letter if letter.isprintable() else "?" for letter in text))
        elif cls.REST == "bits":
            values.append(int.from_bytes(rest, "little"))
        return cls(*values)
