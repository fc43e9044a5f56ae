"""The terms of a run: row counts and nonces, settled once when the participants meet, checked by each for itself.

    run nonce 16 | nonce 32 | the coordinator's bytes 16 | N u16 | N · (rows u32, contribution 64), little-endian
    contribution = tag 16 | salt 16 | commitment 32

A tag stays the same as long as the client's secret and rows do. A salt is fresh. The commitment is the SHA-256 of
"dresfl coin" and the client's coin, 32 bytes that follow from its secret and the salt. Coins are shown when all shares
are on the disks, and decide how the dealers are checked.

The first sharing needs every client. Its nonce is a hash of the coordinator's fresh bytes and of each client's, so
that nobody can make the others join a sharing that they had no part in. If all clients hold the shares of one earlier
sharing, and the check of its dealers found nothing, that one is used again.
"""

import hashlib
import hmac
import json
import secrets
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from dresfl.errors import CheckpointError, DresError, MessageError, Refused
from dresfl.protocol import Session, Verdict, coin_commitment, common_coins
from dresfl.protocol.hidden.ledger import run_digest

from .agreement import Agreement, make_session, sharing_nonce

NO_NONCE = bytes(32)
FORMAT = "dresfl terms 4"
CONTRIBUTION = 64  # bytes
COIN = 32
NO_COIN = bytes(COIN)  # of a client that is not there when the dealers are checked
_TAG = 16  # of them that stay the same as long as the client's secret and rows do
_COMMITMENT = 32  # of them, the last ones
_HEAD = struct.Struct("<16s32s16sH")
_CLIENT = struct.Struct(f"<I{CONTRIBUTION}s")
# what reading an altered file may end in
_FOREIGN = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, struct.error)


@final
@dataclass(frozen=True)
class Introduction:
    """What a client brings: its row count, its part of a new nonce, and the nonce of the sharing it holds, or zeros."""

    rows: int
    contribution: bytes
    held_nonce: bytes = NO_NONCE

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise Refused(f"the client has {self.rows} rows")


@final
@dataclass(frozen=True)
class HiddenTerms:
    """What the coordinator's disk keeps of a hidden run besides what it published. Clients are sent none of it here."""

    attested: tuple[tuple[int, bytes], ...] = ()  # clients, and the bodies of what they attested of the dealers
    starts: tuple[tuple[int, bytes], ...] = ()  # clients, and their signatures of the run
    alarm: str = ""  # why the run is over for good

    def to_dict(self) -> dict[str, object]:
        lists = {"attested": self.attested, "starts": self.starts}
        return {**{name: [[c, data.hex()] for c, data in pairs] for name, pairs in lists.items()}, "alarm": self.alarm}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "HiddenTerms":
        """What `to_dict` made. ValueError or its like if it is none."""
        attested, starts = (
            tuple((_client(c), bytes.fromhex(data)) for c, data in values[name])  # type: ignore[attr-defined]
            for name in ("attested", "starts")
        )
        return cls(attested, starts, str(values["alarm"]))


