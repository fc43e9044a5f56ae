"""What a real party keeps and does beside the protocol, whatever carries its messages.

agreement.py: what all parties must hold alike, and the session that follows from it. slices.py: in which pieces shares
travel. store.py: a client's folder, with its secret, its shares and the rounds it has answered. terms.py: how parties
meet. parcels.py: slices, sealed for the way.
"""

from .agreement import Agreement, make_session, sharing_nonce
from .answers import AnswerLog
from .parcels import Parcels, most_parcel_bytes, parcel_bytes
from .slices import num_slices, row_bytes, slice_range, slice_rows
from .store import Held, ShareStore, Sharing, data_digest
from .table import DiskTable
from .terms import NO_NONCE, Introduction, Terms

__all__ = [
    "Agreement",
    "AnswerLog",
    "DiskTable",
    "Held",
    "Introduction",
    "NO_NONCE",
    "Parcels",
    "ShareStore",
    "Sharing",
    "Terms",
    "data_digest",
    "make_session",
    "most_parcel_bytes",
    "num_slices",
    "parcel_bytes",
    "row_bytes",
    "sharing_nonce",
    "slice_range",
    "slice_rows",
]
