"""A client as a state machine: deal shares of its own rows, keep those of others, answer tasks."""

from typing import final

import torch
from torch import Tensor

from dresfl.errors import DataError, MessageError
from dresfl.field import SecretSeed
from dresfl.model import weights_sha256

from .messages import Answer, Share, Task
from .session import Session, encode_rows


def check_rows(session: Session, client: int, inputs: Tensor, targets: Tensor) -> Tensor:
    """The rows (m,W) a client shares, inputs then targets, after checking their shape."""
    if inputs.is_floating_point() or targets.is_floating_point():
        raise DataError(f"client {client}: rows must be integers", "convert them with Quantizer")
    rows = session.client_rows[client]
    wanted = (rows, session.network.input_size), (rows, session.network.num_classes)
    if (tuple(inputs.shape), tuple(targets.shape)) != wanted:
        raise DataError(
            f"client {client}: inputs {tuple(inputs.shape)} and targets {tuple(targets.shape)} do not fit the "
            f"session, which has {wanted[0]} and {wanted[1]}",
            "the model's input shape and classes must match the data",
        )
    return torch.cat((inputs, targets), 1)


@final
class Client:
    """One organisation. Its data and secret stay here; only shares and answers leave."""

    def __init__(self, session: Session, index: int, secret: SecretSeed, inputs: Tensor, targets: Tensor) -> None:
        """inputs (m,F) and targets (m,C): this client's integer rows, from `Quantizer`."""
        self.session = session
        self.index = index
        self._secret = secret
        self._rows = check_rows(session, index, inputs, targets)
        self._held: dict[int, Tensor] = {}
        self._answered: dict[int, str] = {}  # each round's weights: no batch is answered for a second set
        self._missing: dict[int, set[int]] = {
            dealer: set(range(session.coded_rows(dealer))) for dealer in range(session.num_clients)
        }

    def __repr__(self) -> str:
        return f"Client({self.index}, missing={sum(map(len, self._missing.values()))} rows)"

    def deal(self, receiver: int, first_row: int = 0, count: int | None = None) -> Share:
        """The share of `count` coded rows for one receiver. The masks come from the secret, so it is repeatable."""
        hidden = self.session.shard_rows(self.index)
        rows = torch.arange(hidden.shape[0])[first_row : None if count is None else first_row + count]
        keys = self._secret.mask_key(self.session.session_id).expand(rows.shape[0], 8)
        shares = encode_rows(self.session, keys, rows, self._rows[hidden[rows]], [receiver])
        return Share(self.index, receiver, first_row, shares[:, 0])

    def receive(self, share: Share) -> None:
        """Keep a share that a dealer made for this client."""
        if share.receiver != self.index:
            raise MessageError(f"a share for client {share.receiver} came to client {self.index}")
        if not 0 <= share.dealer < self.session.num_clients:
            raise MessageError(f"dealer {share.dealer} does not exist among {self.session.num_clients}")
        moduli, width = len(self.session.field.moduli), self.session.row_width
        count, rows = share.residues.shape[1], self.session.coded_rows(share.dealer)
        now = range(share.first_row, share.first_row + count)
        if tuple(share.residues.shape) != (moduli, count, width) or not 0 <= now.start < now.stop <= rows:
            raise MessageError(f"a share of shape {tuple(share.residues.shape)} at row {now.start} does not fit")
        if share.dealer not in self._held:
            self._held[share.dealer] = torch.zeros((moduli, rows, width), dtype=torch.int32)
        held, coming = self._held[share.dealer], share.residues.to("cpu", torch.int32)
        known = [row for row in now if row not in self._missing[share.dealer]]
        if known and not torch.equal(held[:, known], coming[:, [row - now.start for row in known]]):
            raise MessageError(f"dealer {share.dealer} sent other residues for rows it had shared already")
        held[:, now.start : now.stop] = coming
        self._missing[share.dealer].difference_update(now)

    @property
    def ready(self) -> bool:
        """Whether every dealer's share has come."""
        return not any(self._missing.values())

    def answer(self, task: Task) -> Answer:
        """The gradient of the task's weights on this client's coded rows of the round's batch."""
        if not self.ready:
            raise MessageError(f"client {self.index} lacks shares and cannot answer", "finish the sharing first")
        session = self.session
        weights = weights_sha256(task.weights)
        if self._answered.setdefault(task.round_number, weights) != weights:
            raise MessageError(
                f"round {task.round_number} was answered for other weights",
                "a client answers each batch for one set of weights",
            )
        batch = session.batch_rows(task.round_number)
        rows = [self._held[d][:, r] for d, r in zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True)]
        coded = torch.stack(rows, 1).unsqueeze(1).to(session.device, session.field.dtype)  # (M,1,B,W)
        size = session.network.input_size
        gradient = session.network.gradient(session.field, task.weights, coded[..., :size], coded[..., size:])
        return Answer(task.round_number, self.index, gradient[:, 0])
