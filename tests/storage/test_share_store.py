"""A client's folder: shares come back as they were, damage is named and mended, strangers are refused."""

import errno
import fcntl
import hashlib
import os
import pickle
import stat
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dresfl.errors import DresError, MessageError, StoreError
from dresfl.federation import make_session
from dresfl.federation.sealed_slices import missing_slices
from dresfl.field import choose_moduli
from dresfl.files import write_record
from dresfl.model import Dense
from dresfl.protocol import Client, Share, Task, Verdict, num_slices, row_bytes, slice_range, slice_rows
from dresfl.storage import ShareStore, data_digest
from dresfl.storage.answered_rounds import _CHUNK
from five_clients import AGREEMENT, NONCE, ROWS, all_slices, dealers, fetch, rows_of, session_of

INDEX = 2


def open_store(folder, change=0, roster=""):
    return ShareStore.open(folder, data_digest(*rows_of(INDEX, change)), roster)


def opened(store, session, look=True):
    """A client over the store, and its table."""
    table, _ = store.table(session, INDEX, look)
    rows = rows_of(INDEX)
    return Client(session, INDEX, store.secret(session), *rows, table, store.answered(session)), table


def held_nonces(store, agreement, index=INDEX):
    return store.held_nonces(lambda rows, nonce: make_session(agreement, rows, nonce, b""), index)


def filled(folder, session=None):
    """Fill a store and close it; return the answers that its client gave to rounds 0 and 1."""
    session = session or session_of()
    with open_store(folder) as store:
        client, table = opened(store, session)
        assert fetch(session, dealers(session, store.secret(session), INDEX), client, table) == all_slices(session)
        store.keep_verdict(session, Verdict())
        return answers(client)


def weights():
    return AGREEMENT.network.initial_weights(session_of().stream)


def answers(client):
    return [client.answer(Task(number, weights())).residues for number in range(2)]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


# -- slices ----------------------------------------------------------------------------------------------------


def test_slices_are_whole_rows_and_cover_every_dealer_once():
    session = session_of()
    assert slice_rows(session) == 3
    for dealer, rows in enumerate(ROWS):
        ranges = [slice_range(session, dealer, n) for n in range(num_slices(session, dealer))]
        assert [row for part in ranges for row in part] == list(range(rows))
        assert all(len(part) == 3 for part in ranges[:-1])
        for wrong in (-1, len(ranges)):
            with pytest.raises(MessageError, match="no slice"):
                slice_range(session, dealer, wrong)


def test_a_row_larger_than_a_slice_is_a_slice(monkeypatch):
    monkeypatch.setattr("dresfl.protocol.slices.SLICE_BYTES", 1)
    session = session_of()
    assert [num_slices(session, d) for d in range(5)] == list(ROWS)


# -- contributions -----------------------------------------------------------------------------------------------


def test_a_contribution_serves_one_sharing_and_no_older_one_comes_after_it(tmp_path):
    """Its coin is shown with the first: a dealer that knows it before it deals could pass the check."""
    first, second = session_of(b"", b"1" * 32), session_of(b"", b"2" * 32)
    with open_store(tmp_path / "s") as store:
        older, served = store.contribution(), store.contribution()
        assert store.claim_contribution(first, served)
        assert not store.claim_contribution(second, served)
        assert not store.claim_contribution(second, older), "it was made before, and may be known as well"
    with open_store(tmp_path / "s") as store:
        assert store.claim_contribution(first, served), "a client that comes back"
        assert not store.claim_contribution(second, served)
        assert store.claim_contribution(second, store.contribution())
        assert store.claim_contribution(first, served), "both sharings are there"
    path = tmp_path / "s" / "joined.json"
    path.write_bytes(path.read_bytes().replace(b"last", b"lost"))
    with open_store(tmp_path / "s") as store, pytest.raises(StoreError, match="damaged"):
        store.contribution()


def test_a_contribution_outlives_the_process_that_made_it(tmp_path):
    """The terms may be settled while the client is started again."""
    with open_store(tmp_path / "s") as store:
        made = store.contribution()
    with open_store(tmp_path / "s") as store:
        store.contribution()
        assert store.owns(made)
        assert store.claim_contribution(session_of(), made)


# -- what is kept ----------------------------------------------------------------------------------------------


