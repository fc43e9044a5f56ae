"""The roster: who takes part, in which order, with which keys. Exchanged out of band, pinned by its digest.

    body    = "dresfl roster 1" | maker | server | number of clients u32, little-endian | client 0 | client 1 | …
    digest  = SHA-256(body)

where each participant is its public bytes (identity.py). The maker signs the digest. A client's place is its number in
the protocol. Names and keys are all different; only the maker may also be the server or a client.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, final

import msgspec

from dresfl.errors import IdentityError
from dresfl.files import read_file, write_new

from .identity import Card, CardFile, Hex64, Identity, Member, spoken
from .typed_json import parse_json, to_json

_FILE_LIMIT = 4 * 2**20  # about 7,000 clients


class _RosterFile(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["dresfl roster 1"]
    maker: CardFile
    server: CardFile
    clients: list[CardFile]
    signature: Hex64


@final
@dataclass(frozen=True)
class Roster:
    """The participants of one federation. One that exists was checked: every card, the order, the maker's signature."""

    maker: Card
    server_card: Card
    client_cards: tuple[Card, ...]
    signature: bytes

    def __post_init__(self) -> None:
        _check_participants(self.maker.member, [self.server, *self.members])
        self.maker.member.check_signature("roster", bytes.fromhex(self.digest), self.signature)

    @classmethod
    def create(cls, maker: Identity, server: Card, clients: Sequence[Card]) -> "Roster":
        """A new roster, signed by its maker."""
        digest = _digest(maker.member, server.member, [card.member for card in clients])
        return cls(maker.card, server, tuple(clients), maker.sign("roster", digest))

    @classmethod
    def load(cls, path: Path, sha256: str | None = None) -> "Roster":
        """Read and check a roster; `sha256`, if given, is the digest that this participant has pinned."""
        file = parse_json(read_file(path, _FILE_LIMIT, error=IdentityError), _RosterFile, str(path))
        cards = tuple(Card.from_file(card) for card in file.clients)
        roster = cls(Card.from_file(file.maker), Card.from_file(file.server), cards, bytes.fromhex(file.signature))
        if sha256 is not None and not hmac.compare_digest(roster.digest.encode(), sha256.lower().encode()):
            raise IdentityError(
                f"{path} is another roster: its digest is {roster.digest}, but {sha256} is pinned",
                "if the participants did agree on a new one, compare its digest by telephone, then pin that",
            )
        return roster

    def save(self, path: Path) -> None:
        """Write the roster as JSON; an existing file is not written over."""
        cards = [card.to_file() for card in self.client_cards]
        maker, server = self.maker.to_file(), self.server_card.to_file()
        file = _RosterFile("dresfl roster 1", maker, server, cards, self.signature.hex())
        write_new(path, to_json(file), error=IdentityError)

    @property
    def server(self) -> Member:
        """The coordinator."""
        return self.server_card.member

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """The clients, in order: the place is the client's number."""
        return tuple(card.member for card in self.client_cards)

    @cached_property
    def digest(self) -> str:
        """Sixty-four hexadecimal digits that stand for the whole roster."""
        return _digest(self.maker.member, self.server, self.members).hex()

    @property
    def fingerprint(self) -> str:
        """The digest for comparison by telephone."""
        return spoken(bytes.fromhex(self.digest))

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {member.spki_sha256: place for place, member in enumerate(self.members)}

    def index_of_spki(self, sha256: bytes) -> int | None:
        """The number of the client with this TLS key; None if no client has it (the server is no client)."""
        return self._places.get(sha256)

    def index_of(self, member: Member) -> int:
        """The number of a client, which must be listed with exactly these keys."""
        for place, listed in enumerate(self.members):
            if listed == member:
                return place
            if listed.name == member.name:
                raise IdentityError(
                    f"{member.name} is listed with other keys than these",
                    "it has made a new identity since, or somebody put other keys under its name: make a new roster",
                )
        raise IdentityError(f"{member.name} is not among the {len(self.members)} clients of this roster")


def _digest(maker: Member, server: Member, clients: Sequence[Member]) -> bytes:
    participants = [maker.encode(), server.encode(), len(clients).to_bytes(4, "little")]
    return hashlib.sha256(
        b"".join([b"dresfl roster 1", *participants, *(client.encode() for client in clients)])
    ).digest()


def _check_participants(maker: Member, participants: Sequence[Member]) -> None:
    if not 2 <= len(participants) <= 2**16:
        raise IdentityError(f"a roster lists 1 to 65535 clients, not {len(participants) - 1}")
    for what in ("name", "sealing_key", "signing_key", "spki_sha256"):
        seen: dict[object, Member] = {}
        for participant in participants:
            value = getattr(participant, what)
            if value in seen:
                raise IdentityError(
                    f"{seen[value].name} and {participant.name} have the same {what}",
                    "every participant needs its own card, once",
                )
            seen[value] = participant
    for participant in participants:
        if participant.name == maker.name and participant != maker:
            raise IdentityError(f"the maker {maker.name} is listed with other keys than it signs with")
