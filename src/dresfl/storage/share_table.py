"""The shares that a client was dealt in one sharing, on disk: gathered row by row, checked slice by slice.

For each dealer two files: DEALER.rows, its coded rows one after the other, each as residues M·W packed as on the wire;
and DEALER.json, the SHA-256 of every slice held (protocol/slices.py). A slice is held if its bytes have that digest.
Rows are written, then flushed, then listed: a crash at any moment costs the slices since the last `flush`, no more.

Opening reads every byte once, or, if so asked, each slice is read when it is first used. What does not have its digest
is named, and is missing; when it comes again, its dealer must send what it sent before.
"""

import contextlib
import hashlib
import logging
import mmap
import os
from pathlib import Path
from typing import NoReturn, final

import numpy as np
from torch import Tensor

from dresfl.errors import MessageError, StoreError
from dresfl.files import disk, read_record, sync_folder, write_record
from dresfl.protocol import Session, ShareTable
from dresfl.protocol.slices import num_slices, row_bytes, slice_range, slice_rows

_log = logging.getLogger(__name__)

_PENDING_BYTES = 2**26  # written and not yet listed, at most


@final
class DiskTable(ShareTable):
    """One client's shares of one sharing in a folder. Made by `ShareStore.table`. For one thread at a time."""

    def __init__(self, folder: Path, session: Session, index: int, look: bool = True) -> None:
        self._folder, self._session, self._index = folder, session, index
        self._row_bytes, self._slice_rows = row_bytes(session), slice_rows(session)
        clients = range(session.num_clients)
        self._digests: list[list[str | None]] = [[None] * num_slices(session, d) for d in clients]
        self._verify_all = look
        self._unread: list[set[int]] = [set() for _ in clients]  # slices listed whose digest was not checked yet
        self._held = [np.zeros(num_slices(session, d), dtype=np.bool_) for d in clients]
        self._lacking = [num_slices(session, d) for d in clients]
        self._pending: dict[int, int] = {}  # bytes by dealer
        self._files: list[int] = []
        self._maps: list[mmap.mmap] = []
        self._rows: list[np.ndarray] = []
        self.damage: list[str] = []  # what was found wrong on opening, in words
        try:
            self._allocate()
            for dealer in clients:
                self._verify(dealer)
                self._map(dealer)
        except BaseException:
            self.close(flush=False)
            raise

    def __repr__(self) -> str:
        return f"DiskTable({str(self._folder)!r}, missing={sum(self._lacking)} slices)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("shares are not pickled")

    def _path(self, dealer: int, kind: str) -> Path:
        return self._folder / f"{dealer:05d}.{kind}"

    def _size(self, dealer: int) -> int:
        return self._session.coded_rows(dealer) * self._row_bytes

    # -- opening ---------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        """Open all files and take their space now: a disk too small is known before anything travels."""
        made: list[Path] = []
        try:
            for dealer in range(self._session.num_clients):
                path, wanted = self._path(dealer, "rows"), self._size(dealer)
                with disk(path, f"keep {wanted} bytes in"):
                    if not path.exists():
                        made.append(path)
                    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                    self._files.append(file)
                    found = os.fstat(file).st_size
                    if path not in made and found != wanted:
                        self._note(f"{path} has {found} bytes instead of {wanted}")
                    if found > wanted:
                        os.ftruncate(file, wanted)
                    os.posix_fallocate(file, 0, wanted)
            with disk(self._folder, "write to"):
                sync_folder(self._folder)
        except StoreError:
            for path in made:  # give the space back
                with contextlib.suppress(OSError):
                    path.unlink()
            raise

    def _note(self, what: str) -> None:
        self.damage.append(what)
        _log.warning("%s; what is missing is fetched again", what)

    def _identity(self, dealer: int) -> dict[str, object]:
        return {"sharing": self._session.sharing_digest.hex(), "receiver": self._index, "dealer": dealer}

    def _verify(self, dealer: int) -> None:
        """Read a dealer's rows once and hold each slice against its digest."""
        path, digests = self._path(dealer, "json"), self._digests[dealer]
        try:
            record = read_record(path)
        except StoreError as error:
            self._note(str(error))
            record = None
        if record is None:
            return
        listed = record.pop("slices", None)
        if record != self._identity(dealer) or not isinstance(listed, list) or len(listed) != len(digests):
            self._note(f"{path} belongs to another sharing, client or dealer")
            return
        digests[:] = listed
        for number, digest in enumerate(digests):
            if digest is None:
                continue
            if not self._verify_all:
                self._unread[dealer].add(number)
            elif not self._sound(dealer, number):
                continue
            self._held[dealer][number] = True
            self._lacking[dealer] -= 1

    def _sound(self, dealer: int, number: int) -> bool:
        """Whether a slice's bytes have their digest; if not, that is noted."""
        rows, reason = slice_range(self._session, dealer, number), "damaged"
        try:
            data = os.pread(self._files[dealer], len(rows) * self._row_bytes, rows.start * self._row_bytes)
            if hashlib.sha256(data).hexdigest() == self._digests[dealer][number]:
                return True
        except OSError as error:  # a bad sector is damage like any other
            reason = f"unreadable ({error.strerror})"
        where = f"slice {number} (rows {rows.start} to {rows.stop - 1} of dealer {dealer})"
        self._note(f"{self._path(dealer, 'rows')} is {reason} in {where}")
        return False

    def _map(self, dealer: int) -> None:
        with disk(self._path(dealer, "rows"), "map"):
            mapped = mmap.mmap(self._files[dealer], self._size(dealer), access=mmap.ACCESS_READ)
        self._maps.append(mapped)
        shape = self._session.coded_rows(dealer), len(self._session.field.moduli), -1
        self._rows.append(np.frombuffer(mapped, dtype=np.uint8).reshape(shape))  # (rows,M,W·bytes)

    # -- the table -------------------------------------------------------------------------------------------

    def put(self, dealer: int, first_row: int, residues: Tensor) -> None:
        """Keep one or more whole slices of a dealer: residues (M,rows,W). Durable after the next `flush`."""
        moduli, count, _ = residues.shape
        first, rest = divmod(first_row, self._slice_rows)
        last = first_row + count
        if rest or (last % self._slice_rows and last != self._session.coded_rows(dealer)):
            raise MessageError(
                f"rows {first_row} to {last - 1} of dealer {dealer} are not whole slices of {self._slice_rows}",
                "shares travel slice by slice",
            )
        packed = np.frombuffer(self._session.field.pack(residues), dtype=np.uint8)
        rows = packed.reshape(moduli, count, -1).swapaxes(0, 1)  # (rows,M,W·bytes)
        for number in range(first, first + -(-count // self._slice_rows)):
            place = slice_range(self._session, dealer, number)
            self._put(dealer, number, rows[place.start - first_row : place.stop - first_row].tobytes())

    def _put(self, dealer: int, number: int, data: bytes) -> None:
        digest, known = hashlib.sha256(data).hexdigest(), self._digests[dealer][number]
        if known is not None and digest != known:
            raise MessageError(
                f"dealer {dealer} sent other residues for rows it had shared already, in slice {number}",
                "its secret or its rows have changed: all participants must share again",
            )
        self._look_at(dealer, number)
        if self._held[dealer][number]:
            return
        start = slice_range(self._session, dealer, number).start * self._row_bytes
        path = self._path(dealer, "rows")
        view = memoryview(data)
        with disk(path, "write"):
            while view:
                written = os.pwrite(self._files[dealer], view, start)
                view, start = view[written:], start + written
        self._digests[dealer][number] = digest
        self._held[dealer][number] = True
        self._lacking[dealer] -= 1
        self._pending[dealer] = self._pending.get(dealer, 0) + len(data)
        if self.complete or sum(self._pending.values()) >= _PENDING_BYTES:
            self.flush()

    def rows(self, dealers: Tensor, rows: Tensor) -> Tensor:
        moduli, width = len(self._session.field.moduli), self._session.row_width
        if not self._verify_all:
            self._verify_used(dealers, rows)
        gathered = np.empty((moduli, len(rows), width * self._session.field.residue_bytes), dtype=np.uint8)
        for i, (dealer, row) in enumerate(zip(dealers.tolist(), rows.tolist(), strict=True)):
            gathered[:, i] = self._rows[dealer][row]
        return self._session.field.unpack(gathered.data.cast("B"), (len(rows), width))

    def _verify_used(self, dealers: Tensor, rows: Tensor) -> None:
        numbers = (rows // self._slice_rows).tolist()
        for dealer, number in sorted(set(zip(dealers.tolist(), numbers, strict=True))):
            self._look_at(dealer, number)
        lost = [dealer for dealer in range(len(self._lacking)) if self._lacking[dealer]]
        if lost:
            raise StoreError(
                f"slices of dealer {lost[0]} have to be fetched again before a round can be answered",
                "see the log for what was damaged",
            )

    def _look_at(self, dealer: int, number: int) -> None:
        """Read a slice that is listed and was not read yet; if it is damaged, it is missing from here on."""
        if number in self._unread[dealer]:
            self._unread[dealer].discard(number)
            if not self._sound(dealer, number):
                self._held[dealer][number] = False
                self._lacking[dealer] += 1

    def missing(self, dealer: int) -> list[range]:
        if not self._lacking[dealer]:
            return []
        slices = [slice_range(self._session, dealer, number) for number in np.flatnonzero(~self._held[dealer]).tolist()]
        merged: list[range] = []
        for rows in slices:
            if merged and merged[-1].stop == rows.start:
                merged[-1] = range(merged[-1].start, rows.stop)
            else:
                merged.append(rows)
        return merged

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not any(self._lacking)

    def flush(self) -> None:
        """Put everything kept so far on the disk for good. Acknowledge a slice to the relay only after this."""
        for dealer in list(self._pending):
            with disk(self._path(dealer, "rows"), "write"):
                os.fsync(self._files[dealer])
            write_record(self._path(dealer, "json"), {**self._identity(dealer), "slices": self._digests[dealer]})
            del self._pending[dealer]

    def close(self, flush: bool = True) -> None:
        """Flush, and let the files go. Rows gathered before stay as they are."""
        try:
            if flush and self._files:
                self.flush()
        finally:
            self._rows.clear()
            for mapped in self._maps:
                with contextlib.suppress(BufferError):  # a traceback may still hold rows: it goes with them
                    mapped.close()
            self._maps.clear()
            for file in self._files:
                os.close(file)
            self._files.clear()
