"""Everything in a run belongs to that run: masks, batches, its start and its end. If not, differences show rows.

Two hops with the same masks and other rows give the difference of what they hide. Weights that are opened before the
agreed end show the rows of the few batches that made them.
"""

import dataclasses

import pytest
import torch
from torch import Tensor

from dresfl.errors import MessageError
from dresfl.field import ResidueSystem, unpacked
from dresfl.masking.hidden_masks import mask_sum
from dresfl.protocol import Session
from dresfl.protocol.hidden.answers import HopAnswer, pad_key, pad_label
from dresfl.protocol.hidden.client import HiddenClient
from dresfl.protocol.hidden.coded_rows import TableRows
from dresfl.protocol.hidden.ledger import Ledger, run_digest
from dresfl.protocol.hidden.opening import HopOpening
from dresfl.protocol.hidden.published import opened_integers
from dresfl.protocol.hidden.seeds import RunSeeds
from dresfl.runtimes.local.hidden import HiddenFederation

from ..runs import random_rows
from . import weakened
from .cheating import (
    BATCH,
    INPUTS,
    LUCK,
    WIDTH,
    answers_of,
    batch,
    first_weights,
    integers_read,
    opened_anyway,
    recovered,
    rows_of_outputs,
    tell,
    victims,
    with_integers,
)
from .runs import federation_of, integers_of


def second_run(federation: HiddenFederation) -> HiddenFederation:
    """Another run on the same sharing: same rows, same seeds, another run digest."""
    other = object.__new__(HiddenFederation)
    other.__dict__.update(federation.__dict__)
    other.session = dataclasses.replace(federation.session, run=bytes([7]) * 32)
    other.restart()
    return other


def rows_of_difference(one: Session, other: Session, difference: list[int]) -> int:
    """How many rows of both batches come of x·W − y·V, the difference of two first layers' outputs, W and V public."""
    scale = 2.0 ** (one.network.input_bits + one.network.weight_bits)
    real = torch.tensor([float(value) for value in difference], dtype=torch.float64).view(-1, WIDTH) / scale
    (matrix, bias), (second, second_bias) = first_weights(one), first_weights(other)
    both = torch.cat((matrix, -second))  # (2·INPUTS,WIDTH)
    found = torch.linalg.lstsq(both.T, (real - bias + second_bias).T).solution.T.round().clamp(0, 1)
    return recovered(found[:, :INPUTS], batch(one)) + recovered(found[:, INPUTS:], batch(other))


def rows_of_two_runs(federation: HiddenFederation) -> int:
    """The attack, passive: the first hops of two runs on one sharing, one less the other."""
    other, values = second_run(federation), []
    for run in (federation, other):
        hop = run.ledger.current
        values.append(integers_of(run.session, hop, run.play_hop().published)[0])
    difference = [a - b for a, b in zip(*values, strict=True)]
    return rows_of_difference(federation.session, other.session, difference)


def test_two_runs_on_one_sharing(monkeypatch) -> None:
    """Trap 6: the label of every mask contains the run, and the seeds are those of the run. Each is enough."""
    assert rows_of_two_runs(victims()) <= LUCK
    with monkeypatch.context() as patch:
        weakened.labels_without_the_run(patch)
        assert rows_of_two_runs(victims()) <= LUCK
    with monkeypatch.context() as patch:
        weakened.seeds_of_every_run(patch)
        assert rows_of_two_runs(victims()) <= LUCK
    weakened.labels_without_the_run(monkeypatch)
    weakened.seeds_of_every_run(monkeypatch)
    assert rows_of_two_runs(victims()) == 2 * BATCH


def evaluated(field: ResidueSystem, points: list[int], values: Tensor, at: int) -> Tensor:
    """The polynomial through values (M,n,E) at n points, at another point: (M,E)."""
    total = torch.zeros_like(values[:, 0])
    for place, point in enumerate(points):
        factor = torch.ones((len(field.moduli), 1), dtype=field.dtype)
        for other in points:
            if other != point:
                top, bottom = (field.embed(torch.tensor([x - other])) for x in (at, point))
                factor = field.mul(factor, field.mul(top, field.inverse(bottom)))
        total = field.add(total, field.mul(values[:, place], factor))
    return total


