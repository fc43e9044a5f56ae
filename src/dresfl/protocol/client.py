"""A client as a state machine: deal shares of its own rows, keep those of others, answer tasks."""

from collections.abc import Sequence
from typing import NoReturn, final

import torch
from torch import Tensor

from dresfl.errors import DataError, MessageError
from dresfl.field import SecretSeed
from dresfl.masking import Blinding
from dresfl.model import weights_sha256

from .messages import Answer, Share, Task
from .round import coded_answer, encode_rows
from .session import Session
from .set_up import SetUp, deal_set_up, opening_label
from .shares import AnsweredRounds, MemoryAnswers, MemoryTable, ShareTable


def rows_to_share(session: Session, client: int, inputs: Tensor, targets: Tensor) -> Tensor:
    """The rows (m,W) that a client shares: inputs, then targets. DataError if they do not fit the session."""
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
    whole = torch.cat((inputs, targets), 1)
    if session.bit_layout is not None:
        session.bit_layout.check(whole)
    return whole


@final
class Client:
    """One organisation. Its data and its secret stay here. Only shares and answers leave."""

    def __init__(
        self,
        session: Session,
        index: int,
        secret: SecretSeed,
        inputs: Tensor,
        targets: Tensor,
        held: ShareTable | None = None,
        answered: AnsweredRounds | None = None,
        *,
        mask_secret: SecretSeed | None = None,
        seeds_erased: bool = False,
    ) -> None:
        """inputs (m,F) and targets (m,C): this client's integer rows, from `Quantizer`.

        held: where this client keeps the shares of this session's sharing. answered: which rounds it has answered.
        None keeps them in memory. A client that may be restarted needs those of `dresfl.storage.ShareStore`.
        mask_secret: what the mask seeds are made from that this client deals; None: from `secret`, as in the open mode.
        seeds_erased: they cannot be made any more, and zeros are dealt in their place.
        """
        self.session = session
        self.index = index
        self._secret = secret
        self._mask_secret = None if seeds_erased else mask_secret or secret
        self._rows = rows_to_share(session, index, inputs, targets)
        self._held = MemoryTable(session) if held is None else held
        self._answered = MemoryAnswers() if answered is None else answered

    def __repr__(self) -> str:
        return f"Client({self.index}, missing={sum(map(len, self.missing()))} rows)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client holds secrets and is not pickled")

    def deal(self, receiver: int, first_row: int = 0, count: int | None = None) -> Share:
        """The share of `count` coded rows for one receiver. Its masks come from the secret: it can be made again."""
        return self.deal_to([receiver], first_row, count)[0]

    def deal_to(self, receivers: Sequence[int], first_row: int = 0, count: int | None = None) -> list[Share]:
        """The shares of `count` coded rows for several receivers: their masks are expanded once."""
        hidden = self.session.shard_rows(self.index)
        rows = torch.arange(hidden.shape[0])[first_row : None if count is None else first_row + count]
        keys = self._secret.mask_key(self.session.sharing_id).expand(rows.shape[0], 8)
        shards, layout = self._rows[hidden[rows]], self.session.bit_layout
        shards = shards if layout is None else layout.encode(shards)
        shares = encode_rows(self.session, keys, rows, shards, receivers)
        return [Share(self.index, receiver, first_row, shares[:, i]) for i, receiver in enumerate(receivers)]

    def deal_set_up(self, receivers: Sequence[int]) -> list[bytes]:
        """What receivers get besides coded rows: mask seeds, and shares of the check values (set_up.py)."""
        return deal_set_up(self.session, self.index, self._secret, receivers, self._mask_secret)

    def receive_set_up(self, dealer: int, data: bytes) -> None:
        """Keep a dealer's set-up values, if they fit. Those that are held already were looked at before."""
        if self._held.set_up(dealer) is None:
            SetUp.decode(self.session, dealer, self.index, data)
        self._held.put_set_up(dealer, data)

    def receive(self, share: Share) -> None:
        """Keep a share that a dealer made for this client."""
        if share.receiver != self.index:
            raise MessageError(f"a share for client {share.receiver} came to client {self.index}")
        if not 0 <= share.dealer < self.session.num_clients:
            raise MessageError(f"dealer {share.dealer} does not exist among {self.session.num_clients}")
        moduli, width = len(self.session.field.moduli), self.session.row_width
        count, rows = share.residues.shape[1], self.session.coded_rows(share.dealer)
        now = range(share.first_row, share.first_row + count)
        inside = 0 <= now.start < now.stop <= rows or (rows == 0 and now == range(0))
        if tuple(share.residues.shape) != (moduli, count, width) or not inside:
            raise MessageError(f"a share of shape {tuple(share.residues.shape)} at row {now.start} does not fit")
        self._held.put(share.dealer, share.first_row, share.residues)

    def missing(self) -> list[range]:
        """The rows that have not come, dealer by dealer."""
        return [rows for dealer in range(self.session.num_clients) for rows in self._held.missing(dealer)]

    @property
    def ready(self) -> bool:
        """Whether every dealer's share has come."""
        return not any(self._held.missing(dealer) for dealer in range(self.session.num_clients))

    def answer(self, task: Task) -> Answer:
        """The gradient at the task's weights on this client's coded rows of the round, or the move of its local steps.

        The client claims the round for these weights before it computes anything. So it answers no batch for a second
        set of weights.
        """
        return answer_from_shares(self.session, self.index, self._held, self._answered, task)


