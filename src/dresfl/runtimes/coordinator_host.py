"""The coordinator's machine with its disk and its clock: what the network runtimes share.

A runtime hands events in and gets back what is to be done on the network, in order. By then everything that had to be
on the disk first is there. Calls come from one thread at a time; `stored_slice` may be called from any.
"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import final

from dresfl.errors import DresError
from dresfl.federation import Agreement, Coordinator, CoordinatorSettings, Terms, largest_message
from dresfl.federation.actions import (
    Action,
    Close,
    DropSlice,
    Finish,
    Log,
    Record,
    RecordLoss,
    Send,
    SendSlice,
    StoreBroadcast,
    StoreSlice,
    StoreTerms,
    Value,
)
from dresfl.federation.messages import Relayed
from dresfl.files import disk, write_atomic
from dresfl.protocol import RoundRecord, Session, Training
from dresfl.sealing import Identity, Roster
from dresfl.storage.at_rest import StorageKey, open_file, seal_file
from dresfl.storage.broadcasts import Broadcast, BroadcastStore
from dresfl.storage.spool import Spool
from dresfl.storage.transcript import COORDINATOR

from .log import Log as WriteLog
from .wire_recorder import WireRecorder

OnNetwork = Send | SendSlice | Close | Finish
TERMS_ROLE = "terms"  # the role of terms.json, if it is sealed


@final
class CoordinatorHost:
    """One run of a coordinator in a folder: terms.json, spool/, hops/, and what `watch` writes."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        agreement: Agreement,
        identity: Identity,
        roster: Roster,
        folder: Path,
        make_training: Callable[[Session], Training],
        watch: Callable[[RoundRecord, int], None],
        log: WriteLog,
        key: StorageKey | None = None,
        opened_loss: Callable[[int, float], None] = lambda round_number, loss: None,
    ) -> None:
        """make_training: the training of a session, restored if there is a checkpoint; in the open mode alone.

        watch: called after every round. What it writes must be on the disk when it returns, or follow again from what
        is. key: seals the terms and published hops. opened_loss: called with each validation loss of a hidden run.
        """
        self._terms_path, self._spool_folder = folder / "terms.json", folder / "spool"
        self._make_training = make_training
        self._agreement, self._watch, self._log, self._key = agreement, watch, log, key
        self.most_bytes = largest_message(agreement)  # of a message
        self.described: dict[str, Value] = {"clients": agreement.num_clients, "agreement": agreement.digest.hex()}
        self._hops_folder, self._opened_loss = folder, opened_loss
        self._hops: BroadcastStore | None = None
        self._spool: Spool | None = None
        self._session: Session | None = None
        self._recorder = WireRecorder(agreement, folder, COORDINATOR)
        terms = None
        if self._terms_path.exists():
            with disk(self._terms_path, "read"):
                data = self._terms_path.read_bytes()
            terms = Terms.from_json(open_file(key, data, TERMS_ROLE, self._terms_path), agreement)
        self.machine = Coordinator(
            settings, agreement, identity, roster, self._train, terms, self._open_spool, self._open_hops
        )

    def _train(self, session: Session) -> Training:
        self._session = session
        return self._make_training(session)

    def _open_spool(self, session: Session) -> list[tuple[int, int, int]]:
        self._spool = Spool(self._spool_folder, session.sharing_id)
        return self._spool.stored()

    def _open_hops(self, run: bytes) -> list[StoreBroadcast]:
        """What the hops of a hidden run have published, as far as the disk keeps it."""
        self._hops = BroadcastStore(self._hops_folder, run, self._key)
        found = [hop for hops in self._hops.rounds().values() for hop in hops]
        return [StoreBroadcast(run, hop.round_number, hop.hop, hop.published, hop.note) for hop in found]

    def close(self) -> None:
        """Close the files of the run."""
        if self._hops is not None:
            self._hops.close()

    # -- events ----------------------------------------------------------------------------------------------

    def start(self) -> list[OnNetwork]:
        return self._carry_out(self.machine.start(time.monotonic()))

    def connected(self, client: int) -> list[OnNetwork]:
        return self._carry_out(self.machine.connected_to(client, time.monotonic()))

    def disconnected(self, client: int) -> list[OnNetwork]:
        return self._carry_out(self.machine.disconnected(client, time.monotonic()))

    def received(self, client: int, *messages: bytes | memoryview) -> list[OnNetwork]:
        """Messages of a client, in their order. What the machine asks for is carried out message by message."""
        now, on_network = time.monotonic(), list[OnNetwork]()
        for data in messages:
            counted = self.machine.counters.answers
            actions = self.machine.received(client, data, now)
            if self.machine.counters.answers > counted:
                self._recorder.data_from_client(client, data, self._session)
            on_network += self._carry_out(actions)
        return on_network

    def slice_lost(self, lost: SendSlice) -> list[OnNetwork]:
        return self._carry_out(self.machine.slice_lost(lost.receiver, lost.dealer, lost.number))

    def tick(self) -> list[OnNetwork]:
        return self._carry_out(self.machine.tick(time.monotonic()))

    @property
    def patience(self) -> float | None:
        """Seconds until `tick` has to be called, if nothing happens before; None: for ever."""
        at = self.machine.wake_at
        return None if at is None else max(0.0, at - time.monotonic())

    # -- the disk --------------------------------------------------------------------------------------------

    def slice_in_memory(self, wanted: SendSlice) -> Relayed | None:
        """A slice that is to be sent, if it need not be read from the disk."""
        sealed = self._slices.in_memory(wanted.receiver, wanted.dealer, wanted.number)
        return None if sealed is None else Relayed(wanted.dealer, wanted.number, sealed)

    def stored_slice(self, wanted: SendSlice) -> Relayed | None:
        """A slice that is to be sent; None if the disk has lost it: then `slice_lost` must be told."""
        sealed = self._slices.get(wanted.receiver, wanted.dealer, wanted.number)
        return None if sealed is None else Relayed(wanted.dealer, wanted.number, sealed)

    @property
    def _slices(self) -> Spool:
        if self._spool is None:
            raise RuntimeError("the terms are not settled")
        return self._spool

    def _carry_out(self, actions: list[Action]) -> list[OnNetwork]:
        left, on_network = deque(actions), list[OnNetwork]()
        while left:
            action = left.popleft()
            match action:
                case Log():
                    self._log(action.event, **action.fields)
                case StoreTerms():
                    sealed = seal_file(self._key, action.terms.to_json(self._agreement), TERMS_ROLE)
                    write_atomic(self._terms_path, sealed, private=True)
                case Record():
                    self._watch(action.record, action.answers)
                case StoreBroadcast():
                    self._store_hop(action)
                case RecordLoss():
                    self._opened_loss(action.round_number, action.loss)
                case StoreSlice():
                    left.extend(self._store(action, on_network))
                case DropSlice():
                    self._slices.drop(action.receiver, action.dealer, action.number)
                case Send():
                    self._recorder.sent_by_coordinator(action.message, self._session)
                    on_network.append(action)
                case SendSlice() | Close() | Finish():
                    on_network.append(action)
                case _:
                    raise RuntimeError(f"{action} is not the coordinator's")
        return on_network

    def _store_hop(self, action: StoreBroadcast) -> None:
        """Put a hop on the disk before it is published. If the disk will not have it, the coordinator ends."""
        if self._hops is None:
            raise RuntimeError("the run has not begun")
        self._hops.put(Broadcast(action.round_number, action.hop, action.published, action.note))

    def _store(self, action: StoreSlice, on_network: list[OnNetwork]) -> list[Action]:
        """Keep a slice. If the disk will not have it, its dealer is sent away and may come back with it."""
        try:
            self._slices.put(action.receiver, action.dealer, action.number, action.sealed)
            return []
        except DresError as error:
            self._log("failed", client=action.dealer, reason=str(error), hint=error.hint)
            on_network.append(Close(action.dealer, error))
            now = time.monotonic()
            return [
                *self.machine.slice_lost(action.receiver, action.dealer, action.number),
                *self.machine.disconnected(action.dealer, now),
            ]
