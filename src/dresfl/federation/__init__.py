"""The machine: agreement, terms, enrolment, relay, openings, coordinator, site. No I/O, no clock."""

from .agreement import Agreement, make_session, sharing_nonce
from .sealed_slices import Parcels, most_parcel_bytes, parcel_bytes
from .terms import NO_NONCE, Introduction, Terms

__all__ = [
    "Agreement",
    "Introduction",
    "NO_NONCE",
    "Parcels",
    "Terms",
    "make_session",
    "most_parcel_bytes",
    "parcel_bytes",
    "sharing_nonce",
]
