"""What the participants of a hidden run agree on, beyond the network, the code and the optimiser."""

from dataclasses import dataclass
from typing import Literal, final, get_args

from dresfl.errors import UsageError

Schedule = Literal["", "S2", "S4"]
Check = Literal["A", "C"]
Audience = Literal["everybody", "clients"]
Counts = Literal["", "accuracy", "confusion"]

DEGREES: dict[str, int] = {"S2": 2, "S4": 4}


@final
@dataclass(frozen=True)
class HiddenSettings:
    """The settings of a hidden run. Zero and the empty string mean: the plan chooses.

    >>> HiddenSettings(schedule="S4").degree
    4
    """

    schedule: Schedule = ""
    mask_degree: int = 0  # Td: masks in each sharing; 0: as many as colluders
    honest_clients: bool = False  # the agreement says that clients do not lie: R answers suffice
    check: Check = "A"  # C: also against a coordinator together with T clients
    trusted_dealers: bool = False  # the agreement says that dealt rows are in range: no range proofs
    nonnegative_inputs: bool = False  # no input, shift included, is negative: its proof takes a bit less
    kappa: int = 72  # bits by which masks are larger than what they hide
    validation_every: int = 0  # rounds between two validation losses; 0: none
    validation_share: float = 0.0  # of each client's rows, held out for the validation
    patience: int = 0  # validations without a new best loss, after which the run ends; 0: it never does
    runs: int = 1  # models that may come of one sharing
    trials: int = 0  # runs that may open their validation losses alone
    trial: bool = False  # this run is one of those
    model_for: Audience = "everybody"
    totals: Counts = "accuracy"  # what clients count on their own rows at the end and sum up; empty: nothing
    weight_bits: int = 0  # scale of weights
    value_bits: int = 0  # scale of activations
    error_bits: int = 0  # scale of errors on their way back

    def __post_init__(self) -> None:
        literals = ("schedule", Schedule), ("check", Check), ("model_for", Audience), ("totals", Counts)
        for name, known in literals:
            if getattr(self, name) not in get_args(known):
                choices = ", ".join(choice for choice in get_args(known) if choice)
                raise UsageError(f"unknown {name} {getattr(self, name)!r} of a hidden run", f"use one of {choices}")
        for name in ("mask_degree", "validation_every", "patience", "trials"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative, not {getattr(self, name)}")
        if not 40 <= self.kappa <= 128:
            raise UsageError(f"kappa must lie in 40..128, not {self.kappa}")
        if not 0 <= self.validation_share < 1:
            raise UsageError(f"validation_share must lie in [0, 1), not {self.validation_share}")
        if bool(self.validation_every) != bool(self.validation_share):
            raise UsageError(
                "a validation needs both validation_every and validation_share",
                "for example validation_every = 100 and validation_share = 0.1, or leave out both",
            )
        if self.honest_clients and self.check == "C":
            raise UsageError(
                'honest_clients = true and check = "C" contradict each other: check C takes some clients for liars, '
                "and asks more of them to confirm a hop than honest clients need to answer it",
                'leave out honest_clients, or use check = "A"',
            )
        if self.patience and not self.validation_every:
            raise UsageError("patience needs validation losses", "set validation_every and validation_share")
        if self.trial and not self.validation_every:
            raise UsageError("a trial opens validation losses, and this one has none", "set validation_every")
        if self.runs < 1:
            raise UsageError(f"runs must be at least 1, not {self.runs}")
        for name, most in (("weight_bits", 24), ("value_bits", 20), ("error_bits", 24)):
            if not 0 <= getattr(self, name) <= most:
                raise UsageError(f"{name} must lie in 1..{most}, or be 0 to be chosen; not {getattr(self, name)}")

    @property
    def degree(self) -> int:
        """d: the degree of the products that are opened. The schedule must have been chosen."""
        if not self.schedule:
            raise UsageError("the schedule is not chosen yet", "make a plan, or say S2 or S4")
        return DEGREES[self.schedule]
