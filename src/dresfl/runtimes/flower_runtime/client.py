"""A client over Flower: one bundle in, one bundle out. All decisions are the machine's.

Between two bundles everything is on the client's disk, so each bundle may meet a new process: the machine is made anew
for each, and goes on from the terms that came with it.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import final

from dresfl.errors import DresError, IdentityError, MessageError, Refused, StoreError
from dresfl.federation import NO_CHALLENGE, NO_INSTANCE, Agreement, HiddenMemory, Rows, Site, Workplace
from dresfl.federation.actions import Action, Disconnect, GiveUp, SendToCoordinator, Work
from dresfl.federation.actions import Log as LogAction
from dresfl.files import disk, read_record, write_record
from dresfl.protocol import Task
from dresfl.runtimes.log import Log
from dresfl.runtimes.wire_recorder import WireRecorder
from dresfl.sealing import Identity, Roster
from dresfl.storage import ShareStore, data_digest
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.hidden_state import Allowance

from .bundles import Reply, Request

_MAY_BE_SAID = MessageError | Refused | IdentityError  # other errors may name what is only this client's


@final
class FlowerClient:
    """One client. It answers bundles from its store, and reads its rows only when they are shared."""

    def __init__(
        self,
        agreement: Agreement,
        identity: Identity,
        roster: Roster,
        folder: Path,
        rows: Callable[[], Rows],
        log: Log,
        *,
        device: str = "cpu",
        keep_model: Callable[[Task], None] = lambda final: None,
        key: StorageKey | None = None,
    ) -> None:
        """folder: the store. rows: reads this client's integer inputs (m,F) and targets (m,C). key: seals the store."""
        self._agreement, self._identity, self._roster = agreement, identity, roster
        self._folder, self._read_rows, self._log = folder, rows, log
        self._device, self._keep_model, self._key = device, keep_model, key
        self._hidden = HiddenMemory()  # a process that stays need not catch up with the run for every bundle
        self.index = roster.index_of(identity.member)

    def handle(self, data: bytes) -> bytes:
        """Answer one bundle. What is not as agreed is refused, in the log here and in words to the coordinator."""
        try:
            request = Request.decode(data, self._roster)
            with self._turn():
                reply = Reply(self.index, tuple(self._answer(request)))
        except DresError as error:
            self._log("refused", reason=str(error), hint=error.hint)
            hidden = f"{type(error).__name__}: see the log of this client"
            reply = Reply(self.index, refusal=str(error) if isinstance(error, _MAY_BE_SAID) else hidden)
        return reply.encode(self._identity, self._roster, data)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One bundle at a time, whichever process has it: a killed SuperNode may leave one at work."""
        path = self._folder.with_name(f"{self._folder.name}.turn")
        with disk(path, "lock"):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    # -- the machine -----------------------------------------------------------------------------------------

    def _answer(self, request: Request) -> list[bytes]:
        """Play a bundle through the machine, until it waits for nothing but the next one."""
        sent: list[bytes] = []
        recorder = WireRecorder(self._agreement, self._folder, self.index)

        def carry_out(actions: list[Action]) -> None:
            for action in actions:
                match action:
                    case SendToCoordinator():
                        recorder.sent_by_client(self.index, action.message, site.session)
                        sent.append(action.message.encode())
                    case Work():
                        carry_out(site.worked(action, _done(workplace, action), 0.0))
                    case LogAction():
                        self._log(action.event, **action.fields)
                    case Disconnect():
                        raise MessageError(action.reason)
                    case GiveUp():
                        raise action.error

        with self._store(resumed=request.terms is not None) as (store, rows):
            workplace = Workplace(
                self._agreement,
                self._identity,
                self._roster,
                store,
                rows,
                device=self._device,
                keep_model=self._keep_model,
                hidden_work=self._hidden,
            )
            site = Site(
                self._agreement, self._roster, self.index, workplace.introduce, lambda: NO_CHALLENGE, NO_INSTANCE
            )
            if request.terms is not None:
                carry_out(site.resumed(request.terms, 0.0))
            else:
                hello = site.connected(0.0)
                carry_out(hello if not request.messages else [])  # before a Begin the coordinator has had it
            for message in request.messages:
                recorder.data_from_coordinator(message, site.session)
                carry_out(site.received(message, 0.0))
            while (at := site.wake_at) is not None:  # nothing more comes: what waits for its time is due
                carry_out(site.tick(at))
        return sent

    # -- the store -------------------------------------------------------------------------------------------

    @cached_property
    def _own(self) -> tuple[Rows, bytes]:
        """The rows and their digest."""
        rows = self._read_rows()
        return rows, data_digest(*rows)

    @contextlib.contextmanager
    def _store(self, resumed: bool) -> Iterator[tuple[ShareStore, Callable[[], Rows]]]:
        """The store for this client's rows, and how to get at them.

        resumed: for the rows as they were when they were shared; so a round is answered without reading them. Should
        they be needed after all, they must be the same.
        """
        noted = self._noted_digest()
        digest = noted if resumed and noted is not None else self._own[1]

        def rows() -> Rows:
            if self._own[1] != digest:
                raise Refused("the client's rows have changed since they were shared", "bring back the rows of then")
            return self._own[0]

        allowed = self._agreement.hidden
        allowance = None if allowed is None else Allowance(allowed.runs, allowed.trials, allowed.trial)
        with ShareStore.open(self._folder, digest, self._agreement.roster, self._key, allowance) as store:
            if digest != noted:
                write_record(self._folder / "flower.json", {"rows": digest.hex()})
            yield store, rows

    def _noted_digest(self) -> bytes | None:
        try:
            noted = read_record(self._folder / "flower.json")
        except StoreError as error:
            self._log("note damaged", reason=str(error))
            noted = None
        return None if noted is None else bytes.fromhex(noted["rows"])


def _done(workplace: Workplace, work: Work) -> object:
    """Do a piece of work. An error that is not about a message ends the bundle under its own name."""
    result = workplace.perform(work)
    if isinstance(result, DresError) and not isinstance(result, MessageError):
        raise result
    return result
