"""The gRPC runtime: coordinator and clients on machines that do not trust each other, over mutual TLS 1.3.

coordinator.py, client.py: the two sides. streams.py: the ends of a stream. weights.py: rounds as differences. tls.py:
who is who. descriptors.py, strangers.py: how many connections there may be. core_log.py: what gRPC's core says, as
events.
"""

from dresfl.errors import UsageError

from . import environment as environment  # before anything that loads gRPC

try:
    from .tls import Credentials
except ImportError as error:
    raise UsageError(f"{error.name} is not installed", "pip install 'dresfl[network]'") from error

from .client import ConnectSettings, GrpcClient
from .coordinator import GrpcCoordinator, ListenSettings
from .core_log import core_lines_as_events
