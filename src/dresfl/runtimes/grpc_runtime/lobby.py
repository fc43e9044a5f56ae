"""How a federation comes together: who has said hello, and the terms that follow once all have.

The terms are on the coordinator's disk before anybody hears of them; from then on clients come and go.
"""

from pathlib import Path
from typing import final

from dresfl.errors import Refused
from dresfl.federation import Agreement, Introduction, Terms

from .frames import Hello
from .log import Log


def to_sign(challenge: bytes, site: int, roster_digest: str, body: bytes) -> bytes:
    """What the coordinator signs for one site: that this Begin answers its challenge."""
    return challenge + site.to_bytes(2, "little") + bytes.fromhex(roster_digest) + body


@final
class Lobby:
    """Hellos in, terms out."""

    def __init__(self, agreement: Agreement, path: Path, log: Log) -> None:
        self._agreement, self._path, self._log = agreement, path, log
        self._greeted: dict[int, Introduction] = {}
        self._num_clients = agreement.num_clients
        self.terms = Terms.load(path, self._num_clients) if path.exists() else None

    @property
    def settled_terms(self) -> Terms:
        if self.terms is None:
            raise RuntimeError("the terms are not settled")
        return self.terms

    def hello(self, index: int, hello: Hello) -> None:
        """Take a client's hello; the last one settles the terms. Refused if these do not fit the client."""
        if hello.agreement != self._agreement.digest:
            raise Refused(
                "the client's agreement differs from the coordinator's",
                "compare model, code, batch, seed, input bound and roster in both configurations",
            )
        if self.terms is None:
            self._agreement.check_row_count(hello.rows)
        self._greeted[index] = hello.introduction
        if self.terms is None and len(self._greeted) == self._num_clients:
            self.terms = self._settle()
        if self.terms is not None:
            self.terms.check_client(index, self._greeted[index])

    def leave(self, index: int) -> None:
        """A client went before the terms were settled."""
        self._greeted.pop(index, None)

    def missing(self) -> list[int]:
        """The clients that the terms still wait for."""
        return [] if self.terms else [i for i in range(self._num_clients) if i not in self._greeted]

    def _settle(self) -> Terms:
        terms = Terms.settle([self._greeted[i] for i in range(self._num_clients)])
        terms.session(self._agreement)  # raises here if it cannot be: such terms never reach the disk
        terms.save(self._path)
        self._log("terms settled", sharing="fresh" if terms.fresh else "reused", rows=sum(terms.rows))
        return terms