def test_a_store_answers_as_memory_does_before_and_after_a_restart(tmp_path):
    session = session_of()
    first = filled(tmp_path / "s")
    with open_store(tmp_path / "s") as store:
        in_memory = dealers(session, store.secret(session), INDEX)
        for dealer in in_memory:
            in_memory[INDEX].receive(dealer.deal(INDEX))
        client, table = opened(store, session)
        assert table.complete
        assert client.ready
        assert not table.damage
        assert same(answers(client), first)
        assert same(answers(in_memory[INDEX]), first)


@pytest.mark.parametrize("limit", [256, 2**16, 2**24])
def test_gathered_rows_are_the_dealt_ones_for_one_two_and_three_bytes(tmp_path, limit, monkeypatch):
    session = session_of()
    session = replace(session, moduli=choose_moduli(session.needed_bits, more_than=8, limit=limit))
    with open_store(tmp_path / "s") as store:
        client, table = opened(store, session)
        clients = dealers(session, store.secret(session), INDEX)
        fetch(session, clients, client, table)
        whole = [dealer.deal(INDEX).residues for dealer in clients]
        picked = torch.tensor([0, 4, 3, 3, 1, 0]), torch.tensor([6, 0, 7, 7, 2, 0])
        wanted = torch.stack([whole[d][:, r] for d, r in zip(*map(torch.Tensor.tolist, picked), strict=True)], 1)
        assert torch.equal(table.rows(*picked), wanted)


def test_a_second_run_on_the_same_rows_needs_no_sharing(tmp_path):
    filled(tmp_path / "s", session_of(b"first"))
    later = replace(AGREEMENT, rounds=9, seed=77, batch_size=4)
    with open_store(tmp_path / "s") as store:
        assert held_nonces(store, later) == [NONCE]
        session = session_of(b"second", NONCE, later)
        client, _ = opened(store, session)
        assert client.ready
        # another run: the same round may have other weights
        client.answer(Task(0, weights() + 1))


def test_held_offers_only_what_fits(tmp_path):
    filled(tmp_path / "s")
    with open_store(tmp_path / "s") as store:
        assert held_nonces(store, AGREEMENT, INDEX)
        assert not held_nonces(store, AGREEMENT, 1)
        assert not held_nonces(store, replace(AGREEMENT, input_bits=2), INDEX)
        assert not held_nonces(store, replace(AGREEMENT, num_clients=6), INDEX)
    with open_store(tmp_path / "s", change=1) as store:
        assert not held_nonces(store, AGREEMENT, INDEX)


def test_sharings_live_side_by_side_until_forgotten(tmp_path):
    old, new = session_of(), session_of(nonce=b"m" * 32)
    filled(tmp_path / "s", old)
    filled(tmp_path / "s", new)
    with open_store(tmp_path / "s") as store:
        assert set(held_nonces(store, AGREEMENT)) == {old.nonce, new.nonce}
        _, old_table = opened(store, old)
        assert old_table.complete
        client, _ = opened(store, new)
        shown = {sharing.identity: sharing for sharing in store.sharings()}
        assert set(shown) == {old.sharing_id.hex(), new.sharing_id.hex()}
        assert shown[old.sharing_id.hex()].client == INDEX
        assert shown[old.sharing_id.hex()].rows == sum(old.client_rows)
        assert shown[old.sharing_id.hex()].bytes > 0
        store.forget(old.sharing_id.hex())
        assert [sharing.identity for sharing in store.sharings()] == [new.sharing_id.hex()]
        assert client.ready
        assert held_nonces(store, AGREEMENT) == [new.nonce]
        assert not opened(store, old)[1].complete


def test_answered_rounds_outlive_forgotten_shares(tmp_path):
    """Else a coordinator could have a round answered twice, with other weights."""
    session, rounds = session_of(), weights()
    filled(tmp_path / "s", session)
    with open_store(tmp_path / "s") as store:
        opened(store, session)[0].answer(Task(0, rounds))
        store.forget(session.sharing_id.hex())
    filled(tmp_path / "s", session)
    with open_store(tmp_path / "s") as store, pytest.raises(MessageError, match="other weights"):
        opened(store, session)[0].answer(Task(0, rounds + 1))


@pytest.mark.parametrize("name", ["0" * 32, "", "..", "/"])
def test_only_a_sharing_is_forgotten(tmp_path, name):
    filled(tmp_path / "s")
    with open_store(tmp_path / "s") as store:
        with pytest.raises(StoreError, match="has no shares of"):
            store.forget(name)
        assert len(store.sharings()) == 1


