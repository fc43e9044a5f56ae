"""The gRPC runtime: the same Client and Training as in one process, on machines that do not trust each other.

frames.py: what travels. hub.py: the coordinator. site.py: an organisation. The rest are their parts.
"""

from dresfl.errors import UsageError

from . import environment as environment  # before anything that loads gRPC

try:
    from .tls import Credentials
except ImportError as error:
    raise UsageError(f"{error.name} is not installed", "pip install 'dresfl[network]'") from error

from .hub import Hub, HubSettings
from .log import Log, core_lines_as_events, log_to
from .rounds import Pace
from .site import Site, SiteSettings

__all__ = [
    "Credentials",
    "Hub",
    "HubSettings",
    "Log",
    "Pace",
    "Site",
    "SiteSettings",
    "core_lines_as_events",
    "log_to",
]
