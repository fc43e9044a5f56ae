"""In which slices shares travel and are kept: runs of whole rows of about a megabyte, the same for everybody.

A row takes row_bytes = M·W·(bytes of a residue). Slice s of a dealer holds its coded rows s·q … (s+1)·q − 1, the last
slice what is left, with q = max(1, ⌊2^20 / row_bytes⌋). A client without rows deals one slice that has none: the last
slice carries its set-up values.
"""

from dresfl.errors import MessageError

from .session import Session

SLICE_BYTES = 2**20


def row_bytes(session: Session) -> int:
    """The bytes of one packed coded row, all channels."""
    return len(session.field.moduli) * session.row_width * session.field.residue_bytes


def slice_rows(session: Session) -> int:
    """q: the rows of every slice but a dealer's last."""
    return max(1, SLICE_BYTES // row_bytes(session))


def num_slices(session: Session, dealer: int) -> int:
    """How many slices a dealer's share has, for each receiver."""
    return max(1, -(-session.coded_rows(dealer) // slice_rows(session)))


def slice_range(session: Session, dealer: int, number: int) -> range:
    """The coded rows of one slice."""
    if not 0 <= number < num_slices(session, dealer):
        raise MessageError(f"client {dealer} deals {num_slices(session, dealer)} slices: there is no slice {number}")
    size = slice_rows(session)
    return range(number * size, min((number + 1) * size, session.coded_rows(dealer)))