@final
@dataclass(frozen=True)
class Terms:
    """What makes a session of an agreement. Public."""

    nonce: bytes
    run_nonce: bytes
    own_bytes: bytes
    rows: tuple[int, ...]
    contributions: tuple[bytes, ...]
    # What the coordinator's disk keeps here of the check of a fresh sharing's dealers: the coins that it is made with,
    # zeros for clients that are not there, and what came of it. Clients are sent neither in these terms.
    coins: tuple[bytes, ...] | None = None
    verdict: Verdict | None = None
    hidden: HiddenTerms = HiddenTerms()

    @classmethod
    def settle(cls, clients: Sequence[Introduction]) -> "Terms":
        """The terms of a new run, made by the coordinator when every client has introduced itself."""
        own_bytes, contributions = secrets.token_bytes(16), tuple(client.contribution for client in clients)
        held = {client.held_nonce for client in clients}
        reused = len(held) == 1 and NO_NONCE not in held
        nonce = held.pop() if reused else sharing_nonce(own_bytes, contributions)
        return cls(nonce, secrets.token_bytes(16), own_bytes, tuple(client.rows for client in clients), contributions)

    @cached_property
    def fresh(self) -> bool:
        """Whether the sharing is new: its nonce is made of what these clients brought."""
        return self.nonce == sharing_nonce(self.own_bytes, self.contributions)

    @property
    def checked(self) -> Verdict | None:
        """What is known of the dealers; None: they are to be checked. A sharing that is reused was found clean."""
        return self.verdict if self.fresh else Verdict()

    def session(self, agreement: Agreement, device: str = "cpu") -> Session:
        """The session of these terms; that of the run, once it is known which dealers are excluded."""
        session = make_session(agreement, self.rows, self.nonce, self.run_nonce, device)
        if self.checked is None:
            return session
        coins = NO_COIN if self.coins is None else common_coins(self.coins)
        return self.run_session(agreement, session, self.checked, coins)

    def run_session(self, agreement: Agreement, session: Session, verdict: Verdict, coins: bytes) -> Session:
        """The session after the check of the dealers: without those that are excluded.

        In the hidden mode it has its run digest, and with it all that differs from run to run. coins: the common coins
        of that check. Clients had committed to them before the coordinator settled the terms, so it cannot try one
        nonce after the other until it likes W_0 and the batches. They count for the run that follows the check.
        """
        if session.hidden is None:
            return session.without(verdict.excluded) if verdict.excluded else session
        session = session.without(verdict.excluded)
        roster, terms = (hashlib.sha256(part).digest() for part in (agreement.roster.encode(), self.encode()))
        judged = verdict.excluded, verdict.deviating
        coins = coins if self.fresh else NO_COIN
        run = run_digest(roster, session.sharing_digest, *judged, agreement.digest, terms, coins)
        return replace(session, run=run)

    def is_coin(self, client: int, coin: bytes) -> bool:
        """Whether this is the coin that a client committed to."""
        return hmac.compare_digest(coin_commitment(coin), self.contributions[client][-_COMMITMENT:])

    # -- checks ----------------------------------------------------------------------------------------------

    def check_coins(self, num_clients: int) -> None:
        """Refuse coins that clients did not commit to. ValueError: they are read from a file."""
        if self.coins is None:
            return
        if len(self.coins) != num_clients or any(len(coin) != COIN for coin in self.coins):
            raise ValueError("they do not have a coin of every client")
        if any(coin != NO_COIN and not self.is_coin(client, coin) for client, coin in enumerate(self.coins)):
            raise ValueError("a coin is not the one that its client committed to")

    def check_client(self, index: int, client: Introduction) -> None:
        """The coordinator's check of a client that comes back: it must still be able to deal what it dealt."""
        if client.rows != self.rows[index]:
            raise Refused(
                f"the client has {client.rows} rows, but {self.rows[index]} when the shares were made",
                "use the data that was shared, or start a new run",
            )
        if self.contributions[index][:_TAG] != client.contribution[:_TAG]:
            raise Refused(
                "the client's secret or rows are not those of this sharing",
                "restore its store and data, or start a new run in a new folder, which shares anew",
            )

    def check_for(
        self, agreement: Agreement, index: int, rows: int | None, *, own: bool, held_nonces: Collection[bytes]
    ) -> None:
        """A client's check of the coordinator's terms: its own part is in them, and it knows of the sharing.

        rows: how many the client has; None if it has not read them, and then only shares that it holds may be used,
        which are those of the terms' row counts and of no others. own: whether the client's contribution in the terms
        is its own. held_nonces: of the sharings that the client holds shares of.
        """
        if len(self.rows) != agreement.num_clients:
            raise Refused(f"the terms are of {len(self.rows)} clients, the agreement of {agreement.num_clients}")
        if rows is not None and self.rows[index] != rows:
            raise Refused(f"the terms say that this client has {self.rows[index]} rows, but it has {rows}")
        if not own or not (self.fresh or self.nonce in held_nonces):
            raise Refused(
                "the coordinator's terms are of a sharing that this client did not join",
                "an old session is being replayed, or this client's store was replaced",
            )

    # -- bytes -------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        clients = zip(self.rows, self.contributions, strict=True)
        head = _HEAD.pack(self.run_nonce, self.nonce, self.own_bytes, len(self.rows))
        return head + b"".join(_CLIENT.pack(*client) for client in clients)

    @classmethod
    def decode(cls, data: bytes) -> "Terms":
        if len(data) < _HEAD.size or (len(data) - _HEAD.size) % _CLIENT.size:
            raise MessageError(f"terms of {len(data)} bytes came")
        run_nonce, nonce, own_bytes, count = _HEAD.unpack_from(data)
        clients = list(_CLIENT.iter_unpack(data[_HEAD.size :]))
        if len(clients) != count:
            raise MessageError(f"terms of {count} clients list {len(clients)}")
        return cls(nonce, run_nonce, own_bytes, tuple(c[0] for c in clients), tuple(c[1] for c in clients))

    def to_json(self, agreement: Agreement) -> bytes:
        """The terms as the coordinator's disk keeps them, with what they are of and a digest of it all."""
        fields = {
            "format": FORMAT,
            "agreement": agreement.digest.hex(),
            "session": self.session(agreement).session_id.hex(),
            "nonce": self.nonce.hex(),
            "run_nonce": self.run_nonce.hex(),
            "own_bytes": self.own_bytes.hex(),
            "rows": list(self.rows),
            "contributions": [value.hex() for value in self.contributions],
            "coins": None if self.coins is None else [coin.hex() for coin in self.coins],
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            **({} if self.hidden == HiddenTerms() else {"hidden": self.hidden.to_dict()}),
        }
        return (json.dumps({**fields, "sha256": _digest(fields)}, indent=2) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, agreement: Agreement) -> "Terms":
        """What `to_json` made under the same agreement."""
        try:
            fields = json.loads(data)
            digest = fields.pop("sha256", None)
            if digest != _digest(fields) and (digest is not None or fields["format"] == FORMAT):
                raise ValueError("they are damaged, since they do not have their digest")
            if fields["format"] != FORMAT:  # older ones have no digest
                raise ValueError(f"format {fields['format']!r} is not known here, {FORMAT!r} is")
            if fields["agreement"] != agreement.digest.hex():
                raise ValueError("they are of another agreement")
            terms = cls(
                bytes.fromhex(fields["nonce"]),
                bytes.fromhex(fields["run_nonce"]),
                bytes.fromhex(fields["own_bytes"]),
                tuple(_count(rows) for rows in fields["rows"]),
                tuple(bytes.fromhex(value) for value in fields["contributions"]),
                None if fields["coins"] is None else tuple(bytes.fromhex(value) for value in fields["coins"]),
                None if fields["verdict"] is None else Verdict.from_dict(fields["verdict"]),
                HiddenTerms.from_dict(fields["hidden"]) if "hidden" in fields else HiddenTerms(),
            )
            terms.check_coins(agreement.num_clients)
            if not len(terms.rows) == len(terms.contributions) == agreement.num_clients:
                raise ValueError(f"they are of {len(terms.rows)} clients, not {agreement.num_clients}")
            if cls.decode(terms.encode()) != replace(terms, coins=None, verdict=None, hidden=HiddenTerms()):
                raise ValueError("a nonce or a contribution has another length than it must have")
            if terms.session(agreement).session_id.hex() != fields["session"]:
                raise ValueError("they are of another session than they say")
        except (*_FOREIGN, DresError) as error:
            reason = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(
                f"the run's terms cannot be used: {reason}",
                "restore terms.json from a backup, or choose another folder to start over",
            ) from error
        return terms


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number of rows")
    return value


def _client(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**16:
        raise ValueError(f"{value!r} is no client")
    return value


def _digest(fields: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
