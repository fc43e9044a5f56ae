"""What a cheating coordinator does with a hidden run: it publishes other values, and reads rows off the next hop.

All attacks here use schedule S2, where the hop after the first one opens the squares of the first layer's outputs z.
Rows are black and white, so few bits of z are enough to know them.

- `Shift`: the coordinator publishes u + 2^t·D for the first hop. The clients go on with z + D, and the next hop opens
  z² + 2Dz + D² + r. D is as large as the published value's range allows, and then 2Dz is larger than the mask r.
- `rows_from_squares`: if the weights themselves are shifted by Δ, unit j by its input j, the squares are (z + Δx)².
"""

import contextlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dresfl.errors import Diverged, HeadroomAlarm, MessageError, Refused
from dresfl.field import unpacked
from dresfl.protocol import Session
from dresfl.protocol.hidden import answers as answering
from dresfl.protocol.hidden import opening
from dresfl.protocol.hidden.answers import HopAnswer
from dresfl.protocol.hidden.check import KEY_WORDS
from dresfl.protocol.hidden.client import HiddenClient
from dresfl.protocol.hidden.ledger import Ledger
from dresfl.protocol.hidden.plan import Item
from dresfl.protocol.hidden.published import opened_integers, split, unpack_published
from dresfl.runtimes.local.hidden import HiddenFederation

from ..least_squares import batch_places
from .runs import federation_of, integers_of

INPUTS, WIDTH, CLASSES, BATCH = 12, 200, 3, 8
LUCK = 1  # of 8 rows of 12 bits one may be guessed: that happens once in 500 attacks, and two rows once in 600,000


