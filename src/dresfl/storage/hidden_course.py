"""How far a hidden run is, as its folder keeps it: counters and losses for the coordinator and for simulations."""

from typing import Protocol, final

import torch
from torch import Tensor

from dresfl.errors import CheckpointError
from dresfl.protocol import RoundRecord, Session


class EngineState(Protocol):
    """What an engine on clear values keeps of a hidden run between rounds."""

    def state(self) -> dict[str, Tensor]:
        """All that a resumed run needs."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from `state()`. CheckpointError if it does not fit."""


@final
class HiddenCourse:
    """How far a hidden run is, for its folder: rounds done, validation losses, and at the end the weights.

    What decides the run is elsewhere: with the clients, and in the coordinator's published hops. An engine that holds
    clear values puts its own state beside this.
    """

    def __init__(self, session: Session, engine: EngineState | None = None) -> None:
        """engine: what a simulation on clear values has to keep, too."""
        self.session, self._engine = session, engine
        self.rounds = session.hidden_plan.rounds
        self.round_number = 0
        self.losses: dict[int, float] = {}  # rounds done: the validation loss that was opened then
        self.lies: dict[int, int] = {}  # client: hops in which its answer was left out
        self.weights: Tensor | None = None
        self.ended = False

    @property
    def done(self) -> bool:
        """Whether the run has ended: after its last round, or by the stopping rule."""
        return self.ended or self.round_number >= self.rounds

    def count(self, record: RoundRecord) -> None:
        """A round is over."""
        self.round_number = record.round_number + 1
        for client in record.liars:
            self.lies[client] = self.lies.get(client, 0) + 1

    def state(self) -> dict[str, Tensor]:
        opened = sorted(self.losses.items())
        lies = [self.lies.get(client, 0) for client in range(self.session.num_clients)]
        own = {
            "round": torch.tensor([self.round_number]),
            "loss_rounds": torch.tensor([done for done, _ in opened], dtype=torch.int64),
            "losses": torch.tensor([loss for _, loss in opened], dtype=torch.float64),
            "lies": torch.tensor(lies),
        }
        engine = {} if self._engine is None else self._engine.state()
        return {**own, **{f"engine.{name}": tensor.cpu() for name, tensor in engine.items()}}

    def restore(self, state: dict[str, Tensor]) -> None:
        try:
            number, lies = int(state["round"]), state["lies"].tolist()
            losses = dict(zip(state["loss_rounds"].tolist(), state["losses"].tolist(), strict=True))
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(
                "the checkpoint is not that of a hidden run", "start over in another folder"
            ) from error
        if not 0 <= number <= self.rounds or not all(0 < done <= number for done in losses):
            raise CheckpointError("the checkpoint holds impossible values", "delete the run's folder to start over")
        if self._engine is not None:
            prefix = "engine."
            self._engine.restore({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})
        self.round_number, self.losses = number, losses
        self.lies = {client: count for client, count in enumerate(lies) if count}
