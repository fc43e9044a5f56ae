"""Where a client's work is done: dealing, keeping and answering, over its rows, its secret and its store.

The store is an interface: the real one is on a disk (`dresfl.storage`), that of a test in memory. So the work, too, is
the same in every runtime.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from torch import Tensor

from dresfl.errors import DresError, MessageError, Refused
from dresfl.field import SecretSeed
from dresfl.protocol import (
    AnsweredRounds,
    Client,
    Session,
    ShareTable,
    SumNotes,
    Task,
    Verdict,
    accuracy_counts,
    common_coins,
    examine_dealers,
    final_sum,
    held_set_ups,
)
from dresfl.protocol.hidden.published import opened_digest
from dresfl.sealing import Identity, Roster

from .actions import (
    AddDealt,
    AnswerTask,
    CheckDealers,
    ConfirmHop,
    Deal,
    DealCounts,
    EndRun,
    Flush,
    Join,
    JudgeDealers,
    Keep,
    KeepModel,
    KeepVerdict,
    ResumeRun,
    SignDealers,
    Stand,
    StartRun,
    TakeHops,
    Work,
)
from .agreement import Agreement, make_session
from .attesting import attest, judge_attested
from .hidden_work import HiddenRun, HiddenWork, begun_run
from .messages import Attestations, Attested, Checked, Counted
from .open_work import OpenWork
from .sealed_slices import SealedSlices, missing_slices
from .site import Judgement, Membership
from .sums import SumWork
from .terms import NO_COIN, NO_NONCE, Introduction, Terms

Rows = tuple[Tensor, Tensor]  # integer inputs (m,F) and targets (m,C)
SessionOf = Callable[[tuple[int, ...], bytes], Session]


@final
@dataclass
class HiddenMemory:
    """The hidden run that a process is in, across its connections."""

    work: HiddenWork | None = None


class Store(Protocol):
    """What a client keeps between processes: a secret, shares, and which rounds it has answered."""

    def contribution(self) -> bytes:
        """What this client adds to the nonce of a new sharing: a tag, a salt, and a commitment to a coin (terms.py)."""

    def owns(self, contribution: bytes) -> bool:
        """Whether a contribution is this store's."""

    def claim_contribution(self, session: Session, contribution: bytes) -> bool:
        """Note that a contribution serves a session's sharing; False if it has served another, or is too old to."""

    def held_nonces(self, session_of: SessionOf, index: int) -> Sequence[bytes]:
        """The nonces of the sharings that can be used again, the newest first.

        It has shares of them, they make a session, and the check of their dealers found nothing.
        """

    def secret(self, session: Session) -> SecretSeed:
        """The seed of this client's masks in a sharing."""

    def table(self, session: Session, index: int, look: bool) -> tuple[ShareTable, Sequence[str]]:
        """The shares of a session's sharing, and what was found wrong with them; look: read every one of them now."""

    def answered(self, session: Session) -> AnsweredRounds:
        """Which rounds of a session were answered."""

    def coin(self, contribution: bytes) -> bytes:
        """The coin that a contribution of this store is bound to."""

    def claim_check(self, session: Session, coins: bytes) -> bool:
        """Note that the dealers of a sharing are checked with coins of this digest; False if it was with others."""

    def claimed_coins(self, session: Session) -> bytes:
        """The digest of the coins that `claim_check` noted; zeros if it noted none."""

    def verdict(self, session: Session) -> Verdict | None:
        """What came of the check of a sharing's dealers, if it was kept."""

    def keep_verdict(self, session: Session, verdict: Verdict) -> None:
        """Keep what came of the check, for good."""

    # -- the hidden mode -------------------------------------------------------------------------------------

    def offered_nonces(self, session_of: SessionOf, index: int) -> Sequence[bytes]:
        """Those of `held_nonces` on whose sharing another run may begin."""

    def mask_secret(self, session: Session) -> SecretSeed | None:
        """What the mask seeds are made from that this client deals; None: it is erased, since training has begun."""

    def hidden_run(self, session: Session) -> HiddenRun | None:
        """A run that was begun; None if it was not."""

    def begin_hidden(self, session: Session, seeds: Mapping[int, SecretSeed]) -> HiddenRun:
        """Count a run that begins now, with its own seeds of round 0. Refused beyond what was agreed on."""

    def sum_notes(self, session: Session) -> SumNotes:
        """What is kept of the sums on a sharing."""


