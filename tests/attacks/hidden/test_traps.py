"""A cheating coordinator, a lying client: rows read off the next answers, with each rule and without it.

The attacks are those of the other files in this folder. Each is played against the protocol, and against one that lacks
the rule in question. Found is the share of the rows of one batch that are right in every value.
"""

from collections.abc import Callable

import pytest

from . import weakened
from .cheating import BATCH, LUCK, victims
from .test_false_hops import (
    rows_by_one_prime,
    rows_by_rewinding,
    rows_by_shift,
    rows_by_two_answers,
    rows_of_one_group,
)
from .test_liars import rows_by_a_lie
from .test_one_run import rows_of_an_old_round, rows_of_another_batch, rows_of_two_runs
from .test_returning import rows_by_false_weights, rows_by_false_weights_before

Weaken = Callable[[pytest.MonkeyPatch], None]
LATE = {"schedule": "S4", "rounds": 6, "num_clients": 5, "honest_clients": True}

# what the attacker does; the attack; the rule that is left out; how it is left out; rows in all
TRAPS: list[tuple[str, Callable[[], int], str, tuple[Weaken, ...], int]] = [
    (
        "trap 1: the first hop is shifted",
        lambda: rows_by_shift(victims()),
        "a check before gradients are opened, and none before",
        (weakened.check_before_gradients_alone,),
        BATCH,
    ),
    (
        "trap 2: errors are shifted by all primes but one",
        lambda: rows_by_one_prime(victims(kappa=60)),
        "a key for each prime",
        (weakened.a_key_for_each_prime,),
        BATCH,
    ),
    (
        "trap 6: two runs on one sharing, passive",
        lambda: rows_of_two_runs(victims()),
        "labels and seeds without the run",
        (weakened.labels_without_the_run, weakened.seeds_of_every_run),
        2 * BATCH,
    ),
    (
        "trap 6: another batch for two of seven clients",
        lambda: rows_of_another_batch(victims(num_clients=7)),
        "labels and seeds without the run",
        (weakened.labels_without_the_run, weakened.seeds_of_every_run),
        2 * BATCH,
    ),
    (
        "trap 7: false weights before the last, for clients that come back",
        lambda: rows_by_false_weights_before(victims(rounds=5)),
        "labels of weight hops without the broadcast before",
        (weakened.labels_without_the_weights_before,),
        BATCH,
    ),
    (
        "rule 3: false last weights, for clients that come back",
        lambda: rows_by_false_weights(victims(rounds=4)),
        "clients that answer without a check value",
        (weakened.answers_without_a_check_value,),
        BATCH,
    ),
    (
        "trap 13: two shards, and the second one's values are shifted",
        lambda: rows_by_shift(victims(num_clients=6, num_shards=2), shard=1),
        "a key that is read at the first shard",
        (weakened.a_key_of_the_first_shard,),
        BATCH,
    ),
    (
        "two groups are told different things",
        lambda: rows_of_one_group(victims(num_clients=8)),
        "no check",
        (weakened.no_check,),
        BATCH,
    ),
    (
        "clients are rewound",
        lambda: rows_by_rewinding(victims(), forgetful=True),
        "no check, and clients that forget",
        (weakened.no_check,),
        BATCH,
    ),
    (
        "one hop is answered in two courses",
        lambda: rows_by_two_answers(victims(num_clients=8)),
        "no check, and labels without the chain",
        (weakened.no_check, weakened.labels_without_the_chain),
        BATCH,
    ),
    (
        "rule 13: T + 1 clients are taken over five rounds later",
        lambda: rows_of_an_old_round(victims(**LATE)),
        "seeds that never change",
        (weakened.seeds_that_never_change,),
        BATCH,
    ),
]


@pytest.mark.attack
@pytest.mark.parametrize(("name", "attack", "rule", "without", "rows"), TRAPS, ids=[trap[0] for trap in TRAPS])
def test_trap(name, attack, rule, without, rows, monkeypatch, report) -> None:
    with_rule = attack()
    for take_away in without:
        take_away(monkeypatch)
    control = attack()
    report(setting=name, found=with_rule / rows, control=rule, control_found=control / rows)
    assert with_rule <= LUCK
    assert control == rows


@pytest.mark.attack
def test_lie(report) -> None:
    with_rule = rows_by_a_lie(victims(num_clients=4), gullible=False)
    control = rows_by_a_lie(victims(num_clients=4), gullible=True)
    report(
        setting="trap 8: a client lies",
        found=with_rule / BATCH,
        control="R answers are enough, and no tag of the key",
        control_found=control / BATCH,
    )
    assert with_rule <= LUCK
    assert control == BATCH


@pytest.mark.attack
def test_collusion(report) -> None:
    with_rule = rows_by_shift(victims(check="C"), spy=0)
    control = rows_by_shift(victims(check="A"), spy=0)
    report(
        setting="coordinator and one client, check C: the first hop is shifted",
        found=with_rule / BATCH,
        control="check A, which holds against the coordinator alone",
        control_found=control / BATCH,
    )
    assert with_rule <= LUCK
    assert control == BATCH
