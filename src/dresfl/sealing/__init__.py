"""Who the participants are and how they seal: identities, cards, the roster, certificates, envelopes.

Read identity.py, then envelope.py, then roster.py; certificates.py only concerns TLS.
"""

from dresfl.errors import IdentityError, SealError, UsageError

try:
    import cryptography as _cryptography
    import msgspec as _msgspec
except ImportError as error:
    raise UsageError(f"{error.name} is not installed", "pip install 'dresfl[network]'") from error

from .certificates import (
    CertificateAuthority,
    certificate_request,
    certificate_spki_sha256,
    check_certificate,
    valid_until,
)
from .envelope import OVERHEAD, SealContext, open_sealed, seal
from .identity import Card, Identity, Member, spoken
from .roster import Roster
