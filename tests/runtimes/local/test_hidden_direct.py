"""The fast simulation of the hidden mode: blocks as single rounds, checkpoints, and the integers of Python."""

from dataclasses import replace

import pytest
import torch

from dresfl.coding import CodeParameters
from dresfl.errors import CheckpointError, Diverged
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session
from dresfl.protocol.hidden.clear_rounds import IntegerRing, StreamDither, final_weights, play_round
from dresfl.protocol.hidden.plan import HiddenPlan, make_plan
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local.hidden_direct import HiddenDirect, _Blocks
from dresfl.runtimes.local.plain_rows import PlainRows

ROWS = 9
MLP = mlp((5, 4, 3), input_bits=4, weight_bits=10)


def session_of(shards=1, rounds=5, rate=0.05, network=MLP, clients=10, **settings):
    parameters = CodeParameters(clients, shards, 1, 4)
    optimizer = Optimizer("momentum", rate, "cosine", weight_decay=0.01)
    chosen = HiddenSettings(**{"schedule": "S4", **settings})
    plan = make_plan(network, parameters, chosen, optimizer, rounds, client_rows=(ROWS,) * clients)
    return Session(plan.network, parameters, (ROWS,) * clients, seed=3, hidden=plan)


def rows_of(session):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(0, 17, (session.num_clients, ROWS, 5), generator=generator)
    labels = torch.randint(0, 3, (session.num_clients, ROWS), generator=generator)
    return list(zip(inputs, torch.nn.functional.one_hot(labels, 3), strict=True))


def finish(run):
    while not run.done:
        run.run_rounds(64)
    return run.weights


def by_integers(session, data):
    """The final weights from Python integers, with rows gathered client by client."""
    plan, ring, dither = session.hidden_plan, IntegerRing(), StreamDither(session.hidden_plan, session.seed)
    state = before = ring.arithmetic.embed(plan.initial_weights(session.stream))[:, None]
    for number in range(plan.rounds):
        batch = session.batch_rows(number)
        parts = []
        for part in (0, 1):
            coded = [
                torch.stack([data[dealer][part][row] for row in session.shard_rows(dealer)[place]])
                for dealer, place in zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)
            ]
            parts.append(ring.arithmetic.embed(torch.stack(coded, 1)))  # (K,B,·)
        state, before = play_round(plan, ring, number, tuple(parts), (state, before), dither).state, state
    return final_weights(plan, ring, state)


@pytest.mark.parametrize("schedule", ["S2", "S4"])
@pytest.mark.parametrize("shards", [1, 2])
def test_it_gives_the_integers_of_python(shards, schedule):
    session = session_of(shards, schedule=schedule)
    data = rows_of(session)
    assert finish(HiddenDirect(session, data)).equal(by_integers(session, data))


CONVOLUTION = Network((Conv2d(2, kernel=2), Quadratic(), Flatten(), Dense(3)), (2, 2, 2), 3, input_magnitude=-1.0)


@pytest.mark.parametrize("in_blocks", [False, True])
def test_it_gives_them_for_a_convolution_of_small_signed_inputs(in_blocks):
    session = session_of(network=CONVOLUTION)
    data = [((inputs[:, :4].repeat(1, 2) - 8) // 2, targets) for inputs, targets in rows_of(session)]
    assert finish(HiddenDirect(session, data, in_blocks=in_blocks)).equal(by_integers(session, data))


@pytest.mark.parametrize("shards", [1, 2])
def test_a_block_of_rounds_gives_the_same_bits_as_single_ones(shards):
    session = session_of(shards, rounds=7)
    run = HiddenDirect(session, rows_of(session))
    run.run_rounds(1)
    blocks = _Blocks(session, PlainRows(session, rows_of(session)))
    middle = blocks.run(1, 3, run._state, run._before)
    state, before = blocks.run(4, 3, *middle)
    finish(run)
    field = run._ring.arithmetic
    assert field.lift(state).equal(field.lift(run._state))
    assert field.lift(before).equal(field.lift(run._before))


def test_a_block_in_which_a_guard_trips_is_thrown_away_and_single_rounds_raise(monkeypatch):
    monkeypatch.setattr(HiddenPlan, "largest_rate", 100.0)  # a rate that no plan vouches for
    session = session_of(rounds=40, rate=20.0)
    run = HiddenDirect(session, rows_of(session))
    run.run_rounds(1)
    blocks = _Blocks(session, PlainRows(session, rows_of(session)))
    assert blocks.run(1, 30, run._state, run._before) is None
    with pytest.raises(Diverged, match="times its limit"):
        finish(run)


def test_a_restored_run_goes_on_with_the_same_bits():
    session = session_of()
    data = rows_of(session)
    whole, first, second = (HiddenDirect(session, data) for _ in range(3))
    for stop in range(3):
        first.run_rounds(1)
        second.restore(first.state())
        assert second.round_number == stop + 1
    assert finish(second).equal(finish(whole))
    with pytest.raises(CheckpointError):
        second.restore({**first.state(), "weights": torch.zeros(3, dtype=torch.int64)})


def test_losses_are_opened_and_can_end_a_run():
    session = session_of(rounds=30, validation_every=1, validation_share=0.3, patience=2, rate=0.0001)
    run = HiddenDirect(session, rows_of(session))
    finish(run)
    losses = [run.plan.real_loss(loss) for loss in run.losses]
    assert len(losses) == run.round_number
    assert run.round_number == 30 or run.plan.stops(run.losses)
    assert all(0.1 < loss < 10 for loss in losses)


def test_dither_can_be_given():
    session = session_of()

    def half(round_number, hop, item_number, item):
        return torch.full((1, item.count), session.hidden_plan.num_masks * (2**item.shift - 1) // 2)

    given = finish(HiddenDirect(session, rows_of(session), half))
    drawn = finish(HiddenDirect(session, rows_of(session)))
    scale = 2.0**session.network.weight_bits
    assert not given.equal(drawn)
    assert (given - drawn).abs().max() / scale < 0.01


def test_thousands_of_clients_give_the_integers_of_python():
    """Sums of thousands of masks leave 64 bits."""
    session = session_of(clients=5000, rounds=3)
    plan, data = session.hidden_plan, rows_of(session)
    items = [item for n in (0, 1) for hop in plan.hops(n) for item in hop.items if item.shift is not None]
    assert max(plan.num_masks << item.shift for item in items) >= 2**63
    assert torch.equal(finish(HiddenDirect(session, data)), by_integers(session, data))


@pytest.mark.parametrize(("clients", "shift"), [(5000, 51), (5000, 62), (300, 20), (100, 59), (100, 40), (10, 40)])
def test_dither_has_the_mean_and_the_spread_of_the_sum_of_the_masks(clients, shift):
    plan = session_of(clients=clients).hidden_plan
    widest = replace(next(item for hop in plan.hops(0) for item in hop.items), count=4000, shift=shift)
    low = StreamDither(plan, 1)(0, 0, 0, widest)
    assert low.is_floating_point() == (clients > 256 or clients << shift >= 2**62)
    mean = 0.0 if low.is_floating_point() else clients / 2
    moved, deviation = low / 2.0**shift - mean, (clients / 12) ** 0.5
    assert abs(float(moved.mean())) < 8 * deviation / 4000**0.5
    assert abs(float(moved.std()) / deviation - 1) < 0.1