def test_one_table_and_one_log_for_a_sharing_and_a_session(tmp_path):
    with open_store(tmp_path / "s") as store:
        assert store.table(session_of(b"1"), INDEX)[0] is store.table(session_of(b"2"), INDEX)[0]
        assert store.answered(session_of(b"1")) is store.answered(session_of(b"1"))
        assert store.answered(session_of(b"1")) is not store.answered(session_of(b"2"))
    with pytest.raises(StoreError, match="closed"):
        store.table(session_of(), INDEX)


def test_parts_of_slices_are_refused_and_whole_ones_taken_once(tmp_path):
    session = session_of()
    with open_store(tmp_path / "s") as store:
        client, table = opened(store, session)
        dealer = dealers(session)[3]
        for first, count in ((0, 2), (1, 3), (3, 4), (6, 1)):
            with pytest.raises(MessageError, match="not whole slices"):
                client.receive(dealer.deal(INDEX, first, count))
        client.receive_set_up(3, dealer.deal_set_up([INDEX])[0])
        client.receive(dealer.deal(INDEX, 3, 5))  # the second slice and the short last one
        assert table.missing(3) == [range(0, 3)]
        assert missing_slices(session, 3, table) == [0]
        share = dealer.deal(INDEX, 3, 3)
        client.receive(share)  # again: nothing happens
        with pytest.raises(MessageError, match="dealer 3 sent other residues"):
            client.receive(Share(3, INDEX, 3, share.residues + 1))
        client.receive(dealer.deal(INDEX, 0, 3))
        assert table.missing(3) == []
        assert not client.ready
        assert "missing=19 rows" in repr(client)


def test_missing_rows_come_as_ranges(tmp_path):
    session = session_of()
    with open_store(tmp_path / "s") as store:
        client, table = opened(store, session)
        client.receive(dealers(session)[0].deal(INDEX, 3, 3))
        assert table.missing(0) == [range(0, 3), range(6, 7)]
        assert table.missing(3) == [range(8)]


# -- the secret ------------------------------------------------------------------------------------------------


def deal_bytes(store, session, change=0):
    client = Client(session, INDEX, store.secret(session), *rows_of(INDEX, change))
    return client.deal(0).encode(session)


def test_a_client_that_lost_its_shares_deals_what_it_dealt(tmp_path):
    session = session_of()
    with open_store(tmp_path / "s") as store:
        tag, dealt = store.tag, deal_bytes(store, session)
        contribution = store.contribution()
        assert store.contribution() != contribution
    secret = (tmp_path / "s" / "secret").read_bytes()
    fresh = tmp_path / "fresh"
    fresh.mkdir(mode=0o700)
    (fresh / "secret").write_bytes(secret)
    (fresh / "secret").chmod(0o600)
    with open_store(fresh) as store:
        assert store.tag == tag
        assert store.owns(contribution)
        assert deal_bytes(store, session) == dealt


def test_other_rows_roster_sharing_or_secret_never_repeat_a_mask(tmp_path):
    session, other = session_of(), session_of(nonce=b"m" * 32)
    with open_store(tmp_path / "s") as store:
        tag = store.tag
        seeds = [store.secret(session), store.secret(other)]
        contribution = store.contribution()
    with open_store(tmp_path / "s", change=1) as store:
        seeds.append(store.secret(session))
        assert store.tag != tag
        assert not store.owns(contribution)
    with open_store(tmp_path / "s", roster="ab") as store:  # it may number the clients otherwise
        seeds.append(store.secret(session))
        assert store.tag != tag
        assert not store.owns(contribution)
        assert held_nonces(store, AGREEMENT, INDEX) == []
    with open_store(tmp_path / "t") as store:
        seeds.append(store.secret(session))
        assert not store.owns(contribution)
        assert not store.owns(b"")
    keys = {tuple(seed.mask_key(b"x" * 16).tolist()) for seed in seeds}
    assert len(keys) == 5
    # the same sharing again, whatever the run
    with open_store(tmp_path / "s") as store:
        again = store.secret(session_of(b"another run"))
    assert torch.equal(again.mask_key(b"x"), seeds[0].mask_key(b"x"))


def test_changed_rows_and_another_number_are_refused_in_an_old_sharing(tmp_path):
    filled(tmp_path / "s")
    with open_store(tmp_path / "s", change=1) as store, pytest.raises(StoreError, match="rows have changed") as caught:
        store.table(session_of(), INDEX)
    assert "share again" in caught.value.hint
    with open_store(tmp_path / "s") as store, pytest.raises(StoreError, match="dealt to client 2"):
        store.table(session_of(), 1)


