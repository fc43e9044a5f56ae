"""Clients that lie: in a hop, so that an honest coordinator publishes it falsely, or about their check values.

With R answers alone a liar decides what is published. It knows its own error, so it knows by how much the others go on
wrongly. And it knows the key of all clients, so it can take the pads away from whatever is published next.
"""

import dataclasses

import pytest
import torch
from torch import Tensor

from dresfl.errors import InfeasiblePlan, MessageError, TooFewAnswers, UsageError
from dresfl.protocol.hidden import answers as answering
from dresfl.protocol.hidden.answers import HopAnswer
from dresfl.protocol.hidden.check import check_confirmed
from dresfl.protocol.hidden.opening import HopOpening
from dresfl.protocol.hidden.published import opened_integers
from dresfl.runtimes.local.hidden import HiddenFederation

from .cheating import BATCH, LUCK, Shift, answers_of, batch, opened_anyway, recovered, tell, victims

LIAR = 0


def lie(federation: HiddenFederation, answer: HopAnswer, wished: Tensor, survivors: list[int]) -> HopAnswer:
    """The liar's answer with which exactly these survivors open a value that is shifted by `wished` (M,K,E)."""
    session = federation.session
    unit = torch.zeros((len(session.field.moduli), len(survivors), 1), dtype=session.field.dtype)
    unit[:, survivors.index(LIAR)] = 1
    weight = session.code.decode(unit, survivors)[:, 0]  # (M,1): what a change of 1 in its answer changes
    error = session.field.mul(wished[:, 0], session.field.inverse(weight))
    assert isinstance(answer.residues, Tensor)
    return dataclasses.replace(answer, residues=session.field.add(answer.residues, error))


def rows_by_a_lie(federation: HiddenFederation, *, gullible: bool) -> int:
    """The attack. The liar lies in the first hop; what it reads off what is published next, if anything is.

    gullible: a coordinator that publishes what any R answers open, whether or not their key has its tag.
    """
    session, ledger = federation.session, federation.ledger
    field, answers = session.field, answers_of(federation.clients)
    survivors = list(range(session.recovery_threshold))
    true = opened_anyway(session, ledger, answers)
    assert true is not None
    shift = Shift(session, ledger, field.pack(true))  # (the liar cannot see u before it lies: see below)
    wished = field.sub(field.unpack(shift.false, tuple(true.shape[1:])), true)
    answers[LIAR] = lie(federation, answers[LIAR], wished, survivors)
    published = opened_of(federation, answers, gullible=gullible)
    if published is None:
        return 0
    assert published == shift.false
    tell(federation.clients, published)
    federation.note(published)
    answers = answers_of(federation.clients)
    garbled = opened_of(federation, answers, gullible=gullible)
    if garbled is None:
        return 0
    # Everybody is told the garbled hop. The liar knows the true pads, and those that the coordinator took away.
    spy = federation.clients[LIAR]
    right = answering.pad_key(field, spy._key_words())
    shares = torch.stack([answer.key for answer in answers[: session.recovery_threshold]], 1)
    each = session.code.decode(shares[:, :, :6].contiguous(), survivors)
    last = session.code.decode_sum(shares[:, :, 6:].contiguous(), survivors)
    wrong = answering.pad_key(field, field.concat((each, last.unsqueeze(1)), 1))  # it knows d, so it can compute this
    taken = torch.stack([pads(federation, key, client) for client in survivors for key in (right, wrong)], 1)
    difference = session.code.decode(field.sub(taken[:, 0::2], taken[:, 1::2]), survivors)
    opened = field.sub(field.unpack(garbled, tuple(difference.shape[1:])), difference)
    item = ledger.current.items[0]
    squares = opened_integers(field, opened[:, :, : item.count].contiguous())
    return recovered(shift.rows(item, squares), batch(session))


def pads(federation: HiddenFederation, key: bytes, client: int) -> Tensor:
    label = answering.pad_label(federation.ledger.label(b"pad"), client)
    return federation.clients[LIAR]._masks.pad(key, label, federation.ledger.current.count)