def rows_of_another_batch(federation: HiddenFederation) -> int:
    """The attack: two of seven clients are told another run, and so another batch, and the rest does not notice.

    At the two clients' points the answers differ from the polynomial of the others by [y·V] − [x·W], of degree 1.
    """
    session, other = federation.session, second_run(federation)
    field, points = session.field, list(session.code.client_points)
    first = [federation.clients[i].answer() for i in range(5)]
    second = [other.clients[i].answer() for i in (5, 6)]
    opening = HopOpening(session, federation.ledger)
    for answer in (*second, *first[:3]):
        assert answer is not None
        opening.add(answer)
    if opening.answered == (0, 1, 2):
        return 0  # the coordinator itself sees that the two are in another run
    key = pad_key(field, federation.clients[0]._key_words())  # it gets this key: nothing was published falsely
    label = federation.ledger.label(b"pad")

    def bare(answer: HopAnswer | None) -> Tensor:
        assert answer is not None
        residues = unpacked(answer.residues)
        pads = federation.clients[0]._masks.pad(key, pad_label(label, answer.client), residues.shape[1])
        return field.sub(residues, pads)

    whole = torch.stack([bare(answer) for answer in first[:3]], 1)
    away = [
        field.sub(evaluated(field, points[:3], whole, points[i]), bare(a)) for i, a in zip((5, 6), second, strict=True)
    ]
    difference = evaluated(field, points[5:7], torch.stack(away, 1), session.code.data_points[0])
    count = federation.ledger.current.items[0].count
    return rows_of_difference(session, other.session, opened_integers(field, difference[:, None, :count].contiguous()))


def test_two_clients_with_another_batch(monkeypatch) -> None:
    """Trap 6: clients with other batches have another run digest, so other masks, and their answers count as none."""
    assert rows_of_another_batch(victims(num_clients=7)) <= LUCK
    weakened.labels_without_the_run(monkeypatch)
    weakened.seeds_of_every_run(monkeypatch)
    assert rows_of_another_batch(victims(num_clients=7)) == 2 * BATCH


def test_every_part_of_a_run_is_in_every_label() -> None:
    """Rule 1: roster, sharing, dealers, agreement, terms, coins; chain, round, hop, item, purpose."""
    parts = [bytes([n]) * 32 for n in range(5)]
    digests = {run_digest(*parts[:2], (), (), *parts[2:])}
    for place in range(5):
        changed = [bytes([9]) * 32 if n == place else part for n, part in enumerate(parts)]
        digests.add(run_digest(*changed[:2], (), (), *changed[2:]))
    for verdict in (((1,), ()), ((), (1,)), ((1, 2), ())):
        digests.add(run_digest(*parts[:2], *verdict, *parts[2:]))
    assert len(digests) == 9
    plan = victims().session.hidden_plan
    labels = {Ledger(plan, run).label(b"high", 0) for run in digests}
    ledger = Ledger(plan, parts[0])
    labels |= {ledger.label(purpose, item) for purpose in (b"high", b"low", b"pad") for item in (0, 1)}
    for published in (b"one", b"other"):
        moved = Ledger(plan, parts[0])
        moved.advance(published)
        labels.add(moved.label(b"high", 0))
    ledger.hop = 1
    labels.add(ledger.label(b"high", 0))
    ledger.round_number, ledger.hop = 1, 0
    labels.add(ledger.label(b"high", 0))
    assert len(labels) == 9 + 6 + 2 + 2


# -- later ----------------------------------------------------------------------------------------------------------


def rows_of_an_old_round(federation: HiddenFederation) -> int:
    """The attack: what was published in the first hop is kept. Five rounds later T + 1 clients are taken over."""
    session, ledger = federation.session, federation.ledger
    hop, (high, low) = ledger.current, (ledger.label(purpose, 0) for purpose in (b"high", b"low"))
    item = hop.items[0]
    assert item.shift is not None
    values = integers_of(session, hop, federation.play_hop().published)[0]
    while ledger.round_number < 5:
        federation.play_hop()
    taken = [federation.clients[i]._seeds._rounds for i in (0, 1)]  # all that is still there
    best = 0
    for kept in set(taken[0]) & set(taken[1]):
        seeds = [taken[1 if number == 0 else 0][kept][number] for number in session.hidden_families.mask_seeds]
        (big,), (small,) = (
            mask_sum(seeds, label, bits, item.count, 1)
            for label, bits in ((high, session.hidden_plan.mask_bits(item)), (low, item.shift))
        )
        bare = [u - (h << item.shift) - x for u, h, x in zip(values, big, small, strict=True)]
        scale = 2.0 ** (session.network.input_bits + session.network.weight_bits)
        outputs = torch.tensor([float(z) for z in bare], dtype=torch.float64).view(BATCH, WIDTH) / scale
        best = max(best, recovered(rows_of_outputs(session, outputs.clamp(-1e6, 1e6)), batch(session)))
    return best