def test_a_lost_secret_is_said_and_makes_the_old_sharing_useless(tmp_path, caplog):
    filled(tmp_path / "s")
    (tmp_path / "s" / "secret").unlink()
    with open_store(tmp_path / "s") as store:
        assert "secret is missing" in caplog.text
        assert not held_nonces(store, AGREEMENT, INDEX)


def test_a_dealer_whose_secret_changed_is_caught_when_it_deals_again(tmp_path):
    session = session_of()
    filled(tmp_path / "s")
    path = tmp_path / "s" / session.sharing_id.hex() / "shares.rows"
    damage(path, sum(ROWS[:3]) * row_bytes(session) + 5)
    with open_store(tmp_path / "s") as store:
        client, table = opened(store, session)
        impostor = Client(session, 3, store.secret(session), *rows_of(3))  # the right rows, another seed
        with pytest.raises(MessageError, match="dealer 3 sent other residues"):
            client.receive(impostor.deal(INDEX, 0, 3))
        assert fetch(session, dealers(session), client, table) == [(3, 0)]


def test_nothing_of_it_is_shown_or_pickled(tmp_path):
    with open_store(tmp_path / "s") as store:
        table, _ = store.table(session_of(), INDEX)
        secret = (tmp_path / "s" / "secret").read_bytes()[16:48]
        for holder in (store, table):
            assert secret.hex() not in repr(holder)
            assert "tensor" not in repr(holder)
            with pytest.raises(TypeError, match="not pickled"):
                pickle.dumps(holder)


def test_the_digest_of_rows_knows_shapes_and_values_and_not_types():
    inputs, targets = rows_of(INDEX)
    digest = data_digest(inputs, targets)
    assert data_digest(inputs.to(torch.int64), targets.to(torch.int8)) == digest
    assert (
        len(
            {
                digest,
                data_digest(inputs + 1, targets),
                data_digest(inputs, targets + 1),
                data_digest(inputs.T, targets),
                data_digest(targets, inputs),
            }
        )
        == 5
    )


# -- damage ----------------------------------------------------------------------------------------------------


