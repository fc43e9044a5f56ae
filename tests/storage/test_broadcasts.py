"""What a coordinator published is found again after a crash, whole; the folder does not grow; damage is refused."""

import os

import pytest

from dresfl.errors import StoreError
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.broadcasts import KEPT, Broadcast, BroadcastStore, read_round

RUN = b"r" * 32
KEYS = [None, StorageKey(bytes(32))]


def broadcast(round_number, hop, size=100):
    return Broadcast(round_number, hop, bytes([round_number, hop]) * size, b"note %d" % hop)


def play(store, rounds, hops=3, first=0):
    for round_number in range(first, first + rounds):
        for hop in range(hops):
            store.put(broadcast(round_number, hop))


@pytest.mark.parametrize("key", KEYS)
def test_hops_are_found_again_and_old_rounds_go(tmp_path, key):
    store = BroadcastStore(tmp_path, RUN, key)
    assert store.last is None
    play(store, 7)
    store.put(broadcast(7, 0))
    store.close()
    again = BroadcastStore(tmp_path, RUN, key)
    assert again.last == broadcast(7, 0)
    assert list(again.rounds()) == [4, 5, 6, 7]
    assert len(again.rounds()) == KEPT
    assert again.rounds()[5] == [broadcast(5, hop) for hop in range(3)]
    assert sorted(path.name for path in (tmp_path / "hops").iterdir()) == [f"{n:08d}.hops" for n in (4, 5, 6, 7)]
    again.put(broadcast(7, 1))
    again.close()
    for path in (tmp_path / "hops").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        assert (b"note 0" in path.read_bytes()) == (key is None)


def test_a_record_that_a_crash_cut_short_is_taken_off_at_every_byte(tmp_path):
    store = BroadcastStore(tmp_path, RUN)
    play(store, 1, hops=2)
    store.close()
    path = tmp_path / "hops" / "00000000.hops"
    whole = path.read_bytes()
    one = (len(whole) - 46) // 2 + 46
    for end in range(one, len(whole), 7):
        path.write_bytes(whole[:end])
        again = BroadcastStore(tmp_path, RUN)
        assert again.last == broadcast(0, 0)
        again.put(broadcast(0, 1))
        again.close()
        assert path.read_bytes() == whole


def test_damage_before_the_last_round_is_refused(tmp_path):
    store = BroadcastStore(tmp_path, RUN)
    play(store, 3)
    store.close()
    path = tmp_path / "hops" / "00000001.hops"
    whole = path.read_bytes()
    for place in (0, 3, 40, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            BroadcastStore(tmp_path, RUN)
    path.unlink()
    with pytest.raises(StoreError, match="not those between"):
        BroadcastStore(tmp_path, RUN)


@pytest.mark.parametrize("rounds", [1, 2])
def test_hops_of_another_run_are_refused_and_stay(tmp_path, rounds):
    store = BroadcastStore(tmp_path, RUN)
    play(store, rounds)
    store.close()
    with pytest.raises(StoreError, match="another run"):
        BroadcastStore(tmp_path, b"s" * 32)
    assert BroadcastStore(tmp_path, RUN).last == broadcast(rounds - 1, 2)


def test_a_file_that_a_crash_left_without_its_head_is_begun_again(tmp_path):
    store = BroadcastStore(tmp_path, RUN)
    play(store, 1)
    store.close()
    (tmp_path / "hops" / "00000001.hops").write_bytes(b"dres")
    (tmp_path / "hops" / "00000001.hops").chmod(0o600)
    again = BroadcastStore(tmp_path, RUN)
    assert again.last == broadcast(0, 2)
    again.put(broadcast(1, 0))
    again.close()
    assert BroadcastStore(tmp_path, RUN).last == broadcast(1, 0)


@pytest.mark.parametrize("place", [(0, 1), (0, 0), (0, 3), (2, 0), (1, 1)])
def test_hops_follow_each_other(tmp_path, place):
    store = BroadcastStore(tmp_path, RUN)
    play(store, 1, hops=2)
    with pytest.raises(StoreError, match="cannot follow"):
        store.put(broadcast(*place))
    store.put(broadcast(1, 0))
    store.close()


def test_a_disk_that_is_full_leaves_no_part_of_a_hop(tmp_path, monkeypatch):
    store = BroadcastStore(tmp_path, RUN)
    store.put(broadcast(0, 0))
    real, calls = os.write, []

    def full(number, data):
        calls.append(number)
        if len(calls) > 1:
            raise OSError(28, "no space left")
        return real(number, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StoreError, match="no space") as found:
            store.put(broadcast(0, 1))
        assert "space" in found.value.hint
    store.put(broadcast(0, 1))
    store.close()
    assert BroadcastStore(tmp_path, RUN).last == broadcast(0, 1)


def test_an_audit_reads_a_round_without_the_run(tmp_path):
    store = BroadcastStore(tmp_path, RUN)
    play(store, 1)
    store.close()
    path = tmp_path / "hops" / "00000000.hops"
    found, cut = read_round(path, None, None)
    assert (len(found), cut) == (3, None)
