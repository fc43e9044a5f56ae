"""What gRPC must find in the environment when it is loaded: so this module comes before it.

gRPC's Python API has no setting for the lowest TLS version. But it reads the suites of TLS 1.2 from the environment
(those of 1.3 are always on), and with none there but one that needs a pre-shared key, which neither side has, no
handshake below 1.3 can succeed.
"""

import os
import sys

SUITES = "GRPC_SSL_CIPHER_SUITES"
UNUSABLE = "ECDHE-PSK-AES128-CBC-SHA"

IN_TIME = "grpc" not in sys.modules or os.environ.get(SUITES) == UNUSABLE
os.environ[SUITES] = UNUSABLE
os.environ.setdefault("GRPC_VERBOSITY", "INFO")  # the level at which refused handshakes are logged; see log.py
