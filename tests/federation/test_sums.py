"""A sum over clients, played: exact with clients missing, never two sets of dealers, nothing without a quorum."""

import dataclasses
import functools
import itertools
import random

import pytest
import torch

from dresfl.errors import MessageError, Refused
from dresfl.federation.actions import Log, Send
from dresfl.federation.messages import Added, Counted, DealersOf, Release, SetSigned, TotalsOf
from dresfl.federation.sums import SumOpening, SumWork
from dresfl.field import SecretSeed
from dresfl.protocol import MemoryNotes, SumPlan, Totals, add_shares, decode_totals
from dresfl.sealing import Identity, Roster

DEADLINE = 10.0


@functools.cache
def people(num_clients):
    coordinator = Identity.create("coordinator")
    clients = [Identity.create(f"client-{i}") for i in range(num_clients)]
    return clients, Roster.create(coordinator, coordinator.card, [client.card for client in clients])


class World:
    """Clients and a coordinator. Messages are delivered in any order; some clients are away."""

    def __init__(self, num_clients=5, max_colluders=1, session=bytes(16), notes=None, name="accuracy"):
        self.plan = SumPlan(session, name, num_clients, max_colluders, 2, 1000)
        self.identities, self.roster = people(num_clients)
        self.vectors = [torch.tensor([i + 1, 10 * (i + 1)]) for i in range(num_clients)]
        self.notes = notes or [MemoryNotes() for _ in range(num_clients)]
        self.secrets = [SecretSeed(bytes([i + 1] * 32)) for i in range(num_clients)]
        self.clients = [self.work(i) for i in range(num_clients)]
        self.opening = SumOpening(self.plan, self.roster, DEADLINE)
        self.opening.begin(0.0)
        self.heard = {}
        self.logs = []
        self.errors = []

    def work(self, client):
        """A client's process, as it is after a start."""
        return SumWork(
            self.plan, client, self.identities[client], self.roster, self.secrets[client], self.notes[client]
        )

    def play(self, queue, away=(), order=None, now=1.0):
        """Deliver messages until none is left. Those to and from clients that are away are lost."""
        queue = list(queue)
        while queue:
            first = order.choice(sorted({client for client, _ in queue})) if order else queue[0][0]
            place = next(i for i, (client, _) in enumerate(queue) if client == first)  # a connection keeps its order
            client, message = queue.pop(place)
            if client in away:
                continue
            queue += self.deliver(client, message, now)

    def deliver(self, client, message, now):
        """A message to the coordinator (of a client), or to a client: what follows from it."""
        work = self.clients[client]
        message = type(message).from_body(memoryview(b"".join(message.body())))  # as it travels
        if isinstance(message, Counted | SetSigned | Added):
            return self.carried(self.opening.received(client, message, now))
        try:
            match message:
                case DealersOf():
                    return [(client, work.sign(message))]
                case Release():
                    return [(client, work.add(message))]
                case TotalsOf():
                    self.heard[client] = work.totals(message)
        except (MessageError, Refused) as error:
            self.errors.append((client, error))
        return []

    def carried(self, actions):
        self.logs += [action for action in actions if isinstance(action, Log)]
        return [(action.client, action.message) for action in actions if isinstance(action, Send)]

    def counted(self, clients):
        return [(client, self.clients[client].deal(self.vectors[client])) for client in clients]

    def total(self, dealers):
        return tuple(int(value) for value in sum(self.vectors[dealer] for dealer in dealers))


@pytest.mark.parametrize(("clients", "colluders"), [(3, 1), (5, 1), (9, 2)])
def test_everybody_hears_the_exact_totals(clients, colluders):
    world = World(clients, colluders)
    everybody = range(clients)
    world.play(world.counted(everybody))
    assert world.opening.done
    assert world.opening.totals == Totals(tuple(everybody), world.total(everybody))
    assert world.heard == dict.fromkeys(everybody, Totals(tuple(everybody), world.total(everybody)))
    assert world.opening.wake_at is None


