"""Who a participant is: three secret keys, and the public card that shows their public halves.

    sealing key   X25519    opens what others sealed for this participant, and vouches for what it seals
    signing key   Ed25519   signs the card and the roster
    TLS key       P-256     in the certificate of its connections

A card names the TLS key by the SHA-256 of its SubjectPublicKeyInfo ("SPKI"), not the certificate: it exists before
any authority has signed, and a renewed certificate for the same key needs no new card.

Public bytes of a member, which everything that is signed or hashed is made of:

    length of name u8 | name (ASCII) | sealing key 32 | signing key 32 | SHA-256 of SPKI 32

Signatures are Ed25519 over `"dresfl signature 1" | length of purpose u8 | purpose | message`, so that one made for a
card never passes for another thing. Fingerprints are SHA-256, spoken as eight groups of five digits (132 bits).
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, NoReturn, final

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from dresfl.errors import IdentityError
from dresfl.files import make_private_folder, read_file, write_new

from .typed_json import parse_json, to_json

IDENTITY_FILE = "identity.json"
TLS_KEY_FILE = "tls.key.pem"
_FILE_LIMIT = 16_384
_NAME = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_CURVE_PRIME = 2**255 - 19

Hex32 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Hex64 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{128}\Z")]


def check_name(name: str) -> str:
    """Return `name` if it can stand in a certificate and as a file's name, else raise IdentityError."""
    if not _NAME.fullmatch(name):
        raise IdentityError(
            f"{name[:70]!r} cannot be a participant's name",
            "use at most 63 of a-z, 0-9, hyphen and dot, as in hospital-1 or fl.hospital-1.example",
        )
    return name


def spoken(digest: bytes) -> str:
    """A SHA-256 digest as forty digits for comparison by telephone.

    >>> spoken(bytes(31) + bytes([7]))
    '00000 00000 00000 00000 00000 00000 00000 00007'
    """
    digits = f"{int.from_bytes(digest, 'big') % 10**40:040}"
    return " ".join(digits[i : i + 5] for i in range(0, 40, 5))


@final
@dataclass(frozen=True)
class Member:
    """The public side of a participant, as every other participant sees it."""

    name: str
    sealing_key: bytes
    signing_key: bytes
    spki_sha256: bytes

    def __post_init__(self) -> None:
        check_name(self.name)
        for key in (self.sealing_key, self.signing_key, self.spki_sha256):
            if len(key) != 32:
                raise IdentityError(f"a key of {self.name} has {len(key)} bytes instead of 32")
        try:  # one spelling for each point, and none whose shared secret is known to everybody
            if int.from_bytes(self.sealing_key, "little") >= _CURVE_PRIME:
                raise ValueError
            X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(self.sealing_key))
        except ValueError:
            raise IdentityError(f"the sealing key of {self.name} is not a sound X25519 key") from None

    def encode(self) -> bytes:
        """The member's public bytes."""
        name = self.name.encode("ascii")
        return bytes([len(name)]) + name + self.sealing_key + self.signing_key + self.spki_sha256

    @property
    def fingerprint(self) -> str:
        """Forty digits that stand for the name and all three keys."""
        return spoken(hashlib.sha256(b"dresfl member 1" + self.encode()).digest())

    def check_signature(self, purpose: str, message: bytes, signature: bytes) -> None:
        """Raise IdentityError unless this member signed `message` for `purpose`."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signing_key).verify(signature, _to_sign(purpose, message))
        except (InvalidSignature, ValueError):
            raise IdentityError(
                f"the {purpose} is not signed by {self.name}", "it was altered, or somebody else made it"
            ) from None


def _to_sign(purpose: str, message: bytes) -> bytes:
    label = purpose.encode("ascii")
    return b"dresfl signature 1" + bytes([len(label)]) + label + message


class CardFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A card as JSON; the roster holds such cards too."""

    format: Literal["dresfl card 1"]
    name: str
    sealing_key: Hex32
    signing_key: Hex32
    tls_spki_sha256: Hex32
    signature: Hex64


