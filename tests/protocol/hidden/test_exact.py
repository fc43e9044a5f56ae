"""The real protocol gives the bits of Python integers: for every depth, shard, colluder and schedule, whoever answers.

The integers know all seeds, so that they can take the same low parts of the masks. Nothing else of the protocol is in
them: no shares, no codes, no residues.
"""

import functools
import random

import pytest
import torch

from dresfl.masking import mask_sum
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool
from dresfl.protocol.hidden.clear_rounds import IntegerRing, final_weights, play_round
from dresfl.protocol.hidden.ledger import Ledger
from dresfl.protocol.hidden.opening import loss_of
from dresfl.protocol.hidden.seeds import RunSeeds
from dresfl.runtimes.local.hidden import HiddenFederation

from .runs import small_rows, small_session

DEPTHS = {0: (5, 3), 1: (5, 4, 3), 2: (5, 4, 4, 3), 4: (4, 3, 3, 3, 3, 2)}
SETTINGS = [
    {"sizes": sizes, "schedule": schedule, "num_shards": shards, "max_colluders": colluders, "rounds": 2}
    for depth, sizes in DEPTHS.items()
    for schedule in ("S2", "S4")
    for shards in (1, 2)
    for colluders in (1, 2)
]
SOME = [
    settings
    for settings in SETTINGS
    if len(settings["sizes"]) == 3
    or settings["num_shards"] == settings["max_colluders"] == (1 if settings["schedule"] == "S4" else 2)
]


class Labels:
    """The label of every item's low parts, from what a run has published."""

    def __init__(self, federation: HiddenFederation) -> None:
        ledger, self.labels = Ledger(federation.session.hidden_plan, federation.session.run), {}
        for opened in federation.published:
            for place in range(len(ledger.current.items)):
                self.labels[ledger.round_number, ledger.hop, place] = ledger.label(b"low", place)
            ledger.advance(opened.published, loss_of(federation.session, ledger, opened.published))
        everything = {number: seed for dealt in federation.dealt for number, seed in dealt.items()}
        self.seeds = RunSeeds.begin(everything, federation.session.run)
        self.session = federation.session

    def __call__(self, round_number, hop, place, item):
        families = self.session.hidden_families
        seeds = [self.seeds.of(round_number)[number] for number in families.mask_seeds]
        shards = 1 if item.total else self.session.num_shards
        return torch.tensor(mask_sum(seeds, self.labels[round_number, hop, place], item.shift, item.count, shards))


def by_integers(federation: HiddenFederation, data) -> tuple[torch.Tensor, list[int]]:
    """The final weights and losses, from the clear rows."""
    session, ring, dither = federation.session, IntegerRing(), Labels(federation)
    plan = session.hidden_plan

    def rows(places):
        hidden = [data[d] for d in places.dealers.tolist()]
        which = [session.shard_rows(d)[r] for d, r in zip(places.dealers.tolist(), places.rows.tolist(), strict=True)]
        parts = []
        for part in (0, 1):
            table = torch.stack([one[part][chosen] for one, chosen in zip(hidden, which, strict=True)])  # (B,K,·)
            parts.append(ring.arithmetic.embed(table.swapaxes(0, 1).contiguous()))
        return parts[0], parts[1]

    start = ring.arithmetic.embed(plan.initial_weights(session.stream).view(1, -1))
    state = before = start
    losses = []
    for number in range(plan.rounds):
        batch, held_out = session.batch_rows(number), session.validation_rows()
        validation = functools.partial(rows, held_out)
        played = play_round(plan, ring, number, rows(batch), (state, before), dither, validation)
        state, before = played.state, state
        losses += [] if played.loss is None else [played.loss]
    return final_weights(plan, ring, state), losses


def check(session, seed: int) -> None:
    data = small_rows(session)
    federation = HiddenFederation(session, data)
    rng = random.Random(seed)
    spare = session.num_clients - session.answers_needed
    model = federation.play(lambda *_: rng.sample(range(session.num_clients), rng.randint(0, spare)))
    expected, losses = by_integers(federation, data)
    assert model.tolist() == expected.tolist()
    assert list(federation.ledger.losses) == losses
    assert not model.equal(session.hidden_plan.initial_weights(session.stream))


@pytest.mark.parametrize("settings", SOME, ids=str)
def test_the_protocol_gives_the_bits_of_python_integers(settings):
    check(session_of(settings), seed=1)


CONVOLUTIONS = {
    "square": Network((Conv2d(2, kernel=3, stride=2), Square(), Flatten(), Dense(3), Square(), Dense(2)), (5, 5, 1), 4),
    "quadratic": Network((Conv2d(2, kernel=2), Quadratic(), SumPool(2), Flatten(), Dense(2)), (3, 3, 2), 3),
    "padded": Network(
        (Conv2d(1, kernel=3, padding=1), Square(), Conv2d(2, kernel=2), Flatten(), Dense(2)), (3, 3, 1), 4
    ),
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
@pytest.mark.parametrize("schedule", ["S2", "S4"])
def test_the_protocol_gives_the_bits_of_python_integers_for_convolutions(kind, schedule):
    shards = 2 if schedule == "S2" else 1
    settings = {"schedule": schedule, "num_shards": shards, "max_colluders": 1, "rounds": 2, "batch_size": 3}
    check(session_of({**settings, "network": CONVOLUTIONS[kind], "learning_rate": 0.01}), seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [settings for settings in SETTINGS if settings not in SOME], ids=str)
def test_it_does_in_every_other_setting(settings):
    check(session_of(settings), seed=1)


@pytest.mark.slow
def test_a_hundred_patterns_of_absence_give_the_same_bits():
    session = small_session(num_clients=8, sizes=(5, 4, 4, 3), rounds=2)
    data = small_rows(session)
    federation, expected = HiddenFederation(session, data), None
    spare = session.num_clients - session.answers_needed
    for seed in range(100):
        rng = random.Random(seed)
        federation.restart()
        model = federation.play(lambda *_, rng=rng: rng.sample(range(8), rng.randint(0, spare)))
        expected = by_integers(federation, data)[0] if expected is None else expected
        assert model.tolist() == expected.tolist()


def session_of(settings):
    degree = {"S2": 2, "S4": 4}[settings["schedule"]]
    needed = degree * (settings["num_shards"] + settings["max_colluders"] - 1) + 1 + settings["max_colluders"]
    return small_session(num_clients=needed + 1, trusted_dealers=True, **settings)


def test_range_proofs_and_validation_change_no_bit():
    check(small_session(num_clients=7, validation_every=2, validation_share=0.4), seed=2)
