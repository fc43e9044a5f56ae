"""How a federation comes together: who has said hello, and the terms that make a session of the agreement.

The first sharing needs every client. Its nonce is a hash of the coordinator's fresh bytes and of each client's, so
that no party can make the others repeat an old one. If all clients hold the shares of one earlier sharing, that one is
used again. The terms are on the coordinator's disk before anybody hears of them; from then on clients come and go.
"""

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import final

from dresfl.checkpoint import write_atomic
from dresfl.errors import CheckpointError, Refused
from dresfl.party import sharing_nonce

from .frames import NO_NONCE, Begin, Hello
from .log import Log

_TAG = 16  # bytes of a contribution that stay the same as long as the client's secret and rows do


def to_sign(challenge: bytes, site: int, roster_digest: str, body: bytes) -> bytes:
    """What the coordinator signs for one site: that this Begin answers its challenge."""
    return challenge + site.to_bytes(2, "little") + bytes.fromhex(roster_digest) + body


@final
@dataclass(frozen=True)
class Terms:
    """What the clients' hellos and the coordinator's bytes have settled. Public."""

    nonce: bytes
    run_nonce: bytes
    own_bytes: bytes
    rows: tuple[int, ...]
    contributions: tuple[bytes, ...]

    def begin(self, signature: bytes = bytes(64)) -> Begin:
        """The frame that tells a client."""
        sites = tuple(zip(self.rows, self.contributions, strict=True))
        return Begin(signature, self.run_nonce, self.nonce, self.own_bytes, sites)

    def save(self, path: Path) -> None:
        fields = {
            "format": "dresfl terms 1",
            "nonce": self.nonce.hex(),
            "run_nonce": self.run_nonce.hex(),
            "own_bytes": self.own_bytes.hex(),
            "rows": list(self.rows),
            "contributions": [value.hex() for value in self.contributions],
        }
        write_atomic(path, (json.dumps(fields, indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "Terms":
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["format"] != "dresfl terms 1":
                raise ValueError(f"format {fields['format']!r} is not known")
            return cls(
                bytes.fromhex(fields["nonce"]),
                bytes.fromhex(fields["run_nonce"]),
                bytes.fromhex(fields["own_bytes"]),
                tuple(int(rows) for rows in fields["rows"]),
                tuple(bytes.fromhex(value) for value in fields["contributions"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"cannot read {path}: {error}", "choose another folder to start over") from error


@final
class Lobby:
    """Hellos in, terms out."""

    def __init__(self, num_clients: int, agreement: bytes, path: Path, log: Log) -> None:
        self._agreement, self._path, self._log = agreement, path, log
        self._hellos: dict[int, Hello] = {}
        self._num_clients = num_clients
        self.terms = Terms.load(path) if path.exists() else None
        if self.terms is not None and len(self.terms.rows) != num_clients:
            raise CheckpointError(f"{path} is of {len(self.terms.rows)} clients, not {num_clients}")

    @property
    def settled_terms(self) -> Terms:
        if self.terms is None:
            raise RuntimeError("the terms are not settled")
        return self.terms

    def hello(self, index: int, hello: Hello) -> None:
        """Take a client's hello; the last one settles the terms. Refused if these do not fit the client."""
        if hello.agreement != self._agreement:
            raise Refused(
                "the client's agreement differs from the coordinator's",
                "compare model, code, batch, seed, input bound and roster in both configurations",
            )
        if hello.rows < 1:
            raise Refused("the client has no rows")
        self._hellos[index] = hello
        if self.terms is None and len(self._hellos) == self._num_clients:
            self.terms = self._settle()
        if self.terms is not None:
            self._check(index, hello, self.terms)

    def leave(self, index: int) -> None:
        """A client went before the terms were settled."""
        self._hellos.pop(index, None)

    def missing(self) -> list[int]:
        """The clients that the terms still wait for."""
        return [] if self.terms else [i for i in range(self._num_clients) if i not in self._hellos]

    def _settle(self) -> Terms:
        hellos = [self._hellos[i] for i in range(self._num_clients)]
        own_bytes, contributions = secrets.token_bytes(16), tuple(hello.contribution for hello in hellos)
        held = {hello.held_nonce for hello in hellos}
        reused = len(held) == 1 and NO_NONCE not in held
        nonce = held.pop() if reused else sharing_nonce(own_bytes, contributions)
        rows = tuple(hello.rows for hello in hellos)
        terms = Terms(nonce, secrets.token_bytes(16), own_bytes, rows, contributions)
        terms.save(self._path)
        self._log("terms settled", sharing="reused" if reused else "fresh", rows=sum(rows))
        return terms

    def _check(self, index: int, hello: Hello, terms: Terms) -> None:
        if hello.rows != terms.rows[index]:
            raise Refused(
                f"the client has {hello.rows} rows, but {terms.rows[index]} when the shares were made",
                "use the data that was shared, or start a new run",
            )
        if terms.contributions[index][:_TAG] != hello.contribution[:_TAG]:
            raise Refused(
                "the client's secret or rows are not those of this sharing",
                "restore its store and data, or start a new run in a new folder, which shares anew",
            )
