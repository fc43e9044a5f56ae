"""The training as a state machine, at the coordinator: tasks out, answers in, a step for enough answers of a round.

No clock and no I/O: a runtime decides when a round has waited long enough and calls `skip`.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from dresfl.errors import CheckpointError, MessageError, UsageError
from dresfl.field import Domain, Residues
from dresfl.optimizers import Optimizer, State

from .answer_check import AnswerCheck
from .messages import Answer, Task
from .round import Step, decode_answers, step, step_in_blocks
from .session import Session

WEIGHT_LIMIT = 2.0**31  # a task carries weights as 32-bit integers


@final
@dataclass(frozen=True)
class RoundRecord:
    """How a round ended.

    `refused`: a decoded value left its range, too many answers were lies, or the training diverged. The weights then
    stay as they were.
    """

    round_number: int
    outcome: Literal["stepped", "skipped", "refused"]
    survivors: tuple[int, ...]  # the clients whose answers were decoded
    peak_bits: float = 0.0  # log2 of the largest decoded integer
    gradient_norm: float = 0.0
    reason: str = ""
    liars: tuple[int, ...] = ()  # the clients whose answers were found to be lies, and left out


def stepped(round_number: int, survivors: tuple[int, ...], peak: float, squared_norm: float) -> RoundRecord:
    """The record of a round that moved the weights."""
    bits = math.log2(peak) if peak else 0.0
    return RoundRecord(round_number, "stepped", survivors, peak_bits=bits, gradient_norm=math.sqrt(squared_norm))


@final
class Training:
    """The weights, the round and the optimiser's state, as the coordinator keeps them.

    It is sent answers, never a row. The threat model says what answers can reveal.
    """

    def __init__(self, session: Session, optimizer: Optimizer, rounds: int) -> None:
        if session.local is not None and (session.local.optimizer, session.local.rounds) != (optimizer, rounds):
            raise UsageError(
                "the local steps were planned for another optimiser or other rounds", "use make_local_plan"
            )
        self.session = session
        self.optimizer = optimizer
        self.rounds = rounds
        self.round_number = 0
        self.weights = session.network.initial_weights(session.stream).to(session.device)  # (P,) int64
        self._state = optimizer.initial_state(session.network.num_parameters, session.device)
        self._lies = torch.zeros(session.num_clients, dtype=torch.int64)  # by client: rounds in which it lied
        self._check: AnswerCheck | None = None  # of the current round, where liars are allowed for
        self._answers: dict[int, Residues] = {}  # packed ones share the memory of the messages they came in

    @property
    def done(self) -> bool:
        """Whether every round has ended."""
        return self.round_number >= self.rounds

    def task(self) -> Task:
        """What to send to every client that can be reached."""
        return Task(self.round_number, self.weights)

    def receive(self, answer: Answer) -> RoundRecord | None:
        """Take one answer. At the last one needed of the current round: decode, step, and return the round's record.

        Where A > 0, liars are looked for first, and R of the other answers are decoded. An answer to another round is
        late and dropped. A second one of the same client is refused.
        """
        if self.done or answer.round_number != self.round_number:
            return None
        if not 0 <= answer.client < self.session.num_clients:
            raise MessageError(f"client {answer.client} does not exist among {self.session.num_clients}")
        if answer.client in self._answers:
            raise MessageError(f"client {answer.client} answered round {self.round_number} twice")
        size = self.session.network.num_parameters
        wanted = (len(self.session.field.moduli), size)
        if tuple(answer.residues.shape) != wanted:
            raise MessageError(f"an answer of shape {tuple(answer.residues.shape)} came, {wanted} was expected")
        self._answers[answer.client] = answer.residues
        if self.session.parameters.max_liars:
            self._check = self._check or AnswerCheck(self.session)
            self._check.add(answer.client, answer.residues)
        if len(self._answers) < self.session.answers_needed:
            return None
        liars = self._check.liars() if self._check is not None else ()
        if liars is None:
            return self._refuse_lies()
        self._lies[list(liars)] += 1
        return replace(self._decode([j for j in sorted(self._answers) if j not in liars]), liars=liars)

    def _refuse_lies(self) -> RoundRecord:
        count, most = len(self._answers), self.session.parameters.max_liars
        reason = f"more than {most} of {count} answers are lies, so that nobody can say which"
        return self.close(RoundRecord(self.round_number, "refused", (), reason=reason))

    def _decode(self, honest: list[int]) -> RoundRecord:
        """Decode the answers of the first R of these clients, and step."""
        survivors = tuple(honest[: self.session.recovery_threshold])
        coefficients = self.session.code.sum_decoder(survivors)
        decoded = decode_answers(self.session.field, coefficients, [self._answers[j] for j in survivors])
        self._answers, self._check = {}, None  # the step needs memory, too
        return self.take_step(*decoded, survivors)

    def skip(self) -> RoundRecord:
        """Close a round that got too few answers: no step, as in the paper."""
        got = tuple(sorted(self._answers))
        reason = f"{len(got)} of {self.session.answers_needed} answers"
        return self.close(RoundRecord(self.round_number, "skipped", got, reason=reason))

    def apply(self, total: Tensor, survivors: tuple[int, ...]) -> RoundRecord:
        """Take a summed gradient (M,P) that was computed without coding, and step."""
        return self.take_step(*self.session.field.lift_checked(total), survivors)

    def take_step(self, integers: Tensor, exceeded: Tensor, survivors: tuple[int, ...]) -> RoundRecord:
        """Step by the decoded integers (P,), or refuse the round if any of them is out of range.

        exceeded: how many are. survivors: the clients whose answers were decoded.
        """
        number = self.round_number
        if int(exceeded):
            bits = math.log2(self.session.field.value_bound)
            reason = f"{int(exceeded)} of {integers.numel()} decoded values exceed {bits:.0f} bits"
            return self.close(RoundRecord(number, "refused", survivors, reason=reason))
        factors = self._factors(number)
        now = self.session, self.optimizer, self.weights, self.moments, integers, factors
        if integers.device.type == "cpu":
            taken = step_in_blocks(*now, number)
        else:
            taken = step(*now, self.session.device_stream.uniform(Domain.ROUNDING, number, integers.numel()))
        if not float(taken.reach) < WEIGHT_LIMIT:
            reason = f"a weight would leave ±2^31 ({float(taken.reach):.3g}): the training diverged"
            return self.close(RoundRecord(number, "refused", survivors, reason=reason))
        self.adopt(taken.weights, taken.moments, 1)
        return self.close(stepped(number, survivors, float(taken.peak), self._squared_norm(number, taken)))

    def _factors(self, round_number: int) -> tuple[float, ...]:
        """The optimiser's, for the next step. The move of local steps is taken as it is: its rate is in it."""
        local = self.session.local
        rate = 1.0 if local is not None else self.optimizer.rate(round_number, self.rounds)
        return self.optimizer.factors(rate, self.steps + 1)

    def _squared_norm(self, round_number: int, taken: Step) -> float:
        """Of the mean gradient; with local steps of the sum of their s mean gradients: the move over its rate."""
        local = self.session.local
        rate = 1.0 if local is None else local.rate(round_number)
        return float(taken.squared_norm) / rate**2 if rate else 0.0

    @property
    def lies(self) -> dict[int, int]:
        """In how many rounds each client was found to lie; clients that were not are left out."""
        return {client: count for client, count in enumerate(self._lies.tolist()) if count}

    @property
    def steps(self) -> int:
        """How many steps were taken: skipped and refused rounds do not count."""
        return int(self._state["steps"])

    @property
    def moments(self) -> State:
        """The optimiser's tensors (P,)."""
        return {name: value for name, value in self._state.items() if name != "steps"}

    def adopt(self, weights: Tensor, moments: State, steps: int) -> None:
        """Take over the result of `steps` steps. Whoever made them closes their rounds."""
        self.weights = weights
        self._state = {**moments, "steps": self._state["steps"] + steps}

    def close(self, record: RoundRecord) -> RoundRecord:
        """End the current round and begin the next."""
        self._answers, self._check = {}, None
        self.round_number += 1
        return record

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed training needs, between rounds. Nothing in it is secret to the coordinator."""
        moments = {f"optimizer.{name}": value for name, value in self._state.items()}
        whole = {"round": torch.tensor([self.round_number]), "weights": self.weights, **moments}
        if self.session.parameters.max_liars:
            whole["lies"] = self._lies
        return {name: value.cpu() for name, value in whole.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from `state()`; the session and the optimiser must be the same."""
        expected = {name: (value.shape, value.dtype) for name, value in self.state().items()}
        found = {name: (value.shape, value.dtype) for name, value in state.items()}
        if expected != found:
            raise CheckpointError(
                "the checkpoint does not fit this model and optimiser",
                "resume with the run's own config.toml",
            )
        lies = state.get("lies", self._lies)
        taken, number = int(state["optimizer.steps"]), int(state["round"])
        in_range = 0 <= taken <= number <= self.rounds and bool((state["weights"].double().abs() < WEIGHT_LIMIT).all())
        in_range = in_range and 0 <= int(lies.min()) <= int(lies.max()) <= number
        if not in_range or not all(bool(value.isfinite().all()) for value in state.values()):
            raise CheckpointError("the checkpoint holds impossible values", "delete the run's folder to start over")
        self.round_number = number
        self.weights = state["weights"].to(self.weights.device, copy=True)
        self._state = {name: state[f"optimizer.{name}"].to(old.device, copy=True) for name, old in self._state.items()}
        self._lies = lies.clone()
        self._answers, self._check = {}, None