@pytest.mark.parametrize("seed", range(30))
def test_whoever_is_away_whatever_the_order(seed):
    """Some never deal, some leave after that: the totals are of those who dealt, or there are none."""
    order = random.Random(seed)
    clients, colluders = order.choice([(5, 1), (9, 2), (7, 1)])
    world = World(clients, colluders)
    plan = world.plan
    absent = set(order.sample(range(clients), order.randint(0, clients - plan.quorum + 1)))
    there = [client for client in range(clients) if client not in absent]
    world.play(world.counted(there), absent, order)
    if absent:
        assert not world.opening.done
        assert world.opening.wake_at == DEADLINE
        later = set(order.sample(there, order.randint(0, max(0, len(there) - plan.quorum))))
        for client in later:
            world.opening.left(client)
        world.play(world.carried(world.opening.tick(DEADLINE)), absent | later, order, DEADLINE)
        if not world.opening.done:
            world.play(world.carried(world.opening.tick(3 * DEADLINE)), absent | later, order, 3 * DEADLINE)
            world.play(world.carried(world.opening.tick(5 * DEADLINE)), absent | later, order, 5 * DEADLINE)
    assert world.opening.done
    if len(there) >= plan.quorum:
        assert world.opening.totals == Totals(tuple(there), world.total(there))
    else:
        assert world.opening.totals is None
        assert any(line.event == "no totals" for line in world.logs)
    assert not world.errors


def test_a_client_that_comes_late_hears_the_totals_and_is_not_in_them():
    world = World()
    world.play(world.counted(range(4)))
    world.play(world.carried(world.opening.tick(DEADLINE)), now=DEADLINE)
    assert world.opening.totals == Totals((0, 1, 2, 3), world.total(range(4)))
    world.play(world.counted([4]))
    assert world.heard[4] == world.heard[0] == world.opening.totals


def test_a_client_that_was_started_again_takes_part_as_before():
    world = World()
    first = world.carried([a for client in range(4) for a in world.opening.received(*world.counted([client])[0], 1.0)])
    proposals = world.carried(world.opening.tick(DEADLINE))
    assert not first
    world.play([entry for entry in proposals if entry[0] in (0, 1, 2)], away=(3,), now=DEADLINE)
    assert not world.opening.done
    world.clients[3] = world.work(3)  # it has forgotten everything that is not on its disk
    world.play(world.counted([3]), now=DEADLINE + 1)
    assert world.opening.totals == Totals((0, 1, 2, 3), world.total(range(4)))
    world.clients[2] = world.work(2)
    world.play(world.counted([2]))
    assert world.heard[2] == world.opening.totals


def test_a_coordinator_that_was_started_again_goes_on_with_the_set_that_was_signed():
    world = World()
    for entry in world.counted(range(4)):
        world.opening.received(*entry, 1.0)
    proposals = world.carried(world.opening.tick(DEADLINE))
    for client, message in proposals:
        world.deliver(client, message, DEADLINE)  # signed, and never heard of
    world.opening = SumOpening(world.plan, world.roster, DEADLINE)
    world.opening.begin(0.0)
    world.play(world.counted(range(5)))  # now everybody is there
    assert world.opening.totals == Totals((0, 1, 2, 3), world.total(range(4)))


# -- differences -------------------------------------------------------------------------------------------------


def envelopes(world, dealers, receiver):
    """What a coordinator sends a receiver for any set it likes."""
    return DealersOf(world.plan.sum_id, dealers, shares(world, dealers, receiver))


def shares(world, dealers, receiver):
    return tuple((dealer, dict(world.dealt[dealer].sealed)[receiver]) for dealer in dealers)


def release(world, dealers, receiver, signatures):
    """The same with signatures, by client."""
    signed = tuple(sorted(signatures.items())) if isinstance(signatures, dict) else tuple(signatures)
    return Release(world.plan.sum_id, dealers, signed, shares(world, dealers, receiver))


def attacked(world, split, corrupt):
    """The coordinator proposes one set to some and another to the rest; `corrupt` clients sign both.

    Returns what honest receivers show for each of the two sets.
    """
    everybody = tuple(range(world.plan.num_clients))
    world.dealt = dict(world.counted(everybody))
    victim = 8
    sets = everybody, tuple(client for client in everybody if client != victim)
    shown = []
    for number, dealers in enumerate(sets):
        signatures = {}
        for client in everybody:
            if client in corrupt:
                liar = SumWork(
                    world.plan, client, world.identities[client], world.roster, world.secrets[client], MemoryNotes()
                )
                liar.deal(world.vectors[client])
                signatures[client] = liar.sign(envelopes(world, dealers, client)).signature
            elif (client in split) == (number == 0):
                signed = world.clients[client].sign(envelopes(world, dealers, client))
                assert signed.dealers == dealers
                signatures[client] = signed.signature
        found = {}
        for client in everybody:
            try:
                message = world.clients[client].add(release(world, dealers, client, signatures))
            except (MessageError, Refused):
                continue
            found[client] = world.plan.field.unpack(message.residues, (2,))
        for client in corrupt:  # what they know anyway
            own = [add_shares(world.plan, [_share(world, dealer, client) for dealer in dealers])]
            found.setdefault(client, own[0])
        shown.append(found)
    return sets, shown


