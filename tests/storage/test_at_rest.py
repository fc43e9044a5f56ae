"""Sealed at rest: nothing is readable without the key, no bit changes unseen, and the wrong key is named as such."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import XTS
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dresfl.errors import StoreError
from dresfl.storage import ShareStore, data_digest
from dresfl.storage.at_rest import CREDENTIAL, BrokenSeal, RowCipher, StorageKey, open_file, seal_file
from five_clients import ROWS, dealers, fetch, rows_of, session_of

INDEX = 2
KEY, OTHER = StorageKey(bytes(range(32))), StorageKey(bytes(32))
PATH = Path("some file")


# -- the key ---------------------------------------------------------------------------------------------------


def test_a_key_is_made_once_and_for_its_owner_alone(tmp_path):
    path = tmp_path / "key"
    made = StorageKey.create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_bytes()) == 32
    assert StorageKey.load(path).mark == made.mark == StorageKey.find(str(path)).mark
    with pytest.raises(StoreError, match="exists already"):
        StorageKey.create(path)
    path.chmod(0o640)
    with pytest.raises(StoreError, match="lets other users at it"):
        StorageKey.load(path)


def test_a_key_of_another_length_is_refused(tmp_path):
    path = tmp_path / "key"
    path.touch(0o600)
    for size in (0, 31, 33):
        path.write_bytes(bytes(size))
        with pytest.raises(StoreError, match=f"32 bytes, not {size}") as caught:
            StorageKey.find(str(path))
        assert "dresfl storage-key" in caught.value.hint


def test_the_credential_of_a_service_manager_is_found(tmp_path, monkeypatch):
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert StorageKey.find("") is None
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert StorageKey.find("") is None
    (tmp_path / CREDENTIAL).write_bytes(bytes(32))
    (tmp_path / CREDENTIAL).chmod(0o440)  # as systemd shows a file that an access control list protects
    assert StorageKey.find("").mark == OTHER.mark
    made = StorageKey.create(tmp_path / "named")
    assert StorageKey.find(str(tmp_path / "named")).mark == made.mark


def test_a_key_shows_nothing_of_itself():
    cipher = KEY.row_cipher(b"sharing", 16)
    assert bytes(range(32)).hex() not in repr(KEY) + repr(cipher)
    for holder in (KEY, cipher):
        with pytest.raises(TypeError, match="not pickled"):
            holder.__reduce__()


# -- whole files -----------------------------------------------------------------------------------------------


def test_a_file_comes_back_and_no_changed_bit_passes():
    sealed = KEY.seal(b"the content", "terms")
    assert b"content" not in sealed
    assert sealed != KEY.seal(b"the content", "terms")  # a fresh nonce
    assert KEY.open(sealed, "terms", PATH) == b"the content"
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreError, match="some file") as caught:
            KEY.open(bytes(changed), "terms", PATH)
        assert isinstance(caught.value, BrokenSeal) or 16 * 8 <= bit < 24 * 8  # the mark: seems to be of another key
    for length in range(len(sealed)):
        with pytest.raises(StoreError):
            KEY.open(sealed[:length], "terms", PATH)


def test_a_file_of_another_role_or_key_is_not_taken():
    sealed = KEY.seal(b"the content", "terms")
    with pytest.raises(BrokenSeal, match="damaged"):
        KEY.open(sealed, "secret", PATH)
    with pytest.raises(StoreError, match=f"storage key {KEY.mark.hex()}, and another one is given") as caught:
        OTHER.open(sealed, "terms", PATH)
    assert "damaged" not in str(caught.value)
    with pytest.raises(StoreError, match=f"storage key {KEY.mark.hex()}, and none is given"):
        open_file(None, sealed, "terms", PATH)
    with pytest.raises(StoreError, match="is not sealed, but a storage key is given"):
        open_file(KEY, b'{\n  "format": "dresfl terms 3"}', "terms", PATH)
    assert open_file(None, seal_file(None, b"plain", "terms"), "terms", PATH) == b"plain"


# -- rows ------------------------------------------------------------------------------------------------------


def test_a_row_is_sealed_as_the_page_says():
    """By the formula alone: the key from HKDF, the tweak from dealer and row."""
    secret, digest = bytes(range(32)), b"d" * 32
    key = HKDF(SHA256(), 64, None, b"dresfl storage rows" + digest).derive(secret)
    row = np.arange(37, dtype=np.uint8)
    tweak = (5).to_bytes(4, "little") + (2**33).to_bytes(8, "little") + bytes(4)
    wanted = Cipher(AES(key), XTS(tweak)).encryptor().update(row.tobytes())
    cipher = StorageKey(secret).row_cipher(digest, 37)
    assert cipher.seal([5], [2**33], row[None]).tobytes() == wanted


def test_every_place_has_its_own_bytes():
    cipher = KEY.row_cipher(b"sharing", 24)
    rows = np.zeros((4, 2, 12), dtype=np.uint8)
    sealed = cipher.seal([0, 0, 1, 1], [0, 1, 0, 1], rows)
    assert sealed.shape == rows.shape
    assert len({row.tobytes() for row in sealed}) == 4
    assert (cipher.open([1, 0], [1, 0], sealed[[3, 0]]) == 0).all()  # in any order, each by itself
    assert (KEY.row_cipher(b"another", 24).seal([0], [0], rows[:1]) != sealed[0]).any()


def test_rows_that_are_too_short_are_refused():
    with pytest.raises(StoreError, match="15 bytes are too short"):
        RowCipher(bytes(range(64)), 15)


# -- a store ---------------------------------------------------------------------------------------------------


def filled(folder, key):
    session = session_of()
    with ShareStore.open(folder, data_digest(*rows_of(INDEX)), key=key) as store:
        table, damage = store.table(session, INDEX)
        assert not damage
        members = dealers(session, store.secret(session), INDEX)
        client = type(members[0])(session, INDEX, store.secret(session), *rows_of(INDEX), table)
        fetch(session, members, client, table)
        return rows_in(table, session)


def rows_in(table, session):
    places = [(dealer, row) for dealer in range(len(ROWS)) for row in range(session.coded_rows(dealer))]
    numbers = torch.tensor(places)
    return table.rows(numbers[:, 0], numbers[:, 1])


def test_a_sealed_store_holds_the_same_shares_and_shows_none(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("secrets.token_bytes", lambda count: bytes(count))  # the same secret in both
        plain, sealed = filled(tmp_path / "plain", None), filled(tmp_path / "sealed", KEY)
    assert (plain == sealed).all()
    for name in ("secret", f"{session_of().sharing_id.hex()}/shares.rows"):
        open_bytes, closed = (tmp_path / "plain" / name).read_bytes(), (tmp_path / "sealed" / name).read_bytes()
        assert all(open_bytes[i : i + 16] not in closed for i in range(0, len(open_bytes) - 16, 16))
    session = session_of()
    for look in (True, False):
        with ShareStore.open(tmp_path / "sealed", data_digest(*rows_of(INDEX)), key=KEY) as store:
            table, damage = store.table(session, INDEX, look)
            assert not damage
            assert (rows_in(table, session) == plain).all()


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
@pytest.mark.parametrize("look", [True, False])
def test_packed_rows_are_the_same_rows(tmp_path, key, look):
    filled(tmp_path / "store", key)
    session = session_of()
    with ShareStore.open(tmp_path / "store", data_digest(*rows_of(INDEX)), key=key) as store:
        table, _ = store.table(session, INDEX, look)
        for dealer, first, last in ((0, 0, ROWS[0]), (3, 2, 5), (4, 4, 5)):
            numbers = torch.arange(first, last)
            rows = table.rows(torch.full_like(numbers, dealer), numbers)  # (M,rows,W)
            packed = table.packed_rows(dealer, first, last)
            assert packed.shape == (last - first, rows.shape[0], rows.shape[2] * session.field.residue_bytes)
            assert packed.swapaxes(0, 1).tobytes() == session.field.pack(rows)


def test_a_store_of_another_key_is_named_and_not_called_damaged(tmp_path):
    filled(tmp_path / "sealed", KEY)
    filled(tmp_path / "plain", None)
    digest = data_digest(*rows_of(INDEX))
    for folder, key, words in (
        ("sealed", None, f"is sealed with the storage key {KEY.mark.hex()}, and none is given"),
        ("sealed", OTHER, f"is sealed with the storage key {KEY.mark.hex()}, but {OTHER.mark.hex()} is given"),
        ("plain", KEY, "is not sealed, but a storage key is given"),
    ):
        with pytest.raises(StoreError, match=words) as caught:
            ShareStore.open(tmp_path / folder, digest, key=key)
        assert caught.value.hint
        (tmp_path / folder / "store.json").rename(tmp_path / "store.json")  # the secret itself says so too
        with pytest.raises(StoreError, match=r"sealed"):
            ShareStore.open(tmp_path / folder, digest, key=key)
        os.replace(tmp_path / "store.json", tmp_path / folder / "store.json")
