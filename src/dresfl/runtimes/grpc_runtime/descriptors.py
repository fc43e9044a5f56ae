"""How many connections a coordinator takes, so that there is always a descriptor left for its files.

A connection costs a descriptor before anybody has shown a certificate. Without a limit, idle connections would use all
of them, and the next checkpoint could not be written. Above the limit a connection is closed as soon as it is accepted;
one that does not get through its handshake in time is closed too (`ListenSettings.handshake`).
"""

import contextlib
import resource

from dresfl.errors import UsageError

RESERVE = 128  # for files, libraries, the metrics endpoint
STRANGERS = (
    1000  # connections beyond one for each client: handshakes, and clients that come back before they are missed
)
_FEWEST_STRANGERS = 32


def connection_limit(num_clients: int) -> int:
    """The most connections; raises the process's limit of descriptors for them, as far as that is allowed."""
    allowed = _allow(num_clients + STRANGERS + RESERVE)
    needed = num_clients + _FEWEST_STRANGERS + RESERVE
    if allowed < needed:
        raise UsageError(
            f"this process may open {allowed} files and connections; {num_clients} clients need {needed}",
            f"allow more: `ulimit -n {needed + STRANGERS}`, or LimitNOFILE={needed + STRANGERS} in a systemd unit",
        )
    return min(allowed - RESERVE, num_clients + STRANGERS)


def _allow(wanted: int) -> int:
    """Raise the soft limit to what is wanted, if the hard one lets it; the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    higher = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):  # not allowed after all
        resource.setrlimit(resource.RLIMIT_NOFILE, (higher, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
