"""A client in a hidden run: it answers hop after hop on its shares, and follows its own chain of what was published.

It derives everything else: batches, rates, labels, the end. What it is sent is a hop's published values and nothing
more. It holds shares, of degree T', of the rows, of the weights W and of the weights before them.

    answer --> (the hop is published) receive --> answer --> …
    away, or started again:  catch_up --> answer

An answer leaves only after `keep` has written down where the client stands. So a client never answers one hop twice
with different bytes, and never goes back.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, final

import torch
from torch import Tensor

from dresfl.errors import Diverged, HeadroomAlarm, MessageError, Refused
from dresfl.field import SecretSeed
from dresfl.masking import HiddenMasks

from ..session import Session
from .answers import HopAnswer, pad_key, pad_label, tag_of
from .check import KEY_WORDS, Unconfirmed, check_confirmed, check_values, repetitions
from .ledger import History, Ledger, Position, WeightBroadcast
from .plan import Hop, checked_loss
from .published import cut, final_weights, num_values, opened_integers, split, unpack_published
from .seeds import KEPT
from .start import signatures_needed

Coded = tuple[Tensor, Tensor]  # inputs (M,1,B,F) and targets (M,1,B,C): a client's shares of rows


class CodedRows(Protocol):
    """Where a client's shares of rows come from."""

    def batch(self, round_number: int) -> Coded:
        """The rows of a round."""

    def validation(self) -> Coded:
        """The rows that are held out for validation."""


class Seeds(Protocol):
    """A client's mask seeds, which move on with the rounds: those of rounds long past cannot be had again."""

    def of(self, round_number: int) -> Mapping[int, SecretSeed]:
        """The seeds of a round, by their number."""

    def forget(self, round_number: int) -> None:
        """Forget the seeds of all rounds before this one."""


@final
@dataclass(frozen=True, eq=False)
class Progress:
    """What a client writes down before an answer leaves it. It answers nothing earlier, and no hop twice."""

    position: Position
    check: bytes = b""  # the packed check values of the round, or of the round before; empty: there are none
    stopped: str = ""  # why this client takes no further part in the run; empty: it does


@final
@dataclass(frozen=True, eq=False)
class _HiddenHop:
    """What a client computes for a hop, and keeps until the hop is published."""

    values: Tensor  # v (M,E)
    blinded: Tensor  # v + ζ (M,E)
    highs: tuple[Tensor | None, ...]  # [h] (M,count) of each item; None: the item is opened as it is


