"""The errors that a caller may catch: one small family. Each says what was wanted, what came, and what to do.

The command line prints `error:` from the message and `hint:` from `hint`, and exits with `exit_code`.
"""


class DresError(Exception):
    """Anything a user, a peer or a disk can cause. `hint` says what to do about it.

    >>> DresError("no rows", "give some").hint == "give some"
    True
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(DresError):
    """A wrong option, configuration key, or combination of settings.

    >>> UsageError("rounds must be at least 1, not 0").exit_code == 2
    True
    """

    exit_code = 2


class InfeasiblePlan(UsageError):
    """Theorem 1 does not hold: D + deg(g)(K+T−1) + 1 ≤ N fails for every D ≥ 0.

    >>> issubclass(InfeasiblePlan, UsageError)
    True
    """


class EstimatorError(UsageError, ValueError):
    """What an estimator cannot be fitted with. It is a ValueError too, as scikit-learn's conventions want it.

    >>> issubclass(EstimatorError, UsageError) and issubclass(EstimatorError, ValueError)
    True
    """


class DataError(DresError):
    """A data set that is missing, malformed, or not fit for training.

    >>> DataError("client 3: empty").exit_code == 1
    True
    """


class FieldError(DresError):
    """A residue system asked for something it cannot do exactly."""


class MessageError(DresError):
    """Bytes from a peer that are not a valid message; nothing of them was used."""


class SealError(MessageError):
    """An envelope that does not open: altered, sealed by another participant, or meant for another place."""


class IdentityError(DresError):
    """A key, card, roster or certificate that is missing, altered, or not what it says it is."""


class Refused(DresError):
    """A participant turned another away, for a reason that trying again does not change."""


class TooFewAnswers(DresError):
    """Fewer than R answers: the polynomial cannot be interpolated.

    >>> TooFewAnswers("8 of 20 answered, 9 needed").exit_code == 3
    True
    """

    exit_code = 3


class HeadroomAlarm(DresError):
    """A decoded value left its range: overflow, a corrupt upload, or a fault. Weights stay untouched."""


class Diverged(DresError):
    """A hidden run's weights or errors grew beyond what its plan vouches for: the run ends before a mask is outgrown.

    >>> Diverged("the weights diverge", "use a smaller rate").exit_code == 1
    True
    """


class StoreError(DresError):
    """A participant's folder that cannot be used: damaged, somebody else's, in use, or on a full disk."""


class ModelError(DresError):
    """A model file that cannot be read: damaged, altered, or of a format that is not known.

    >>> issubclass(ModelError, DresError)
    True
    """


class CheckpointError(DresError):
    """A checkpoint that cannot be read, or that belongs to another run.

    >>> issubclass(CheckpointError, DresError)
    True
    """
