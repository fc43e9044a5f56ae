"""TLS between coordinator and clients: version 1.3 alone, both sides with certificates, identity by public key.

How gRPC is held to 1.3: environment.py. The coordinator checks the version again with each call that comes in.
"""

from dataclasses import dataclass
from typing import Any, final

import grpc

from dresfl.errors import IdentityError, Refused, UsageError
from dresfl.sealing import Identity, Roster, certificate_spki_sha256, check_certificate, valid_until

from . import environment

_VERSION = b"TLSv1.3"


@final
@dataclass(frozen=True)
class Credentials:
    """The own side of TLS: an identity, its certificate chain, and the authorities to trust (both PEM)."""

    identity: Identity
    certificate: bytes
    authority: bytes
    roster: Roster

    def for_server(self) -> grpc.ServerCredentials:
        """The coordinator's credentials, after a look at its own certificate."""
        _check_enforced()
        check_certificate(self.certificate, self.roster.server)
        pairs = [(self.identity.tls_key_pem(), self.certificate)]
        return grpc.ssl_server_credentials(pairs, self.authority, require_client_auth=True)

    def for_client(self) -> grpc.ChannelCredentials:
        """A client's credentials, after a look at its own certificate: one that expired is named before connecting."""
        _check_enforced()
        check_certificate(self.certificate, self.identity.member)
        return grpc.ssl_channel_credentials(self.authority, self.identity.tls_key_pem(), self.certificate)


def _check_enforced() -> None:
    if not environment.IN_TIME:
        raise UsageError(
            "gRPC was loaded before dresfl.runtimes.grpc_runtime, too early to be held to TLS 1.3",
            f"import it before grpc, or set {environment.SUITES}={environment.UNUSABLE} in the environment",
        )


def caller(context: Any, roster: Roster) -> tuple[int, float]:
    """The number of the client that a call comes from, by the key of its certificate, and when that ends; or Refused.

    TLS has checked the chain and the dates by now. The roster decides who it is.
    """
    properties = context.auth_context()
    version = (properties.get("ssl_tls_version") or [b"an unknown version"])[0]
    if version != _VERSION:
        raise Refused(f"the connection speaks {version.decode('ascii', 'replace')}, not TLS 1.3")
    certificate = (properties.get("x509_pem_cert") or [b""])[0]
    try:
        index = roster.index_of_spki(certificate_spki_sha256(certificate))
        if index is None:
            name = (properties.get("x509_common_name") or [b"?"])[0].decode("utf-8", "replace")[:70]
            listed = any(member.name == name for member in roster.members)
            why = "is listed with another key" if listed else "is not in the roster"
            raise Refused(
                f"the certificate's owner {name!r} {why}", "compare fingerprints; make a new roster if need be"
            )
        check_certificate(certificate, roster.members[index])
        return index, valid_until(certificate)
    except IdentityError as error:
        raise Refused(str(error), error.hint) from error