def damage(path, place, flip=1):
    with open(path, "r+b") as file:
        file.seek(place)
        was = file.read(1)[0]
        file.seek(place)
        file.write(bytes([was ^ flip]))


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def test_every_byte_of_every_file_is_watched(tmp_path, caplog):
    """One changed byte anywhere: named; what is missing is exactly the part it lies in; then all is as it was."""
    session, folder = session_of(), tmp_path / "s"
    first = filled(folder)
    sharing = folder / session.sharing_id.hex()
    names = {path.relative_to(folder).suffix or path.name for path in files(folder)}
    assert names == {".json", ".rows", ".index", ".setup", ".answered", "secret"}
    for path in files(folder):
        size = path.stat().st_size
        step = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "slow" else max(1, size // 9)
        for place in {*range(0, min(size, 600), min(step, 67)), *range(0, size, max(997, step)), size - 1}:
            damage(path, place)
            caplog.clear()
            if path.parent == folder:
                with pytest.raises(StoreError, match=rf"{path.name} is damaged") as caught:
                    open_store(folder)
                assert caught.value.hint
                damage(path, place)
                continue
            with open_store(folder) as store:
                if path.suffix == ".answered":
                    with pytest.raises(StoreError, match=rf"{path.name} is damaged"):
                        store.answered(session)
                    damage(path, place)
                    continue
                if path.name == "verdict.json":
                    with pytest.raises(StoreError, match=rf"{path.name} is damaged"):
                        store.verdict(session)
                    assert held_nonces(store, AGREEMENT) == []
                    damage(path, place)
                    continue
                client, table = opened(store, session)
                assert f"{path} is damaged" in caplog.text
                if path.suffix == ".setup":
                    clients = dealers(session, store.secret(session), INDEX)
                    last = [(dealer, num_slices(session, dealer) - 1) for dealer in range(len(ROWS))]
                    assert fetch(session, clients, client, table) == last
                    continue  # and it is written again
                if path.name == "sharing.json":
                    assert table.complete
                    continue  # and it was written again
                lost = slice_at(session, path.suffix, place)
                said = {
                    ".rows": f"slice {lost[1]} (rows {3 * lost[1]} to ",
                    ".index": f"in what it says of slice {lost[1]} of dealer {lost[0]};",
                }
                assert said[path.suffix] in caplog.text
                assert len(table.damage) == 1
                clients = dealers(session, store.secret(session), INDEX)
                assert fetch(session, clients, client, table) == [lost]
                assert same(answers(client), first)
    caplog.clear()
    with open_store(folder) as store:
        assert opened(store, session)[1].complete
    assert not caplog.text
    assert len(files(sharing)) == 6


def slice_at(session, suffix, place):
    """The slice that a byte of a file belongs to."""
    if suffix == ".index":
        return all_slices(session)[place // 64]
    row = place // row_bytes(session)
    dealer = next(d for d in range(len(ROWS)) if row < sum(ROWS[: d + 1]))
    return dealer, (row - sum(ROWS[:dealer])) // 3


def test_every_introduction_has_a_coin_of_its_own_that_follows_from_its_salt(tmp_path):
    """A coin that was shown must not serve another sharing: its dealers would know it while they deal."""
    with open_store(tmp_path / "s") as store:
        contributions = [store.contribution() for _ in range(3)]
        coins = [store.coin(contribution) for contribution in contributions]
        assert len({contribution[16:32] for contribution in contributions}) == len(set(coins)) == 3
        for contribution, coin in zip(contributions, coins, strict=True):
            assert store.owns(contribution)
            assert contribution[32:] == hashlib.sha256(b"dresfl coin" + coin).digest()
    with open_store(tmp_path / "s") as store:
        assert [store.coin(contribution) for contribution in contributions] == coins


def test_the_check_is_answered_for_one_set_of_coins_and_there_is_one_verdict(tmp_path):
    """Whatever happens to the shares: two sets of coins would be two equations with the same mask."""
    session = session_of()
    filled(tmp_path / "s")
    with open_store(tmp_path / "s") as store:
        assert store.claim_check(session, b"c" * 32)
        assert store.claim_check(session, b"c" * 32)
        assert not store.claim_check(session, b"d" * 32)
        store.forget(session.sharing_id.hex())
    with open_store(tmp_path / "s") as store:
        assert not store.claim_check(session, b"d" * 32)
        assert store.verdict(session) == Verdict()
        damage(tmp_path / "s" / session.sharing_id.hex() / "check.claimed", 12)
        with pytest.raises(StoreError, match="damaged"):
            store.claim_check(session, b"c" * 32)


def test_another_opening_is_another_sharing(tmp_path):
    """Seeds and check values follow from R and A: the same ones must not serve another network or another A."""
    filled(tmp_path / "s")
    with open_store(tmp_path / "s") as store:
        assert held_nonces(store, AGREEMENT) == [NONCE]
        assert held_nonces(store, replace(AGREEMENT, layers=(Dense(2),))) == []
        assert held_nonces(store, replace(AGREEMENT, layers=(Dense(2),), max_liars=1)) == []
    same = {"nonce": NONCE, "run_nonce": b""}
    one, other = (
        make_session(replace(AGREEMENT, layers=(Dense(2),), max_liars=liars), ROWS, **same) for liars in (0, 1)
    )
    assert one.field.moduli == other.field.moduli
    assert one.sharing_id != other.sharing_id


def test_descriptors_do_not_grow_with_the_clients(tmp_path):
    """With two files for each dealer a thousand clients needed more than the usual limit of 1,024."""
    many = replace(AGREEMENT, num_clients=1000)
    session = make_session(many, (2,) * 1000, NONCE, b"")
    with open_store(tmp_path / "s") as store:
        before = len(os.listdir("/proc/self/fd"))
        table, _ = store.table(session, INDEX)
        store.answered(session)
        assert len(os.listdir("/proc/self/fd")) <= before + 4
        assert table.missing(999) == [range(2)]
    assert len(os.listdir("/proc/self/fd")) < before


def test_a_flush_lists_what_has_come_since_the_last_one_and_nothing_else(tmp_path, monkeypatch):
    session = session_of()
    with open_store(tmp_path / "s") as store:
        client, table = opened(store, session)
        written, real = [], os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda *a: (written.append((len(a[1]), a[2])), real(*a))[1])
        for number in range(3):
            client.receive(dealers(session)[3].deal(INDEX, 3 * number, min(3, 8 - 3 * number)))
            written.clear()
            table.flush()
            table.flush()
            assert written == [(64, 64 * all_slices(session).index((3, number)))]


@pytest.mark.parametrize("change", ["shorter", "empty", "longer", "gone"])
@pytest.mark.parametrize("kind", ["rows", "index"])
def test_a_file_of_another_length_is_mended(tmp_path, kind, change, caplog):
    session, folder = session_of(), tmp_path / "s"
    first = filled(folder)
    path = folder / session.sharing_id.hex() / f"shares.{kind}"
    size = path.stat().st_size
    if change == "gone":
        path.unlink()
    else:
        os.truncate(path, {"shorter": size - 1, "empty": 0, "longer": size + 9}[change])
    with open_store(folder) as store:
        client, table = opened(store, session)
        assert str(path) in caplog.text
        lost = fetch(session, dealers(session, store.secret(session), INDEX), client, table)
        assert lost == {"shorter": [(4, 1)], "longer": []}.get(change, all_slices(session))
        assert path.stat().st_size == size
        assert same(answers(client), first)


def test_records_of_another_dealer_or_sharing_are_not_believed(tmp_path, caplog):
    session, other, folder = session_of(), session_of(nonce=b"m" * 32), tmp_path / "s"
    filled(folder)
    filled(folder, other)
    index = folder / session.sharing_id.hex() / "shares.index"
    whole = index.read_bytes()
    index.write_bytes(whole[: 64 * 9] + whole[64 * 4 : 64 * 6])  # dealer 2's records in the place of dealer 4's
    with open_store(folder) as store:
        assert missing_slices(session, 4, opened(store, session)[1]) == [0, 1]
    assert f"{index} is damaged in what it says of slice 0 of dealer 4 to slice 1 of dealer 4;" in caplog.text
    caplog.clear()
    index.write_bytes((folder / other.sharing_id.hex() / "shares.index").read_bytes())
    with open_store(folder) as store:
        assert len(opened(store, session)[1].missing(0)) == 1
    assert f"{index} is damaged in what it says of slice 0 of dealer 0 to slice 1 of dealer 4;" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("call", "where"), [("pread", "in slice 0"), ("preadv", "at byte 0")])
