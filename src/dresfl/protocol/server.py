"""The server as a state machine: send tasks, take the first R valid answers, decode, step. No clock, no I/O."""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from dresfl.errors import CheckpointError, HeadroomAlarm, MessageError
from dresfl.field import Domain
from dresfl.optimizers import Optimizer, l2_norm
from dresfl.quantize import stochastic_round

from .messages import Answer, Task
from .session import Session


@final
@dataclass(frozen=True)
class RoundRecord:
    """How a round ended. `refused`: the headroom alarm rang, the weights were left alone."""

    round_number: int
    outcome: Literal["stepped", "skipped", "refused"]
    survivors: tuple[int, ...]
    peak_bits: float = 0.0  # log2 of the largest decoded integer
    gradient_norm: float = 0.0
    reason: str = ""


@final
class Server:
    """The coordinator. It sees the weights, the answers and the decoded gradients; never a row."""

    def __init__(self, session: Session, optimizer: Optimizer, rounds: int) -> None:
        self.session = session
        self.optimizer = optimizer
        self.rounds = rounds
        self.round_number = 0
        self.weights = session.network.initial_weights(session.stream)  # (P,) int64
        self._state = optimizer.initial_state(session.network.num_parameters)
        self._answers: dict[int, Tensor] = {}

    @property
    def done(self) -> bool:
        return self.round_number >= self.rounds

    def task(self) -> Task:
        """What to send to every client that can be reached."""
        return Task(self.round_number, self.weights)

    def receive(self, answer: Answer) -> RoundRecord | None:
        """Take one answer. At the R-th of the current round: decode, step, and return the round's record.

        An answer to another round is late and dropped. A second one of the same client is refused.
        """
        if answer.round_number != self.round_number:
            return None
        if answer.client in self._answers:
            raise MessageError(f"client {answer.client} answered round {self.round_number} twice")
        wanted = (len(self.session.field.moduli), self.session.network.num_parameters)
        if tuple(answer.residues.shape) != wanted:
            raise MessageError(f"an answer of shape {tuple(answer.residues.shape)} came, {wanted} was expected")
        self._answers[answer.client] = answer.residues
        if len(self._answers) < self.session.recovery_threshold:
            return None
        survivors = sorted(self._answers)
        replies = torch.stack([self._answers[j] for j in survivors], 1)  # (M,R,P)
        return self.apply(self.session.code.decode_sum(replies, survivors), tuple(survivors))

    def skip(self) -> RoundRecord:
        """Close a round that got fewer than R answers: no step, as in the paper."""
        got = tuple(sorted(self._answers))
        reason = f"{len(got)} of {self.session.recovery_threshold} answers"
        return self._close(RoundRecord(self.round_number, "skipped", got, reason=reason))

    def apply(self, total: Tensor, survivors: tuple[int, ...]) -> RoundRecord:
        """Lift the summed gradient (M,P) and step: w ← w − Q(2^lw · update)."""
        session, network = self.session, self.session.network
        try:
            integers = session.field.lift(total)  # (P,), correctly rounded
        except HeadroomAlarm as alarm:
            return self._close(RoundRecord(self.round_number, "refused", survivors, reason=str(alarm)))
        peak = float(integers.abs().max())
        gradient = integers / network.gradient_scales / (session.batch_size * session.num_shards)
        rate = self.optimizer.rate(self.round_number, self.rounds)
        reals = self.weights.to(torch.float64) / network.weight_scales
        update, self._state = self.optimizer.update(self._state, rate, gradient, reals)
        noise = session.stream.uniform(Domain.ROUNDING, self.round_number, network.num_parameters)
        self.weights = self.weights - stochastic_round(update * network.weight_scales, noise)
        return self._close(
            RoundRecord(
                self.round_number,
                "stepped",
                survivors,
                peak_bits=math.log2(peak) if peak else 0.0,
                gradient_norm=l2_norm(gradient),
            )
        )

    def _close(self, record: RoundRecord) -> RoundRecord:
        self._answers = {}
        self.round_number += 1
        return record

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed server needs, between rounds. Nothing in it is secret to the server."""
        moments = {f"optimizer.{name}": value for name, value in self._state.items()}
        return {"round": torch.tensor([self.round_number]), "weights": self.weights, **moments}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from `state()`; the session and optimiser must be the same."""
        expected = {name: value.shape for name, value in self.state().items()}
        found = {name: value.shape for name, value in state.items()}
        if expected != found:
            raise CheckpointError(
                "the checkpoint does not fit this model and optimiser",
                "resume with the run's own config.toml",
            )
        self.round_number = int(state["round"])
        self.weights = state["weights"].clone()
        self._state = {name: state[f"optimizer.{name}"].clone() for name in self._state}
        self._answers = {}
