"""The server as a state machine: send tasks, take the first R valid answers, decode, step. No clock, no I/O."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from dresfl.errors import CheckpointError, MessageError
from dresfl.field import Domain
from dresfl.optimizers import Optimizer, State, squared_norm
from dresfl.quantize import stochastic_round

from .messages import Answer, Task
from .session import Session

_COLUMNS = 2**12  # coordinates decoded at a time

WEIGHT_LIMIT = 2.0**31  # a task carries weights as 32-bit integers


@final
@dataclass(frozen=True)
class RoundRecord:
    """How a round ended. `refused`: the headroom alarm rang or the training diverged; the weights were left alone."""

    round_number: int
    outcome: Literal["stepped", "skipped", "refused"]
    survivors: tuple[int, ...]
    peak_bits: float = 0.0  # log2 of the largest decoded integer
    gradient_norm: float = 0.0
    reason: str = ""


def stepped(round_number: int, survivors: tuple[int, ...], peak: float, squared: float) -> RoundRecord:
    """The record of a round that moved the weights."""
    bits = math.log2(peak) if peak else 0.0
    return RoundRecord(round_number, "stepped", survivors, peak_bits=bits, gradient_norm=math.sqrt(squared))


@final
class Server:
    """The coordinator. It is sent answers, never a row; what answers can reveal stands in the threat model, N1."""

    def __init__(self, session: Session, optimizer: Optimizer, rounds: int) -> None:
        self.session = session
        self.optimizer = optimizer
        self.rounds = rounds
        self.round_number = 0
        self.weights = session.network.initial_weights(session.stream).to(session.device)  # (P,) int64
        self._state = optimizer.initial_state(session.network.num_parameters, session.device)
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
        if self.done or answer.round_number != self.round_number:
            return None
        if not 0 <= answer.client < self.session.num_clients:
            raise MessageError(f"client {answer.client} does not exist among {self.session.num_clients}")
        if answer.client in self._answers:
            raise MessageError(f"client {answer.client} answered round {self.round_number} twice")
        wanted = (len(self.session.field.moduli), self.session.network.num_parameters)
        if tuple(answer.residues.shape) != wanted:
            raise MessageError(f"an answer of shape {tuple(answer.residues.shape)} came, {wanted} was expected")
        self._answers[answer.client] = answer.residues
        if len(self._answers) < self.session.recovery_threshold:
            return None
        return self._decode(tuple(sorted(self._answers)))

    def _decode(self, survivors: tuple[int, ...]) -> RoundRecord:
        """Decode and step, a block of columns at a time: beside the answers themselves this takes hardly any memory."""
        code, field = self.session.code, self.session.field
        coefficients = code.sum_decoder(survivors)  # (M,R)
        blocks = []
        for start in range(0, self.session.network.num_parameters, _COLUMNS):
            columns = [self._answers[j][:, start : start + _COLUMNS] for j in survivors]
            blocks.append(field.decode_lift(coefficients, torch.stack(columns, 1)))  # (M,R,columns)
        values, exceeded = zip(*blocks, strict=True)
        return self._step(torch.cat(values), int(sum(exceeded)), survivors)

    def skip(self) -> RoundRecord:
        """Close a round that got fewer than R answers: no step, as in the paper."""
        got = tuple(sorted(self._answers))
        reason = f"{len(got)} of {self.session.recovery_threshold} answers"
        return self.close(RoundRecord(self.round_number, "skipped", got, reason=reason))

    def apply(self, total: Tensor, survivors: tuple[int, ...]) -> RoundRecord:
        """Take a summed gradient (M,P) that was computed without coding, and step."""
        integers, exceeded = self.session.field.lift_checked(total)
        return self._step(integers, int(exceeded), survivors)

    def _step(self, integers: Tensor, exceeded: int, survivors: tuple[int, ...]) -> RoundRecord:
        """Step by the decoded integers (P,): w ← w − Q(2^lw · update); or refuse, if any of them is out of range."""
        if exceeded:
            bits = math.log2(self.session.field.value_bound)
            reason = f"{exceeded} of {integers.numel()} decoded values exceed {bits:.0f} bits"
            return self.close(RoundRecord(self.round_number, "refused", survivors, reason=reason))
        steps = self._state["steps"] + 1
        rate = self.optimizer.rate(self.round_number, self.rounds)
        factors = self.optimizer.factors(rate, int(steps))
        noise = self.session.device_stream.uniform(Domain.ROUNDING, self.round_number, integers.numel())
        moved, moments, (peak, norm, reach) = self.step(self.weights, self._state, integers, factors, noise)
        if not float(reach) < WEIGHT_LIMIT:
            reason = f"a weight would leave ±2^31 ({float(reach):.3g}): the training diverged"
            return self.close(RoundRecord(self.round_number, "refused", survivors, reason=reason))
        self.weights, self._state = moved, {**moments, "steps": steps}
        return self.close(stepped(self.round_number, survivors, float(peak), float(norm)))

    def step(
        self, weights: Tensor, state: State, integers: Tensor, factors: Sequence[float] | Tensor, noise: Tensor
    ) -> tuple[Tensor, State, tuple[Tensor, Tensor, Tensor]]:
        """One step as a function: decoded integers (P,) -> weights, moments, and what to watch.

        Watched: the largest decoded integer, the squared norm of the gradient, the largest weight.
        Tensors in, tensors out, nothing looked at: the same code runs eagerly and inside a captured graph.
        """
        session, network = self.session, self.session.network
        device = str(integers.device)
        weight_scales, gradient_scales = network.weight_scales_on(device), network.gradient_scales_on(device)
        gradient = integers / gradient_scales * (1.0 / (session.batch_size * session.num_shards))
        before = weights.to(torch.float64)
        update, moments = self.optimizer.update(state, factors, gradient, before / weight_scales)
        after = before - stochastic_round(update * weight_scales, noise)
        watched = (integers.abs().max(), squared_norm(gradient), after.abs().max())
        return after.to(torch.int64), moments, watched

    @property
    def steps(self) -> int:
        """How many steps were taken: skipped and refused rounds do not count."""
        return int(self._state["steps"])

    @property
    def moments(self) -> State:
        """The optimiser's tensors (P,)."""
        return {name: value for name, value in self._state.items() if name != "steps"}

    def adopt(self, weights: Tensor, moments: State, steps: int) -> None:
        """Take over the result of `steps` steps that a driver made with `step`, before it closes their rounds."""
        self.weights = weights
        self._state = {**moments, "steps": self._state["steps"] + steps}

    def close(self, record: RoundRecord) -> RoundRecord:
        """End the current round and begin the next."""
        self._answers = {}
        self.round_number += 1
        return record

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed server needs, between rounds. Nothing in it is secret to the server."""
        moments = {f"optimizer.{name}": value for name, value in self._state.items()}
        whole = {"round": torch.tensor([self.round_number]), "weights": self.weights, **moments}
        return {name: value.cpu() for name, value in whole.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from `state()`; the session and optimiser must be the same."""
        expected = {name: (value.shape, value.dtype) for name, value in self.state().items()}
        found = {name: (value.shape, value.dtype) for name, value in state.items()}
        if expected != found:
            raise CheckpointError(
                "the checkpoint does not fit this model and optimiser",
                "resume with the run's own config.toml",
            )
        taken, number = int(state["optimizer.steps"]), int(state["round"])
        in_range = 0 <= taken <= number <= self.rounds and bool((state["weights"].double().abs() < WEIGHT_LIMIT).all())
        if not in_range or not all(bool(value.isfinite().all()) for value in state.values()):
            raise CheckpointError("the checkpoint holds impossible values", "delete the run's folder to start over")
        self.round_number = number
        self.weights = state["weights"].to(self.weights.device, copy=True)
        self._state = {name: state[f"optimizer.{name}"].to(old.device, copy=True) for name, old in self._state.items()}
        self._answers = {}
