"""Files that nobody would write: whatever is in them, the error is one of the family."""

import base64
import io
import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from dresfl.deploy.rows import read_npz
from dresfl.deploy.toml import override, parse_table
from dresfl.errors import CheckpointError, DataError, DresError, IdentityError, UsageError
from dresfl.experiments.bench.page import read_results
from dresfl.experiments.vectors import check_vectors
from dresfl.federation import Agreement, Terms
from dresfl.model import Dense, mlp
from dresfl.runtimes.local import from_trace
from dresfl.sealing.identity import load_tls_key, private_pem
from dresfl.storage.run_folder import read_metrics, read_summary

DEEP = "[" * 100_000
_ENTRY = b"PK\x01\x02"  # how an entry in a zip file's list of contents begins


def test_brackets_within_brackets(tmp_path: Path) -> None:
    for name in ("summary.json", "metrics.jsonl", "other"):
        (tmp_path / name).write_text(DEEP)
    with pytest.raises(UsageError, match="not valid TOML"):
        parse_table(f"layers = {DEEP}", "agreement.toml")
    with pytest.raises(UsageError, match="cannot read the vectors"):
        check_vectors(tmp_path / "other")
    with pytest.raises(UsageError, match="cannot read the trace"):
        from_trace(tmp_path / "other", 3, 0)
    with pytest.raises(UsageError, match="cannot read the results"):
        read_results(tmp_path / "other")
    for read in (read_summary, read_metrics):
        with pytest.raises(CheckpointError, match="cannot read"):
            read(tmp_path)


@pytest.mark.parametrize("text", ["day = 2026-02-31", "time = 25:61:00", "n = " + "9" * 5000])
def test_values_that_toml_allows_and_nothing_else_does(text: str) -> None:
    with pytest.raises(UsageError, match="not valid TOML"):
        parse_table(text, "agreement.toml")
    table: dict[str, object] = {}
    override(table, ["value=" + text.partition("= ")[2]])
    assert isinstance(table["value"], str)  # what is no TOML value is a word


@pytest.mark.parametrize("rows", ["1e400", "-1e400", "NaN", '"x"', "[1]", "null", "9" * 400, DEEP])
def test_terms_of_impossible_rows(rows: str) -> None:
    agreement = Agreement((Dense(2),), (3,), num_clients=3, rounds=10)
    settled = Terms(b"n" * 32, b"r" * 16, b"o" * 16, (3, 5, 4), (b"c" * 64, b"d" * 64, b"e" * 64))
    terms = settled.to_json(agreement).decode()
    changed = json.dumps(json.loads(terms) | {"rows": ["HERE", 5, 4]}).replace('"HERE"', rows)
    with pytest.raises(CheckpointError):
        Terms.from_json(changed.encode(), agreement)


def test_keys_of_kinds_that_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    form, kind = serialization.Encoding.PEM, serialization.PrivateFormat
    for pem in (
        rsa.generate_private_key(65537, 2048).private_bytes(form, kind.PKCS8, serialization.NoEncryption()),
        _with_another_curve(),
        b"-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n",
    ):
        path.write_bytes(pem)
        path.chmod(0o600)
        with pytest.raises(IdentityError, match="no unencrypted elliptic-curve key"):
            load_tls_key(path)


def _with_another_curve() -> bytes:
    """A key whose curve has a number that stands for nothing: the library calls it an unsupported algorithm."""
    key = ec.generate_private_key(ec.SECP256R1())
    der = serialization.load_pem_private_key(private_pem(key), None).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    curve = bytes.fromhex("06082a8648ce3d030107")
    assert curve in der
    text = base64.b64encode(der.replace(curve, curve[:-1] + b"\x7f"))
    return b"-----BEGIN PRIVATE KEY-----\n" + text + b"\n-----END PRIVATE KEY-----\n"


def archive() -> bytes:
    found = io.BytesIO()
    np.savez_compressed(found, inputs=np.random.default_rng(0).random((8, 4)), labels=np.arange(8) % 3)
    return found.getvalue()


def test_archives_with_a_password_or_an_unknown_compression(tmp_path: Path) -> None:
    data, path = archive(), tmp_path / "rows.npz"
    encrypted, unknown = bytearray(data), bytearray(data)
    place = data.find(_ENTRY)
    while place >= 0:
        encrypted[place + 8] |= 1  # a flag
        unknown[place + 10] = 77  # the compression
        place = data.find(_ENTRY, place + 1)
    for changed in (encrypted, unknown):
        path.write_bytes(changed)
        with pytest.raises(DataError, match="cannot read rows"):
            read_npz(path, mlp((2, 3), input_bits=4, weight_bits=10))


def test_archives_with_changed_bytes(tmp_path: Path) -> None:
    """Rows that can still be read are rows; whatever else comes of it is a DresError."""
    data, path, generator = archive(), tmp_path / "rows.npz", random.Random(1)
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as stored:  # not compressed: changes reach the arrays' own headers
        for name in ("inputs", "labels"):
            with zipfile.ZipFile(io.BytesIO(data)) as packed:
                stored.writestr(f"{name}.npy", packed.read(f"{name}.npy"))
    refused = 0
    for source in (data, plain.getvalue()) * 200:
        changed = bytearray(source)
        for _ in range(generator.choice((1, 1, 4))):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        path.write_bytes(changed[: generator.choice((len(changed), len(changed), generator.randrange(len(changed))))])
        try:
            read_npz(path, mlp((2, 3), input_bits=4, weight_bits=10))
        except DresError:
            refused += 1
    assert refused > 100
