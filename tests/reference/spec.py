"""The wire protocol once more, read from SPEC.md: byte tables and joined bytes are parsed from the page itself.

Nothing here uses the package. A wrong table, label or formula on the page makes what is built on this fail.
"""

import hashlib
import hmac
import json
import math
import re
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

SPEC = (Path(__file__).parents[2] / "SPEC.md").read_text(encoding="utf-8")


class Invalid(Exception):
    """The page says that these bytes are refused."""


@cache
def table(name: str) -> tuple[tuple[str, str], ...]:
    """The fields and types under a heading of SPEC.md."""
    section = re.search(rf"^### {name}\n\n\| field \| type \| meaning \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", SPEC, re.M)
    assert section, f"SPEC.md has no table {name!r}"
    rows = (line.split("|") for line in section[1].splitlines())
    return tuple((cells[1].strip(), cells[2].strip()) for cells in rows)


def longest(kind: str) -> int | None:
    """The most bytes that a field at the end of a message may have, if its type says so."""
    if kind == "text":
        stated = re.search(r"^\| `text` \| .* at most (\d+) bytes", SPEC, re.M)
        assert stated, "SPEC.md does not limit texts"
        return int(stated[1])
    found = re.fullmatch(r"at most (\d+) bytes", kind)
    return int(found[1]) if found else None


def is_rest(kind: str) -> bool:
    return kind == "rest" or longest(kind) is not None