def test_an_unreadable_sector_is_damage(tmp_path, monkeypatch, caplog, call, where):
    session = session_of()
    filled(tmp_path / "s")
    with open_store(tmp_path / "s") as store, monkeypatch.context() as patched:

        def failing(*arguments):
            raise OSError(errno.EIO, "Input/output error")

        patched.setattr(os, call, failing)
        assert len(missing_slices(session, 0, store.table(session, INDEX)[0])) == 3
    assert f"unreadable (Input/output error) {where}" in caplog.text


def test_a_slice_can_be_read_before_its_first_use_instead(tmp_path, caplog):
    session, folder = session_of(), tmp_path / "s"
    first = filled(folder)
    for dealer in range(len(ROWS)):
        damage(folder / session.sharing_id.hex() / "shares.rows", sum(ROWS[:dealer]) * row_bytes(session))
    with open_store(folder) as store:
        client, table = opened(store, session, look=False)
        assert client.ready
        assert not caplog.text
        clients = dealers(session, store.secret(session), INDEX)
        refetched = []
        for number in range(12):
            try:
                client.answer(Task(number, weights()))
            except StoreError as error:
                assert "fetched again" in str(error)  # noqa: PT017
                refetched += fetch(session, clients, client, table)
                client.answer(Task(number, weights()))
        assert sorted(refetched) == [(dealer, 0) for dealer in range(len(ROWS))]
        assert same(answers(client), first)


# -- the folder ------------------------------------------------------------------------------------------------


def test_modes(tmp_path):
    filled(tmp_path / "a" / "s")
    for path in [tmp_path / "a" / "s", *(tmp_path / "a" / "s").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_an_empty_folder_is_taken_and_closed_to_others(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    folder.chmod(0o755)
    open_store(folder).close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["", "secret", "store.json"])
def test_what_others_may_enter_is_refused(tmp_path, name):
    filled(tmp_path / "s")
    path = tmp_path / "s" / name
    path.chmod(0o750)
    with pytest.raises(StoreError, match="lets other users at it") as caught:
        open_store(tmp_path / "s")
    assert str(path) in caught.value.hint


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match=r"holds other files \(thesis.tex\)") as caught:
        open_store(folder)
    assert caught.value.hint
    assert os.listdir(folder) == ["thesis.tex"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "s").write_text("x")
    for folder in (tmp_path / "s", tmp_path / "s" / "below"):
        with pytest.raises(StoreError, match="cannot make the folder"):
            open_store(folder)


def test_a_store_of_another_version_is_refused(tmp_path):
    open_store(tmp_path / "s").close()
    write_record(tmp_path / "s" / "store.json", {"format": "dresfl store 99"})
    with pytest.raises(StoreError, match="dresfl store 3"):
        open_store(tmp_path / "s")


