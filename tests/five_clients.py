"""A small federation whose shares are worth keeping: five clients, slices of three rows."""

import torch
import torch.nn.functional as F

from dresfl.federation import Agreement, make_session
from dresfl.federation.sealed_slices import missing_slices
from dresfl.field import SecretSeed
from dresfl.model import Dense, Square
from dresfl.protocol import Client, num_slices, slice_range

ROWS = (7, 3, 4, 8, 5)
AGREEMENT = Agreement(
    (Dense(3), Square(), Dense(2)),
    (3,),
    5,
    50,
    input_bits=3,
    weight_bits=6,
    batch_size=4,
    seed=5,
    rows_can_be_computed="accepted",
)
NONCE = b"n" * 32


def session_of(run=b"", nonce=NONCE, agreement=AGREEMENT):
    return make_session(agreement, ROWS, nonce, run)


SLICE_BYTES = 3 * len(session_of().field.moduli) * 5 * session_of().field.residue_bytes


def rows_of(index, change=0):
    """A client's integer inputs and one-hot targets."""
    generator = torch.Generator().manual_seed(index)
    inputs = torch.randint(0, 9, (ROWS[index], 3), generator=generator, dtype=torch.int32)
    inputs[0, 0] += change
    return inputs, F.one_hot(torch.randint(2, (ROWS[index],), generator=generator), 2).to(torch.int32)


def dealers(session, own=None, index=0):
    """The clients of a session, in memory, with fixed secrets, but for the one at `index` if its secret is given."""
    seeds = [SecretSeed(bytes([i + 1]) * 32) for i in range(len(ROWS))]
    if own is not None:
        seeds[index] = own
    return [Client(session, i, seed, *rows_of(i)) for i, seed in enumerate(seeds)]


def fetch(session, clients, client, table):
    """Deal the missing slices, and only those; return which they were."""
    fetched = [(d, n) for d in range(len(ROWS)) for n in missing_slices(session, d, table)]
    for dealer, number in fetched:
        rows = slice_range(session, dealer, number)
        if number == num_slices(session, dealer) - 1:
            client.receive_set_up(dealer, clients[dealer].deal_set_up([client.index])[0])
        client.receive(clients[dealer].deal(client.index, rows.start, len(rows)))
    return fetched


def all_slices(session):
    return [(d, n) for d in range(len(ROWS)) for n in range(num_slices(session, d))]