@final
class Workplace:
    """Does what a `Site` asks for. Only `Deal` may be done beside other work, in a thread of its own."""

    def __init__(
        self,
        agreement: Agreement,
        identity: Identity,
        roster: Roster,
        store: Store,
        rows: Callable[[], Rows],
        *,
        device: str = "cpu",
        keep_model: Callable[[Task], None] = lambda final: None,
        blinded: bool = True,
        hidden_work: HiddenMemory | None = None,
    ) -> None:
        """rows: reads this client's integer rows. keep_model: stores the final weights, for good when it returns.

        blinded: False in tests and benchmarks only, and then for all clients. hidden_work: of a workplace before this
        one in the same process, so that it need not catch up with the run.
        """
        self._agreement, self._identity, self._roster, self._store = agreement, identity, roster, store
        self._rows, self._device, self._keep_model = rows, device, keep_model
        self.index = roster.index_of(identity.member)
        self._blinded = blinded
        self._open_work = OpenWork(self.index, blinded)
        self._hidden_work = HiddenMemory() if hidden_work is None else hidden_work
        self._terms: Terms | None = None
        self._session: Session | None = None
        self._table: ShareTable | None = None
        self._slices: SealedSlices | None = None
        self._summing: SumWork | None = None

    def introduce(self) -> Introduction:
        """What this client brings to the terms. Every time it has a coin that nobody has seen."""
        hidden = self._agreement.mode == "hidden"
        held = (self._store.offered_nonces if hidden else self._store.held_nonces)(self._session_of, self.index)
        return Introduction(self._rows()[0].shape[0], self._store.contribution(), held[0] if held else NO_NONCE)

    def perform(self, work: Work) -> object:
        """Do a piece of work; its result, or the error that it met."""
        try:
            return self._perform(work)
        except DresError as error:
            return error

    def _perform(self, work: Work) -> object:
        match work:
            case Join():
                return self._join(work.terms, work.look)
            case Deal():
                return self._sealed_slices.deal(work.receiver, work.number)
            case Keep():
                self._sealed_slices.keep(work.dealer, work.number, work.sealed)
                return None
            case Flush():
                self._member[1].flush()
                return None
            case CheckDealers():
                return self._check(work.coins)
            case KeepVerdict():
                self._session = self._member[0].without(work.verdict.excluded)
                self._store.keep_verdict(self._session, work.verdict)
                return None
            case AnswerTask():
                session, table = self._member
                return self._open_work.answer(session, table, self._store.answered(session), work.task)
            case KeepModel():
                self._keep_model(work.final)
                return None
            case JudgeDealers():
                return self._judge(work.attestations)
            case Stand():
                return self._begun_work().stand()
            case StartRun():
                return self._begun_work().start(work.started)
            case ResumeRun():
                return self._begun_work().resume(work.resume)
            case TakeHops():
                return self._begun_work().take(work.opened)
            case ConfirmHop():
                return self._begun_work().confirm(work.confirmations)
            case EndRun():
                self._end_run(work.final)
                return None
            case DealCounts():
                return self._deal_counts(work)
            case SignDealers():
                return self._sum_work.sign(work.proposed)
            case AddDealt():
                return self._sum_work.add(work.release)
        raise RuntimeError(f"{work} is not known")

    def _session_of(self, rows: tuple[int, ...], nonce: bytes) -> Session:
        return make_session(self._agreement, rows, nonce, b"")

    def _join(self, terms: Terms, look: bool) -> Membership:
        """Check the terms, and open what belongs to the session that they give."""
        rows = self._rows()[0].shape[0] if look else None
        held = self._store.held_nonces(self._session_of, self.index)
        contribution = terms.contributions[self.index] if len(terms.contributions) > self.index else b""
        coin = self._store.coin(contribution)
        own = self._store.owns(contribution) and terms.is_coin(self.index, coin)
        terms.check_for(self._agreement, self.index, rows, own=own, held_nonces=held)
        session = make_session(self._agreement, terms.rows, terms.nonce, terms.run_nonce, self._device)
        if terms.fresh and not self._store.claim_contribution(session, contribution):
            raise Refused(
                "the coordinator's terms have a contribution of this client that has served another sharing",
                "coins of then are known already: start the run again in a new folder of the coordinator",
            )
        verdict = self._store.verdict(session)
        if verdict is not None:
            session = terms.run_session(self._agreement, session, verdict, self._store.claimed_coins(session))
        if self._session is None or self._session.session_id != session.session_id:
            self._slices, self._open_work = None, OpenWork(self.index, self._blinded)
        table, damage = self._store.table(session, self.index, look)
        if session.hidden is None:
            self._store.answered(session)  # if it is damaged, this client ends now: coming back would not mend it
        self._terms, self._session, self._table = terms, session, table
        if look:
            self._sealed_slices.keep_own()
            table.flush()
        missing = [set(missing_slices(session, dealer, table)) for dealer in range(session.num_clients)]
        return Membership(session, missing, coin, verdict, tuple(damage))

    @property
    def _member(self) -> tuple[Session, ShareTable]:
        if self._session is None or self._table is None:
            raise MessageError("this client has not joined a session")
        return self._session, self._table

    @property
    def _sealed_slices(self) -> SealedSlices:
        """This client's side of the sharing: it needs the client's own rows, which answering does not."""
        if self._slices is None:
            session, table = self._member
            client = self._dealer(session, table)
            self._slices = SealedSlices(client, table, self._identity, self._roster)
        return self._slices

    def _dealer(self, session: Session, table: ShareTable) -> Client:
        secret, rows = self._store.secret(session), self._rows()
        if session.hidden is None:
            return Client(session, self.index, secret, *rows, table)
        masks = self._store.mask_secret(session)
        return Client(session, self.index, secret, *rows, table, mask_secret=masks, seeds_erased=masks is None)

    def _check(self, coins: tuple[bytes, ...]) -> Checked | Attested:
        """This client's part of the check of the dealers.

        It is published for one set of coins only: two would be two equations with the same mask.
        """
        (session, table), terms = self._member, self._terms
        if terms is None or not terms.fresh or len(coins) != session.num_clients:
            raise MessageError("coins came that are not those of this sharing")
        for client, coin in enumerate(coins):
            absent = coin == NO_COIN and client != self.index
            if not absent and not terms.is_coin(client, coin):
                raise MessageError(f"the coin of client {client} is not the one that it committed to")
        common = common_coins(coins)
        set_ups = held_set_ups(session, self.index, table)
        if not self._store.claim_check(session, common):
            raise Refused("the dealers of this sharing were checked with other coins", "an old session is replayed")
        found = examine_dealers(session, self.index, table, set_ups, common)
        checked = Checked(found.hashes, found.pack(session))
        return checked if session.hidden is None else attest(self._identity, session, self.index, coins, checked)

    # -- the hidden mode -------------------------------------------------------------------------------------

    def _judge(self, attestations: Attestations) -> Judgement:
        """Judge the dealers for itself, and keep what came of it."""
        (session, _), terms, coins = self._member, self._terms, attestations.coins
        if terms is None or not terms.fresh:
            raise MessageError("the dealers of this sharing were checked before")
        verdict = judge_attested(terms, session, self._roster, coins, attestations.attested)
        if not self._store.claim_check(session, common_coins(coins)):
            raise Refused("the dealers of this sharing were checked with other coins", "an old session is replayed")
        self._session = terms.run_session(self._agreement, session, verdict, common_coins(coins))
        self._store.keep_verdict(self._session, verdict)
        return Judgement(verdict, self._session)

    def _begun_work(self) -> HiddenWork:
        """The work of the run, on this store. A client that deviates has none."""
        session, table = self._member
        verdict = self._store.verdict(session)
        if not session.run or verdict is None or self.index in verdict.deviating:
            raise MessageError("this client does not take part in the hops of this run")
        run = begun_run(self._store, session, self.index, table)
        work = self._hidden_work.work
        if work is None or work.session.session_id != session.session_id:
            work = self._hidden_work.work = HiddenWork(session, self.index, self._identity, self._roster)
        work.attach(table, run)
        return work

    def _end_run(self, final_task: Task | None) -> None:
        if final_task is not None:
            self._keep_model(final_task)
        run = self._store.hidden_run(self._member[0])
        if run is not None:
            run.end()

    # -- the sum at the end ----------------------------------------------------------------------------------

    def _deal_counts(self, work: DealCounts) -> Counted:
        """Count, and share the counts, in the sum that is of this model."""
        session, weights = self._member[0], work.final.weights
        self._summing = self._sum_of(work.opened or opened_digest(session, weights))
        return self._summing.deal(self._counts(work.final))

    @property
    def _sum_work(self) -> SumWork:
        """This client's part of the sum at the end of a run, in which it has dealt: perhaps in an earlier process."""
        if self._summing is None:
            session = self._member[0]
            noted = self._store.sum_notes(session).sums().get(session.session_id)
            if noted is None:
                raise MessageError("this client has not counted yet")
            self._summing = self._sum_of(noted.model)
        return self._summing

    def _sum_of(self, model: bytes) -> SumWork:
        session = self._member[0]
        plan = final_sum(session, model)
        if plan is None:
            raise MessageError("no sum is agreed on")
        secret, notes = self._store.secret(session), self._store.sum_notes(session)
        return SumWork(plan, self.index, self._identity, self._roster, secret, notes)

    def _counts(self, final_task: Task) -> Tensor:
        session = self._member[0]
        confusion = session.hidden_plan.settings.totals == "confusion"
        return accuracy_counts(session.network, final_task.weights, *self._rows(), confusion=confusion)
