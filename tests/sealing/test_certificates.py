"""Certificates: TLS accepts what the authority signs and nothing else, and the roster's checks on top of it."""

import datetime
import ssl
from functools import cache
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from dresfl.errors import IdentityError, UsageError
from dresfl.sealing import (
    CertificateAuthority,
    Identity,
    certificate_request,
    certificate_spki_sha256,
    check_certificate,
)


@cache
def authority(name: str = "consortium-ca") -> CertificateAuthority:
    return CertificateAuthority.create(name)


@cache
def participant(name: str) -> Identity:
    return Identity.create(name)


def signed(name: str, server: tuple[str, ...] = (), by: str = "consortium-ca") -> bytes:
    return authority(by).sign(certificate_request(participant(name)), server=server)


def test_a_certificate_is_for_its_member():
    certificate = signed("hospital-1")
    check_certificate(certificate, participant("hospital-1").member)
    assert certificate_spki_sha256(certificate) == participant("hospital-1").member.spki_sha256


def test_a_renewed_certificate_needs_no_new_card():
    first, second = signed("hospital-1"), signed("hospital-1")
    assert first != second
    assert certificate_spki_sha256(first) == certificate_spki_sha256(second)


def test_listed_name_with_a_wrong_key_is_refused():
    impostor = Identity.create("hospital-1")
    certificate = authority().sign(certificate_request(impostor))
    with pytest.raises(IdentityError, match="not the one listed for hospital-1"):
        check_certificate(certificate, participant("hospital-1").member)


def foreign(key: ec.EllipticCurvePrivateKey, name: str, alternative: list[x509.GeneralName]) -> bytes:
    """A certificate as an organisation's own authority might issue it."""
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
    )
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_certificates_of_another_authority_need_the_name_somewhere():
    identity, now = participant("hospital-1"), datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=1)
    check_certificate(foreign(identity.tls_key, "hospital-1", []), identity.member, now)
    check_certificate(foreign(identity.tls_key, "Some Ward", [x509.DNSName("hospital-1")]), identity.member, now)
    for certificate in (
        foreign(identity.tls_key, "hospital-2", []),
        foreign(identity.tls_key, "Some Ward", [x509.DNSName("hospital-1.example"), x509.RFC822Name("hospital-1")]),
    ):
        with pytest.raises(IdentityError, match="does not name hospital-1"):
            check_certificate(certificate, identity.member, now)


@pytest.mark.parametrize(("days", "ok"), [(-1, False), (0, True), (364, True), (366, False)])
def test_expired_and_early_certificates_are_refused(days: int, ok: bool):
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    certificate, member = signed("hospital-1"), participant("hospital-1").member
    if ok:
        check_certificate(certificate, member, now)
        return
    with pytest.raises(IdentityError, match="not now") as caught:
        check_certificate(certificate, member, now)
    assert "dresfl ca sign" in caught.value.hint


@pytest.mark.parametrize("junk", [b"", b"junk", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_not_a_certificate_is_refused(junk: bytes):
    with pytest.raises(IdentityError):
        certificate_spki_sha256(junk)
    with pytest.raises(IdentityError):
        check_certificate(junk, participant("hospital-1").member)
    with pytest.raises(IdentityError):
        authority().sign(junk)


# -- the authority ---------------------------------------------------------------------------------------------


def test_an_authority_grants_the_key_and_the_name_and_nothing_more():
    asked = certificate_request(participant("hospital-1"), ["hub.example", "192.0.2.1"])
    certificate = x509.load_pem_x509_certificate(authority().sign(asked))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hospital-1"]
    assert names.get_values_for_type(x509.IPAddress) == []
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def request(name: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def test_odd_requests_are_refused():
    key = ec.generate_private_key(ec.SECP256R1())
    authority().sign(request("a", key))
    for name in ("A", "*.example", "a b"):
        with pytest.raises(IdentityError, match="cannot be a participant's name"):
            authority().sign(request(name, key))
    with pytest.raises(IdentityError, match="not one of dresfl's"):
        authority().sign(request("a", rsa.generate_private_key(65537, 2048)))


def test_an_altered_request_is_refused():
    der = bytearray(
        x509.load_pem_x509_csr(request("abc", participant("hospital-1").tls_key)).public_bytes(
            serialization.Encoding.DER
        )
    )
    place = bytes(der).index(b"abc")
    der[place] = ord("b")
    altered = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(IdentityError, match="altered"):
        authority().sign(altered)


@pytest.mark.parametrize("days", [0, -5, 10**6])
def test_impossible_lifetimes_are_refused(days: int):
    with pytest.raises(UsageError, match="days"):
        authority().sign(certificate_request(participant("hospital-1")), days=days)


def test_an_authority_is_kept_and_not_written_over(tmp_path: Path):
    authority().save(tmp_path)
    loaded = CertificateAuthority.load(tmp_path)
    assert loaded.certificate_pem() == authority().certificate_pem()
    assert "redacted" in repr(loaded)
    with pytest.raises(IdentityError, match="exists already"):
        CertificateAuthority.create().save(tmp_path)
    (tmp_path / "ca.key.pem").chmod(0o644)
    with pytest.raises(IdentityError, match="mode 0644"):
        CertificateAuthority.load(tmp_path)


def test_key_and_certificate_of_different_authorities_are_refused(tmp_path: Path):
    authority().save(tmp_path / "one")
    authority("other-ca").save(tmp_path / "two")
    (tmp_path / "one" / "ca.cert.pem").write_bytes((tmp_path / "two" / "ca.cert.pem").read_bytes())
    with pytest.raises(IdentityError, match="do not belong together"):
        CertificateAuthority.load(tmp_path / "one")


# -- TLS, in memory --------------------------------------------------------------------------------------------


def context(
    folder: Path, name: str, certificate: bytes, *, server: bool, trusts: str = "consortium-ca"
) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    (folder / f"{name}.pem").write_bytes(certificate)
    (folder / f"{name}.key").write_bytes(participant(name).tls_key_pem())
    made.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    made.load_verify_locations(cadata=authority(trusts).certificate_pem().decode())
    return made


def shake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> bytes:
    """A whole handshake between two memory buffers; the certificate that the server saw."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [near, far]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            return ssl.DER_cert_to_PEM_cert(far.getpeercert(binary_form=True) or b"").encode()
    raise AssertionError("the handshake does not end")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "hub"])
def test_parties_meet_over_mutual_tls(tmp_path: Path, host: str):
    server = context(tmp_path, "hub", signed("hub", ("localhost", "127.0.0.1")), server=True)
    client = context(tmp_path, "hospital-1", signed("hospital-1"), server=False)
    check_certificate(shake(client, server, host), participant("hospital-1").member)


def test_tls_refuses_strangers(tmp_path: Path):
    server = context(tmp_path, "hub", signed("hub", ("localhost",)), server=True)
    client = context(tmp_path, "hospital-1", signed("hospital-1"), server=False)
    stranger = context(tmp_path, "hospital-2", signed("hospital-2", by="other-ca"), server=False)
    impostor = context(tmp_path, "hospital-3", signed("hospital-3"), server=True)
    with pytest.raises(ssl.SSLError):
        shake(stranger, server, "localhost")
    with pytest.raises(ssl.SSLError, match=r"purpose|match|verify"):
        shake(client, impostor, "hospital-3")  # a client's certificate does not make a server
    with pytest.raises(ssl.SSLError, match=r"match|verify"):
        shake(client, server, "elsewhere.example")
