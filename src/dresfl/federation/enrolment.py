"""Enrolment: who has said Hello, and the terms that follow once everybody has.

The terms are on the coordinator's disk before anybody hears of them. From then on clients come and go. Until then a
client that leaves takes its Hello with it: the terms describe clients that are there, so no run is bound to rows that
somebody had before a restart.
"""

from collections import deque
from typing import final

from dresfl.errors import Refused
from dresfl.sealing import Identity, Member, Roster

from .agreement import Agreement
from .messages import NO_INSTANCE, Begin, Hello
from .terms import Introduction, Terms

_DISPLACED = 16  # how many displaced processes of a client are remembered


def _signed(challenge: bytes, client: int, roster: Roster, terms: Terms) -> bytes:
    """What the coordinator signs for one client: that these terms answer its challenge."""
    return challenge + client.to_bytes(2, "little") + bytes.fromhex(roster.digest) + terms.encode()


def signed_begin(coordinator: Identity, roster: Roster, client: int, challenge: bytes, terms: Terms) -> Begin:
    """The coordinator's Begin for one client."""
    return Begin(coordinator.sign("begin", _signed(challenge, client, roster, terms)), terms)


def check_begin(coordinator: Member, roster: Roster, client: int, challenge: bytes, begin: Begin) -> None:
    """A client's check: the coordinator of the roster has signed these terms, for this client and this challenge."""
    coordinator.check_signature("begin", _signed(challenge, client, roster, begin.terms), begin.signature)


@final
class Enrolment:
    """Hellos in, terms out."""

    def __init__(self, agreement: Agreement, terms: Terms | None) -> None:
        """terms: of an earlier start of the same run, if there are any."""
        self._agreement = agreement
        self._introductions: dict[int, Introduction] = {}
        self._displaced: dict[int, deque[bytes]] = {}  # for each client: processes whose connection another one took
        self.terms = terms

    def hello(self, client: int, hello: Hello, other: bytes = NO_INSTANCE) -> Terms | None:
        """Take a client's Hello; the last one settles the terms, and they are returned. Refused if it does not fit.

        other: the instance of the process that had a connection when this one came; zeros: none had.
        """
        self._check_instance(client, hello.instance, other)
        if hello.agreement != self._agreement.encode():
            differences = "; ".join(self._agreement.differences(hello.agreement))
            raise Refused(
                f"the client's agreement differs from the coordinator's: {differences}",
                "compare agreement.toml and the roster of both",
            )
        if self.terms is not None:
            self.terms.check_client(client, hello.introduction)
            return None
        self._agreement.check_row_count(hello.introduction.rows)
        self._introductions[client] = hello.introduction
        if self.missing():
            return None
        terms = Terms.settle([self._introductions[i] for i in range(self._agreement.num_clients)])
        terms.session(self._agreement)  # raises here if it cannot be: such terms never reach the disk
        self.terms = terms
        return terms

    def _check_instance(self, client: int, instance: bytes, other: bytes) -> None:
        """A newer process of a client takes the older one's place. The older one may not take it back.

        A client that was restarted gets in at once, even if its old connection still seems to be there. But if the
        older process comes back while the newer one is connected, both are running, and would go on like this for ever.
        """
        if other in (NO_INSTANCE, instance):
            return
        displaced = self._displaced.setdefault(client, deque(maxlen=_DISPLACED))
        if instance in displaced:
            raise Refused(
                f"client {client} runs twice: another process with the same identity or a copy of the same folder is "
                "connected",
                "stop one of the two; every client needs an identity and a folder of its own, and they are not copied",
            )
        displaced.append(other)

    def leave(self, client: int) -> None:
        """A client has gone."""
        self._introductions.pop(client, None)

    def missing(self) -> list[int]:
        """The clients that the terms still wait for."""
        if self.terms is not None:
            return []
        return [client for client in range(self._agreement.num_clients) if client not in self._introductions]
