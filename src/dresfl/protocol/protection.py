"""What each mode shows to whom, in words. Plans, logs and audits say the same, because they take it from here."""

from dataclasses import dataclass
from typing import final

OPEN_MODE_MEANS = (
    "every client is sent the weights of every round, and the coordinator also sees each round's gradient: rows of "
    "others can be computed from them"
)
_PLANNED = "planned, not there yet"


@final
@dataclass(frozen=True)
class Protection:
    """One kind of onlooker, and what a mode keeps from it."""

    against: str
    open_mode: str
    hidden_mode: str = _PLANNED


def protections(max_colluders: int, max_liars: int) -> tuple[Protection, ...]:
    """What the modes protect, for a federation with T colluders and A liars.

    >>> [protection.against for protection in protections(1, 0)]
    ['clients', 'the coordinator', 'lying clients', 'readers of the model']
    """
    coalition = "one client" if max_colluders == 1 else f"up to {max_colluders} clients together"
    shares = f"{coalition}: nothing can be learned from shares"
    together = f", also together with {coalition}"
    if max_colluders == 0:
        shares, together = "no masks: every client can read the rows of others", ""
    lies = "not found: a false answer can change a step"
    if max_liars:
        lies = f"up to {max_liars} in a round are found and outvoted; more of them, coordinated, can force a wrong step"
    return (
        Protection("clients", f"{shares}. But rows can be computed from the weights of the rounds"),
        Protection(
            "the coordinator",
            f"it learns the gradient of each round and nothing else{together}. But rows can be computed from gradients",
        ),
        Protection("lying clients", lies),
        Protection("readers of the model", "no protection: the model is not differentially private"),
    )


def could_see(max_colluders: int) -> dict[str, str]:
    """What each kind of participant and onlooker could see of a run in the open mode, in words."""
    masked = "which alone tells it nothing"
    if max_colluders > 1:
        masked = f"from which up to {max_colluders} clients together learn nothing"
    if max_colluders == 0:
        masked = "without masks, so it shows the rows"
    return {
        "each client": (
            f"its own rows; one share of every client's rows, {masked}; row counts and batches; the weights of every "
            "round. Rows of others can be computed from the weights"
        ),
        "the coordinator": (
            "row counts and batches; who answered when; the weights and the gradient of every round, and nothing else "
            "of the answers, which are blinded. Rows can be computed from the gradients. Shares pass it sealed"
        ),
        "whoever carries the messages": (
            "who sends how much to whom, and when; nothing of what is in it. Over Flower, the SuperLink sees what the "
            "coordinator sees"
        ),
        "readers of the model": "the final weights. They are not differentially private",
    }


SIMULATION_SEES = {"this process": "every row, every share and every secret. A simulation protects nobody"}
