"""Certificates for the connections: requests, a local authority for consortia that have none, and what is checked.

TLS checks the chain and the dates. The roster decides: the certificate's key must be that of a listed card, and the
card's name must stand in it (common name or DNS name). So a careless authority cannot let a stranger in.
"""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dresfl.errors import IdentityError, UsageError
from dresfl.files import make_private_folder, read_file, write_new

from .identity import Identity, Member, check_name, load_tls_key, private_pem, spki_sha256, spoken

CA_KEY_FILE = "ca.key.pem"
CA_CERTIFICATE_FILE = "ca.cert.pem"
FILE_LIMIT = 65_536
_SKEW = datetime.timedelta(hours=1)  # other participants' clocks may be slow


def certificate_request(identity: Identity, hosts: Sequence[str] = ()) -> bytes:
    """A request in PEM for this participant's TLS key; `hosts` are further names a server is reached by."""
    request = x509.CertificateSigningRequestBuilder().subject_name(_subject(identity.name))
    request = request.add_extension(_alternative_names(identity.name, hosts), critical=False)
    return request.sign(identity.tls_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@final
class CertificateAuthority:
    """A local authority: whoever runs it says which TLS key belongs to which name. Keep it away from the server."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        if _spki(certificate) != spki_sha256(key.public_key()):
            raise IdentityError("the authority's key and certificate do not belong together", "restore both")
        self._key = key
        self.certificate = certificate

    @classmethod
    def create(cls, name: str = "dresfl-ca", days: int = 3650) -> "CertificateAuthority":
        """A new key and a certificate that the authority signs for itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(check_name(name))
        certificate = (
            _certificate(subject, subject, key.public_key(), key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, folder: Path) -> "CertificateAuthority":
        """The authority that `save` wrote; refused if other users may read its key."""
        path = folder / CA_CERTIFICATE_FILE
        return cls(
            load_tls_key(folder / CA_KEY_FILE), _parse(read_file(path, FILE_LIMIT, error=IdentityError), str(path))
        )

    def save(self, folder: Path) -> None:
        """Write the key, mode 0600, and the certificate; existing files are not written over."""
        make_private_folder(folder, IdentityError)
        write_new(folder / CA_KEY_FILE, private_pem(self._key), private=True, error=IdentityError)
        write_new(folder / CA_CERTIFICATE_FILE, self.certificate_pem(), error=IdentityError)

    def certificate_pem(self) -> bytes:
        """What every participant trusts: the authority's certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def sign(self, request: bytes, *, days: int = 365, server: Sequence[str] = ()) -> bytes:
        """Certify the key of a request for the name in it; a server's certificate also names its hosts.

        Of the request only the key and the common name are used: what else it asks for is not granted.
        """
        try:
            wanted = x509.load_pem_x509_csr(request)
            names = wanted.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            sound = wanted.is_signature_valid and len(names) == 1
            key = wanted.public_key()
        except Exception as error:  # the parser raises what it likes on foreign bytes
            raise IdentityError("this is not a certificate request in PEM", "dresfl keygen writes one") from error
        if not (sound and isinstance(key, ec.EllipticCurvePublicKey)):
            raise IdentityError("the certificate request is altered or not one of dresfl's", "ask for a new one")
        name = check_name(str(names[0].value))
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH] + [ExtendedKeyUsageOID.SERVER_AUTH] * bool(server)
        certificate = (
            _certificate(_subject(name), self.certificate.subject, key, self._key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(_alternative_names(name, server), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def __repr__(self) -> str:
        return f"CertificateAuthority({self.certificate.subject.rfc4514_string()!r}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CertificateAuthority is not pickled")


def certificate_spki_sha256(certificate: bytes) -> bytes:
    """SHA-256 of the public key in a PEM certificate, as `Roster.index_of_spki` wants it."""
    return _spki(_parse(certificate, "the certificate"))


def check_certificate(certificate: bytes, member: Member, now: datetime.datetime | None = None) -> None:
    """Raise IdentityError unless a PEM certificate is for this member: its key, its name, not expired.

    Whether a trusted authority signed it is for TLS to check.
    """
    found = _parse(certificate, "the certificate")
    now = now or datetime.datetime.now(datetime.UTC)
    if _spki(found) != member.spki_sha256:
        raise IdentityError(
            f"the certificate's key is not the one listed for {member.name}",
            "its TLS key changed: keep the key when you renew, or make a new card and a new roster",
        )
    if member.name not in _names(found):
        raise IdentityError(
            f"the certificate does not name {member.name}", f"have it issued for the DNS name {member.name}"
        )
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        raise IdentityError(
            f"the certificate of {member.name} is valid from {found.not_valid_before_utc:%Y-%m-%d %H:%M} to "
            f"{found.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, not now",
            "renew it with the same key (dresfl ca sign), or set this machine's clock",
        )


def valid_until(certificate: bytes) -> float:
    """When a PEM certificate ends, in seconds since 1970."""
    return _parse(certificate, "the certificate").not_valid_after_utc.timestamp()


def describe(certificate: bytes) -> dict[str, str]:
    """What a person compares: the name, the key as in the card, its fingerprint, and until when it is valid."""
    found = _parse(certificate, "the certificate")
    key = _spki(found)
    return {
        "names": ", ".join(sorted(_names(found))),
        "tls_spki_sha256": key.hex(),
        "key_fingerprint": spoken(key),
        "valid_until": f"{found.not_valid_after_utc:%Y-%m-%d}",
    }


def _parse(pem: bytes, source: str) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        # these are read late: what is wrong with them shows now, and not where they are used
        _ = certificate.subject, certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except Exception as error:  # the parser raises what it likes on foreign bytes
        raise IdentityError(f"{source} is not a certificate in PEM") from error
    return certificate


def _spki(certificate: x509.Certificate) -> bytes:
    try:
        return spki_sha256(certificate.public_key())
    except Exception as error:
        raise IdentityError("the certificate's public key is of a kind that is not known here") from error


def _names(certificate: x509.Certificate) -> set[str]:
    names = {str(entry.value) for entry in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)}
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return names
    except Exception as error:
        raise IdentityError("the certificate has extensions that cannot be read") from error
    return names | set(extension.value.get_values_for_type(x509.DNSName))


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative_names(name: str, hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    entries: list[x509.GeneralName] = [x509.DNSName(name)]
    for host in hosts:
        try:
            entries.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            entries.append(x509.DNSName(check_name(host)))
    return x509.SubjectAlternativeName(list(dict.fromkeys(entries)))


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    if not 1 <= days <= 36_500:
        raise UsageError(f"a certificate lasts 1 to 36500 days, not {days}")
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )
