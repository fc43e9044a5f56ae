"""The work of a client in a hidden run: it begins the run, follows it, and answers hop after hop.

Where the client stands is on its disk before an answer leaves (`HiddenRun`). The client itself is in memory: if it is
lost, or has met an error, a new one is made from the disk and has to be told where the run stands.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, final

from torch import Tensor

from dresfl.errors import DresError, IdentityError, MessageError
from dresfl.field import SecretSeed
from dresfl.protocol import Session, ShareTable, Task, check_complete, held_set_ups, seeds_of
from dresfl.protocol.hidden.archive import decode_history
from dresfl.protocol.hidden.check import Unconfirmed
from dresfl.protocol.hidden.client import HiddenClient, Progress
from dresfl.protocol.hidden.coded_rows import TableRows
from dresfl.protocol.hidden.seeds import RunSeeds
from dresfl.protocol.hidden.start import start_text
from dresfl.sealing import Identity, Roster

from .confirming import check_confirmed, sign_confirmed
from .hidden_answering import HopResult
from .messages import Confirmations, HopAnswered, Message, Opened, Resume, Standing, Started

START_PURPOSE = "hidden start"
_MOST_RETURNS = 1000  # between two hops that are answered: no hop is answered in two courses of the run anyway


class HiddenRun(Protocol):
    """What a client keeps of one hidden run between processes."""

    @property
    def ended(self) -> bool:
        """Whether it is over for this client."""

    @property
    def progress(self) -> Progress | None:
        """What was kept last; None before the first answer."""

    def keep(self, progress: Progress) -> None:
        """Note where this client stands, for good. Refused if it would go back."""

    def seeds(self) -> tuple[int, Mapping[int, SecretSeed]]:
        """A round, and the seeds of that round. Those of later rounds follow from them."""

    def keep_seeds(self, round_number: int, seeds: Mapping[int, SecretSeed]) -> None:
        """Replace the seeds by those of a later round."""

    def claim_model(self) -> None:
        """Note, for good, that a model may come of this run. Refused beyond the budget."""

    def end(self) -> None:
        """Note, for good, that the run has ended; its seeds go."""


class HiddenStore(Protocol):
    """Where hidden runs are kept."""

    def hidden_run(self, session: Session) -> HiddenRun | None:
        """A run that was begun; None if it was not."""

    def begin_hidden(self, session: Session, seeds: Mapping[int, SecretSeed]) -> HiddenRun:
        """Count a run that begins now. seeds: the run's own of round 0. Refused beyond the budget."""


@final
class _KeptSeeds:
    """A run's seeds. When old ones are forgotten, the disk forgets them first."""

    def __init__(self, work: "HiddenWork") -> None:
        self._work = work
        first, seeds = work.run.seeds()
        self._seeds = RunSeeds(seeds, first)

    def of(self, round_number: int) -> Mapping[int, SecretSeed]:
        return self._seeds.of(round_number)

    def forget(self, round_number: int) -> None:
        if round_number > self._seeds.first_round:
            self._work.run.keep_seeds(round_number, self._seeds.of(round_number))
            self._seeds.forget(round_number)


@final
class _Rows:
    """The coded rows of whatever table the client has now."""

    def __init__(self, work: "HiddenWork") -> None:
        self._work = work

    def batch(self, round_number: int) -> tuple[Tensor, Tensor]:
        return TableRows(self._work.session, self._work.table).batch(round_number)

    def validation(self) -> tuple[Tensor, Tensor]:
        return TableRows(self._work.session, self._work.table).validation()


