"""A coordinator that publishes a false hop reads rows off the next one, unless every hop depends on the check before.

Masks are bounded. So a published value that is shifted far enough moves what the next hop opens out of its mask. Every
answer is padded by a key that the coordinator gets only if all it published was true, in every prime and at every
shard. Each attack here is played twice: against the protocol, and against one that lacks the rule in question.
"""

from collections.abc import Callable

import pytest
import torch

from dresfl.errors import HeadroomAlarm, MessageError, Refused
from dresfl.protocol import Session
from dresfl.protocol.hidden import answers as answering
from dresfl.protocol.hidden.check import KEY_WORDS, repetitions
from dresfl.protocol.hidden.client import HiddenClient, Progress
from dresfl.protocol.hidden.coded_rows import TableRows
from dresfl.protocol.hidden.ledger import History
from dresfl.protocol.hidden.published import centre
from dresfl.protocol.hidden.seeds import RunSeeds
from dresfl.runtimes.local.hidden import HiddenFederation

from . import weakened
from .cheating import (
    BATCH,
    INPUTS,
    LUCK,
    WIDTH,
    Shift,
    answers_of,
    batch,
    confirm,
    integers_read,
    opened_anyway,
    recovered,
    rows_of_outputs,
    tell,
    victims,
    with_integers,
)
from .runs import integers_of


def rows_by_shift(federation: HiddenFederation, *, shard: int | None = None, spy: int | None = None) -> int:
    """The attack: shift the first hop, and read the rows of the batch off the second one. How many rows were right.

    spy: a client that tells the coordinator the key of all clients' pads.
    """
    session, clients = federation.session, federation.clients
    shift = Shift(session, federation.ledger, federation.collect().published, shard)
    tell(clients, shift.false)
    federation.note(shift.false)
    if session.hidden_plan.settings.check == "C":
        confirm(clients)
    ledger, answers = federation.ledger, answers_of(clients)
    key = None if spy is None else answering.pad_key(session.field, clients[spy]._key_words())
    squares = integers_read(session, ledger, opened_anyway(session, ledger, answers, key))
    if squares is None:
        return 0
    true = batch(session) if shard is None else batch(session).view(BATCH, -1, INPUTS)[:, shard]
    return recovered(shift.rows(ledger.current.items[0], squares), true)


def test_a_shift_gives_rows_unless_the_next_hop_depends_on_the_check(monkeypatch) -> None:
    """Trap 1: a check before the gradient is opened comes too late."""
    assert rows_by_shift(victims()) <= LUCK
    with monkeypatch.context() as patch:
        weakened.no_check(patch)
        assert rows_by_shift(victims()) == BATCH
    weakened.check_before_gradients_alone(monkeypatch)
    assert rows_by_shift(victims()) == BATCH


def test_a_shift_at_the_second_shard_alone(monkeypatch) -> None:
    """Trap 13: with two shards, tampering at β₂ leaves d(β₁) = 0."""
    settings = {"num_clients": 6, "num_shards": 2}
    assert rows_by_shift(victims(**settings), shard=1) <= LUCK
    weakened.a_key_of_the_first_shard(monkeypatch)
    assert rows_by_shift(victims(**settings), shard=1) == BATCH


def test_a_client_that_tells_the_coordinator_its_key() -> None:
    """Check A is no safeguard against both together, as the threat model says. Check C is: no answer leaves."""
    assert rows_by_shift(victims(check="A"), spy=0) == BATCH
    federation = victims(check="C")
    assert rows_by_shift(federation, spy=0) <= LUCK
    assert not answers_of(federation.clients[1:])


# -- one prime --------------------------------------------------------------------------------------------------------


