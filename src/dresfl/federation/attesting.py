"""The check of the dealers in the hidden mode: each client signs what it found, and each judges for itself.

A client that deviates on a dealer that stays must not answer a single hop: its answers would give away its share of the
weights. So it does not take the coordinator's word for who deviates. It gets what every client has signed.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace

from dresfl.errors import IdentityError, MessageError, Refused
from dresfl.protocol import Session, Verdict, checkers_needed, common_coins
from dresfl.sealing import Identity, Member, Roster

from .checking import Checking
from .messages import Attested, Checked
from .terms import NO_COIN, Terms

_PURPOSE = "checked"


def _text(session: Session, client: int, coins: Sequence[bytes], checked: Checked) -> bytes:
    return session.sharing_digest + common_coins(coins) + struct.pack("<H", client) + checked.encode()


def attest(identity: Identity, session: Session, client: int, coins: Sequence[bytes], checked: Checked) -> Attested:
    """A client signs what it found with these coins."""
    return Attested(identity.sign(_PURPOSE, _text(session, client, coins, checked)), checked)


def check_attested(member: Member, session: Session, client: int, coins: Sequence[bytes], attested: Attested) -> None:
    """Refuse what a client has not signed. IdentityError."""
    member.check_signature(_PURPOSE, _text(session, client, coins, attested.checked), attested.signature)


def judge_attested(
    terms: Terms,
    session: Session,
    roster: Roster,
    coins: tuple[bytes, ...],
    attested: Sequence[tuple[int, Attested]],
) -> Verdict:
    """A client's own verdict, from what all have signed. MessageError or Refused if too little of it is true."""
    if len(coins) != session.num_clients:
        raise MessageError(f"{len(coins)} coins came for {session.num_clients} clients")
    for client, coin in enumerate(coins):
        if coin != NO_COIN and not terms.is_coin(client, coin):
            raise MessageError(f"the coin of client {client} is not the one that it committed to")
    checking = Checking(replace(terms, coins=coins), session)
    for client, signed in attested:
        if client >= session.num_clients:
            raise MessageError(f"client {client} does not exist among {session.num_clients}")
        try:
            check_attested(roster.members[client], session, client, coins, signed)
        except IdentityError as error:
            raise MessageError(f"client {client} has not signed what it is said to have found") from error
        checking.checked(client, signed.checked.hashes, signed.checked.values)
    if len(attested) < checkers_needed(session):
        raise Refused(
            f"{len(attested)} clients took part in the check of the dealers, {checkers_needed(session)} must",
            "see the coordinator's log",
        )
    verdict = checking.verdict()
    verdict.check(session.num_clients)
    return verdict