def answer_from_shares(session: Session, index: int, held: ShareTable, answered: AnsweredRounds, task: Task) -> Answer:
    """A client's answer to a task, not blinded. It needs the shares only, not the client's rows or its secret."""
    coded = _claimed_rows(session, index, held, answered, task, _digest(task))
    return Answer(task.round_number, index, coded_answer(session, task.round_number, task.weights, coded)[:, 0])


def encoded_answer(
    session: Session,
    index: int,
    held: ShareTable,
    answered: AnsweredRounds,
    task: Task,
    blinding: Blinding | None,
) -> bytes:
    """A client's answer to a task as a message, blinded. The gradient's parts are packed one by one.

    blinding: this client's part of the masks, which are keyed by the round and its weights. So a repeated answer is the
    same, and answers to different weights do not decode together. None: in tests and benchmarks only.
    """
    published = _digest(task)
    coded = _claimed_rows(session, index, held, answered, task, published)
    size = session.network.input_size
    if session.local is None:  # (M,1,·)
        parts = session.network.answer_parts(session.field, task.weights, coded[..., :size], coded[..., size:])
    else:
        parts = [coded_answer(session, task.round_number, task.weights, coded)]
    columns = [part[:, 0] for part in parts]  # (M,·)
    if blinding is not None:
        label = opening_label(session, task.round_number, published)
        masks = blinding.values(label, session.network.num_parameters)  # (M,P)
        sizes = [part.shape[1] for part in columns]
        columns = [
            session.field.add(part, mask) for part, mask in zip(columns, torch.split(masks, sizes, 1), strict=True)
        ]
    return Answer.encode_parts(task.round_number, index, columns, session)


def _digest(task: Task) -> bytes:
    """SHA-256 of a task's weights: what the round is claimed for, and what its masks are keyed by."""
    return bytes.fromhex(weights_sha256(task.weights))


def check_complete(session: Session, index: int, held: ShareTable) -> None:
    """Refuse to answer while shares of dealers that are not excluded are missing."""
    if any(held.missing(dealer) for dealer in session.included):
        raise MessageError(f"client {index} lacks shares and cannot answer", "finish the sharing first")


def _claimed_rows(
    session: Session, index: int, held: ShareTable, answered: AnsweredRounds, task: Task, digest: bytes
) -> Tensor:
    """The coded rows (M,1,B,W) of the task's batch. The round is claimed for weights of this digest first."""
    check_complete(session, index, held)
    if not answered.claim(task.round_number, digest):
        raise MessageError(
            f"round {task.round_number} was answered for other weights",
            "a client answers each batch for one set of weights",
        )
    batch = session.batch_rows(task.round_number)
    rows = held.rows(batch.dealers, batch.rows)  # (M,B,W)
    return rows.unsqueeze(1).to(session.device, session.field.dtype)
