"""Sealed at rest: with a storage key, a stolen disk or backup shows no secret, no share and no checkpoint.

The key is a file of 32 random bytes that lies elsewhere, or a credential of the service manager. Three things follow
from it by HKDF-SHA256: its mark, by which a file tells which key it wants; a key for whole files; a key for the rows of
each sharing.

    a sealed file   "dresfl sealed 1\\n" | mark 8 | nonce 12 | ChaCha20-Poly1305 of the content
    a sealed row    AES-256-XTS of the row, tweak = dealer u32 | row u64 | 0 u32; the digests of slices are its check

The associated data of a file are its head and its role, so that no file passes for another. Rows are gathered one by
one, hence a cipher for each row. A row sealed again is the same bytes again, and no bytes are added.

A folder is of one key or of none, from its first file on. What sealing cannot prevent: that somebody who writes to the
disk puts an older file of the same role back.
"""

import os
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
import numpy.typing as npt

from dresfl.errors import StoreError
from dresfl.files import read_file, write_new

CREDENTIAL = "dresfl-storage-key"  # its name among the credentials of a service manager
_SIZE = 32
_HEAD = b"dresfl sealed 1\n"
_MARK = 8
_NONCE = 12
_TAG = 16
_LEAST_ROW = 16  # bytes: one block of AES

_TWEAK = struct.Struct("<IQI")  # dealer, row, zero

Bytes = npt.NDArray[np.uint8]


class BrokenSeal(StoreError):
    """A sealed file that was altered or cut."""


@final
class StorageKey:
    """A participant's key for its own disk.

    >>> key = StorageKey(bytes(32))
    >>> key.open(key.seal(b"content", "terms"), "terms", Path("terms.json")) == b"content"
    True
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _SIZE:
            raise StoreError(f"a storage key has {_SIZE} bytes, not {len(secret)}", "make one: dresfl storage-key FILE")
        self._secret = secret
        self.mark = self._derive(b"mark", _MARK)
        self._files = self._derive(b"files", 32)

    def __repr__(self) -> str:
        return f"StorageKey({self.mark.hex()}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a StorageKey is not pickled")

    @classmethod
    def load(cls, path: Path) -> "StorageKey":
        """Read a key that only its owner may read."""
        return cls(read_file(path, 4096, private=True))

    @classmethod
    def find(cls, path: str) -> "StorageKey | None":
        """The key in a file; without a path, the service manager's credential, if there is one."""
        if path:
            return cls.load(Path(path))
        folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
        credential = Path(folder) / CREDENTIAL
        if not folder or not credential.exists():
            return None
        return cls(read_file(credential, 4096))  # systemd keeps others from it by other means than its mode

    @staticmethod
    def create(path: Path) -> "StorageKey":
        """Make a new key in a file of mode 0600 that must not exist yet."""
        secret = secrets.token_bytes(_SIZE)
        write_new(path, secret, private=True)
        return StorageKey(secret)

    def _derive(self, purpose: bytes, size: int) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return HKDF(SHA256(), size, None, b"dresfl storage " + purpose).derive(self._secret)

    # -- whole files -----------------------------------------------------------------------------------------

    def seal(self, data: bytes, role: str) -> bytes:
        """A file's content as it goes to the disk. role: what the file is, whatever its name."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        head, nonce = _HEAD + self.mark, secrets.token_bytes(_NONCE)
        return head + nonce + ChaCha20Poly1305(self._files).encrypt(nonce, data, head + role.encode())

    def open(self, data: bytes, role: str, path: Path) -> bytes:
        """What `seal` was given. BrokenSeal if the file at `path` is damaged, StoreError if it is of another key."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        head, rest = data[: len(_HEAD) + _MARK], data[len(_HEAD) + _MARK :]
        if head != _HEAD + self.mark:
            raise _of_another_key(path, head, self.mark)
        try:
            return ChaCha20Poly1305(self._files).decrypt(rest[:_NONCE], rest[_NONCE:], head + role.encode())
        except (InvalidTag, ValueError) as cause:
            raise BrokenSeal(f"{path} is damaged: it does not open with its storage key", "restore it") from cause

    # -- rows of shares --------------------------------------------------------------------------------------

    def row_cipher(self, sharing_digest: bytes, row_bytes: int) -> "RowCipher":
        """The cipher for the rows of one sharing."""
        return RowCipher(self._derive(b"rows" + sharing_digest, 64), row_bytes)