def test_two_processes_do_not_share_a_folder(tmp_path):
    program = (
        "import sys; from pathlib import Path; from dresfl.storage import ShareStore\n"
        "store = ShareStore.open(Path(sys.argv[1]), bytes(32)); print('open', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=rf"in use by another process \(pid {other.pid}\)") as caught:
            open_store(tmp_path / "s")
        assert caught.value.hint
    finally:
        other.kill()
        other.communicate()
    open_store(tmp_path / "s").close()  # the lock went with its holder


def test_a_refused_store_gives_its_lock_back(tmp_path):
    filled(tmp_path / "s")
    damage(tmp_path / "s" / "secret", 20)
    with pytest.raises(StoreError, match="secret is damaged"):
        open_store(tmp_path / "s")
    with open(tmp_path / "s" / "lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# -- a full disk -----------------------------------------------------------------------------------------------


def full(*arguments, **more):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_too_small_a_disk_is_known_before_anything_travels_and_nothing_is_taken(tmp_path, monkeypatch):
    session = session_of()
    with open_store(tmp_path / "s") as store, monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=1, f_frsize=512))
        with pytest.raises(StoreError, match=r"cannot keep \d+ bytes in .*: No space left") as caught:
            store.table(session, INDEX)
        assert "free some space" in caught.value.hint
        assert not list((tmp_path / "s" / session.sharing_id.hex()).glob("shares.*"))
    filled(tmp_path / "s")
    with open_store(tmp_path / "s") as store, monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=512))
        assert opened(store, session)[1].complete  # what is there needs no more space


def test_space_is_taken_when_the_first_slice_of_another_dealer_comes(tmp_path, monkeypatch):
    session, calls = session_of(), []
    real = os.posix_fallocate
    with open_store(tmp_path / "s") as store:
        monkeypatch.setattr(os, "posix_fallocate", lambda *a: (calls.append(a), real(*a)))
        client, _ = opened(store, session)
        clients = dealers(session, store.secret(session), INDEX)
        client.receive(clients[INDEX].deal(INDEX))
        assert not calls
        with monkeypatch.context() as patched:
            patched.setattr(os, "posix_fallocate", full)
            with pytest.raises(StoreError, match=r"cannot keep \d+ bytes in .*: No space left"):
                client.receive(clients[3].deal(INDEX))
        client.receive(clients[3].deal(INDEX))
        assert len(calls) == 2
        client.receive(clients[1].deal(INDEX))
        assert len(calls) == 2
        assert not client.ready


def test_a_new_sharing_takes_the_place_of_those_that_were_never_finished(tmp_path):
    finished, begun, answered, new = (session_of(nonce=bytes([i]) * 32) for i in range(4))
    filled(tmp_path / "s", finished)
    filled(tmp_path / "s", answered)
    with open_store(tmp_path / "s") as store:
        log = store.answered(answered)
        store.forget(answered.sharing_id.hex())
        opened(store, begun)
        client, table = opened(store, answered)  # it begins again: what it answered is noted
        client.receive(dealers(answered)[3].deal(INDEX, 0, 3))
        assert table.missing(3) == [range(3, 8)]
        assert not (tmp_path / "s" / begun.sharing_id.hex()).exists()
        opened(store, new)
        assert {sharing.identity for sharing in store.sharings()} == {s.sharing_id.hex() for s in (finished, new)}
        assert store.answered(answered) is not log
        assert not store.answered(answered).claim(0, bytes(32))
        assert opened(store, finished)[0].ready
        client, table = opened(store, answered)
        assert fetch(answered, dealers(answered, store.secret(answered), INDEX), client, table) == all_slices(answered)


@pytest.mark.parametrize("where", ["pwrite", "fsync", "fdatasync"])
def test_a_disk_that_fills_is_an_error_and_then_goes_on(tmp_path, monkeypatch, where):
    session = session_of()
    with open_store(tmp_path / "s") as store:
        client, table = opened(store, session)
        clients = dealers(session, store.secret(session), INDEX)
        with monkeypatch.context() as patched:
            patched.setattr(os, where, full)
            try:
                fetch(session, clients, client, table)
                client.answer(Task(0, weights()))
            except DresError as error:
                assert isinstance(error, StoreError)  # noqa: PT017
                assert "No space left" in str(error)  # noqa: PT017
                assert "free some space" in error.hint  # noqa: PT017
            else:
                pytest.fail("nothing was written")
        fetch(session, clients, client, table)
        first = answers(client)
    with open_store(tmp_path / "s") as store:
        client, table = opened(store, session)
        assert table.complete
        assert same(answers(client), first)