def rows_by_one_prime(federation: HiddenFederation) -> int:
    """The attack: u + c·M' with M' = M/p. Only the residue modulo p changes, but ⌊u/2^t⌋ moves by D = c·M'/2^t − ε.

    It is done to the errors δ of the first layer, unit b in row b. The hop after them opens the step of the weights,
    whose masks are smaller than M' in this setting. Modulo M' it shows m·x·D for every input x of row b. c is such that
    this is near M'/2 where x is one.
    """
    session, ledger, plan = federation.session, federation.ledger, federation.session.hidden_plan
    while ledger.current.items[0].name != "layers.0 delta":
        federation.play_hop()
    rest, item = session.field.modulus // session.field.moduli[-1], ledger.current.items[0]
    assert item.shift is not None
    multiplier, shift = plan.steps(0)[0].multiplier, item.shift
    times = min(range(1, 500), key=lambda c: abs((16 * multiplier * (c * rest >> shift)) % rest - rest // 2))
    published, middle = federation.collect().published, centre(plan.num_masks, shift)
    values = integers_of(session, ledger.current, published)[0]
    shifts, added = [], [0] * len(values)
    for row in range(BATCH):
        place = row * WIDTH + row
        added[place] = times * rest
        shifts.append(((values[place] + middle + added[place]) >> shift) - ((values[place] + middle) >> shift))
    false = with_integers(session, ledger, published, 0, added)
    tell(federation.clients, false)
    federation.note(false)
    opened = opened_anyway(session, ledger, answers_of(federation.clients))
    if opened is None:
        return 0
    step = ledger.current.items[0]
    mean = plan.num_masks << (step.bits + plan.kappa - 1)
    read = residues_without_the_last(session, opened[:, 0, : INPUTS * WIDTH])
    rows = torch.zeros((BATCH, INPUTS))
    for row, moved in enumerate(shifts):
        for place in range(INPUTS):
            value = (read[place * WIDTH + row] - mean) % rest
            away = [min(x, rest - x) for x in (value, (value + 16 * multiplier * moved) % rest)]
            rows[row, place] = away[1] < away[0]
    return recovered(rows, batch(session))


def residues_without_the_last(session: Session, residues: torch.Tensor) -> list[int]:
    """Integers modulo all primes but the last, from residues (M,n)."""
    moduli, product = session.field.moduli[:-1], session.field.modulus // session.field.moduli[-1]
    units = [product // p * pow(product // p, -1, p) for p in moduli]
    columns = residues[:-1].to(torch.int64).T.tolist()
    return [sum(int(x) * unit for x, unit in zip(column, units, strict=True)) % product for column in columns]


def test_a_shift_by_all_primes_but_one(monkeypatch) -> None:
    """Trap 2: a check for each prime is unsound."""
    assert rows_by_one_prime(victims(kappa=60)) <= LUCK
    weakened.a_key_for_each_prime(monkeypatch)
    assert rows_by_one_prime(victims(kappa=60)) == BATCH


# -- small changes ----------------------------------------------------------------------------------------------------


def shown(federation: HiddenFederation, hops: int, added: int, channel: int | None) -> float:
    """Play some hops, change one value of the next one, and compare what the hop after it would truly open.

    How much of it the coordinator reads, from 0 to 1.
    """
    session, ledger = federation.session, federation.ledger
    for _ in range(hops):
        federation.play_hop()
    published = federation.collect().published
    modulus = session.field.modulus
    one = added if channel is None else added * (modulus // session.field.moduli[channel])
    item = next(place for place, item in enumerate(ledger.current.items) if item.shift is not None)
    count = ledger.current.items[item].count * (1 if ledger.current.total else session.num_shards)
    false = with_integers(session, ledger, published, item, [one, *[0] * (count - 1)])
    tell(federation.clients, false)
    federation.note(false)
    return share_read(federation)


def share_read(federation: HiddenFederation) -> float:
    """How much of what the next hop truly opens the coordinator reads, from 0 to 1."""
    session, ledger = federation.session, federation.ledger
    opened = opened_anyway(session, ledger, answers_of(federation.clients))
    if opened is None:
        return 0.0
    chosen = federation.clients[: session.recovery_threshold]
    hidden = torch.stack([client._hidden_hop().blinded for client in chosen], 1)
    numbers = [client.index for client in chosen]
    code, total = session.code, ledger.current.total
    true = code.decode_sum(hidden, numbers).unsqueeze(1) if total else code.decode(hidden, numbers)
    return float((opened == true).double().mean())


@pytest.mark.parametrize("hops", range(7))
@pytest.mark.parametrize(("added", "channel"), [(1, None), (1, 2)], ids=["plus one", "one residue"])
def test_the_smallest_change_hides_everything_after_it(hops, added, channel, monkeypatch) -> None:
    assert shown(victims(), hops, added, channel) < 0.01
    weakened.no_check(monkeypatch)
    assert shown(victims(), hops, added, channel) in (0.0, 1.0)  # 0: the residue left its range, and was seen at once


def test_a_false_sum_over_two_shards(monkeypatch) -> None:
    """Rule 9: after a weight hop the key is read as a sum, too."""
    settings = {"num_clients": 6, "num_shards": 2}
    weight_hop = len(victims(**settings).session.hidden_plan.hops(0)) - 1
    assert shown(victims(**settings), weight_hop, 1, None) < 0.01
    weakened.a_key_of_the_first_shard(monkeypatch)
    assert shown(victims(**settings), weight_hop, 1, None) == 1.0


def test_checks_are_as_large_as_they_must_be() -> None:
    """Rule 8: 44 bits for all tries of a run, 104 where factors can be tried out, 128 bits of a key for each prime."""
    moduli = victims().session.field.moduli
    for tries in (1, 2**10, 2**20):
        few, many = (repetitions(moduli, tries, confirmed=confirmed) for confirmed in (False, True))
        assert min(moduli) ** few >= 2**44 * tries > min(moduli) ** (few - 1)
        assert min(moduli) ** many >= 2**104 * tries
    assert min(moduli) ** KEY_WORDS >= 2**128


# -- other bytes, other groups, other times ---------------------------------------------------------------------------


def models_of_two_groups(federation: HiddenFederation) -> list[torch.Tensor]:
    """The attack: tell one half of the clients x, the other half x + p. The models that the halves open."""
    session, models = federation.session, []
    # A hop that ends with a guard's quotient, which is so small that x + p has three bytes, too.
    number = next(n for n, hop in enumerate(federation.ledger.hops) if hop.items[-1].shift is None)
    for _ in range(number):
        federation.play_hop()
    published = federation.collect().published
    values, size = integers_of(session, federation.ledger.current, published), session.field.residue_bytes
    place = sum(map(len, values[:-1])) * size
    assert 0 <= values[-1][0] == int.from_bytes(published[place : place + size], "little")
    fork = (values[-1][0] + session.field.moduli[0]).to_bytes(size, "little")
    for half, told in ((slice(0, 4), published), (slice(4, 8), published[:place] + fork + published[place + size :])):
        federation.restart()
        for _ in range(number):
            federation.play_hop()
        federation.clients = federation.clients[half]
        for client in federation.clients:
            client.receive(told)
        federation.note(published)
        federation.ledger.chain = federation.clients[0].ledger.chain
        models.append(federation.play())
    return models


def test_a_residue_at_or_above_its_prime_forks_a_run(monkeypatch) -> None:
    """Trap 12: x + p is the same residue in other bytes. Two groups would pass all checks, and open two models."""
    with pytest.raises(MessageError, match="not below its modulus"):
        models_of_two_groups(victims(num_clients=8))
    weakened.any_residue(monkeypatch)
    one, other = models_of_two_groups(victims(num_clients=8))
    assert not one.equal(other)


def rows_of_one_group(federation: HiddenFederation) -> int:
    """The attack: half of the clients is told the truth, the other half a shift; rows from what the latter answers."""
    session, clients = federation.session, federation.clients
    published = federation.collect().published
    shift = Shift(session, federation.ledger, published)
    tell(clients[:4], published)
    tell(clients[4:], shift.false)
    federation.note(shift.false)
    answers = [answer for answer in answers_of(clients) if answer.position == federation.ledger.position]
    squares = integers_read(session, federation.ledger, opened_anyway(session, federation.ledger, answers))
    assert squares is not None
    return recovered(shift.rows(federation.ledger.current.items[0], squares), batch(session))


def test_two_groups_that_are_told_different_things(monkeypatch) -> None:
    assert rows_of_one_group(victims(num_clients=8)) <= LUCK
    weakened.no_check(monkeypatch)
    assert rows_of_one_group(victims(num_clients=8)) == BATCH


def rows_by_two_answers(federation: HiddenFederation) -> int:
    """The attack: have the second hop answered twice, by clients that were told z and by others that were told z + 1.

    If both answers had the same masks, their difference would be 2z + 1.
    """
    session, clients = federation.session, federation.clients
    published, item = federation.collect().published, federation.ledger.current.items[0]
    assert item.shift is not None
    other = with_integers(session, federation.ledger, published, 0, [1 << item.shift] * item.count)
    tell(clients[:4], published)
    tell(clients[4:], other)
    federation.note(published)
    read = []
    for half in (clients[:4], clients[4:]):
        squares = integers_read(session, half[0].ledger, opened_anyway(session, half[0].ledger, answers_of(half)))
        assert squares is not None
        read.append(squares)
    doubled = [(b - a - 1) for a, b in zip(*read, strict=True)]
    outputs = torch.tensor([float(value) for value in doubled], dtype=torch.float64).view(BATCH, WIDTH) / 2
    real = outputs / 2.0**session.hidden_plan.program.value_bits
    return recovered(rows_of_outputs(session, real.clamp(-1e6, 1e6)), batch(session))


def test_masks_belong_to_one_course_of_a_run(monkeypatch) -> None:
    """Labels contain the chain: even without any check, one hop in two courses has two masks."""
    weakened.no_check(monkeypatch)
    assert rows_by_two_answers(victims(num_clients=8)) <= LUCK
    weakened.labels_without_the_chain(monkeypatch)
    assert rows_by_two_answers(victims(num_clients=8)) == BATCH


def rows_by_rewinding(federation: HiddenFederation, *, forgetful: bool) -> int:
    """The attack: have the second hop answered truly, then tell the same clients that another first hop was published.

    forgetful: clients that do not write down what they have answered.
    """
    session, clients = federation.session, federation.clients
    published = federation.collect().published
    tell(clients, published)
    answers_of(clients)  # the coordinator has now seen the true second hop
    shift = Shift(session, federation.ledger, published)
    for client in clients:
        if forgetful:
            client._kept = None
        try:
            client.catch_up(History(hops=(shift.false,)))
        except (Refused, HeadroomAlarm):
            assert not forgetful
    federation.note(shift.false)
    opened = opened_anyway(session, federation.ledger, answers_of(clients))
    squares = integers_read(session, federation.ledger, opened)
    if squares is None:
        return 0
    return recovered(shift.rows(federation.ledger.current.items[0], squares), batch(session))


def test_a_client_is_not_rewound(monkeypatch) -> None:
    federation = victims()
    assert rows_by_rewinding(federation, forgetful=False) <= LUCK
    assert not answers_of(federation.clients)  # all have left the run
    assert rows_by_rewinding(victims(), forgetful=True) <= LUCK  # the check is a second line of defence
    weakened.no_check(monkeypatch)
    assert rows_by_rewinding(victims(), forgetful=True) == BATCH


def test_nothing_leaves_before_it_is_written_down() -> None:
    """Rule 6: if the disk fails, no answer leaves; and what was written down is the hop that is answered."""
    federation = victims()
    session, kept = federation.session, []

    def full(progress: Progress) -> None:
        raise OSError("no space left on device")

    def client(keep: Callable[[Progress], None]) -> HiddenClient:
        seeds = RunSeeds.begin(federation.dealt[0], session.run)
        found = HiddenClient(session, 0, TableRows(session, federation.tables[0]), seeds, keep)
        found.start(session.num_clients)
        return found

    with pytest.raises(OSError, match="no space"):
        client(full).answer()
    answer = client(kept.append).answer()
    assert answer is not None
    assert [progress.position for progress in kept] == [answer.position]


def test_an_old_hop_published_again_hides_everything_after_it(monkeypatch) -> None:
    """Two hops in a row have the same form: the coordinator publishes the first once more in place of the second."""

    def read() -> float:
        federation = victims()
        hops = federation.ledger.hops
        again = next(n for n in range(1, len(hops)) if hops[n].count == hops[n - 1].count)
        for _ in range(again):
            published = federation.play_hop().published
        tell(federation.clients, published)
        federation.note(published)
        return share_read(federation)

    assert read() < 0.01
    weakened.no_check(monkeypatch)
    assert read() == 1.0
