"""What each mode shows to whom, in words. Plans, logs and audits say the same, because they take it from here."""

from dataclasses import dataclass
from typing import final

from .hidden.settings import HiddenSettings

OPEN_MODE_MEANS = (
    "every client is sent the weights of every round, and the coordinator also sees each round's gradient: rows of "
    "others can be computed from them"
)
HIDDEN_MODE_MEANS = (
    "nobody sees a gradient or a weight before the end. Then the final model is opened; before that only the "
    "validation losses that the agreement names"
)
TRUSTED_DEALERS_MEANS = (
    "rows are not proved to be in range: a client that deals one huge row could read weights off the hops that follow, "
    "and the agreement says that none does"
)


@final
@dataclass(frozen=True)
class Protection:
    """One kind of onlooker, and what a mode keeps from it."""

    against: str
    open_mode: str
    hidden_mode: str


def protections(max_colluders: int, max_liars: int, hidden: HiddenSettings | None = None) -> tuple[Protection, ...]:
    """What the modes protect, for a federation with T colluders and A liars. hidden: the settings of the hidden mode.

    >>> [protection.against for protection in protections(1, 0)]
    ['clients', 'the coordinator', 'lying clients', 'dealers of false rows', 'readers of the model']
    """
    settings = hidden or HiddenSettings()
    coalition = _coalition(max_colluders)
    shares = f"{coalition}: nothing can be learned from shares"
    together = f", also together with {coalition}"
    if max_colluders == 0:
        shares, together = "no masks: every client can read the rows of others", ""
    lies = "not found: a false answer can change a step"
    if max_liars:
        lies = f"up to {max_liars} in a round are found and outvoted; more of them, coordinated, can force a wrong step"
    dealers = "shares of no polynomial are found. A row of huge values rings the alarm, if anything does"
    return (
        Protection(
            "clients",
            f"{shares}. But rows can be computed from the weights of the rounds",
            f"{coalition}: nothing can be learned before the end, and then only the final model"
            if max_colluders
            else "needs at least one colluder",
        ),
        Protection(
            "the coordinator",
            f"it learns the gradient of each round and nothing else{together}. But rows can be computed from gradients",
            _against_coordinator(coalition, settings),
        ),
        Protection("lying clients", lies, _against_lies(coalition, max_liars, settings)),
        Protection("dealers of false rows", dealers, _against_dealers(settings)),
        Protection(
            "readers of the model",
            "no protection: the model is not differentially private",
            "no protection: the model is not differentially private",
        ),
    )


def _coalition(max_colluders: int) -> str:
    return "one client" if max_colluders == 1 else f"up to {max_colluders} clients together"


def _against_coordinator(coalition: str, settings: HiddenSettings) -> str:
    learns = "it learns the final model and the agreed validation losses, and nothing else"
    if settings.model_for == "clients":
        learns = "it learns the agreed validation losses and nothing else; the model is sealed to the clients"
    if settings.check == "C":
        return f"{learns}, also if it cheats together with {coalition}"
    return f"{learns}, also together with {coalition}. If it cheats alone, all further answers are noise to it"


def _against_lies(coalition: str, max_liars: int, settings: HiddenSettings) -> str:
    if settings.honest_clients:
        return "not found: the agreement says that clients are honest"
    found = f"; up to {max_liars} in a hop are found and left out" if max_liars else "; the run then waits"
    return f"{coalition} may lie: nothing that depends on a lie is published{found}"


def _against_dealers(settings: HiddenSettings) -> str:
    if settings.trusted_dealers:
        return f"not found: {TRUSTED_DEALERS_MEANS}"
    return "found: every dealer proves that its rows and labels are in range"


def could_see(max_colluders: int, hidden: HiddenSettings | None = None) -> dict[str, str]:
    """What each kind of participant and onlooker could see of a run, in words. hidden: None for the open mode."""
    masked = "which alone tells it nothing"
    if max_colluders > 1:
        masked = f"from which up to {max_colluders} clients together learn nothing"
    if max_colluders == 0:
        masked = "without masks, so it shows the rows"
    return {
        "each client": f"its own rows; one share of every client's rows, {masked}; row counts and batches; "
        + ("the weights of every round. Rows of others can be computed from the weights" if hidden is None else _AFTER),
        "the coordinator": "row counts and batches; who answered when; "
        + (_OPEN_COORDINATOR if hidden is None else _hidden_coordinator(hidden))
        + ". Shares pass it sealed",
        "whoever carries the messages": (
            "who sends how much to whom, and when; nothing of what is in it. Over Flower, the SuperLink sees what the "
            "coordinator sees"
        ),
        "readers of the model": "the final weights. They are not differentially private",
    }


_AFTER = (
    "values under one-time masks, which tell it nothing; the agreed validation losses; after the end the final model"
)
_OPEN_COORDINATOR = (
    "the weights and the gradient of every round, and nothing else of the answers, which are blinded. Rows can be "
    "computed from the gradients"
)


def _hidden_coordinator(settings: HiddenSettings) -> str:
    end = "after the end the final model" if settings.model_for == "everybody" else "not the model, which is sealed"
    return f"values under one-time masks, which tell it nothing; the agreed validation losses; {end}"


SIMULATION_SEES = {"this process": "every row, every share and every secret. A simulation protects nobody"}
