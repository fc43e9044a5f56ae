"""JSON of exactly one type, as keys, cards and rosters are written."""

from typing import TypeVar

import msgspec

from dresfl.errors import IdentityError

_T = TypeVar("_T")


def parse_json(data: bytes, kind: type[_T], source: str, *, private: bool = False) -> _T:
    """JSON of exactly the type `kind`: no unknown keys, no conversions. Errors quote nothing of a private file."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if private:  # msgspec quotes unknown keys and values
            raise IdentityError(f"{source} was altered or is of another kind", "restore it from a copy") from None
        raise IdentityError(f"{source}: {error}", "ask its maker for an unaltered copy") from None


def to_json(value: msgspec.Struct) -> bytes:
    """Indented JSON with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