def black_and_white(count: int = 48, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Rows (count,INPUTS) of zeros and ones, and labels."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 2, (count, INPUTS), generator=generator).float()
    return rows, torch.randint(0, CLASSES, (count,), generator=generator)


def victims(num_clients: int = 6, *, rounds: int = 3, **settings: object) -> HiddenFederation:
    """A federation over rows in black and white, schedule S2."""
    rows, labels = black_and_white()
    fixed = {"schedule": "S2", "batch_size": BATCH, "rounds": rounds, "learning_rate": 0.01, **settings}
    return federation_of(rows, labels, (INPUTS, WIDTH, CLASSES), num_clients, **fixed)


def batch(session: Session, round_number: int = 0) -> Tensor:
    """The true rows (B·K,INPUTS) of a round: with K shards, those of the first shard's places come as drawn."""
    places = batch_places(session, torch.tensor([round_number]))[0]
    return black_and_white()[0][places]


def with_integers(session: Session, ledger: Ledger, published: bytes, item: int, added: Sequence[int]) -> bytes:
    """A hop's published bytes with integers added to the values of one item, shard after shard."""
    hop, field = ledger.current, session.field
    residues = unpack_published(session, hop, published)  # (M,k,E)
    start = sum(other.count for other in hop.items[:item])
    shards, count = residues.shape[1], hop.items[item].count
    for channel, p in enumerate(field.moduli):
        more = torch.tensor([value % p for value in added], dtype=torch.float64).view(shards, count)
        residues[channel, :, start : start + count] += more
    p = torch.tensor(field.moduli, dtype=torch.float64).view(-1, 1, 1)
    return field.pack((residues + p // 2).remainder(p) - p // 2)


class Shift:
    """A coordinator that shifts the first layer's outputs as far as their range allows, and reads them one hop on."""

    def __init__(self, session: Session, ledger: Ledger, published: bytes, shard: int | None = None) -> None:
        """published: what the first hop opened. shard: tamper with the values of this shard alone."""
        self.session, plan = session, session.hidden_plan
        item = ledger.current.items[0]
        assert item.shift is not None
        values = integers_of(session, ledger.current, published)[0]
        top = plan.num_masks << (item.bits + plan.kappa)
        ends = top >> 10, top - (top >> 10)  # just inside of what a client takes
        self.shifts = [(ends[value < top // 2] - value) >> item.shift for value in values]
        if shard is not None:
            own = range(shard * item.count, (shard + 1) * item.count)
            self.shifts = [shift if place in own else 0 for place, shift in enumerate(self.shifts)]
        self.false = with_integers(session, ledger, published, 0, [shift << item.shift for shift in self.shifts])

    def outputs(self, item: Item, squares: Sequence[int]) -> Tensor:
        """z (n,) real, where it was shifted, from what the next hop opened: z² + 2Dz + D² + r modulo M."""
        plan, modulus = self.session.hidden_plan, self.session.field.modulus
        mean = plan.num_masks << (item.bits + plan.kappa - 1)
        found = []
        for value, shift in zip(squares, self.shifts, strict=True):
            if shift:
                rest = (value - shift * shift - mean + modulus // 2) % modulus - modulus // 2
                found.append(rest / (2 * shift))
        return torch.tensor(found, dtype=torch.float64) / 2.0**plan.program.value_bits

    def rows(self, item: Item, squares: Sequence[int]) -> Tensor:
        """Rows (B,INPUTS) of zeros and ones, by least squares with the public weights W_0."""
        return rows_of_outputs(self.session, self.outputs(item, squares).view(-1, WIDTH))


def rows_of_outputs(session: Session, outputs: Tensor) -> Tensor:
    """Rows (B,INPUTS) of zeros and ones that give the first layer's outputs (B,WIDTH) best, under the public W_0."""
    matrix, bias = first_weights(session)
    every = torch.arange(2**INPUTS).unsqueeze(1) >> torch.arange(INPUTS) & 1  # all rows that there are
    return every[torch.cdist(outputs, every.double() @ matrix + bias).argmin(1)]


def first_weights(session: Session) -> tuple[Tensor, Tensor]:
    """The first layer of W_0, which is public: (INPUTS,WIDTH) and (WIDTH,), real."""
    start, p = session.hidden_plan.initial_weights(session.stream), session.network.parameters[0]
    real = start.double() / session.network.weight_scales
    return real[p.weight].view(p.fan), real[p.bias]


def weight_shift(delta: int) -> list[int]:
    """Added to the first layer's weights and biases: delta where input j meets unit j."""
    matrix = torch.zeros((INPUTS + 1, WIDTH), dtype=torch.int64)
    matrix[range(INPUTS), range(INPUTS)] = 1
    return [delta * one for one in matrix.flatten().tolist()]


def rows_from_squares(session: Session, item: Item, squares: Sequence[int]) -> Tensor:
    """Rows (B,INPUTS) from opened squares of units whose weights were shifted: x²Δ² is there or it is not."""
    plan, modulus = session.hidden_plan, session.field.modulus
    mean = plan.num_masks << (item.bits + plan.kappa - 1)
    sizes = [abs((value - mean + modulus // 2) % modulus - modulus // 2) > modulus // 8 for value in squares]
    return torch.tensor(sizes, dtype=torch.float32).view(-1, WIDTH)[:, :INPUTS]


def recovered(rows: Tensor, true: Tensor) -> int:
    """How many rows are right in every value."""
    return int((rows.to(true.dtype) == true).all(1).sum())


# -- what a coordinator reads ----------------------------------------------------------------------------------------


def opened_anyway(
    session: Session, ledger: Ledger, answers: Sequence[HopAnswer], key: bytes | None = None
) -> Tensor | None:
    """What R answers open (M,k,E), whatever the tags say; None if they are fewer.

    The key of the pads is decoded from the answers, unless somebody has told it to the coordinator.
    """
    code, field, hop = session.code, session.field, ledger.current
    chosen = list(answers)[: session.recovery_threshold]
    clients, label = [answer.client for answer in chosen], ledger.label(b"pad")
    if len(chosen) < session.recovery_threshold:
        return None
    if key is None:
        shares = torch.stack([answer.key for answer in chosen], 1)  # (M,R,2·KEY_WORDS)
        each = code.decode(shares[:, :, :KEY_WORDS].contiguous(), clients)  # (M,K,KEY_WORDS)
        last = code.decode_sum(shares[:, :, KEY_WORDS:].contiguous(), clients)
        key = answering.pad_key(field, field.concat((each, last.unsqueeze(1)), 1))
    values = []
    for answer in chosen:
        residues = unpacked(answer.residues)
        pads = opening.pad(field, key, answering.pad_label(label, answer.client), residues.shape[1])
        values.append(field.sub(residues, pads))
    together = torch.stack(values, 1)  # (M,R,E)
    return code.decode_sum(together, clients).unsqueeze(1) if hop.total else code.decode(together, clients)


def integers_read(session: Session, ledger: Ledger, opened: Tensor | None, item: int = 0) -> list[int] | None:
    """The values of one item of what was read, as signed integers."""
    if opened is None:
        return None
    return opened_integers(session.field, split(ledger.current, opened)[item].contiguous())


def answers_of(clients: Iterable[HiddenClient]) -> list[HopAnswer]:
    """The answers of all clients that give one. One that has left the run gives none."""
    found = []
    for client in clients:
        with contextlib.suppress(Refused):
            answer = client.answer()
            found += [] if answer is None else [answer]
    return found


def tell(clients: Iterable[HiddenClient], published: bytes) -> None:
    """Tell clients a hop. A client that sees at once that it is false leaves the run."""
    for client in clients:
        with contextlib.suppress(HeadroomAlarm, Diverged):
            client.receive(published)


def confirm(clients: Sequence[HiddenClient]) -> None:
    """Check C: clients tell each other their check values, and leave the run if they do not agree."""
    values = {client.index: client.check_value for client in clients if client.check_value is not None}
    for client in clients:
        with contextlib.suppress(HeadroomAlarm, MessageError):
            client.confirm(values)
