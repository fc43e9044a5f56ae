"""Sealing once more, slowly and from the standards' text alone: nothing here uses the package or a crypto library."""

import hashlib
import hmac
import struct

P = 2**255 - 19


def x25519(scalar: bytes, point: bytes) -> bytes:
    """RFC 7748, section 5: Montgomery ladder."""
    k = int.from_bytes(scalar, "little") & ~7 & ~(1 << 255) | 1 << 254
    u = int.from_bytes(point, "little") & ~(1 << 255)
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in range(254, -1, -1):
        swap = k >> bit & 1
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a % P, c * b % P
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        aa, bb = a * a % P, b * b % P
        e = aa - bb
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 with SHA-256."""
    prk = hmac.digest(salt or bytes(32), secret, "sha256")
    out, block = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(prk, block + info + bytes([counter]), "sha256")
        out += block
    return out[:length]


def chacha20(key: bytes, counter: int, nonce: bytes, data: bytes) -> bytes:
    """RFC 8439, section 2.4."""
    out = b""
    for place in range(0, len(data), 64):
        start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *struct.unpack("<8I", key)]
        start += [counter + place // 64, *struct.unpack("<3I", nonce)]
        s = list(start)
        for _ in range(10):
            for a, b, c, d in (
                *((i, 4 + i, 8 + i, 12 + i) for i in range(4)),
                *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
            ):
                for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                    s[x] = (s[x] + s[y]) & 0xFFFFFFFF
                    s[z] ^= s[x]
                    s[z] = (s[z] << turn | s[z] >> 32 - turn) & 0xFFFFFFFF
        stream = struct.pack("<16I", *((x + y) & 0xFFFFFFFF for x, y in zip(s, start, strict=True)))
        out += bytes(x ^ y for x, y in zip(data[place : place + 64], stream, strict=False))
    return out


def poly1305(key: bytes, message: bytes) -> bytes:
    """RFC 8439, section 2.5."""
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for place in range(0, len(message), 16):
        total = (total + int.from_bytes(message[place : place + 16] + b"\x01", "little")) * r % (2**130 - 5)
    return ((total + int.from_bytes(key[16:], "little")) % 2**128).to_bytes(16, "little")


def aead_encrypt(key: bytes, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """RFC 8439, section 2.8."""
    ciphertext = chacha20(key, 1, nonce, plaintext)
    mac = b"".join(part + bytes(-len(part) % 16) for part in (associated, ciphertext))
    mac += struct.pack("<QQ", len(associated), len(ciphertext))
    return ciphertext + poly1305(chacha20(key, 0, nonce, bytes(32)), mac)


def member_bytes(name: str, sealing_key: bytes, signing_key: bytes, spki_sha256: bytes) -> bytes:
    """The public bytes of a member."""
    return bytes([len(name)]) + name.encode() + sealing_key + signing_key + spki_sha256


def seal(
    ephemeral: bytes,
    sender_secret: bytes,
    sender: bytes,
    receiver: bytes,
    receiver_key: bytes,
    context: bytes,
    text: bytes,
) -> bytes:
    """The envelope of docs/reference/identity.md; `sender` and `receiver` are public bytes."""
    public = x25519(ephemeral, (9).to_bytes(32, "little"))
    secret = x25519(ephemeral, receiver_key) + x25519(sender_secret, receiver_key)
    key = hkdf(secret, b"", b"dresfl seal 1" + public + sender + receiver + context, 32)
    return b"\x01" + public + aead_encrypt(key, bytes(12), text, context)


def fingerprint(digest: bytes) -> str:
    """Forty digits in groups of five."""
    digits = str(int(digest.hex(), 16))[-40:].rjust(40, "0")
    return " ".join(digits[i : i + 5] for i in range(0, 40, 5))


def member_fingerprint(member: bytes) -> str:
    """The forty digits of a member's public bytes."""
    return fingerprint(hashlib.sha256(b"dresfl member 1" + member).digest())