@final
@dataclass(frozen=True)
class Card:
    """A member's public side, signed with its own signing key. One that exists has been checked."""

    member: Member
    signature: bytes

    def __post_init__(self) -> None:
        self.member.check_signature("card", self.member.encode(), self.signature)

    @classmethod
    def load(cls, path: Path) -> "Card":
        """Read a card that came from outside and check its signature."""
        return cls.from_file(parse_json(read_file(path, _FILE_LIMIT, error=IdentityError), CardFile, str(path)))

    def save(self, path: Path) -> None:
        """Write the card as JSON; an existing file is not written over."""
        write_new(path, to_json(self.to_file()), error=IdentityError)

    @classmethod
    def from_file(cls, file: CardFile) -> "Card":
        keys = (bytes.fromhex(key) for key in (file.sealing_key, file.signing_key, file.tls_spki_sha256))
        return cls(Member(file.name, *keys), bytes.fromhex(file.signature))

    def to_file(self) -> CardFile:
        member = self.member
        return CardFile(
            format="dresfl card 1",
            name=member.name,
            sealing_key=member.sealing_key.hex(),
            signing_key=member.signing_key.hex(),
            tls_spki_sha256=member.spki_sha256.hex(),
            signature=self.signature.hex(),
        )


class _IdentityFile(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["dresfl identity 1"]
    name: str
    sealing_key: Hex32
    signing_key: Hex32


@final
class Identity:
    """A participant's secret keys. They stay on its machine: never printed, pickled or sent."""

    def __init__(self, name: str, sealing_key: bytes, signing_key: bytes, tls_key: ec.EllipticCurvePrivateKey) -> None:
        self.name = check_name(name)
        self._sealing = X25519PrivateKey.from_private_bytes(sealing_key)
        self._signing = Ed25519PrivateKey.from_private_bytes(signing_key)
        self.tls_key = tls_key

    @classmethod
    def create(cls, name: str) -> "Identity":
        """Three new keys from the operating system's generator."""
        return cls(
            name,
            X25519PrivateKey.generate().private_bytes_raw(),
            Ed25519PrivateKey.generate().private_bytes_raw(),
            ec.generate_private_key(ec.SECP256R1()),
        )

    @classmethod
    def load(cls, folder: Path) -> "Identity":
        """The identity that `save` wrote; refused if other users may read its files."""
        path = folder / IDENTITY_FILE
        data = read_file(path, _FILE_LIMIT, private=True, error=IdentityError)
        file = parse_json(data, _IdentityFile, str(path), private=True)
        tls_key = load_tls_key(folder / TLS_KEY_FILE)
        return cls(file.name, bytes.fromhex(file.sealing_key), bytes.fromhex(file.signing_key), tls_key)

    def save(self, folder: Path) -> None:
        """Write the secret keys, mode 0600, into a folder of mode 0700; existing files are not written over."""
        make_private_folder(folder, IdentityError)
        keys = (key.private_bytes_raw().hex() for key in (self._sealing, self._signing))
        file = _IdentityFile("dresfl identity 1", self.name, *keys)
        write_new(folder / IDENTITY_FILE, to_json(file), private=True, error=IdentityError)
        write_new(folder / TLS_KEY_FILE, self.tls_key_pem(), private=True, error=IdentityError)

    @cached_property
    def member(self) -> Member:
        """The public side."""
        return Member(
            self.name,
            self._sealing.public_key().public_bytes_raw(),
            self._signing.public_key().public_bytes_raw(),
            spki_sha256(self.tls_key.public_key()),
        )

    @cached_property
    def card(self) -> Card:
        """The public side, signed: what the other participants need of this one."""
        return Card(self.member, self.sign("card", self.member.encode()))

    def sign(self, purpose: str, message: bytes) -> bytes:
        """Sign `message` for one purpose; `Member.check_signature` checks it."""
        return self._signing.sign(_to_sign(purpose, message))

    def exchange(self, public_key: bytes) -> bytes:
        """The X25519 secret shared with the owner of `public_key`; ValueError if that is a point of low order."""
        return self._sealing.exchange(X25519PublicKey.from_public_bytes(public_key))

    def tls_key_pem(self) -> bytes:
        """The TLS key as the gRPC runtime wants it. Secret."""
        return private_pem(self.tls_key)

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Identity is not pickled")


def spki_sha256(public_key: PublicKeyTypes) -> bytes:
    """SHA-256 of a public key as it stands in a certificate."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(public_key.public_bytes(serialization.Encoding.DER, form)).digest()


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as unencrypted PKCS#8 PEM. Secret."""
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def load_tls_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key in PEM; refused if other users may read it."""
    try:
        pem = read_file(path, _FILE_LIMIT, private=True, error=IdentityError)
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: encrypted. Their words might quote the file
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"{path} holds no unencrypted elliptic-curve key in PEM", "restore it from your backup")
    return key
