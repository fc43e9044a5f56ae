"""A dealer in league with the coordinator deals rows that are none, and reads hidden weights off an honest hop.

A "row" with one huge value moves products out of their masks. A row that does not lie on its polynomial at one client's
point makes that client's answers deviate by its own share of the weights. Weights give rows (test_rows_from_weights.py
of the open mode). The check of the dealers finds both before a run begins: range proofs, and degrees.
"""

import pytest
import torch
from torch import Tensor

from dresfl.protocol import MemoryTable, conclude, examine_dealers, held_set_ups
from dresfl.protocol.hidden.client import HiddenClient
from dresfl.runtimes.local.hidden import HiddenFederation

from .cheating import black_and_white
from .runs import federation_of, hidden_session, integers_of
from .test_one_run import evaluated

SIZES = (12, 24, 3)
COINS = bytes(range(32))


def add_to_share(federation: HiddenFederation, receiver: int, dealer: int, row: int, column: int, value: int) -> None:
    """What a bad dealer does: add an integer to one value of the share that one receiver was dealt."""
    table: MemoryTable = federation.tables[receiver]
    for channel, p in enumerate(federation.session.field.moduli):
        old = int(table._held[dealer][channel, row, column])
        table._held[dealer][channel, row, column] = (old + value + p // 2) % p - p // 2


def weights_of(clients: list[HiddenClient], numbers: tuple[int, int]) -> Tensor:
    """The hidden weights (P,) as integers in float64, from the shares of two clients: nobody may have both."""
    session = clients[0].session
    size = session.network.num_parameters
    shares = torch.stack([clients[i]._weights[:, 0, :size] for i in numbers], 1)
    points = [session.code.client_points[i] for i in numbers]
    opened = evaluated(session.field, points, shares, session.code.data_points[0])
    return torch.tensor([float(value) for value in session.field.lift_exact(opened)], dtype=torch.float64)


def play_to(federation: HiddenFederation, round_number: int) -> None:
    while federation.ledger.round_number < round_number:
        federation.play_hop()


def verdict(federation: HiddenFederation):
    """What all clients conclude of the dealers."""
    session = federation.session
    found = {}
    for client in range(session.num_clients):
        table = federation.tables[client]
        found[client] = examine_dealers(session, client, table, held_set_ups(session, client, table), COINS)
    return conclude(session, found).verdict


def lopsided(**settings: object) -> HiddenFederation:
    """Client 0 has nearly all rows, so nearly all rows of a batch are its own."""
    rows, labels = black_and_white(48)
    targets = torch.nn.functional.one_hot(labels, SIZES[-1])
    parts = [range(43), *([43 + i] for i in range(5))]
    data = [((rows[list(part)] * 16).long(), targets[list(part)]) for part in parts]
    session = hidden_session(SIZES, (43, 1, 1, 1, 1, 1), rounds=3, batch_size=24, **settings)  # type: ignore[arg-type]
    return HiddenFederation(session, data)


# -- a huge row -----------------------------------------------------------------------------------------------------


def test_a_huge_row_reads_weights_off_an_honest_hop() -> None:
    """Trap 3. Where dealers are trusted and one is not to be trusted: hidden weights of the second round, exactly.

    Rows with values M/4, M/16, … in one input show its weights modulo 4, 16, … : the masks are smaller than M/4.
    """
    digits, feature = 10, 7
    federation = lopsided(schedule="S4")
    session = federation.session
    before, batch = session.batch_rows(0), session.batch_rows(1)
    used = set(zip(before.dealers.tolist(), before.rows.tolist(), strict=True))
    chosen: dict[int, int] = {}  # row -> its place in the batch
    for place, (dealer, row) in enumerate(zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)):
        if dealer == 0 and (0, row) not in used:
            chosen[row] = place
    rows = sorted(chosen)[:digits]
    assert len(rows) == digits
    modulus = session.field.modulus
    for digit, row in enumerate(rows, 1):
        for receiver in range(6):
            add_to_share(federation, receiver, 0, row, feature, modulus >> 2 * digit)
    play_to(federation, 1)
    true = weights_of(federation.clients, (0, 1))[: SIZES[0] * SIZES[1]].view(SIZES[:2])[feature]
    assert not true.equal(session.hidden_plan.initial_weights(session.stream)[: 12 * 24].view(12, 24)[feature].double())
    hop = federation.ledger.current
    values = integers_of(session, hop, federation.collect().published)[0]
    mean = session.hidden_plan.num_masks << (hop.items[0].bits + session.hidden_plan.kappa - 1)
    read = [0] * SIZES[1]
    for digit, row in enumerate(rows, 1):  # W/4^j modulo 1, of which all but two bits are known
        for unit in range(SIZES[1]):
            value = values[chosen[row] * SIZES[1] + unit] - mean - read[unit] * (modulus >> 2 * digit)
            read[unit] += (4 * (value % modulus) + modulus // 2) // modulus % 4 << 2 * (digit - 1)
    signed = [(value + 2 ** (2 * digits - 1)) % 2 ** (2 * digits) - 2 ** (2 * digits - 1) for value in read]
    assert torch.tensor(signed).double().equal(true)


@pytest.mark.parametrize("size", [2, 2**20, 2**148])
def test_range_proofs_exclude_the_dealer_of_a_huge_row(size) -> None:
    federation = federation_of(*black_and_white(), SIZES, 6, rounds=4, batch_size=6, trusted_dealers=False)
    assert verdict(federation).excluded == ()
    for receiver in range(6):
        add_to_share(federation, receiver, 2, 1, 7, size)
    found = verdict(federation)
    assert found.excluded == (2,)
    session = federation.session.without(found.excluded)
    assert all(2 not in session.batch_rows(n).dealers.tolist() for n in range(4))


# -- a row off its polynomial ---------------------------------------------------------------------------------------


def off_the_polynomial(victim: int, **settings: object) -> HiddenFederation:
    """The share of client 0's row b that it deals to one victim is wrong by 1 in input b."""
    federation = lopsided(schedule="S2", **settings)
    for row in range(43):
        add_to_share(federation, victim, 0, row, row % SIZES[0], 1)
    return federation


def test_a_share_off_its_polynomial_exposes_its_receivers_share_of_the_weights() -> None:
    """Trap 10: with the coordinator and the share that the dealer itself holds, all 288 hidden weights."""
    victim = 3
    federation = off_the_polynomial(victim)
    session = federation.session
    field, points = session.field, list(session.code.client_points)
    others = [client for client in federation.clients if client.index != victim]
    for client in others:
        assert client.answer() is not None
    while federation.ledger.round_number < 1:  # the coordinator goes on without the victim, which is an outlier
        hidden = torch.stack([client._hidden_hop().blinded for client in others[:3]], 1)
        numbers = [client.index for client in others[:3]]
        code, total = session.code, federation.ledger.current.total
        opened = code.decode_sum(hidden, numbers).unsqueeze(1) if total else code.decode(hidden, numbers)
        federation.publish(field.pack(opened))
    answers = {client.index: client._hidden_hop().blinded for client in federation.clients}  # without their pads
    whole = torch.stack([answers[client.index] for client in others[:3]], 1)
    predicted = evaluated(field, [points[client.index] for client in others[:3]], whole, points[victim])
    deviation = field.sub(answers[victim], predicted)[:, : 24 * SIZES[1]].view(-1, 24, SIZES[1])  # (M,B,H)
    batch, share = session.batch_rows(1), {}
    for place, (dealer, row) in enumerate(zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)):
        if dealer == 0:
            share[row % SIZES[0]] = deviation[:, place]  # 1·[W]
    assert len(share) >= 8
    own = federation.clients[0]._weights[:, 0, : SIZES[0] * SIZES[1]].view(-1, *SIZES[:2])
    true = weights_of(federation.clients, (0, 1))[: SIZES[0] * SIZES[1]].view(SIZES[:2])
    for feature, found in share.items():
        both = torch.stack((own[:, feature], found), 1)
        opened = evaluated(field, [points[0], points[victim]], both, session.code.data_points[0])
        assert torch.tensor([float(x) for x in field.lift_exact(opened)], dtype=torch.float64).equal(true[feature])


def test_the_receiver_of_such_a_share_is_named_before_it_answers() -> None:
    """It then never answers (rule 10), or its dealer goes, if there are more of them than may lie."""
    found = verdict(off_the_polynomial(3, trusted_dealers=False))
    assert found.deviating == (3,)
    assert found.excluded == ()
    federation = off_the_polynomial(3, trusted_dealers=False)
    add_to_share(federation, 4, 0, 0, 0, 1)
    assert 0 in verdict(federation).excluded