# -- answered rounds -------------------------------------------------------------------------------------------


def claims(folder, *wanted, session=None):
    with open_store(folder) as store:
        log = store.answered(session or session_of())
        return [log.claim(number, bytes([mark]) * 32) for number, mark in wanted]


def test_a_round_is_answered_for_one_set_of_weights_restarts_included(tmp_path):
    filled(tmp_path / "s")
    for _ in range(2):
        with open_store(tmp_path / "s") as store:
            client, _ = opened(store, session_of())
            answers(client)
            with pytest.raises(MessageError, match="round 1 was answered for other weights"):
                client.answer(Task(1, weights() + 1))
            assert store.answered(session_of()).last_round == 1


def test_many_rounds_in_any_order_are_remembered_by_session(tmp_path):
    folder = tmp_path / "s"
    with open_store(folder) as store:
        log = store.answered(session_of())
        assert log.last_round is None
        for number in range(2100):
            assert log.claim((number * 7919) % 2100 + (2**32 - 2100), bytes([number % 256]) * 32)
    assert (
        folder / session_of().sharing_id.hex() / f"{session_of().session_id.hex()}.answered"
    ).stat().st_size == 3 * _CHUNK
    with open_store(folder) as store:
        log = store.answered(session_of())
        assert log.last_round == 2**32 - 1
        for number in range(2100):
            place = (number * 7919) % 2100 + (2**32 - 2100)
            assert log.claim(place, bytes([number % 256]) * 32)
            assert not log.claim(place, bytes([(number + 1) % 256]) * 32)
        assert store.answered(session_of(b"another run")).last_round is None


def log_path(folder):
    return folder / session_of().sharing_id.hex() / f"{session_of().session_id.hex()}.answered"


@pytest.mark.parametrize("records", [0, 1, 1023, 1024, 1025])
def test_an_unfinished_chunk_is_made_again_and_anything_else_refused(tmp_path, records):
    folder = tmp_path / "s"
    claims(folder, *((number, 1) for number in range(records)))
    path, size = log_path(folder), records * 64
    data, free = path.read_bytes()[:size], b"\xff" * (_CHUNK - size % _CHUNK)
    tails = [b"\xff" * 99, bytes(4096), b"\xff" * 4096 + bytes(60000), b"\xff" * _CHUNK]
    for tail in [b"", *tails]:
        path.write_bytes(data + free + tail)
        if tail and records % 1024 != 1023:
            with pytest.raises(StoreError, match=f"damaged after {records} records"):
                claims(folder, (5, 1))
        else:
            assert claims(folder, *((number, 1) for number in range(records))) == [True] * records
            assert claims(folder, (9999, 7), (9999, 8)) == [True, False]
    for left in (b"", free[:-1], free[:64], b"\0" + free[1:]):
        if left != free:  # cut, also where a record or a chunk ends: what was answered then is not known
            path.write_bytes(data + left)
            with pytest.raises(StoreError, match=f"damaged after {records} records"):
                claims(folder, (5, 1))
    if records > 1:
        path.write_bytes(data[64:] + b"\xff" * 64)  # a record cut out of the middle
        with pytest.raises(StoreError, match="damaged after 0 records"):
            claims(folder, (5, 1))


def test_a_log_of_another_session_is_damage(tmp_path):
    folder = tmp_path / "s"
    claims(folder, (0, 1))
    other = session_of(b"another run")
    log_path(folder).rename(log_path(folder).with_name(f"{other.session_id.hex()}.answered"))
    with pytest.raises(StoreError, match="damaged after 0 records"):
        claims(folder, (0, 1), session=other)


def test_a_record_is_on_the_disk_before_the_answer_exists(tmp_path, monkeypatch):
    session = session_of()
    filled(tmp_path / "s")
    with open_store(tmp_path / "s") as store:
        client, table = opened(store, session)
        events = []
        real_sync, real_rows = os.fdatasync, table.rows
        monkeypatch.setattr(os, "fdatasync", lambda number: (events.append("sync"), real_sync(number))[1])
        monkeypatch.setattr(table, "rows", lambda *a: (events.append("compute"), real_rows(*a))[1])
        client.answer(Task(7, weights()))
        assert events == ["sync", "compute"]
