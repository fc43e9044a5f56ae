"""The shares that a client was dealt in one sharing, on disk: gathered row by row, checked slice by slice.

Two files for all dealers, so that a client needs as many descriptors for a thousand of them as for three (what is not
rows has a file of its own, set_up_file.py):

    shares.rows    the coded rows, dealer after dealer, each row as residues M·W packed as on the wire
    shares.index   a record of 64 bytes for each slice (protocol/slices.py), dealer after dealer:
                   SHA-256 of the slice's bytes in shares.rows | check

check = SHA-256("dresfl slice" | sharing digest | receiver u32 | dealer u32 | slice u32 | those 32 bytes). A record of
zeros: the slice has not come. A slice is held if its bytes have the digest that its record gives.

Every record has its place from the start, and both files have their full size. So a flush writes the records of the
slices since the last one and no others, an index never grows, and a record is one write within one sector, done or not
done. Before the first slice of another dealer comes, the files have holes: terms alone, which a coordinator may have
invented, take no space. That there is enough of it is seen at once, and it is taken with that first slice. Rows are
written, then flushed, then listed: a crash at any moment costs the slices since the last `flush`.

Opening reads every byte once, or, if so asked, each slice is read when it is first used. What does not have its digest,
and a record that does not have its check, is named, and its slice is missing. When a slice comes again whose record is
sound, its dealer must send what it sent before.

With a storage key each row is sealed by itself (at_rest.py), and digests are those of the sealed rows. A row that is
sealed again is the same bytes again.
"""

import contextlib
import errno
import hashlib
import itertools
import logging
import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn, final

import numpy as np
import torch
from torch import Tensor

from dresfl.errors import MessageError, StoreError
from dresfl.field import Octets, PackedResidues, Residues
from dresfl.files import disk, sync_folder
from dresfl.protocol import Session, ShareTable
from dresfl.protocol.slices import num_slices, row_bytes, slice_rows

from .at_rest import StorageKey
from .set_up_file import SetUpFile

_log = logging.getLogger(__name__)

_PENDING_BYTES = 2**26  # written and not yet listed, at most
_DIGEST = 32  # bytes
_RECORD = 2 * _DIGEST
_SECTORS = 4096  # bytes of records read at once
_PLACE = struct.Struct("<III")  # receiver, dealer, slice