@final
class HiddenClient:
    """One client of a hidden run. Its shares, seeds and rows stay here."""

    def __init__(
        self,
        session: Session,
        index: int,
        rows: CodedRows,
        seeds: Seeds,
        keep: Callable[[Progress], None] = lambda progress: None,
        kept: Progress | None = None,
    ) -> None:
        """keep: writes down, for good when it returns. kept: what an earlier process of this client wrote down."""
        self.session, self.index, self._run = session, index, session.run
        self._plan, self._field = session.hidden_plan, session.field
        self._rows, self._seeds, self._keep, self._kept = rows, seeds, keep, kept
        self._refuse_if_stopped()
        self._started = kept is not None  # an earlier process has answered
        self._at = session.code.public_matrix[:, index]  # (M,K): ℓ_k(α_i) of polynomials through values at the β
        self._one_kth = self._field.inverse(self._field.embed(torch.tensor([session.num_shards])))  # (M,1)
        self._model: Tensor | None = None
        self._check: Tensor | None = None  # (M,2S): d of hops that open shards, and of those that open sums
        self._own: Tensor | None = None  # (M,S'): d of the last hop, for the other clients
        self._repetitions = repetitions(self._field.moduli, self._plan.tries, confirmed=False)
        self._confirmations = repetitions(self._field.moduli, self._plan.tries, confirmed=True)
        self._is_confirmed = False  # the hop before, by check C
        self._may_tell = False  # whether the other clients may hear it
        self._hidden: _HiddenHop | None = None
        self._program: Generator[list[Any], Sequence[Any], Tensor]
        self._products: list[Any]
        self.ledger = Ledger(self._plan, self._run)
        self._weights = self._previous = self._start()  # states (M,1,P + carried)
        self._restart(self.ledger, self._weights, self._previous)

    def __repr__(self) -> str:
        return f"HiddenClient({self.index}, {self.ledger.position.order}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a HiddenClient holds secrets and is not pickled")

    @property
    def model(self) -> Tensor | None:
        """(P,) int64: the final weights, once they are opened."""
        return self._model

    @property
    def behind(self) -> bool:
        """Whether an earlier process of this client was further: it then has to catch up before it can answer."""
        return self._kept is not None and self.ledger.position.order < self._kept.position.order

    @property
    def holds_check(self) -> bool:
        """Whether this client has the check values without which it must be silent in the next hop."""
        return not self.behind and (self.ledger.at_start or self._check is not None)

    # -- the start -------------------------------------------------------------------------------------------------

    def start(self, signed: int) -> None:
        """The run may begin: so many clients, this one among them, have signed the run digest (`start`).

        Without it a coordinator could play two runs with two groups of clients, and open two models of one sharing.
        """
        needed = signatures_needed(self.session.num_clients, self.session.max_colluders)
        if signed < needed:
            raise MessageError(f"{signed} clients have signed the start of the run, {needed} must")
        self._started = True

    # -- a hop -----------------------------------------------------------------------------------------------------

    def answer(self) -> HopAnswer | None:
        """The answer to the next hop; None if this client must be silent in it.

        It is silent while it has no check value of the hop before, which it did not take part in, and at the end.
        The same bytes come again for as long as the hop is not published.
        """
        self._refuse_if_stopped()
        ledger = self.ledger
        if ledger.ended or self.behind or not self._started:
            return None
        if not ledger.at_start and (self._check is None or not self._is_confirmed):
            return None
        if self._kept is not None and self._kept.position.order == ledger.position.order:
            if self._kept.position.chain != ledger.chain:
                raise Refused(
                    f"hop {ledger.hop} of round {ledger.round_number} was answered in another course of the run",
                    "an old state is replayed, or two courses are told to clients",
                )
        else:
            progress = Progress(ledger.position, b"" if self._check is None else self._field.pack(self._check))
            self._keep(progress)  # if it fails, nothing is remembered, and nothing leaves
            self._kept = progress
        hidden, label = self._hidden_hop(), ledger.label(b"pad")
        words = self._key_words()
        key = pad_key(self._field, words)
        pad = self._masks.pad(key, pad_label(label, self.index), hidden.blinded.shape[1])
        padded = self._field.add(hidden.blinded, pad)
        return HopAnswer(self.index, ledger.position, tag_of(key, label), self._key_share(words), padded)

    def receive(self, published: bytes | memoryview) -> None:
        """The next hop was published. MessageError: it has not the form that this hop has. HeadroomAlarm: it is false.

        After an alarm this client takes no further part in the run.
        """
        self._refuse_if_stopped()
        if self.ledger.ended or self.behind:
            raise MessageError("a hop was published after the end, or before this client has caught up")
        data, hop = bytes(published), self.ledger.current
        residues = unpack_published(self.session, hop, data)  # (M,k,E)
        try:
            self._take(hop, data, residues)
        except (HeadroomAlarm, Diverged) as alarm:
            self._stop(str(alarm))
            raise

    def _refuse_if_stopped(self) -> None:
        if self._kept is not None and self._kept.stopped:
            raise Refused(f"this client has left the run for good: {self._kept.stopped}", "begin a new run")

    def _stop(self, reason: str) -> None:
        self._kept = Progress(self.ledger.position, stopped=reason)
        self._keep(self._kept)

    def _take(self, hop: Hop, data: bytes, residues: Tensor) -> None:
        field, hidden = self._field, self._hidden_hop()
        going_on: list[Any] = []
        loss: int | None = None
        for item, part, high in zip(hop.items, split(hop, residues), hidden.highs, strict=True):
            if high is None:
                clear = field.sub(part, self._model_mask().unsqueeze(1)) if self._for_clients else part
                values = opened_integers(field, clear)
                loss = checked_loss(values[0]) if hop.opens_loss else None
                going_on.append(values)
                continue
            kept = cut(field, item, part, self._plan.num_masks, self._plan.kappa)  # (M,k,count)
            here = kept[:, 0] if hop.total else self._evaluate(kept)  # (M,count)
            going_on.append(field.sub(here, high).unsqueeze(1))  # (M,1,count)
        hat = self._scaled(residues[:, 0]) if hop.total else self._evaluate(residues)  # û at the own point (M,E)
        if self.ledger.final:
            self._model = final_weights(self.session, going_on[0])
        else:
            self._go_on(going_on)
        first = self.ledger.hop == 0
        self.ledger.advance(data, loss)
        self._hidden = None
        self._add_check(self._check_values(b"rho", field.sub(hidden.values, hat), confirmed=False), first, hop.total)
        if self._plan.settings.check == "C":
            self._may_tell = self._is_confirmed
            self._own = self._check_values(b"confirm", field.sub(hidden.blinded, hat), confirmed=True)
            self._is_confirmed = False
        if self.ledger.hop == 0:
            self._begin_round()

    def _go_on(self, values: Sequence[Any]) -> None:
        """Send the values into the round's program: it makes the next products, or the new weights."""
        try:
            self._products = self._program.send(values)
        except StopIteration as end:
            self._previous, self._weights = self._weights, end.value
            self._products = []

    def _evaluate(self, values: Tensor) -> Tensor:
        """The polynomial through values (M,K,n) at the β, at this client's point: (M,n)."""
        return self._field.matmul(self._at.unsqueeze(1), values)[:, 0]

    def _scaled(self, values: Tensor) -> Tensor:
        """values/K: (M,n)."""
        return self._field.mul(values, self._one_kth) if self.session.num_shards > 1 else values

    # -- check C ---------------------------------------------------------------------------------------------------

    @property
    def check_value(self) -> Tensor | None:
        """(M,S): what this client tells the others, sealed, of the hop published last. None without check C."""
        return self._own

    @property
    def confirmed(self) -> bool:
        """Whether check C has nothing against the hop that was published last. With check A alone it never has."""
        return self._is_confirmed

    def sealed_check(self) -> bytes | None:
        """`check_value` for the other clients, under words that all clients know and nobody else does.

        None if this client had not confirmed the hop before: after a false hop, check values of the next one, for
        publications of the coordinator's choice, would be equations in what that hop hides.
        """
        if self._own is None or not self._may_tell:
            return None
        return self._field.pack(self._field.add(self._own, self._check_seal(self.index)))

    def opened_check(self, client: int, sealed: bytes | memoryview) -> Tensor:
        """Another client's check value. MessageError if it has another form."""
        found = self._field.unpack(sealed, (self._confirmations,))
        return self._field.sub(found, self._check_seal(client))

    def _check_seal(self, client: int) -> Tensor:
        label = self.ledger.after_label(b"confirm seal" + client.to_bytes(2, "little"))
        return self._masks.common(label, self._confirmations)

    def confirm(self, values: Mapping[int, Tensor]) -> None:
        """All clients' check values of the hop that was published last. Unconfirmed: more are needed.

        HeadroomAlarm: the hop was not published truly, and this client leaves the run.
        """
        if self._is_confirmed:
            return
        self._refuse_if_stopped()
        session, total = self.session, self.ledger.after_total
        if self._own is None:
            raise MessageError("there is nothing to confirm")
        together = {**values, self.index: self._own}
        try:
            check_confirmed(session.code, together, self.index, total=total, max_colluders=session.max_colluders)
        except Unconfirmed:
            raise
        except MessageError as error:
            self._stop(str(error))
            raise HeadroomAlarm(str(error), "nothing more is sent in this run") from error
        self._is_confirmed = True

    # -- rounds ----------------------------------------------------------------------------------------------------

    def _restart(self, ledger: Ledger, weights: Tensor, previous: Tensor) -> None:
        self.ledger, self._weights, self._previous = ledger, weights, previous
        self._model = self._check = self._own = None
        self._is_confirmed = ledger.at_start or self._plan.settings.check != "C"
        self._begin_round()

    def _start(self) -> Tensor:
        """W_0 (M,1,P), which is public: every client's share of it is the weights themselves."""
        return self._field.embed(self._plan.initial_weights(self.session.stream)).unsqueeze(1)

    def _begin_round(self) -> None:
        ledger = self.ledger
        self._hidden = None
        if self.behind:
            return  # it has to catch up first, and has no seeds of so early a round any more
        self._masks = self._masks_of(ledger.round_number)
        if ledger.ended:
            return  # no round begins: what a last return can need stays until the run ends here
        self._seeds.forget(ledger.round_number - KEPT)
        if ledger.final:
            self._products = self._plan.final_products(self._weights)
            return
        number = ledger.round_number
        self._program = self._plan.round_program(
            self._field, number, *self._rows.batch(number), self._weights, self._previous, self._rows.validation
        )
        self._products = next(self._program)

    def _masks_of(self, round_number: int) -> HiddenMasks:
        return HiddenMasks(self._field, self.session.hidden_families, self.index, self._seeds.of(round_number))

    def _hidden_hop(self) -> _HiddenHop:
        """The values of the next hop, hidden. They are the same however often they are made."""
        if self._hidden is None:
            self._hidden = self._hide(self.ledger.current)
        return self._hidden

    def _hide(self, hop: Hop) -> _HiddenHop:
        field, ledger, masks = self._field, self.ledger, self._masks
        values: list[Tensor] = []
        highs: list[Tensor | None] = []
        for number, (item, product) in enumerate(zip(hop.items, self._products, strict=True)):
            if isinstance(product, tuple):  # what is added once, and what is added for every shard
                linear, rest = product
                product = field.add(self._scaled(linear[:, 0]), rest[:, 0])
            else:
                product = product[:, 0]  # (M,count)
            if item.shift is None:
                values.append(field.add(product, self._model_mask()) if self._for_clients else product)
                highs.append(None)
                continue
            bits = self._plan.mask_bits(item)
            high, high_up = masks.bounded(ledger.label(b"high", number), bits, item.count, total=hop.total)
            _, low_up = masks.bounded(ledger.label(b"low", number), item.shift, item.count, total=hop.total)
            values.append(field.add(product, field.add(field.scale(high_up, 2**item.shift), low_up)))
            highs.append(high)
        together = values[0] if len(values) == 1 else field.concat(values, 1)
        zeros = masks.zeros(ledger.label(b"zeros"), num_values(hop), total=hop.total)
        return _HiddenHop(together, field.add(together, zeros), tuple(highs))

    @property
    def _for_clients(self) -> bool:
        """Whether the next hop opens the model for clients alone."""
        return self.ledger.final and self._plan.settings.model_for == "clients"

    def _model_mask(self) -> Tensor:
        """(M,P): what hides the model from the coordinator that opens it. All clients know it, and nobody else."""
        return self._masks.common(self.ledger.label(b"model"), self.session.network.num_parameters)

    # -- check A ---------------------------------------------------------------------------------------------------

    def _check_values(self, purpose: bytes, difference: Tensor, *, confirmed: bool) -> Tensor:
        """d of the hop that was published last; factors are labelled by the chain after it."""
        count, size = self._confirmations if confirmed else self._repetitions, difference.shape[1]
        label, masks = self.ledger.after_label(purpose), self._masks
        flat = masks.pad(label, b"factors", count * size) if confirmed else masks.common(label, count * size)
        return check_values(self._field, flat.view(-1, count, size), difference)

    def _add_check(self, values: Tensor, first: bool, total: bool) -> None:
        """Add a hop's d (M,S) to those of its round. Without those of the round so far there are none."""
        nothing = torch.zeros_like(values)
        both = self._field.concat((nothing, values) if total else (values, nothing), 1)  # (M,2S)
        if first:
            self._check = both
        elif self._check is not None:
            self._check = self._field.add(self._check, both)

    def _key_words(self) -> Tensor:
        """Q (M,K+1,KEY_WORDS): a part for each β, and one that is read as a sum."""
        parts = self.session.num_shards + 1
        return self._masks.common(self.ledger.label(b"key"), parts * KEY_WORDS).view(-1, parts, KEY_WORDS)

    def _key_share(self, words: Tensor) -> Tensor:
        """This client's share (M,2·KEY_WORDS) of Q + χ·d."""
        field, label, masks = self._field, self.ledger.label, self._masks
        each, last = self._evaluate(words[:, :-1]), self._scaled(words[:, -1])
        each = field.add(each, masks.zeros(label(b"key zeros"), KEY_WORDS, total=False))
        last = field.add(last, masks.zeros(label(b"key sums"), KEY_WORDS, total=True))
        if self._check is not None:
            count = self._repetitions
            chi = masks.common(label(b"chi"), 2 * count * KEY_WORDS).view(-1, 2, count, KEY_WORDS)
            of_each, of_sums = self._check[:, :count], self._check[:, count:]
            each = field.add(each, field.matmul(of_each.unsqueeze(1), chi[:, 0])[:, 0])
            last = field.add(last, field.matmul(of_sums.unsqueeze(1), chi[:, 1])[:, 0])
        return field.concat((each, last), 1)

    # -- coming back -----------------------------------------------------------------------------------------------

    def catch_up(self, history: History, confirm_earlier: Callable[[], None] = lambda: None) -> None:
        """Take over where the run stands, from what was published while this client was away.

        confirm_earlier: with check C, called between two hops where this client has not confirmed the first one. If the
        check values of the others at this place are known, it may call `confirm`. Only then may the client tell its own
        of the hop that follows.

        Refused if the run would go back behind what this client has answered, or goes another way than it did then.
        """
        self._refuse_if_stopped()
        ledger = Ledger.resume(self._plan, self._run, history.weights, history.after)
        start = self._start()
        found = [start, start, *(self._weights_after(broadcast, history) for broadcast in history.weights)]
        if len(history.weights) != min(2, ledger.round_number) and not ledger.final:
            raise MessageError(f"{len(history.weights)} weight broadcasts came for round {ledger.round_number}")
        kept, self._kept = self._kept, None  # what is replayed is behind what was answered
        try:
            self._restart(ledger, found[-1], found[-2])
            self._compare_chain(kept)
            for published in history.hops:
                if self._plan.settings.check == "C":  # it had confirmed all that came before what it has answered
                    answered = kept is not None and kept.position.order >= self.ledger.position.order
                    self._is_confirmed = self.ledger.at_start or answered
                    if not self._is_confirmed:
                        confirm_earlier()
                self.receive(published)
                self._compare_chain(kept)
        finally:
            self._kept = kept if self._kept is None else self._kept
        if kept is None or kept.position.order < self.ledger.position.order:
            return
        if kept.position.order > self.ledger.position.order:
            raise Refused("the run is told to go back behind what this client has answered", "an old state is replayed")
        self._is_confirmed = True  # else it would not have answered
        if kept.check and self._check is None:
            self._check = self._field.unpack(kept.check, (2 * self._repetitions,))

    def _compare_chain(self, kept: Progress | None) -> None:
        """Where this client has answered, the chain must be what it was. Else it is told two courses of the run."""
        position = self.ledger.position
        if kept is not None and kept.position.order == position.order and kept.position.chain != position.chain:
            self._stop("two courses of the run were told")
            raise Refused("this client has answered in another course of the run", "two courses are told to clients")

    def _weights_after(self, broadcast: WeightBroadcast, history: History) -> Tensor:
        """The state (M,1,P + carried) after a weight broadcast, from its published sums and the own masks."""
        first = broadcast is history.weights[0]
        digest = broadcast.weights_digest if first else self._digest_after(history.weights[0])
        ledger = Ledger.before(self._plan, self._run, broadcast, digest)
        hop, masks = ledger.current, self._masks_of(ledger.round_number)
        residues = unpack_published(self.session, hop, broadcast.published)
        shares = []
        for number, (item, part) in enumerate(zip(hop.items, split(hop, residues), strict=True)):
            if item.shift is None:
                continue  # a guard's quotient, which is of the round before
            kept = cut(self._field, item, part, self._plan.num_masks, self._plan.kappa)[:, 0]
            high, _ = masks.bounded(ledger.label(b"high", number), self._plan.mask_bits(item), item.count, total=True)
            shares.append(self._field.sub(kept, high))
        return self._field.concat(shares, 1).unsqueeze(1)

    def _digest_after(self, broadcast: WeightBroadcast) -> bytes:
        ledger = Ledger.before(self._plan, self._run, broadcast, broadcast.weights_digest)
        ledger.advance(broadcast.published)
        return ledger.weights_digest
