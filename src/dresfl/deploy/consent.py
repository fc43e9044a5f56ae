"""Consent to the open mode: everybody's, in the agreement, and each participant's own, in its own file.

An agreement file that somebody sent around is not enough. Coordinator and client look here before they send anything.
"""

from dresfl.errors import UsageError
from dresfl.federation import Agreement
from dresfl.federation.agreement import ACCEPTED
from dresfl.protocol.protection import OPEN_MODE_MEANS
from dresfl.runtimes.log import Log
from dresfl.sealing import Roster

from .settings import ClientConfig, CoordinatorConfig, load_agreement


def consented_agreement(config: CoordinatorConfig | ClientConfig, roster: Roster, log: Log) -> Agreement:
    """The agreement that a participant's file names, if both accept what its mode gives away; the log says what."""
    agreement = load_agreement(config, roster)
    agreement.check_consent()
    if config.rows_can_be_computed != ACCEPTED:
        own = "site.toml" if isinstance(config, ClientConfig) else "fed.toml"
        raise UsageError(
            f"the agreement accepts that rows can be computed in the open mode, but {own}, this participant's own "
            "file, does not",
            f"in the open mode {OPEN_MODE_MEANS}. If your organisation accepts that, write rows_can_be_computed = "
            f'"{ACCEPTED}" at the top of {own}',
        )
    log("open mode", meaning=OPEN_MODE_MEANS)
    return agreement