class Reader:
    """Takes fields off the front."""

    def __init__(self, data: bytes, sizes: dict[str, int]) -> None:
        self.data, self.values = data, dict[str, Any](sizes)

    def bytes(self, count: int) -> bytes:
        if len(self.data) < count:
            raise Invalid("too short")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def value(self, kind: str) -> Any:
        if found := re.fullmatch(r"([ui])(8|16|32|64)( = (\d+))?", kind):
            number = int.from_bytes(self.bytes(int(found[2]) // 8), "little", signed=found[1] == "i")
            if found[4] and number != int(found[4]):
                raise Invalid(f"{number} instead of {found[4]}")
            return number
        if (found := re.fullmatch(r"(\d*)(\w*) bytes", kind)) and not is_rest(kind):
            return self.bytes(int(found[1] or 1) * (self.values[found[2]] if found[2] else 1))
        if found := re.fullmatch(r"(\w+) x \((.*)\)", kind):
            fields = [field.strip().split(" ", 1) for field in found[2].split(",")]
            return [[self.named(*field) for field in fields] for _ in range(self.values[found[1]])]
        if found := re.fullmatch(r"residues \((.*)\)", kind):
            _, *axes = (int(a) if a.isdigit() else self.values[a] for a in re.split(", *", found[1]))
            return self.residues(math.prod(axes))
        if (most := longest(kind)) is not None and len(self.data) > most:
            raise Invalid(f"more than {most} bytes")
        assert is_rest(kind), f"SPEC.md does not explain the type {kind!r}"
        return self.bytes(len(self.data))

    def named(self, name: str, kind: str) -> Any:
        """A field of a group. Fields after it in the group may have it as their length."""
        self.values[name] = self.value(kind)
        return self.values[name]

    def residues(self, count: int) -> list[list[int]]:
        moduli = self.values["moduli"]
        width = -(-max(moduli).bit_length() // 8)
        found = [[int.from_bytes(self.bytes(width), "little") for _ in range(count)] for _ in moduli]
        if any(x >= p for p, channel in zip(moduli, found, strict=True) for x in channel):
            raise Invalid("a residue not below its modulus")
        return found


def read(name: str, data: bytes, /, **sizes: Any) -> dict[str, Any]:
    """Decode a message or an envelope as its table says; nothing may be left."""
    reader = Reader(data, sizes)
    for field, kind in table(name):
        reader.values[field] = reader.value(kind)
    if reader.data:
        raise Invalid("too long")
    return reader.values


def pack(name: str, /, **fields: Any) -> bytes:
    """Encode a message as its table says; values that the page fixes are put in."""
    forms = {"u8": "B", "u16": "H", "u32": "I"}
    out = b""
    for field, kind in table(name):
        plain, _, fixed = kind.partition(" = ")
        value = int(fixed) if fixed else fields.pop(field)
        if isinstance(value, bytes):
            count = kind.removesuffix(" bytes")
            any_length = is_rest(kind) or kind.startswith("residues") or " x (" in kind or count == "length"
            right = any_length or len(value) == int(count)
            assert right, f"SPEC.md has {kind} for {name}.{field}"
        out += value if isinstance(value, bytes) else struct.pack("<" + forms[plain], value)
    assert not fields, f"SPEC.md has no {list(fields)} in {name}"
    return out


def label(text: str) -> bytes:
    """A quoted text of SPEC.md."""
    assert f'"{text}"' in SPEC, f"SPEC.md does not mention {text!r}"
    return text.encode()


@cache
def _formula(formula: str) -> tuple[str, ...]:
    """What a formula of SPEC.md joins: quoted texts, and names."""
    line = re.search(rf"^    {re.escape(formula)} += (.*)$", SPEC, re.M)
    assert line, f"SPEC.md has no formula {formula!r}"
    body = re.sub(r"\s{3,}.*", "", line[1])  # a remark
    inner = re.match(r"(?:SHA-256|Ed25519)\(([^)]*)\)", body)
    return tuple(term.strip() for term in (inner[1] if inner else body).split(" | "))


def joined(formula: str, values: dict[str, bytes]) -> bytes:
    """The bytes that a formula of SPEC.md joins: its quoted texts, and `values` by their names in it, in its order."""
    terms = _formula(formula)
    assert set(values) == {term for term in terms if not term.startswith('"')}, f"SPEC.md joins {terms}"
    return b"".join(term[1:-1].encode() if term.startswith('"') else values[term] for term in terms)


def block(name: str) -> str:
    """A JSON text that SPEC.md shows."""
    found = re.search(rf"```json {name}\n(.*)\n```", SPEC)
    assert found, f"SPEC.md shows no {name}"
    return found[1]


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def digits(digest: bytes) -> str:
    number = f"{int.from_bytes(digest, 'big') % 10**40:040}"
    return " ".join(re.findall(".{5}", number))


# -- sections 4 to 6 -------------------------------------------------------------------------------------------


def sharing_text(agreement: dict[str, Any], rows: list[int], moduli: list[int], nonce: str) -> str:
    shape, classes = agreement["input_shape"], agreement["layers"][-1]["units"]
    code = [agreement[key] for key in ("num_clients", "num_shards", "max_colluders")]
    row = [math.prod(shape), classes, agreement["input_bits"]]
    opening = [derived(agreement)[0], agreement.get("max_liars", 0)]
    values = {"code": code, "opening": opening, "client_rows": rows, "row": row, "moduli": moduli, "nonce": nonce}
    return json.dumps(values, sort_keys=True)


def session_text(agreement: dict[str, Any], sharing: str, run_nonce: str, excluded: Sequence[int] = ()) -> str:
    return json.dumps(
        {
            "sharing": sharing,
            "layers": agreement["layers"],
            "network": [agreement["input_shape"], agreement["weight_bits"]],
            "batch_size": agreement["batch_size"],
            "seed": agreement["seed"],
            "run_nonce": run_nonce,
            "excluded": list(excluded),
        },
        sort_keys=True,
    )


def primes_below(limit: int) -> Any:
    for n in range(limit - 1, 1, -1):
        if all(n % d for d in range(2, math.isqrt(n) + 1)):
            yield n


def derived(agreement: dict[str, Any]) -> tuple[int, tuple[int, ...], int]:
    """R, the moduli and P of a network."""
    clients, shards, masks = (agreement[key] for key in ("num_clients", "num_shards", "max_colluders"))
    shape, batch = agreement["input_shape"], agreement["batch_size"]
    s, degree, m = agreement["input_bits"], 1, max(0.0, math.log2(agreement["input_bound"]))
    walked, parameters, largest, most_positions = [], 0, 0, 0
    for layer in agreement["layers"]:
        kind, bits, positions = layer["kind"], layer.get("weight_bits") or agreement["weight_bits"], 1
        before = (degree, m)
        if kind in ("conv2d", "sumpool"):
            k, padding, stride = layer["kernel"], layer.get("padding", 0), layer["stride"] or layer["kernel"]
            pixels = [(side + 2 * padding - k) // stride + 1 for side in shape[:2]]
            positions = math.prod(pixels)
        if kind in ("dense", "conv2d"):
            fan_in, fan_out = (shape[0], layer["units"]) if kind == "dense" else (k * k * shape[2], layer["channels"])
            parameters, largest = parameters + (fan_in + 1) * fan_out, max(largest, fan_in * fan_out)
            most_positions = max(most_positions, positions)
            shape, s, m = [fan_out] if kind == "dense" else [*pixels, fan_out], s + bits, 3.0
        elif kind == "square":
            s, degree, m = 2 * s, 2 * degree, 2 * m
        elif kind == "quadratic":
            s, degree, m = 2 * s, 2 * degree, math.log2(4**m + 2**m)
        elif kind == "sumpool":
            shape, m = [*pixels, shape[2]], m + 2 * math.log2(k)
        elif kind == "flatten":
            shape = [math.prod(shape)]
        walked.append((kind, bits, *before, positions))
    e, v, degrees, needs = degree, 1 + math.log2(2**m + 1), [], [0.0]
    for kind, bits, in_degree, in_m, positions in reversed(walked):
        if kind in ("dense", "conv2d"):
            degrees.append(e + in_degree)
            needs.append(2 * s - bits + v + max(0.0, in_m) + math.log2(shards * batch * positions))
            v += 2
        elif kind == "square":
            e, v = e + in_degree, v + 1 + in_m
        elif kind == "quadratic":
            e, v = e + in_degree, v + math.log2(2 * 2**in_m + 1)
    threshold = max(degrees) * (shards + masks - 1) + 1

    def enough(primes: list[int]) -> bool:
        left = sorted(primes)
        headroom = 1
        while left and headroom < 2**20:
            headroom *= left.pop()
        return bool(left) and headroom >= 2**20 and math.log2(math.prod(left)) >= max(needs) + 1

    def choose(limit: int) -> tuple[int, ...] | None:
        chosen: list[int] = []
        for prime in primes_below(limit):
            if prime <= max(2, clients + shards + masks):
                return None
            chosen.append(prime)
            if enough(chosen):
                return tuple(sorted(chosen))
        return None

    moduli = choose(256) if largest >= 2**20 and shards * batch * most_positions <= 33553 else None
    if moduli is None:
        n = max(batch * most_positions, threshold)
        moduli = choose(max(2**22, min(2**24, 2 * (math.isqrt((2**53 - 2**25) // n) - 3))))
    assert moduli is not None
    return threshold, moduli, parameters


def hidden_rows(m: int, shards: int) -> list[list[int]]:
    w, q = divmod(m, shards)
    regular = [[r * shards + k for k in range(shards)] for r in range(w)]
    return regular + [[w * shards + (j + k) % q for k in range(shards)] for j in range(q)]


# -- sections 8 and 13 -----------------------------------------------------------------------------------------


def hkdf(ikm: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, no salt, 32 bytes."""
    return hmac.digest(hmac.digest(bytes(32), ikm, "sha256"), info + b"\1", "sha256")


DOMAINS = {name: int(number) for number, name in re.findall(r"^\| (\d+) (\w+) \|", SPEC, re.M)}


def word(key: bytes, domain: str, index: int, j: int, attempt: int = 0) -> int:
    return words(key, domain, index, j, 1, attempt)[0]


def words(key: bytes, domain: str, index: int, first: int, count: int, attempt: int = 0) -> list[int]:
    """Words first, first + 1, … of a stream."""
    terms = {"domain · 256 + attempt u32": DOMAINS[domain] * 256 + attempt, "index u32": index, "0 u32": 0}
    nonce = joined("nonce", {term: struct.pack("<I", value) for term, value in terms.items()})
    counter = struct.pack("<I", first // 16)  # the library takes it with the nonce
    skipped = first % 16
    stream = Cipher(ChaCha20(key, counter + nonce), None).encryptor().update(bytes(4 * (skipped + count)))
    return list(struct.unpack(f"<{skipped + count}I", stream)[skipped:])


def public_key(seed: int) -> bytes:
    return sha256(label("dresfl public stream "), str(seed).encode())


def drawn(rows: list[int], batch: int, shards: int, seed: int, number: int) -> list[list[int]]:
    key, total, out = public_key(seed), sum(rows), []
    for b in range(batch):
        r = 2**32 * word(key, "batch", number, 2 * b) + word(key, "batch", number, 2 * b + 1)
        v, dealer = (b * total + r * total // 2**64) // batch, 0
        while v >= rows[dealer]:
            v, dealer = v - rows[dealer], dealer + 1
        w = rows[dealer] // shards
        out.append([dealer, v // shards if v < w * shards else v - w * (shards - 1)])
    return out


def weights_sha256(weights: list[int]) -> bytes:
    """Section 7's one hash of weights."""
    line = re.search(
        r"^    weights_sha256 = SHA-256\(the P weights, each as a signed integer of (\d+) bits\)$", SPEC, re.M
    )
    assert line, "SPEC.md does not define weights_sha256"
    return sha256(*(weight.to_bytes(int(line[1]) // 8, "little", signed=True) for weight in weights))


def blinding_word(key: bytes, p: int, channel: int, j: int) -> int:
    """Section 14: one entry of a seed's random vector, modulo p."""
    limit, attempt = 2**32 // p * p, 0
    while (found := word(key, "blinding", channel, j, attempt)) >= limit:
        attempt += 1
    return found % p


def mask(seed: bytes, sharing_id: bytes, p: int, row: int, j: int) -> int:
    key = hmac.digest(seed, label("dresfl masks") + sharing_id, "sha256")
    limit = 2**32 // p * p
    attempt = 0
    while (found := word(key, "masks", row, j, attempt)) >= limit:
        attempt += 1
    return found % p