def test_clients_that_are_taken_over_later(monkeypatch) -> None:
    """Rule 13: seeds move on with every round, and old ones are forgotten."""
    settings = {"schedule": "S4", "rounds": 6, "num_clients": 5, "honest_clients": True}
    assert rows_of_an_old_round(victims(**settings)) <= LUCK
    weakened.seeds_that_never_change(monkeypatch)
    assert rows_of_an_old_round(victims(**settings)) == BATCH


# -- the start ------------------------------------------------------------------------------------------------------


def models_of_two_starts(federation: HiddenFederation, signed: int) -> list[Tensor]:
    """The attack: two halves of the clients are told two runs. The models that they open."""
    models = []
    for run, half in ((federation, range(4)), (second_run(federation), range(4, 8))):
        run.clients = []
        for index in half:
            seeds = RunSeeds.begin(run.dealt[index], run.session.run)
            client = HiddenClient(run.session, index, TableRows(run.session, run.tables[index]), seeds)
            client.start(signed)
            run.clients.append(client)
        models.append(run.play())
    return models


def test_two_runs_for_two_halves(monkeypatch) -> None:
    """More than (N + T)/2 clients must have signed a run before any of them answers in it."""
    with pytest.raises(MessageError, match="4 clients have signed"):
        models_of_two_starts(victims(num_clients=8, rounds=1), signed=4)
    weakened.no_signatures(monkeypatch)
    one, other = models_of_two_starts(victims(num_clients=8, rounds=1), signed=4)
    assert not one.equal(other)


# -- the end --------------------------------------------------------------------------------------------------------

WIDE = (40, 24, 3)


def distances(federation: HiddenFederation, rows: Tensor) -> tuple[float, float] | None:
    """The attack: publish validation losses that end the run after two rounds, and read the final weights.

    The first layer has then moved by combinations of the rows of two batches. The largest distance of such a row from
    the span of W_2 − W_0, and the smallest of any other row; None if no weights were opened.
    """
    session, ledger = federation.session, federation.ledger
    while not ledger.current.opens_loss:
        federation.play_hop()
    federation.play_hop()
    while not ledger.current.opens_loss:
        federation.play_hop()
    opened = federation.collect().published
    false = with_integers(session, ledger, opened, 0, [2**30])
    tell(federation.clients, false)
    federation.note(false)
    assert ledger.final
    weights = integers_read(session, ledger, opened_anyway(session, ledger, answers_of(federation.clients)))
    if weights is None or max(map(abs, weights)) >= 2**31:
        return None
    p = session.network.parameters[0]
    start = session.hidden_plan.initial_weights(session.stream)
    moved = (torch.tensor(weights) - start)[p.weight].view(p.fan).double()
    basis = torch.linalg.svd(moved, full_matrices=False)[0][:, : 2 * session.batch_size]
    seen = torch.cat([session.batch_rows(n).dealers * 8 + session.batch_rows(n).rows for n in (0, 1)]).unique()
    away = rows.double() - rows.double() @ basis @ basis.T
    length = away.norm(dim=1) / rows.double().norm(dim=1)
    others = torch.ones(len(rows), dtype=torch.bool)
    others[seen] = False
    return float(length[seen].max()), float(length[others].min())


def early_end(**settings: object) -> tuple[float, float] | None:
    rows, labels = random_rows(48, WIDE[0], WIDE[-1], seed=3)
    more = {"validation_every": 1, "validation_share": 0.2, "patience": 1, "batch_size": 4, "rounds": 20, **settings}
    return distances(federation_of(rows, labels, WIDE, 6, **more), rows)


def test_an_end_before_the_end(monkeypatch) -> None:
    """Trap 9: clients derive the end from the losses in their chain, and a false loss withholds the key of the end."""
    assert early_end() is None
    weakened.no_check(monkeypatch)
    found = early_end()
    assert found is not None
    inside, outside = found
    assert inside < 0.02 < 0.3 < outside


def test_after_the_end_nothing_is_answered() -> None:
    federation = victims(rounds=1)
    federation.play()
    assert not answers_of(federation.clients)
    with pytest.raises(MessageError, match="after the end"):
        federation.clients[0].receive(b"")


def test_final_weights_are_no_answer_to_another_hop() -> None:
    """A coordinator that asks for the end has no way to say so: what it can publish is the next hop of the plan."""
    federation = victims(rounds=3)
    plan = federation.session.hidden_plan
    clear = [
        (number, item.name)
        for number in range(plan.rounds)
        for hop in plan.hops(number)
        for item in hop.items
        if item.shift is None
    ]
    assert all(name.endswith(" quotient") for _, name in clear)
    assert [item.name for item in plan.hops(plan.rounds)[0].items] == ["weights"]
    client = federation.clients[0]
    with pytest.raises(MessageError):
        client.receive(bytes(len(plan.moduli) * federation.session.network.num_parameters * 3))
