"""LightSecAgg gives the plain sum of the integers, whoever is missing; and the known faults of others are not ours.

The faults are those of FedML's public LightSecAgg. Each test first shows the fault in a few lines of NumPy, so that it
says what is to be avoided, and then that it does not happen here.
"""

import itertools
import random

import flint
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dresfl.baselines import MaskingClient, Message, Request, SecureSum, SumRound, secure_sum
from dresfl.baselines.lightsecagg import COORDINATOR
from dresfl.errors import DataError, HeadroomAlarm, InfeasiblePlan, MessageError, TooFewAnswers, UsageError

SMALL = SecureSum(num_clients=6, max_colluders=2, recovery_threshold=4, num_values=7)


def everybody(plan):
    return [MaskingClient(plan, i) for i in range(plan.num_clients)]


def integers(plan, rng):
    top = int(plan.limit * 2**plan.fraction_bits)
    return torch.tensor([rng.choice((-top, top, rng.randint(-top, top))) for _ in range(plan.num_values)])


def dealt(plan, clients, round_number=0, absent=()):
    for share in itertools.chain.from_iterable([client.deal(round_number) for client in clients]):
        if share.sender not in absent:
            clients[share.receiver].receive(Message.decode(share.encode(plan), plan))


# -- the sum ---------------------------------------------------------------------------------------------------


@st.composite
def sums(draw):
    clients = draw(st.integers(1, 50))
    needed = draw(st.integers(1, clients))
    colluders = draw(st.integers(0, needed - 1))
    plan = SecureSum(
        clients, colluders, needed, draw(st.integers(1, 40)), draw(st.integers(0, 24)), draw(st.sampled_from((0.3, 4)))
    )
    return plan, draw(st.integers(0, 2**32))


@settings(max_examples=25)
@given(sums())
def test_the_aggregate_is_the_plain_sum_whoever_is_missing(drawn):
    plan, seed = drawn
    rng = random.Random(seed)
    clients, everyone = everybody(plan), range(plan.num_clients)
    for round_number in range(2):
        senders = rng.sample(everyone, rng.randint(plan.recovery_threshold, plan.num_clients))
        vectors = {sender: integers(plan, rng) for sender in senders}
        answering = rng.sample(everyone, rng.randint(plan.recovery_threshold, plan.num_clients))
        found = secure_sum(clients, round_number, vectors, answering)
        assert found.to(torch.int64).tolist() == sum(vectors.values()).tolist()


def test_every_set_of_senders_and_of_answers_above_the_threshold_serves():
    plan, rng = SecureSum(5, 1, 3, 4), random.Random(1)
    clients, round_number = everybody(plan), itertools.count()
    large_enough = [s for n in (3, 4, 5) for s in itertools.combinations(range(5), n)]
    for senders, answering in itertools.product(large_enough, large_enough):
        vectors = {sender: integers(plan, rng) for sender in senders}
        found = secure_sum(clients, next(round_number), vectors, answering)
        assert found.to(torch.int64).tolist() == sum(vectors.values()).tolist()


def test_reals_come_back_to_within_the_rounding_and_unbiased():
    plan = SecureSum(8, 2, 5, 200)
    generator = torch.Generator().manual_seed(1)
    values = torch.rand((8, 200), generator=generator, dtype=torch.float64) * 8 - 4
    drawn = [torch.rand(200, generator=generator, dtype=torch.float64) for _ in range(8)]
    vectors = {i: plan.integers(values[i], drawn[i]) for i in range(8)}
    found = plan.reals(secure_sum(everybody(plan), 0, vectors))
    assert (found - values.sum(0)).abs().max() < 8 / 2**14
    # one value with all noises (j + ½)/n: the mean of its roundings is the value itself, to within 1/n of a step
    noise = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    roundings = plan.reals(plan.integers(torch.full((1000,), 0.3), noise))
    assert abs(float(roundings.mean()) - 0.3) < 2**-14 / 1000 + 1e-8


def test_shares_lie_on_one_polynomial_through_the_mask():
    """By python-flint: the T + 1st piece on are free, and the pieces interpolate to what masks the vector."""
    client = MaskingClient(SMALL, 0)
    shares = client.deal(0)
    hidden = client.vector(torch.zeros(7, dtype=torch.int64)).residues  # the mask itself
    for channel, p in enumerate(SMALL.field.moduli):
        context = flint.fmpz_mod_poly_ctx(flint.fmpz_mod_ctx(p))
        for column in range(SMALL.piece):
            points = [(SMALL.code.client_points[s.receiver], int(s.residues[channel, column])) for s in shares[:4]]
            poly = context([0])
            for x, y in points:
                basis, scale = context([1]), 1
                for other, _ in points:
                    if other != x:
                        basis, scale = basis * context([-other, 1]), scale * (x - other) % p
                poly += basis * (y * pow(scale, -1, p) % p)
            fifth = shares[4]
            assert int(poly(SMALL.code.client_points[fifth.receiver])) == int(fifth.residues[channel, column]) % p
            for piece, point in enumerate(SMALL.code.data_points):
                place = piece * SMALL.piece + column
                if place < SMALL.num_values:
                    assert int(poly(point)) == int(hidden[channel, place]) % p


