"""Shares looked at from outside are found as the table itself finds them: for any K, sealed or not, damaged or not."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dresfl.errors import StoreError
from dresfl.federation import make_session
from dresfl.protocol import Client, Session, num_slices, slice_rows
from dresfl.storage import ShareStore, data_digest
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.share_check import INDEX, ROWS, check_shares
from five_clients import AGREEMENT, NONCE, dealers, fetch, rows_of
from five_clients import ROWS as CLIENT_ROWS

RECEIVER = 2


def session_of(num_shards: int) -> Session:
    agreement = replace(AGREEMENT, layers=AGREEMENT.layers[-1:], num_shards=num_shards)
    return make_session(agreement, CLIENT_ROWS, NONCE, b"")


def fill(folder: Path, session: Session, key: StorageKey | None) -> Path:
    """A store that was dealt every share; the folder of its sharing."""
    rows = rows_of(RECEIVER)
    with ShareStore.open(folder, data_digest(*rows), key=key) as store:
        table, _ = store.table(session, RECEIVER)
        client = Client(session, RECEIVER, store.secret(session), *rows, table, store.answered(session))
        fetch(session, dealers(session, store.secret(session), RECEIVER), client, table)
        assert table.complete
    return folder / session.sharing_id.hex()


@pytest.mark.parametrize("key", [None, StorageKey(bytes(32))], ids=["plain", "sealed"])
@pytest.mark.parametrize("num_shards", [1, 2])
def test_every_slice_is_found_without_session_and_key(tmp_path: Path, num_shards: int, key: StorageKey | None) -> None:
    session = session_of(num_shards)
    folder = fill(tmp_path / "store", session, key)
    found = check_shares(folder, session.sharing_digest, RECEIVER, CLIENT_ROWS)
    slices = sum(num_slices(session, dealer) for dealer in range(session.num_clients))
    assert (found.slices, found.held, found.missing, found.damaged) == (slices, slices, 0, ())
    assert found.num_shards == num_shards


def test_damage_is_found_where_the_table_finds_it(tmp_path: Path) -> None:
    session, chance = session_of(1), random.Random(1)
    whole = fill(tmp_path / "whole", session, None)
    for number in range(40):
        shutil.copytree(tmp_path / "whole", tmp_path / "store")
        folder = tmp_path / "store" / whole.name
        path = folder / chance.choice((ROWS, INDEX))
        data = bytearray(path.read_bytes())
        if number % 4:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            place = chance.randrange(len(data) // 64) * 64
            path = folder / INDEX
            data = bytearray(path.read_bytes())
            data[place % len(data) : place % len(data) + 64] = bytes(64)  # the slice never came
        path.write_bytes(data)
        found = check_shares(folder, session.sharing_digest, RECEIVER, CLIENT_ROWS)
        with ShareStore.open(tmp_path / "store", data_digest(*rows_of(RECEIVER))) as store:
            table, damage = store.table(session, RECEIVER)
            lacking = sum(-(-len(part) // slice_rows(session)) for dealer in range(5) for part in table.missing(dealer))
        assert (found.slices - found.held, len(found.damaged)) == (lacking, len(damage))
        shutil.rmtree(tmp_path / "store")


def test_another_sharing_receiver_or_size_has_no_slices(tmp_path: Path) -> None:
    session = session_of(1)
    folder = fill(tmp_path / "store", session, None)
    assert check_shares(folder, bytes(32), RECEIVER, CLIENT_ROWS).held == 0
    assert check_shares(folder, session.sharing_digest, RECEIVER + 1, CLIENT_ROWS).held == 0
    (folder / ROWS).write_bytes((folder / ROWS).read_bytes()[:-1])
    with pytest.raises(StoreError, match="fit no sharing"):
        check_shares(folder, session.sharing_digest, RECEIVER, CLIENT_ROWS)
