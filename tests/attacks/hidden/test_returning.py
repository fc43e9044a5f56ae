"""A coordinator that tells clients a false past when they come back, and reads rows in the round that follows.

A client that was away takes the weights from the last two weight broadcasts. If it could be told weights that are
shifted by Δ, unit j by its input j, the squares of the next round would be (z + Δx)², with x²Δ² far above the masks.
"""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from dresfl.errors import Refused
from dresfl.protocol import Session
from dresfl.protocol.hidden.client import HiddenClient
from dresfl.protocol.hidden.coded_rows import TableRows
from dresfl.protocol.hidden.ledger import History, Ledger, WeightBroadcast
from dresfl.protocol.hidden.seeds import RunSeeds
from dresfl.runtimes.local.hidden import HiddenFederation

from . import weakened
from .cheating import (
    BATCH,
    INPUTS,
    LUCK,
    answers_of,
    batch,
    integers_read,
    opened_anyway,
    recovered,
    rows_from_squares,
    tell,
    victims,
    weight_shift,
    with_integers,
)


def chosen_shift(session: Session) -> int:
    """Δ: so large that (16Δ/2^t)² is just below M/2, and such that the guards' ‖W‖² is about 0 modulo M."""
    modulus, item = session.field.modulus, session.hidden_plan.hops(1)[0].items[0]
    assert item.shift is not None
    wished = INPUTS * (modulus >> 10 << 2 * item.shift)  # Σ_j Δ²
    return math.isqrt(wished // modulus * modulus // INPUTS)


def anew(federation: HiddenFederation, index: int) -> HiddenClient:
    """A new process of a client that has lost nothing but the last rounds."""
    session = federation.session
    seeds = RunSeeds.begin(federation.dealt[index], session.run)
    client = HiddenClient(session, index, TableRows(session, federation.tables[index]), seeds)
    client.start(session.num_clients)
    return client


def false_broadcast(session: Session, broadcast: WeightBroadcast, delta: int) -> WeightBroadcast:
    """A weight broadcast whose weights are shifted by delta, unit j by its input j."""
    ledger = Ledger.before(session.hidden_plan, session.run, broadcast, broadcast.weights_digest)
    shift = ledger.current.items[0].shift
    assert shift is not None
    added = [value << shift for value in weight_shift(delta)]
    return dataclasses.replace(broadcast, published=with_integers(session, ledger, broadcast.published, 0, added))


def squares_of_round(federation: HiddenFederation, clients: list[HiddenClient]) -> Tensor | None:
    """Play the first hop of a round with these clients alone; what the coordinator then reads in the second one."""
    session, ledger = federation.session, clients[0].ledger
    opened = opened_anyway(session, ledger, answers_of(clients))
    if opened is None:
        return None
    tell(clients, session.field.pack(opened))
    squares = integers_read(session, ledger, opened_anyway(session, ledger, answers_of(clients)))
    return None if squares is None else rows_from_squares(session, ledger.current.items[0], squares)


# -- the weights before the last ------------------------------------------------------------------------------------


def rows_by_false_weights_before(federation: HiddenFederation) -> int:
    """The attack: clients that come back are told the true weights, but others before them: W_prev + Δ.

    The step of the next round is U = keep·W + recall·W_prev − …: it shifts the weights, at all clients that came back
    alike. So what they answer fits together, and the check of that hop passes.
    """
    session = federation.session
    while federation.ledger.position.order != (2, 0):
        federation.play_hop()
    step = session.hidden_plan.steps(2)[0]
    delta = (chosen_shift(session) << step.shift) // step.recall  # the weights are then shifted by what was chosen
    truth = federation.history()
    false = History((false_broadcast(session, truth.weights[0], delta), *truth.weights[1:]), truth.after, truth.hops)
    back = [anew(federation, index) for index in (3, 4, 5)]
    for client in back:
        client.catch_up(false)
    opened = federation.collect()  # in their first hop they are silent, and the others answer
    federation.publish(opened.published)
    tell(back, opened.published)
    while back[0].ledger.round_number == 2:
        published = opened_anyway(session, back[0].ledger, answers_of(back))
        if published is None:
            return 0
        tell(back, session.field.pack(published))
    rows = squares_of_round(federation, back)
    return 0 if rows is None else recovered(rows, batch(session, 3))


def test_false_weights_before_the_last(monkeypatch) -> None:
    """Trap 7. The label of a weight hop contains the broadcast before it, so false ones fit nobody's masks."""
    assert rows_by_false_weights_before(victims(rounds=5)) <= LUCK
    weakened.labels_without_the_weights_before(monkeypatch)
    assert rows_by_false_weights_before(victims(rounds=5)) == BATCH


# -- the last weights -----------------------------------------------------------------------------------------------


def rows_by_false_weights(federation: HiddenFederation, wanted: int = 4) -> int:
    """The attack: enough clients are told, all alike, that they were away, and that the last weights were W + Δ."""
    session = federation.session
    while federation.ledger.position.order != (2, 0):
        federation.play_hop()
    truth = federation.history()
    last = false_broadcast(session, truth.weights[-1], chosen_shift(session))
    back = [anew(federation, index) for index in range(wanted)]
    for client in back:
        client.catch_up(History((*truth.weights[:-1], last), truth.after, truth.hops))
    rows = squares_of_round(federation, back)
    return 0 if rows is None else recovered(rows, batch(session, 2))


def test_false_last_weights(monkeypatch) -> None:
    """Rule 3: a client without a check value of the hop before is silent, so nobody opens the first hop of such a past.

    If it answered, the first hop would be opened in the false course, and from then on all would fit.
    """
    assert rows_by_false_weights(victims(rounds=4)) <= LUCK
    weakened.answers_without_a_check_value(monkeypatch)
    assert rows_by_false_weights(victims(rounds=4)) == BATCH


def test_false_last_weights_and_an_invented_hop() -> None:
    """The coordinator invents the hop that nobody answers. Its check values then withhold the next key."""
    federation = victims(rounds=4)
    session = federation.session
    while federation.ledger.position.order != (2, 0):
        federation.play_hop()
    truth = federation.history()
    invented = federation.collect().published
    back = [anew(federation, index) for index in range(4)]
    false = History(
        (truth.weights[0], false_broadcast(session, truth.weights[1], chosen_shift(session))), truth.after, (invented,)
    )
    for client in back:
        client.catch_up(false)
    answers = answers_of(back)
    assert len(answers) == 4
    opened = opened_anyway(session, back[0].ledger, answers)
    chosen = torch.stack([client._hidden_hop().blinded for client in back[:3]], 1)
    true = session.code.decode(chosen, [0, 1, 2])
    assert opened is not None
    assert float((opened == true).double().mean()) < 0.01


def test_an_old_past_is_refused() -> None:
    """Rewinding a client that remembers: it does not go back, and an old history is no history of now."""
    federation = victims(rounds=4)
    while federation.ledger.position.order != (1, 2):
        federation.play_hop()
    old = federation.history()
    while federation.ledger.position.order != (2, 1):
        federation.play_hop()
    client = federation.clients[0]
    assert client.answer() is not None
    with pytest.raises(Refused, match="go back"):
        client.catch_up(old)
    assert not answers_of([client])  # it waits for the present