def test_up_to_t_shares_say_nothing_of_a_mask():
    """As algebra: for every T clients the noise columns of the code are invertible modulo every prime."""
    for clients, colluders, needed in ((6, 2, 4), (7, 3, 5), (9, 1, 9)):
        plan = SecureSum(clients, colluders, needed, 10)
        matrix = plan.code.encoding_matrix[:, :, plan.num_pieces :]  # (M,N,T)
        for coalition in itertools.combinations(range(clients), colluders):
            for p, part in zip(plan.field.moduli, matrix[:, list(coalition)], strict=True):
                rows = [[int(value) % p for value in row] for row in part.tolist()]
                assert int(flint.nmod_mat(colluders, colluders, list(itertools.chain(*rows)), p).det()) != 0


# -- what participants refuse ----------------------------------------------------------------------------------


def test_too_few_vectors_or_answers_are_no_sum():
    vectors = {i: torch.ones(7, dtype=torch.int64) for i in range(3)}
    with pytest.raises(TooFewAnswers, match="3 of 6 vectors came, 4 needed"):
        secure_sum(everybody(SMALL), 0, vectors)
    vectors[3] = vectors[0]
    with pytest.raises(TooFewAnswers, match="3 of 6 answered, 4 needed"):
        secure_sum(everybody(SMALL), 0, vectors, answering=[5, 1, 0])
    assert secure_sum(everybody(SMALL), 0, vectors, answering=[5, 1, 0, 4]).tolist() == [4.0] * 7


def test_a_client_answers_for_one_set_of_senders_in_a_round():
    clients = everybody(SMALL)
    dealt(SMALL, clients)
    first, second = Request(0, (0, 1, 2, 3)), Request(0, (0, 1, 2, 3, 4))
    assert clients[5].answer(first).residues.equal(clients[5].answer(first).residues)  # asked again: the same
    with pytest.raises(MessageError, match="answered for other senders"):
        clients[5].answer(second)
    with pytest.raises(MessageError, match="a sum of 3 clients is asked for, 4 needed"):
        clients[4].answer(Request(0, (0, 1, 2)))
    for senders in ((0, 0, 0, 0), (3, 2, 1, 0)):
        with pytest.raises(MessageError, match="not distinct and ascending"):
            Request(0, senders)
    with pytest.raises(MessageError, match="round 1 was asked for"):
        clients[4].answer(Request(1, (0, 1, 2, 3)))


def test_a_client_that_lacks_a_share_does_not_answer_for_its_dealer():
    clients = everybody(SMALL)
    dealt(SMALL, clients, absent=(3,))
    with pytest.raises(MessageError, match="holds no share of client 3"):
        clients[0].answer(Request(0, (0, 1, 2, 3)))
    clients[0].answer(Request(0, (0, 1, 2, 4)))


def test_a_mask_hides_one_vector():
    client, zeros = MaskingClient(SMALL, 0), torch.zeros(7, dtype=torch.int64)
    with pytest.raises(MessageError, match="no mask"):
        client.vector(zeros)
    client.deal(0)
    client.vector(zeros)
    with pytest.raises(MessageError, match="no mask"):
        client.vector(zeros)
    with pytest.raises(UsageError, match="round 0 has begun already"):
        client.deal(0)
    with pytest.raises(UsageError, match="7 values are summed"):
        client.vector(zeros[:3])
    with pytest.raises(TypeError, match="not pickled"):
        client.__reduce__()
    assert "<redacted>" in repr(client)


def test_what_comes_twice_or_late_or_out_of_turn():
    clients = everybody(SMALL)
    dealt(SMALL, clients)
    coordinator = SumRound(SMALL, 0)
    messages = [client.vector(torch.ones(7, dtype=torch.int64)) for client in clients]
    for message in messages[:4]:
        assert coordinator.receive_vector(message)
    with pytest.raises(MessageError, match="two vectors"):
        coordinator.receive_vector(messages[0])
    request = coordinator.close()
    answers = [client.answer(request) for client in clients]
    with pytest.raises(MessageError, match="not closed"):
        SumRound(SMALL, 0).receive_answer(answers[0])
    assert not coordinator.receive_vector(messages[4])  # late: not in the sum
    assert coordinator.close() == request
    with pytest.raises(MessageError, match="no answer of round 0"):
        coordinator.receive_answer(messages[0])
    assert [coordinator.receive_answer(answer) for answer in answers[:3]] == [None] * 3
    with pytest.raises(MessageError, match="answered round 0 twice"):
        coordinator.receive_answer(answers[0])
    assert coordinator.receive_answer(answers[5]).tolist() == [4.0] * 7
    assert coordinator.receive_answer(answers[4]) is None
    with pytest.raises(MessageError, match="no share for client 1 in round 0"):
        clients[1].receive(answers[0])
    share = MaskingClient(SMALL, 0).deal(0)[0]
    with pytest.raises(MessageError, match="dealt round 0 twice"):
        clients[1].receive(share)