@final
class HiddenWork:
    """One client's work in one run. It may outlive the store that it was made with: see `attach`."""

    def __init__(self, session: Session, index: int, identity: Identity, roster: Roster) -> None:
        self.session, self._index, self._identity, self._roster = session, index, identity, roster
        self._signature = identity.sign(START_PURPOSE, start_text(session.run))
        self._run: HiddenRun | None = None
        self._table: ShareTable | None = None
        self._client: HiddenClient | None = None
        self._kept: Progress | None = None  # as the client's disk has it
        self._signed = 0  # clients that have signed the run, as far as is known
        self._returns = 0  # since this client last answered another hop than before
        self._answered = (-1, 0)
        self._earlier: Confirmations | None = None  # of another place than where this client stands

    def __repr__(self) -> str:
        return f"HiddenWork({self._index}, {self._client}, <redacted>)"

    def attach(self, table: ShareTable, run: HiddenRun) -> None:
        """Use these from now on. If the disk has gone on without this client in memory, the one in memory goes."""
        self._table, self._run = table, run
        ours, disks = self._kept, run.progress
        same = (ours and (ours.position, ours.stopped)) == (disks and (disks.position, disks.stopped))
        if not same:
            self._client = None
        self._kept = disks

    @property
    def run(self) -> HiddenRun:
        if self._run is None:
            raise MessageError("this client has not begun a run")
        return self._run

    @property
    def table(self) -> ShareTable:
        if self._table is None:
            raise MessageError("this client has not begun a run")
        return self._table

    @property
    def client(self) -> HiddenClient:
        """The client: from the disk, if it is not in memory."""
        if self._client is None:
            kept = self.run.progress
            self._client = HiddenClient(self.session, self._index, _Rows(self), _KeptSeeds(self), self._keep, kept)
            if self._signed:
                self._client.start(self._signed)
        return self._client

    def _keep(self, progress: Progress) -> None:
        self.run.keep(progress)
        self._kept = progress

    # -- work ------------------------------------------------------------------------------------------------

    def stand(self) -> HopResult:
        """Where this client stands, with its signature of the run."""
        if self.run.ended:
            return HopResult(ended=True)
        return HopResult((self._standing(),))

    def start(self, message: Started) -> HopResult:
        """Count who has signed the run; MessageError if it is too few."""
        valid = {self._index}
        for client, signature in message.signatures:
            if client >= self.session.num_clients:
                raise MessageError(f"client {client} does not exist among {self.session.num_clients}")
            try:
                member = self._roster.members[client]
                member.check_signature(START_PURPOSE, start_text(self.session.run), signature)
            except IdentityError as error:
                raise MessageError(f"client {client} has not signed the start of this run") from error
            valid.add(client)
        self.client.start(len(valid))
        self._signed = len(valid)
        return HopResult()

    def resume(self, message: Resume) -> HopResult:
        """Go on where the run stands."""
        client = self.client
        if len(message.history):
            self._returns += 1
            if self._returns > _MOST_RETURNS:
                raise MessageError(f"this client was told {_MOST_RETURNS} times where the run stands")
            self._careful(lambda: client.catch_up(decode_history(message.history), self._confirm_earlier))
            self._earlier = None
        if client.behind or client.ledger.position != message.position:
            self._client = None
            raise MessageError("the run is not where the coordinator says")
        # With check C: what this client said of the last hop may be lost, and others wait for it.
        again = self._confirmation() if client.confirmed else ()
        result = self._go_on()
        return replace(result, messages=(*again, *result.messages))

    def take(self, opened: tuple[Opened, ...]) -> HopResult:
        """Take what hops published, and answer the next one. Hops that are known are left out."""
        client = self.client
        if client.behind:
            return HopResult((self._standing(),))
        new = [hop for hop in opened if (hop.round_number, hop.hop) >= client.ledger.position.order]
        for hop in new:
            if client.ledger.ended or (hop.round_number, hop.hop) != client.ledger.position.order:
                return HopResult((self._standing(),))  # something is missing in between
            published = hop.published
            self._careful(lambda published=published: client.receive(published))  # type: ignore[misc]
        return self._go_on() if new else HopResult()

    def confirm(self, message: Confirmations) -> HopResult:
        """Check C: what the clients say of the hop that was published last."""
        client, position = self.client, message.position
        if client.behind or client.ledger.position != position:
            self._earlier = message  # a history follows, in which it has its place
            return HopResult()
        if client.confirmed or client.check_value is None:
            return HopResult()
        try:
            client.confirm(self._told(message))
        except Unconfirmed:
            return HopResult()  # more of them will come
        return self._go_on()

    def _confirm_earlier(self) -> None:
        """While this client catches up: confirm the hop before the last one, so that it may speak of the last one."""
        client, message = self._client, self._earlier
        if client is None or message is None or message.position != client.ledger.position:
            return
        if client.check_value is not None:
            with contextlib.suppress(Unconfirmed):
                client.confirm(self._told(message))

    def _told(self, message: Confirmations) -> dict[int, Tensor]:
        """The others' check values in a message, of where this client stands."""
        client, position, values = self.client, message.position, dict[int, Tensor]()
        for sender, signature, sealed in message.values:
            if sender >= self.session.num_clients or sender == self._index:
                continue
            try:
                check_confirmed(self._roster.members[sender], self.session.run, position, sealed, signature)
                values[sender] = client.opened_check(sender, sealed)
            except (IdentityError, MessageError):
                continue  # it has not said so, or has said nothing that could be a check value
        return values

    def _standing(self) -> Standing:
        client = self.client
        kept = self.run.progress
        if client.behind and kept is not None:
            return Standing.at(kept.position, self._signature, holds_check=bool(kept.check), behind=True)
        holds = client.holds_check
        return Standing.at(client.ledger.position, self._signature, holds_check=holds, behind=False)

    def _go_on(self) -> HopResult:
        """The answer to the next hop; with check C, first the word on the last one; or the end."""
        client, ledger = self.client, self.client.ledger
        if not client.confirmed:
            return HopResult(self._confirmation())
        if ledger.ended:
            return HopResult(ended=True, final=self._final(), opened=ledger.opened)
        if ledger.final and client.holds_check:
            self.run.claim_model()
        answer = client.answer()
        messages: tuple[Message, ...] = ()
        if answer is not None:
            if ledger.position.order > self._answered:
                self._answered, self._returns = ledger.position.order, 0
            messages = (HopAnswered(answer.encode(self.session.field)),)
        return HopResult(messages)

    def _confirmation(self) -> tuple[Message, ...]:
        """Check C: what this client has to say of the last hop, if it has computed that hop."""
        sealed = self.client.sealed_check()
        if sealed is None:
            return ()
        return (sign_confirmed(self._identity, self.session.run, self.client.ledger.position, sealed),)

    def _final(self) -> Task | None:
        model = self.client.model
        return None if model is None else Task(self.client.ledger.round_number - 1, model)

    def _careful(self, do: Callable[[], None]) -> None:
        """Whatever goes wrong in the middle: the client in memory is not used any more."""
        try:
            do()
        except DresError:
            self._client = None
            raise


def begun_run(store: HiddenStore, session: Session, index: int, table: ShareTable) -> HiddenRun:
    """The run on the disk: as it was left, or begun now, with seeds of its own."""
    found = store.hidden_run(session)
    if found is not None:
        return found
    check_complete(session, index, table)
    dealt = seeds_of(held_set_ups(session, index, table))
    return store.begin_hidden(session, RunSeeds.begin(dealt, session.run).of(0))