def opened_of(federation: HiddenFederation, answers: list[HopAnswer], *, gullible: bool) -> bytes | None:
    """What an honest coordinator publishes of these answers; None: nothing."""
    session = federation.session
    if gullible:
        found = opened_anyway(session, federation.ledger, answers)
        return None if found is None else session.field.pack(found)
    opening = HopOpening(session, federation.ledger)
    results = [opening.add(answer) for answer in answers]
    opened = next((result for result in results if result is not None), None)
    return None if opened is None else opened.published


@pytest.mark.parametrize("honest_clients", [False, True])
def test_a_lie_gives_rows_to_the_liar(honest_clients) -> None:
    """Trap 8 and rule 5: R + T answers must agree, and the key must have its tag.

    Where the agreement says that clients are honest, R answers are enough and a lie is published. Even then the tag
    keeps the coordinator from publishing the garbled hop after it. A coordinator without both gives the liar all rows.
    (The size of a shift decides how well rows are read, not its exact value: the liar need not see u before it lies.)
    """
    federation = victims(num_clients=3 if honest_clients else 4, honest_clients=honest_clients)
    assert rows_by_a_lie(federation, gullible=False) <= LUCK
    assert rows_by_a_lie(victims(num_clients=4), gullible=True) == BATCH


def test_a_lie_stops_a_run_without_spare_answers(monkeypatch) -> None:
    federation = victims(num_clients=4)
    answer = federation.clients[LIAR].answer()
    assert answer is not None
    assert isinstance(answer.residues, Tensor)
    false = dataclasses.replace(answer, residues=federation.session.field.add_integer(answer.residues, 1))
    monkeypatch.setattr(
        type(federation.clients[LIAR]),
        "answer",
        lambda self, honest=type(federation.clients[LIAR]).answer: false if self.index == LIAR else honest(self),
    )
    with pytest.raises(TooFewAnswers):
        federation.collect()


def test_check_c_is_refused_where_it_never_has_enough_values() -> None:
    """Rule 7: with fewer than R + T clients no hop is ever confirmed. Only honest_clients would plan for so few."""
    with pytest.raises(UsageError, match="contradict each other"):
        victims(num_clients=3, honest_clients=True, check="C")
    with pytest.raises(InfeasiblePlan):
        victims(num_clients=3, check="C")


def test_a_forged_check_value_passes_among_fewer_than_r_plus_t() -> None:
    """Rule 7: check C needs R + T values that agree. Among R the coordinator's accomplice makes a false hop pass."""
    federation = victims(num_clients=6, check="C")
    session, clients = federation.session, federation.clients
    shift = Shift(session, federation.ledger, federation.collect().published)
    tell(clients, shift.false)
    values = {client.index: client.check_value for client in clients if client.check_value is not None}
    threshold, code, field = session.recovery_threshold, session.code, session.field
    assert len(values) == len(clients)
    few = {index: values[index] for index in range(threshold)}
    survivors = list(few)
    before = code.decode(torch.stack([few[index] for index in survivors], 1), survivors)[:, 0]  # (M,S)
    unit = torch.zeros((len(field.moduli), threshold, 1), dtype=field.dtype)
    unit[:, LIAR] = 1
    weight = code.decode(unit, survivors)[:, 0]
    forged = field.sub(few[LIAR], field.mul(before, field.inverse(weight)))
    few[LIAR] = forged
    check_confirmed(code, few, 1, total=False, max_colluders=0)  # the control: it passes
    with pytest.raises(MessageError, match="are needed"):
        check_confirmed(code, few, 1, total=False, max_colluders=session.max_colluders)
    for size in range(threshold + 1, len(clients) + 1):
        more = {**{index: values[index] for index in range(size)}, LIAR: forged}
        with pytest.raises(MessageError):
            check_confirmed(code, more, 1, total=False, max_colluders=session.max_colluders)