@final
class DiskTable(ShareTable):
    """One client's shares of one sharing in a folder. Made by `ShareStore.table`. For one thread at a time.

    Slices and rows are counted through, dealer after dealer: a `place` below is such a count of slices.
    """

    def __init__(
        self, folder: Path, session: Session, index: int, look: bool = True, key: StorageKey | None = None
    ) -> None:
        self._cipher = key and key.row_cipher(session.sharing_digest, row_bytes(session))
        self._rows_path, self._index_path = folder / "shares.rows", folder / "shares.index"
        self._session, self._index = session, index
        self._row_bytes, self._slice_rows = row_bytes(session), slice_rows(session)
        clients = range(session.num_clients)
        self._num_rows = [session.coded_rows(dealer) for dealer in clients]
        self._first_row = np.cumsum([0, *self._num_rows])  # of each dealer; the last: of all
        # a dealer without rows has a slice on the way, for its set-up values, and none here
        kept = (num_slices(session, dealer) if self._num_rows[dealer] else 0 for dealer in clients)
        self._first_slice = np.cumsum([0, *kept])
        self._check_room(folder)
        slices = int(self._first_slice[-1])
        self._digests = np.zeros((slices, _DIGEST), dtype=np.uint8)  # zeros: not known
        self._held = np.zeros(slices, dtype=np.bool_)
        self._lacking = np.diff(self._first_slice).tolist()  # by dealer
        self._num_lacking = slices
        self._verify_all = look
        self._unread: set[int] = set()  # slices listed whose digest was not checked yet
        self._pending: list[int] = []  # slices written and not yet listed
        self._pending_bytes = 0
        self._files: list[int] = []  # rows, index
        self._space_taken = False
        self._map: mmap.mmap | None = None
        self._rows = np.empty((0, 0, 0), dtype=np.uint8)  # (rows of all dealers,M,W·bytes)
        self._set_up = SetUpFile(folder, session, index, key)
        self.damage: list[str] = list(self._set_up.damage)  # what was found wrong on opening, in words
        try:
            self._open_files(folder)
            self._read_index()
            self._verify()
            self._map_rows()
        except BaseException:
            self.close(flush=False)
            raise

    def __repr__(self) -> str:
        return f"DiskTable({str(self._rows_path.parent)!r}, missing={self._num_lacking} slices)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("shares are not pickled")

    # -- places ----------------------------------------------------------------------------------------------

    def _dealer_of(self, place: int) -> tuple[int, int]:
        """The dealer of a slice, and the slice's number among that dealer's."""
        dealer = int(np.searchsorted(self._first_slice, place, side="right")) - 1
        return dealer, place - int(self._first_slice[dealer])

    def _range(self, dealer: int, number: int) -> range:
        """A slice's rows, among those of its dealer."""
        first = number * self._slice_rows
        return range(first, min(first + self._slice_rows, self._num_rows[dealer]))

    def _extent(self, dealer: int, number: int) -> tuple[int, int]:
        """Where a slice begins in shares.rows, and its bytes."""
        rows = self._range(dealer, number)
        return (int(self._first_row[dealer]) + rows.start) * self._row_bytes, len(rows) * self._row_bytes

    # -- opening ---------------------------------------------------------------------------------------------

    @property
    def _sizes(self) -> dict[Path, int]:
        """The bytes of both files. The index first: rows without an index are damage, and said to be."""
        rows, slices = int(self._first_row[-1]), int(self._first_slice[-1])
        return {self._index_path: slices * _RECORD, self._rows_path: rows * self._row_bytes}

    def _check_room(self, folder: Path) -> None:
        """See that the disk has room for everything: one that is too small is known before anything travels."""
        wanted = sum(self._sizes.values())
        with disk(folder, f"keep {wanted} bytes in"):
            taken = sum(path.stat().st_blocks * 512 for path in self._sizes if path.exists())
            free = os.statvfs(folder)
            if wanted > taken + free.f_bavail * free.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _take_space(self) -> None:
        """Fill the holes of both files, so that a slice that comes finds its space."""
        for file, (path, wanted) in zip(reversed(self._files), self._sizes.items(), strict=True):
            with disk(path, f"keep {wanted} bytes in"):
                os.posix_fallocate(file, 0, wanted)
        self._space_taken = True

    def _open_files(self, folder: Path) -> None:
        """Open both files, or make them, in their full size."""
        made: list[Path] = []
        try:
            for path, wanted in self._sizes.items():
                with disk(path, f"keep {wanted} bytes in"):
                    if not path.exists():
                        if path == self._index_path and self._rows_path.exists():
                            self._note(f"{path} is missing")
                        made.append(path)
                    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                    self._files.insert(0, file)
                    found = os.fstat(file).st_size
                    if path not in made and found != wanted:
                        self._note(f"{path} has {found} bytes instead of {wanted}")
                    if found != wanted:
                        os.ftruncate(file, wanted)
            with disk(folder, "write to"):
                sync_folder(folder)
        except StoreError:
            for path in made:  # give the space back
                with contextlib.suppress(OSError):
                    path.unlink()
            raise

    def _note(self, what: str) -> None:
        self.damage.append(what)
        _log.warning("%s; what is missing is fetched again", what)

    def _check(self, dealer: int, number: int, digest: bytes) -> bytes:
        place = _PLACE.pack(self._index, dealer, number)
        return hashlib.sha256(b"dresfl slice" + self._session.sharing_digest + place + digest).digest()

    def _read_index(self) -> None:
        """Take the digest of every record that is sound. A run of records that are not is named once."""
        records = np.zeros((len(self._held), _RECORD), dtype=np.uint8)
        for start in range(0, records.nbytes, _SECTORS):  # a bad sector costs these slices, not all
            part = records.reshape(-1)[start : start + _SECTORS].data
            try:
                os.preadv(self._files[1], [part], start)
            except OSError as error:
                self._note(f"{self._index_path} is unreadable ({error.strerror}) at byte {start}")
        damaged: list[int] = []
        for place in np.flatnonzero(records.any(1)).tolist():
            record = records[place].tobytes()
            if self._check(*self._dealer_of(place), record[:_DIGEST]) == record[_DIGEST:]:
                self._digests[place] = records[place, :_DIGEST]
            else:
                damaged.append(place)
        for first, last in _runs(damaged):
            names = [f"slice {number} of dealer {dealer}" for dealer, number in map(self._dealer_of, (first, last))]
            where = names[0] if first == last else f"{names[0]} to {names[1]}"
            self._note(f"{self._index_path} is damaged in what it says of {where}")

    def _verify(self) -> None:
        """Hold each slice that is listed against its digest, or note that this is still to be done."""
        for place in np.flatnonzero(self._digests.any(1)).tolist():
            if not self._verify_all:
                self._unread.add(place)
            elif not self._sound(place):
                continue
            self._set_held(place, True)

    def _set_held(self, place: int, held: bool) -> None:
        self._held[place] = held
        change = -1 if held else 1
        self._lacking[self._dealer_of(place)[0]] += change
        self._num_lacking += change

    def _sound(self, place: int) -> bool:
        """Whether a slice's bytes have their digest; if not, that is noted."""
        (dealer, number), reason = self._dealer_of(place), "damaged"
        start, size = self._extent(dealer, number)
        try:
            if hashlib.sha256(os.pread(self._files[0], size, start)).digest() == self._digests[place].tobytes():
                return True
        except OSError as error:  # a bad sector is damage like any other
            reason = f"unreadable ({error.strerror})"
        rows = self._range(dealer, number)
        where = f"slice {number} (rows {rows.start} to {rows.stop - 1} of dealer {dealer})"
        self._note(f"{self._rows_path} is {reason} in {where}")
        return False

    def _map_rows(self) -> None:
        with disk(self._rows_path, "map"):
            self._map = mmap.mmap(self._files[0], 0, access=mmap.ACCESS_READ)
        shape = int(self._first_row[-1]), len(self._session.field.moduli), -1
        self._rows = np.frombuffer(self._map, dtype=np.uint8).reshape(shape)

    # -- the table -------------------------------------------------------------------------------------------

    def put(self, dealer: int, first_row: int, residues: Residues) -> None:
        """Keep one or more whole slices of a dealer: residues (M,rows,W). Durable after the next `flush`.

        Packed ones go to the disk as they came, row by row instead of channel by channel.
        """
        moduli, count, _ = residues.shape
        if not count:
            return
        first, rest = divmod(first_row, self._slice_rows)
        last = first_row + count
        if rest or (last % self._slice_rows and last != self._num_rows[dealer]):
            raise MessageError(
                f"rows {first_row} to {last - 1} of dealer {dealer} are not whole slices of {self._slice_rows}",
                "shares travel slice by slice",
            )
        if isinstance(residues, PackedResidues):
            packed = residues.octets
        else:
            packed = np.frombuffer(self._session.field.pack(residues), dtype=np.uint8)
        # a row of a channel is one item, so that it is moved as a whole
        rows = packed.view(f"V{self._row_bytes // moduli}").reshape(moduli, count).T  # (rows,M)
        for number in range(first, first + -(-count // self._slice_rows)):
            part = self._range(dealer, number)
            data = rows[part.start - first_row : part.stop - first_row].tobytes()
            self._put(dealer, number, self._sealed(dealer, part, data))

    def _sealed(self, dealer: int, part: range, data: bytes) -> bytes:
        """A slice's rows, one after the other, as they go to the disk."""
        if self._cipher is None:
            return data
        rows = np.frombuffer(data, dtype=np.uint8).reshape(len(part), -1)
        return self._cipher.seal([dealer] * len(part), part, rows).tobytes()

    def _put(self, dealer: int, number: int, data: bytes) -> None:
        place, digest = int(self._first_slice[dealer]) + number, hashlib.sha256(data).digest()
        known = self._digests[place]
        if known.any() and digest != known.tobytes():
            raise MessageError(
                f"dealer {dealer} sent other residues for rows it had shared already, in slice {number}",
                "its secret or its rows have changed: all participants must share again",
            )
        self._look_at(place)
        if self._held[place]:
            return
        if dealer != self._index and not self._space_taken:
            self._take_space()
        start, _ = self._extent(dealer, number)
        self._write(self._rows_path, self._files[0], data, start)
        self._digests[place] = np.frombuffer(digest, dtype=np.uint8)
        self._set_held(place, True)
        self._pending.append(place)
        self._pending_bytes += len(data)
        if self.complete or self._pending_bytes >= _PENDING_BYTES:
            self.flush()

    def _write(self, path: Path, file: int, data: bytes, start: int) -> None:
        view = memoryview(data)
        with disk(path, "write"):
            while view:
                written = os.pwrite(file, view, start)
                view, start = view[written:], start + written

    def rows(self, dealers: Tensor, rows: Tensor) -> Tensor:
        if not self._verify_all:
            self._verify_used(dealers, rows)
        places = self._first_row[dealers.numpy()] + rows.numpy()
        found = self._rows[places]  # (B,M,W·bytes)
        if self._cipher is not None:
            found = self._cipher.open(dealers.tolist(), rows.tolist(), found)
        gathered = np.ascontiguousarray(found.swapaxes(0, 1))  # (M,B,W·bytes)
        return self._session.field.unpack(gathered.data.cast("B"), (len(places), self._session.row_width))

    def packed_rows(self, dealer: int, first: int, last: int) -> Octets:
        if not self._verify_all:
            rows = torch.arange(first, last)
            self._verify_used(torch.full_like(rows, dealer), rows)
        start = int(self._first_row[dealer])
        found = self._rows[start + first : start + last]  # (rows,M,W·bytes)
        if self._cipher is not None:
            found = self._cipher.open([dealer] * (last - first), range(first, last), found)
        return found

    def _verify_used(self, dealers: Tensor, rows: Tensor) -> None:
        for place in np.unique(self._first_slice[dealers.numpy()] + rows.numpy() // self._slice_rows).tolist():
            self._look_at(place)
        lost = next((dealer for dealer in sorted(set(dealers.tolist())) if self._lacking[dealer]), None)
        if lost is not None:
            raise StoreError(
                f"slices of dealer {lost} have to be fetched again before a round can be answered",
                "see the log for what was damaged",
            )

    def _look_at(self, place: int) -> None:
        """Read a slice that is listed and was not read yet; if it is damaged, it is missing from here on."""
        if place in self._unread:
            self._unread.discard(place)
            if not self._sound(place):
                self._set_held(place, False)

    def missing(self, dealer: int) -> list[range]:
        if not self._lacking[dealer]:
            return []
        held = self._held[self._first_slice[dealer] : self._first_slice[dealer + 1]]
        runs = _runs(np.flatnonzero(~held).tolist())
        return [range(first * self._slice_rows, self._range(dealer, last).stop) for first, last in runs]

    def put_set_up(self, dealer: int, data: bytes) -> None:
        self._set_up.put(dealer, data)

    def erase_seeds(self) -> None:
        """Erase the mask seeds that were dealt here, for good."""
        self._set_up.erase_seeds()

    def set_up(self, dealer: int) -> bytes | None:
        return self._set_up.get(dealer)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self._num_lacking

    @property
    def is_known(self) -> bool:
        """Whether of every slice at least the digest is here, so that nothing else can be dealt in its place.

        Likewise all set-up values.
        """
        dealers = range(self._session.num_clients)
        return bool(self._digests.any(1).all()) and all(self.set_up(dealer) is not None for dealer in dealers)

    def flush(self) -> None:
        """Put everything kept so far on the disk for good. Acknowledge a slice to the relay only after this."""
        self._set_up.flush()
        if not self._pending:
            return
        with disk(self._rows_path, "write"):
            os.fsync(self._files[0])
        for place in self._pending:
            digest = self._digests[place].tobytes()
            record = digest + self._check(*self._dealer_of(place), digest)
            self._write(self._index_path, self._files[1], record, place * _RECORD)
        with disk(self._index_path, "write"):
            os.fdatasync(self._files[1])
        self._pending, self._pending_bytes = [], 0

    def close(self, flush: bool = True) -> None:
        """Flush, and let the files go. Rows gathered before stay as they are."""
        try:
            if flush and len(self._files) == 2:
                self.flush()
        finally:
            self._rows = np.empty((0, 0, 0), dtype=np.uint8)
            if self._map is not None:
                with contextlib.suppress(BufferError):  # a traceback may still hold rows: it goes with them
                    self._map.close()
                self._map = None
            for file in self._files:
                os.close(file)
            self._files.clear()


def unfinished(folder: Path) -> bool:
    """Whether some slice of a sharing has never come. One that came and was damaged since does not count."""
    try:
        records = np.frombuffer((folder / "shares.index").read_bytes(), dtype=np.uint8)
    except OSError as error:
        return error.errno == errno.ENOENT
    whole = records[: len(records) // _RECORD * _RECORD].reshape(-1, _RECORD)
    return not len(whole) or not bool(whole.any(1).all())


def _runs(ascending: Iterable[int]) -> list[tuple[int, int]]:
    """The first and last of each stretch of consecutive integers.

    >>> _runs([0, 1, 2, 5])
    [(0, 2), (5, 5)]
    """
    groups = itertools.groupby(enumerate(ascending), lambda pair: pair[1] - pair[0])
    stretches = ([number for _, number in group] for _, group in groups)
    return [(stretch[0], stretch[-1]) for stretch in stretches]