def test_messages_survive_the_wire_and_others_are_refused():
    clients = everybody(SMALL)
    share = clients[0].deal(3)[2]
    whole = share.encode(SMALL)
    back = Message.decode(whole, SMALL)
    assert (back.kind, back.round_number, back.sender, back.receiver) == ("share", 3, 0, 3)
    assert SMALL.field.pack(back.residues) == SMALL.field.pack(share.residues)
    assert "<redacted>" in repr(back)
    request = Request(3, (0, 2, 4, 5))
    assert Request.decode(request.encode(SMALL), SMALL) == request
    vector = clients[0].vector(torch.zeros(7, dtype=torch.int64)).encode(SMALL)
    to_nobody = vector[:24] + b"\x00\x00" + vector[26:]
    other = SecureSum(6, 2, 4, 8)
    residue_too_large = whole[:26] + b"\xff" * 3 + whole[29:]
    bad = [b"", b"\x02" + whole[1:], whole[:1] + b"\x09" + whole[2:], whole[:-1], residue_too_large, to_nobody]
    bad += [whole[:2] + other.identity + whole[18:]]
    bad += [whole[:22] + b"\x06\x00" + whole[24:], whole[:24] + b"\x06\x00" + whole[26:]]  # client 6 does not exist
    for data in bad:
        with pytest.raises(MessageError):
            Message.decode(data, SMALL)
    for data in (whole, request.encode(SMALL)[:-1], request.encode(SMALL)[:-1] + b"\xff"):
        with pytest.raises(MessageError):
            Request.decode(data, SMALL)


@pytest.mark.parametrize("numbers", [(4, 2, 2, 3), (4, 1, 5, 3), (4, -1, 2, 3), (COORDINATOR, 1, 2, 3)])
def test_a_plan_needs_more_answers_than_colluders_and_enough_clients(numbers):
    with pytest.raises(InfeasiblePlan):
        SecureSum(*numbers)


def test_a_plan_needs_values_bits_and_a_limit():
    for wrong in ({"num_values": 0}, {"fraction_bits": 33}, {"limit": 0.0}):
        with pytest.raises(UsageError):
            SecureSum(**{"num_clients": 3, "max_colluders": 1, "recovery_threshold": 2, "num_values": 1, **wrong})
    with pytest.raises(UsageError, match="client 6 does not exist"):
        MaskingClient(SMALL, 6)


# -- faults of others ------------------------------------------------------------------------------------------


