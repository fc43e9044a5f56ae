"""Consent to what a mode relies on: everybody's, in the agreement, and for the open mode each participant's own.

An agreement file that somebody sent around is not enough to show weights. Coordinator and client look here before they
send anything.
"""

from dresfl.errors import UsageError
from dresfl.federation import Agreement
from dresfl.federation.agreement import ACCEPTED
from dresfl.optimizers import Optimizer
from dresfl.protocol.protection import HIDDEN_MODE_MEANS, OPEN_MODE_MEANS, TRUSTED_DEALERS_MEANS
from dresfl.runtimes.log import Log
from dresfl.sealing import Roster

from .settings import ClientConfig, CoordinatorConfig, load_agreement


def consented_agreement(config: CoordinatorConfig | ClientConfig, roster: Roster, log: Log) -> Agreement:
    """The agreement that a participant's file names, if both accept what its mode relies on; the log says what."""
    agreement = load_agreement(config, roster)
    agreement.check_consent()
    own = "site.toml" if isinstance(config, ClientConfig) else "fed.toml"
    if agreement.hidden is not None:
        if isinstance(config, CoordinatorConfig) and config.optimizer != Optimizer():
            raise UsageError(
                f"[optimizer] stands in {own}, but in the hidden mode all clients derive the steps",
                "write the table into agreement.toml, alike at every participant, and take it out here",
            )
        if isinstance(config, CoordinatorConfig) and config.network.on_shortage == "skip":
            raise UsageError(
                'on_shortage = "skip" is of the open mode: a hidden round cannot be skipped',
                'set on_shortage = "retry": the run waits until enough clients are back',
            )
        log("hidden mode", meaning=HIDDEN_MODE_MEANS)
        if agreement.hidden.trusted_dealers:
            log("trusted dealers", meaning=TRUSTED_DEALERS_MEANS)
        return agreement
    if config.rows_can_be_computed != ACCEPTED:
        raise UsageError(
            f"the agreement accepts that rows can be computed in the open mode, but {own}, this participant's own "
            "file, does not",
            f"in the open mode {OPEN_MODE_MEANS}. If your organisation accepts that, write rows_can_be_computed = "
            f'"{ACCEPTED}" at the top of {own}',
        )
    log("open mode", meaning=OPEN_MODE_MEANS)
    return agreement
