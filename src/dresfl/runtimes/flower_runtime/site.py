"""A site: one letter in, one letter out. Between letters everything is on its disk, so each may meet a new process."""

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

from torch import Tensor

from dresfl.errors import DresError, IdentityError, MessageError, Refused, StoreError
from dresfl.federation import NO_NONCE, Agreement, Introduction, Parcels
from dresfl.files import disk, read_record, write_record
from dresfl.protocol import Client, Session, Task, answer_from_shares
from dresfl.sealing import Identity, Roster
from dresfl.storage import ShareStore, data_digest

from .letters import (
    Kind,
    Parcel,
    Reply,
    Request,
    decode_parcels,
    decode_places,
    encode_hello,
    encode_kept,
    encode_parcels,
)

_log = logging.getLogger(__name__)

Rows = tuple[Tensor, Tensor]


@final
class Site:
    """One organisation's end. Answers letters from its store; reads its rows only when they are shared."""

    def __init__(
        self,
        agreement: Agreement,
        identity: Identity,
        roster: Roster,
        folder: Path,
        rows: Callable[[], Rows],
        device: str = "cpu",
        on_done: Callable[[Task], None] = lambda task: None,
    ) -> None:
        """folder: the store. rows: reads this site's integer inputs (m,F) and targets (m,C)."""
        self._agreement, self._identity, self._roster = agreement, identity, roster
        self._folder, self._device, self._on_done = folder, device, on_done
        self._read_rows = rows
        self._rows: Rows | None = None
        self.index = roster.index_of(identity.member)

    def handle(self, data: bytes) -> bytes:
        """Answer one letter. What is not as agreed is refused, in the log here and in words to the coordinator."""
        kind = Kind(data[1]) if len(data) > 1 and data[1] in list(Kind) else Kind.HELLO
        try:
            request = Request.decode(data, self._roster)
            with self._turn():
                reply = Reply(request.kind, self.index, self._answers[request.kind](self, request))
        except DresError as error:
            _log.warning("%s refused: %s%s", kind.name, error, f" ({error.hint})" if error.hint else "")
            told = isinstance(error, MessageError | Refused | IdentityError)  # others may name what is only ours
            reason = str(error) if told else f"{type(error).__name__}: see the log of this site"
            reply = Reply.refusal(kind, self.index, reason)
        return reply.encode(self._identity, self._roster, data)

    # -- one method for each kind of letter ------------------------------------------------------------------

    def _hello(self, request: Request) -> bytes:
        if hashlib.sha256(request.body).digest() != self._agreement.digest:
            differing = "; ".join(self._agreement.differences(request.body))
            raise Refused(f"the agreements differ: {differing}", "compare agreement.toml and roster of both parties")
        with self._sharing_store() as store:
            held = store.held(self._agreement, self.index)
            nonce = held[0].nonce if held else NO_NONCE
            return encode_hello(Introduction(self._own_rows()[0].shape[0], store.contribution(), nonce))

    def _keep(self, request: Request) -> bytes:
        parcels = decode_parcels(request.body)
        with self._sharing_store() as store:
            session = self._session(request, store, self._own_rows()[0].shape[0])
            table = store.table(session, self.index, "used" if parcels else "all")
            client = Client(session, self.index, store.secret(session), *self._own_rows(), table)
            sharing = Parcels(client, table, self._identity, self._roster)
            sharing.keep_own()
            rejected = [(p[0], p[1], reason) for p in parcels if (reason := _kept(sharing, p))]
            table.flush()
            dealers = range(session.num_clients)
            missing = [(dealer, number) for dealer in dealers for number in table.missing_slices(dealer)]
            return encode_kept(missing, rejected)

    def _deal(self, request: Request) -> bytes:
        with self._sharing_store() as store:
            session = self._session(request, store, self._own_rows()[0].shape[0])
            table = store.table(session, self.index, "used")
            client = Client(session, self.index, store.secret(session), *self._own_rows(), table)
            sharing = Parcels(client, table, self._identity, self._roster)
            return encode_parcels(sharing.deal(decode_places(request.body)))

    def _answer(self, request: Request) -> bytes:
        with ShareStore.open(self._folder, self._shared_digest(), self._agreement.roster) as store:
            session = self._session(request, store)
            task = Task.decode(request.body, session)
            self._agreement.check_round(task.round_number)
            table, answered = store.table(session, self.index, "used"), store.answered(session)
            return answer_from_shares(session, self.index, table, answered, task).encode(session)

    def _done(self, request: Request) -> bytes:
        with ShareStore.open(self._folder, self._shared_digest(), self._agreement.roster) as store:
            final = Task.decode(request.body, self._session(request, store))
            self._agreement.check_end(final.round_number)
            self._on_done(final)
        return b""

    _answers: dict[Kind, Callable[["Site", Request], bytes]] = {  # noqa: RUF012 - never changed
        Kind.HELLO: _hello,
        Kind.KEEP: _keep,
        Kind.DEAL: _deal,
        Kind.ANSWER: _answer,
        Kind.DONE: _done,
    }

    # -- the store -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One letter at a time, whichever process has it: a killed SuperNode may leave one at work."""
        path = self._folder.with_name(f"{self._folder.name}.turn")
        with disk(path, "lock"):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _session(self, request: Request, store: ShareStore, rows: int | None = None) -> Session:
        """The session of the letter's terms, checked. rows: how many this site has, where they are read."""
        request.agreed_terms.check_for(store, self._agreement, self.index, rows)
        return request.agreed_terms.session(self._agreement, self._device)

    def _own_rows(self) -> Rows:
        if self._rows is None:
            self._rows = self._read_rows()
        return self._rows

    @contextlib.contextmanager
    def _sharing_store(self) -> Iterator[ShareStore]:
        """The store for the rows as they are now."""
        digest = data_digest(*self._own_rows())
        with ShareStore.open(self._folder, digest, self._agreement.roster) as store:
            if self._noted() != digest:
                write_record(self._folder / "flower.json", {"rows": digest.hex()})
            yield store

    def _shared_digest(self) -> bytes:
        """The digest of the rows as they were last shared: a round is answered without reading them."""
        return self._noted() or data_digest(*self._own_rows())

    def _noted(self) -> bytes | None:
        try:
            noted = read_record(self._folder / "flower.json")
        except StoreError as error:
            _log.warning("%s; the rows are read again", error)
            noted = None
        return None if noted is None else bytes.fromhex(noted["rows"])


def _kept(sharing: Parcels, parcel: Parcel) -> str:
    """Keep a slice; why not, if it is refused."""
    try:
        sharing.keep(*parcel)
    except MessageError as error:
        return str(error)
    return ""