def test_an_overflow_rings_the_alarm_and_is_never_a_wrong_average():
    p, bits = 1997, 10  # the example that FedML ships
    total = sum(round(0.3 * 2**bits) for _ in range(4)) % p
    wrapped = (total - p if total > p // 2 else total) / 2**bits / 4
    assert round(wrapped, 3) == -0.188  # four times 0.3

    plan = SecureSum(4, 1, 3, 1, fraction_bits=bits, limit=0.5)
    noise = torch.full((1,), 0.5)
    vectors = {i: plan.integers(torch.tensor([0.3]), noise) for i in range(4)}
    assert round(float(plan.reals(secure_sum(everybody(plan), 0, vectors)) / 4), 3) == 0.3
    for value in (0.6, -0.6):
        with pytest.raises(HeadroomAlarm, match=r"0\.6 exceeds the limit of 0\.5"):
            plan.integers(torch.tensor([value]), noise)
    for value in (float("nan"), float("inf")):
        with pytest.raises(DataError, match="NaN or infinite"):
            plan.integers(torch.tensor([value]), noise)


def test_a_sum_beyond_the_plan_rings_the_alarm():
    """Who leaves the limit out, or alters a residue on the way, is noticed by the coordinator."""
    plan, ones = SMALL, torch.ones(7, dtype=torch.int64)
    huge = dict.fromkeys(range(6), ones * 2**40)
    with pytest.raises(HeadroomAlarm):
        secure_sum(everybody(plan), 0, huge)
    top = int(plan.limit * 2**plan.fraction_bits)
    five = dict.fromkeys(range(5), ones * top)
    assert secure_sum(everybody(plan), 0, five).tolist() == [5.0 * top] * 7
    with pytest.raises(HeadroomAlarm, match="of 5 vectors"):  # though the field has room for it
        secure_sum(everybody(plan), 0, {**five, 2: ones * top + 1})
    for channel in range(len(plan.field.moduli)):
        clients = everybody(plan)
        dealt(plan, clients)
        coordinator = SumRound(plan, 0)
        for client in clients:
            coordinator.receive_vector(client.vector(ones))
        *rest, last = [client.answer(coordinator.close()) for client in clients[:4]]
        for answer in rest:
            coordinator.receive_answer(answer)
        altered = last.residues.clone()
        altered[channel, 0] += 1
        with pytest.raises(HeadroomAlarm):
            coordinator.receive_answer(Message("answer", 0, last.sender, last.receiver, altered))


def test_products_of_31_bit_numbers_do_not_overflow_here():
    p, rng = 2**31 - 1, np.random.default_rng(1)
    matrix, column = rng.integers(p - 9, p, (1, 40)), rng.integers(p - 9, p, (40, 1))
    exact = sum(int(a) * int(b) for a, b in zip(matrix[0], column[:, 0], strict=True)) % p
    with np.errstate(over="ignore"):
        assert int(np.mod(matrix @ column, p)[0, 0]) != exact  # one reduction at the end comes too late

    # 50 clients, all values at the limit, as many bits as 2^31: the sum is exact
    plan = SecureSum(50, 9, 49, 3, fraction_bits=31, limit=1.0)
    vectors = {i: torch.tensor([2**31, -(2**31), (-1) ** i * 2**31]) for i in range(50)}
    assert secure_sum(everybody(plan), 0, vectors).tolist() == [50.0 * 2**31, -50.0 * 2**31, 0.0]


def test_a_round_ends_without_the_clients_that_are_missing():
    """FedML's coordinator waits for all N. Here R vectors and R answers are enough, and nobody else is touched."""
    plan = SecureSum(20, 3, 9, 5)
    clients = everybody(plan)
    dealt(plan, clients)
    gone = clients[9:]
    coordinator = SumRound(plan, 0)
    for client in clients[:9]:
        coordinator.receive_vector(client.vector(torch.full((5,), client.index)))
    request = coordinator.close()
    found = [coordinator.receive_answer(client.answer(request)) for client in clients[:9]]
    assert found[-1].tolist() == [36.0] * 5
    assert all(client._mask is not None and client._answered is None for client in gone)


def test_masks_do_not_follow_from_a_seed_and_no_two_rounds_share_one():
    def masks():
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 what FedML's masks come from
        torch.manual_seed(0)
        client = MaskingClient(SMALL, 0)
        found = []
        for round_number in range(2):
            client.deal(round_number)
            found.append(client.vector(torch.zeros(7, dtype=torch.int64)).residues)
        return found

    several = masks() + masks()
    for one, other in itertools.combinations(several, 2):  # 7 residues of 24 bits, alike by chance: 2^-168
        assert not one.equal(other)


def test_masks_are_uniform_and_their_shares_hide_them_with_fresh_noise():
    """FedML's shares have zeros where T uniform pieces belong: then one share is a known multiple of the mask."""
    plan = SecureSum(3, 1, 2, 1)
    point, hiding, carrying = plan.code.client_points[1], plan.code.mask_points[0], plan.code.data_points[0]
    for _ in range(50):
        client = MaskingClient(plan, 0)
        share = client.deal(0)[0]
        mask = client.vector(torch.zeros(1, dtype=torch.int64))
        alike = [
            int(coded) % p == (point - hiding) * pow(carrying - hiding, -1, p) * int(hidden) % p
            for p, coded, hidden in zip(plan.field.moduli, share.residues, mask.residues, strict=True)
        ]
        assert not all(alike)  # by chance modulo two primes of 24 bits: 2^-48


def test_a_coordinator_that_cheats_is_outside_the_promise():
    """The module says so. With N + T < 2R no two sets get R answers each."""
    plan = SecureSum(num_clients=7, max_colluders=1, recovery_threshold=4, num_values=1)
    clients = everybody(plan)
    dealt(plan, clients)
    vectors = [client.vector(torch.tensor([3**client.index])) for client in clients]

    def asked(senders, answering):
        coordinator = SumRound(plan, 0)
        for sender in senders:
            coordinator.receive_vector(vectors[sender])
        request = coordinator.close()
        return [coordinator.receive_answer(clients[j].answer(request)) for j in answering][-1]

    colluder = MaskingClient(plan, 6)  # client 6 answers twice: it is the coordinator's friend
    colluder._round, colluder._held = 0, clients[6]._held
    whole = asked(range(7), (0, 1, 2, 6))
    clients[6] = colluder
    assert (whole - asked((0, 1, 2, 3, 5, 6), (3, 4, 5, 6))).tolist() == [3**4]