def _share(world, dealer, receiver):
    from dresfl.protocol import deal_vector

    return deal_vector(world.plan, world.secrets[dealer], world.vectors[dealer])[:, receiver]


def opened(world, dealers, found):
    """A total, if T + 1 receivers' sums are known; none of them lies here."""
    plan = SumPlan(world.plan.session_id, world.plan.name, 9, world.plan.max_colluders, 2, 1000, honest_clients=True)
    return decode_totals(plan, dealers, found).values if len(found) >= plan.threshold else None


def test_nine_dealers_and_eight_are_never_both_added_up():
    """N = 9, T = 2: for every way to split the honest clients, at most one of the two sets is released."""
    corrupt = (0, 1)
    released_one = 0
    for size in range(8):
        split = tuple(range(2, 2 + size))
        world = World(9, 2)
        sets, shown = attacked(world, split, corrupt)
        totals = [opened(world, dealers, found) for dealers, found in zip(sets, shown, strict=True)]
        assert None in totals, size
        released_one += totals != [None, None]
    assert released_one  # with enough honest signatures one of them is


def test_with_a_smaller_quorum_the_ninth_vector_is_their_difference(monkeypatch):
    """The control: a quorum of more than N/2 is too small. Two receivers of each kind give the ninth away."""
    monkeypatch.setattr(SumPlan, "quorum", property(lambda plan: plan.num_clients // 2 + 1))
    world = World(9, 2)
    sets, shown = attacked(world, split=(2, 3, 4), corrupt=(0, 1))
    nine, eight = (opened(world, dealers, found) for dealers, found in zip(sets, shown, strict=True))
    difference = [a - b for a, b in zip(nine, eight, strict=True)]
    assert difference == world.vectors[8].tolist()


def test_a_client_signs_one_set_ever_also_after_a_restart():
    world = World(9, 2)
    world.dealt = dict(world.counted(range(9)))
    first, other = tuple(range(9)), tuple(range(8))
    signed = world.clients[3].sign(envelopes(world, first, 3))
    again = world.work(3)
    again.deal(world.vectors[3])
    for work in (world.clients[3], again):
        assert work.sign(envelopes(world, other, 3)) == signed
        assert work.sign(envelopes(world, first, 3)) == signed


def test_nothing_is_shown_without_a_quorum_of_signatures_for_this_set():
    world = World(9, 2)
    world.dealt = dict(world.counted(range(9)))
    plan, dealers = world.plan, tuple(range(9))
    signatures = {i: world.clients[i].sign(envelopes(world, dealers, i)).signature for i in range(6)}
    assert plan.quorum == 6
    world.clients[0].add(release(world, dealers, 0, signatures))
    world.work(0).add(release(world, dealers, 0, signatures))  # another process of it
    five = tuple(itertools.islice(signatures.items(), 5))
    whole = shares(world, dealers, 0)
    bad = [
        (release(world, dealers, 0, five), "5 clients have signed"),
        (release(world, dealers, 0, (*five, five[-1])), "different clients"),
        (release(world, dealers, 0, (*five, (9, bytes(64)))), "different clients"),
        (release(world, dealers, 0, (*five, (6, five[0][1]))), "client-6 has not signed"),
        (release(world, dealers[:-1], 0, signatures), "has not signed"),
        (release(world, dealers, 1, signatures), "."),  # sealed for another client
        (Release(plan.sum_id, dealers, tuple(signatures.items()), whole[1:]), "not those of the set"),
        (Release(bytes(16), dealers, tuple(signatures.items()), whole), "another sum"),
    ]
    for message, reason in bad:
        with pytest.raises(MessageError, match=reason):
            world.clients[0].add(message)
    with pytest.raises(MessageError, match="has signed no set"):
        world.clients[7].add(release(world, dealers, 7, signatures))


def test_shares_that_are_not_those_of_the_set_are_not_signed():
    world = World()
    world.dealt = dict(world.counted(range(5)))
    whole = envelopes(world, (0, 1, 2, 3), 4)
    bad = [
        DealersOf(whole.sum_id, whole.dealers, whole.sealed[1:]),
        DealersOf(whole.sum_id, (0, 1, 2), whole.sealed),
        DealersOf(whole.sum_id, (0, 1), whole.sealed[:2]),
        DealersOf(bytes(16), whole.dealers, whole.sealed),
        DealersOf(whole.sum_id, whole.dealers, tuple((d, whole.sealed[0][1]) for d in range(4))),
        DealersOf(whole.sum_id, (0, 1, 2, 3, 4), whole.sealed),
    ]
    for message in bad:
        with pytest.raises(MessageError):
            world.clients[4].sign(message)
    assert not world.notes[4].sums()[world.plan.session_id].dealers
    world.notes[4] = MemoryNotes()
    with pytest.raises(MessageError, match="has not counted"):
        world.work(4).sign(whole)


def test_one_vector_and_one_sum_in_a_run():
    world = World()
    world.clients[0].deal(world.vectors[0])
    again = world.work(0)
    again.deal(world.vectors[0])
    with pytest.raises(Refused, match="counts otherwise"):
        again.deal(world.vectors[0] + 1)
    other = World(notes=world.notes, name="confusion")
    with pytest.raises(Refused, match="another sum was taken"):
        other.clients[0].deal(other.vectors[0])


@pytest.mark.parametrize(("dealers", "accepted"), [((0, 1, 2, 3), False), ((0, 1, 2, 3, 4), True), ((2, 3, 4), False)])
def test_a_later_run_has_the_same_clients_or_very_different_ones(dealers, accepted):
    world = World()
    world.play(world.counted(range(5)))
    later = World(session=bytes([1] * 16), notes=world.notes)
    later.dealt = dict(later.counted(range(5)))
    if accepted:
        assert later.clients[3].sign(envelopes(later, dealers, 3)).dealers == dealers
    else:
        with pytest.raises(MessageError, match="would be the difference"):
            later.clients[3].sign(envelopes(later, dealers, 3))


# -- what the coordinator refuses --------------------------------------------------------------------------------


def test_messages_that_may_not_come_are_refused():
    world = World()
    counted = dict(world.counted(range(5)))
    plan, opening = world.plan, world.opening
    bad = [
        (0, Counted(plan.sum_id, counted[0].sealed[1:])),
        (0, Counted(plan.sum_id, tuple((r, sealed[:-1]) for r, sealed in counted[0].sealed))),
        (0, Counted(bytes(16), counted[0].sealed)),
        (0, SetSigned(plan.sum_id, bytes(64), (0, 1, 2))),
        (0, Added(plan.sum_id, bytes(plan.packed_bytes))),
        (0, TotalsOf(plan.sum_id, (), ())),
    ]
    for client, message in bad:
        with pytest.raises(MessageError):
            opening.received(client, message, 1.0)
    for client, message in counted.items():
        opening.received(client, message, 1.0)
    with pytest.raises(MessageError, match="client-0 has not signed"):
        opening.received(0, SetSigned(plan.sum_id, bytes(64), tuple(range(5))), 1.0)
    with pytest.raises(MessageError, match="before enough have signed"):
        opening.received(0, Added(plan.sum_id, bytes(plan.packed_bytes)), 1.0)


def test_a_receiver_that_lies_is_named_and_the_totals_are_true():
    world = World(7)
    honest = world.clients[2].add
    world.clients[2].add = lambda message: Added(
        world.plan.sum_id,
        world.plan.field.pack(world.plan.field.add_integer(world.plan.field.unpack(honest(message).residues, (2,)), 1)),
    )
    world.play(world.counted(range(7)))
    assert world.opening.totals.values == world.total(range(7))
    assert any(line.event == "liar" and line.fields["client"] == 2 for line in world.logs)


def test_totals_of_another_sum_are_refused():
    world = World()
    for message in (TotalsOf(bytes(16), (0, 1, 2), (1, 2)), TotalsOf(world.plan.sum_id, (0, 1, 2), (1,))):
        with pytest.raises(MessageError, match="another sum"):
            world.clients[0].totals(message)
    assert world.clients[0].totals(TotalsOf(world.plan.sum_id, (), ())) is None


def test_counts_on_another_model_are_not_added():
    """The coordinator tells client 0 another model than all others: nobody opens its shares, and it opens none."""
    world = World()
    other = dataclasses.replace(world.plan, model=b"m" * 32)
    tricked = SumWork(other, 0, world.identities[0], world.roster, world.secrets[0], world.notes[0])
    honest = [world.clients[i].deal(world.vectors[i]) for i in range(1, 5)]
    dealt = [tricked.deal(world.vectors[0]), *honest]
    shares = [tuple((d, counted.sealed[r][1]) for d, counted in enumerate(dealt)) for r in range(5)]
    with pytest.raises(MessageError, match="another sum"):
        tricked.sign(DealersOf(world.plan.sum_id, (0, 1, 2, 3, 4), shares[0]))
    for work, plan, own in ((tricked, other, shares[0]), (world.clients[1], world.plan, shares[1])):
        with pytest.raises(MessageError):
            work.sign(DealersOf(plan.sum_id, (0, 1, 2, 3, 4), own))
    assert world.clients[1].sign(DealersOf(world.plan.sum_id, (1, 2, 3, 4), shares[1][1:]))