def _of_another_key(path: Path, head: bytes, mark: bytes) -> StoreError:
    """What a file that does not begin as the key's files do is: damaged, of another key, or not sealed."""
    if head[: len(_HEAD)] == _HEAD and sum(a != b for a, b in zip(head[len(_HEAD) :], mark, strict=False)) <= 2:
        return BrokenSeal(f"{path} is damaged in the mark of its storage key", "restore it")
    if head[: len(_HEAD)] == _HEAD:
        return StoreError(
            f"{path} was sealed with the storage key {head[len(_HEAD) :].hex()}, and another one is given",
            "give storage_key the file of then; if there is no copy of it, what it sealed is lost",
        )
    if len(head) < len(_HEAD) + _MARK or sum(a != b for a, b in zip(head, _HEAD, strict=False)) <= 2:
        return BrokenSeal(f"{path} is damaged at its beginning", "restore it")
    return StoreError(
        f"{path} is not sealed, but a storage key is given",
        "take storage_key out of the configuration to go on with this folder, or choose a new folder",
    )


def seal_file(key: StorageKey | None, data: bytes, role: str) -> bytes:
    """A file's content as it goes to the disk: sealed if there is a key."""
    return data if key is None else key.seal(data, role)


def open_file(key: StorageKey | None, data: bytes, role: str, path: Path) -> bytes:
    """What `seal_file` was given. A file that wants a key, or another key, is refused as such."""
    if key is not None:
        return key.open(data, role, path)
    if data[: len(_HEAD)] == _HEAD:
        mark = data[len(_HEAD) : len(_HEAD) + _MARK].hex()
        raise StoreError(
            f"{path} is sealed with the storage key {mark}, and none is given", "set storage_key to its file"
        )
    return data


def mark_of(data: bytes) -> str:
    """The mark of the key that sealed a file's bytes, in hex; empty if they are not sealed."""
    return data[len(_HEAD) : len(_HEAD) + _MARK].hex() if data[: len(_HEAD)] == _HEAD else ""


def check_mark(key: StorageKey | None, found: object, folder: Path) -> None:
    """Refuse a folder of another key than the one given. found: the mark that it notes, in hex; empty: of no key."""
    given = "" if key is None else key.mark.hex()
    if found == given:
        return
    if not found:
        what, hint = "is not sealed, but a storage key is given", "take storage_key out, or choose a new folder"
    elif not given:
        what, hint = f"is sealed with the storage key {found}, and none is given", "set storage_key to its file"
    else:
        what = f"is sealed with the storage key {found}, but {given} is given"
        hint = "give storage_key the file of then; if there is no copy of it, what it sealed is lost"
    raise StoreError(f"{folder} {what}", hint)


@final
class RowCipher:
    """Seals and opens the rows of one sharing, each by itself.

    >>> cipher = StorageKey(bytes(32)).row_cipher(b"sharing", row_bytes=20)
    >>> rows = np.arange(40, dtype=np.uint8).reshape(2, 20)
    >>> bool((cipher.open([3, 3], [7, 8], cipher.seal([3, 3], [7, 8], rows)) == rows).all())
    True
    """

    def __init__(self, key: bytes, row_bytes: int) -> None:
        from cryptography.hazmat.primitives.ciphers.algorithms import AES

        if row_bytes < _LEAST_ROW:
            raise StoreError(
                f"rows of {row_bytes} bytes are too short to be sealed at rest, {_LEAST_ROW} are needed",
                "take storage_key out of the configuration, and encrypt the disk itself",
            )
        self._algorithm, self._row_bytes = AES(key), row_bytes

    def __repr__(self) -> str:
        return "RowCipher(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RowCipher is not pickled")

    def seal(self, dealers: Sequence[int], rows: Sequence[int], plain: Bytes) -> Bytes:
        """Rows (n, bytes) of these dealers, at these places."""
        return self._each("encryptor", dealers, rows, plain)

    def open(self, dealers: Sequence[int], rows: Sequence[int], sealed: Bytes) -> Bytes:
        """What `seal` was given."""
        return self._each("decryptor", dealers, rows, sealed)

    def _each(self, direction: str, dealers: Sequence[int], rows: Sequence[int], data: Bytes) -> Bytes:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.modes import XTS

        whole = np.ascontiguousarray(data).reshape(len(rows), self._row_bytes)
        result = np.empty_like(whole)
        for i, (dealer, row) in enumerate(zip(dealers, rows, strict=True)):
            cipher: Any = Cipher(self._algorithm, XTS(_TWEAK.pack(dealer, row, 0)))
            getattr(cipher, direction)().update_into(whole[i].data, result[i].data)
        return result.reshape(data.shape)
