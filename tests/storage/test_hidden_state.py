"""A client's disk in the hidden mode: hops go forwards only, runs are counted, seeds are replaced and erased."""

import dataclasses
import os

import pytest

from dresfl.errors import MessageError, Refused, StoreError
from dresfl.federation.sealed_slices import missing_slices
from dresfl.field import SecretSeed
from dresfl.files import write_record
from dresfl.protocol import Client, Verdict, check_bytes
from dresfl.protocol.hidden.client import Progress
from dresfl.protocol.hidden.ledger import Position
from dresfl.storage import ShareStore, data_digest
from dresfl.storage.at_rest import StorageKey
from dresfl.storage.hidden_state import Allowance, BegunRun, check_allowance, is_last
from five_clients import all_slices, dealers, fetch, rows_of, session_of

INDEX = 2
CHAIN = b"c" * 32
SEEDS = {number: SecretSeed(bytes([number + 1]) * 32) for number in (0, 3, 4)}
ONE = Allowance()


def open_store(folder, allowance=ONE, key=None):
    return ShareStore.open(folder, data_digest(*rows_of(INDEX)), key=key, allowance=allowance)


def at(round_number, hop, chain=CHAIN, check=b"check", stopped=""):
    return Progress(Position(round_number, hop, chain), check, stopped)


def values(progress):
    return progress.position, progress.check, progress.stopped


def revealed(seeds):
    return {number: seed.reveal() for number, seed in seeds.items()}


# -- hops ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, StorageKey(bytes(32))])
def test_what_was_answered_is_found_again_and_never_taken_back(tmp_path, key):
    session = session_of(b"run")
    with open_store(tmp_path / "s", key=key) as store:
        run = store.begin_hidden(session, SEEDS)
        assert run.progress is None
        for progress in (at(0, 0), at(0, 1), at(0, 1)):
            run.keep(progress)
    with open_store(tmp_path / "s", key=key) as store:
        run = store.hidden_run(session)
        assert values(run.progress) == values(at(0, 1))
        with pytest.raises(Refused, match="another course"):
            run.keep(at(0, 1, b"d" * 32))
        with pytest.raises(Refused, match="go back"):
            run.keep(at(0, 0))
        run.keep(at(7, 2, check=b""))
        assert values(run.progress) == values(at(7, 2, check=b""))
        assert "check" not in repr(run)


def test_who_left_a_run_for_good_answers_nothing(tmp_path):
    session = session_of(b"run")
    with open_store(tmp_path / "s") as store:
        run = store.begin_hidden(session, SEEDS)
        run.keep(at(3, 1))
        run.keep(at(2, 0, stopped="a hop was not published truly " * 30))
    with open_store(tmp_path / "s") as store:
        run = store.hidden_run(session)
        assert run.progress.position == at(3, 1).position, "the place does not go back"
        assert run.progress.stopped.startswith("a hop was not published truly")
        with pytest.raises(Refused, match="for good"):
            run.keep(at(4, 0))


def test_an_ended_run_answers_nothing_and_has_no_seeds(tmp_path):
    session = session_of(b"run")
    with open_store(tmp_path / "s") as store:
        run = store.begin_hidden(session, SEEDS)
        run.keep(at(3, 0))
        run.end()
        with pytest.raises(Refused):
            run.keep(at(4, 0))
        assert set(revealed(run.seeds()[1]).values()) == {bytes(32)}
    with open_store(tmp_path / "s") as store:
        assert store.hidden_run(session).state.ended
    data = next((tmp_path / "s").rglob("*.seeds")).read_bytes()
    assert not any(seed in data for seed in revealed(SEEDS).values())


@pytest.mark.parametrize("suffix", [".hop", ".seeds"])
@pytest.mark.parametrize("fault", ["missing", "damaged", "empty"])
def test_a_begun_run_whose_state_is_lost_is_not_begun_again(tmp_path, suffix, fault):
    session = session_of(b"run")
    with open_store(tmp_path / "s", Allowance(runs=5, trials=5)) as store:
        store.begin_hidden(session, SEEDS).keep(at(4, 1))
    path = next((tmp_path / "s").rglob(f"*{suffix}"))
    if fault == "missing":
        path.unlink()
    else:
        path.write_bytes(b"" if fault == "empty" else bytes(path.stat().st_size))
    with open_store(tmp_path / "s", Allowance(runs=5, trials=5)) as store:
        for attempt in (store.hidden_run, lambda session: store.begin_hidden(session, SEEDS)):
            with pytest.raises(StoreError, match="lost or damaged") as found:
                attempt(session)
            assert "no more part" in found.value.hint


def test_state_without_a_note_of_its_run_is_of_a_run_that_never_began(tmp_path, monkeypatch):
    """A crash between the two: nothing has left the client, so the run begins anew."""
    session = session_of(b"run")
    with open_store(tmp_path / "s") as store, monkeypatch.context() as patched:
        patched.setattr("dresfl.storage.hidden_state.write_record", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.begin_hidden(session, SEEDS)
    with open_store(tmp_path / "s") as store:
        assert store.hidden_run(session) is None
        other = {number: SecretSeed.fresh() for number in SEEDS}
        assert revealed(store.begin_hidden(session, other).seeds()[1]) == revealed(other)


# -- the budget ----------------------------------------------------------------------------------------------------


def test_one_model_comes_of_a_sharing_unless_more_are_agreed_on(tmp_path):
    with open_store(tmp_path / "s") as store:
        run = store.begin_hidden(session_of(b"one"), SEEDS)
        run.claim_model()
        run.claim_model()  # again, after a crash
        with pytest.raises(Refused, match="1 models came"):
            store.begin_hidden(session_of(b"two"), SEEDS)
    with open_store(tmp_path / "s", Allowance(runs=2)) as store:
        store.begin_hidden(session_of(b"two"), SEEDS).claim_model()


def test_a_run_that_stopped_early_spends_a_trial_and_yields_no_model_later(tmp_path):
    with open_store(tmp_path / "s") as store:
        first = store.begin_hidden(session_of(b"one"), SEEDS)
        with pytest.raises(Refused, match="trials = 0"):
            store.begin_hidden(session_of(b"two"), SEEDS)
    with open_store(tmp_path / "s", Allowance(trials=1)) as store:
        first = store.begin_hidden(session_of(b"one"), SEEDS)
        second = store.begin_hidden(session_of(b"two"), SEEDS)
        with pytest.raises(Refused, match="another run was begun"):
            first.claim_model()
        second.claim_model()
        with pytest.raises(Refused, match="runs = 1"):
            store.begin_hidden(session_of(b"three"), SEEDS)


def test_a_trial_yields_no_model(tmp_path):
    with open_store(tmp_path / "s", Allowance(trials=1, trial=True)) as store:
        run = store.begin_hidden(session_of(b"one"), SEEDS)
        with pytest.raises(Refused, match="is a trial"):
            run.claim_model()
        with pytest.raises(Refused, match="trials = 1"):
            store.begin_hidden(session_of(b"two"), SEEDS)
    with open_store(tmp_path / "s", Allowance(trials=1)) as store:
        store.begin_hidden(session_of(b"three"), SEEDS).claim_model()


def test_the_count_outlives_forget_and_damage_is_refused(tmp_path):
    with open_store(tmp_path / "s") as store:
        session = session_of(b"one")
        store.table(session, INDEX)
        store.mask_secret(session)
        store.begin_hidden(session, SEEDS).claim_model()
        folder = tmp_path / "s" / session.sharing_id.hex()
        write_record(folder / "sums.json", {"sums": {}})
        store.forget(session.sharing_id.hex())
        names = sorted(path.name for path in folder.iterdir())
        assert names == [f"{session.session_id.hex()}.hop", "runs.json", "sums.json"]
        with pytest.raises(Refused, match="1 models came"):
            store.begin_hidden(session_of(b"two"), SEEDS)
    path = next((tmp_path / "s").rglob("runs.json"))
    path.write_bytes(path.read_bytes()[:-4] + b"0000")
    with open_store(tmp_path / "s") as store, pytest.raises(StoreError, match="damaged"):
        store.begin_hidden(session_of(b"two"), SEEDS)


def test_a_sharing_is_offered_for_another_run_only_while_the_budget_lasts(tmp_path):
    session = session_of(b"one")
    for allowance, offered in ((Allowance(runs=2), 1), (ONE, 0), (None, 1)):
        with open_store(tmp_path / "s", allowance) as store:
            if not (tmp_path / "s" / session.sharing_id.hex()).exists():
                table, _ = store.table(session, INDEX)
                client = Client(session, INDEX, store.secret(session), *rows_of(INDEX), table)
                fetch(session, dealers(session, store.secret(session), INDEX), client, table)
                table.flush()
                store.keep_verdict(session, Verdict())
                store.begin_hidden(session, SEEDS).claim_model()
            nonces = store.offered_nonces(lambda rows, nonce: session_of(), INDEX)
            assert len(nonces) == offered
            assert len(store.held_nonces(lambda rows, nonce: session_of(), INDEX)) == 1


def test_another_sharing_after_a_run_needs_the_operator(tmp_path):
    """Else a coordinator could renew the budget as often as it likes."""
    first, second = session_of(b"one"), session_of(b"two", b"m" * 32)
    with open_store(tmp_path / "s") as store:
        store.table(first, INDEX)
        store.begin_hidden(first, SEEDS)
        with pytest.raises(Refused, match="1 runs were begun on earlier sharings") as found:
            store.table(second, INDEX)
        assert "--share-again" in found.value.hint
    with ShareStore.open(tmp_path / "s", data_digest(*rows_of(INDEX)), allowance=ONE, share_again=True) as store:
        store.table(second, INDEX)
    with open_store(tmp_path / "s") as store:  # from then on it is known
        store.table(second, INDEX)
        store.table(first, INDEX)


def test_what_is_left_of_an_allowance():
    run, model = BegunRun("a", False), BegunRun("a", False, True)
    trial = BegunRun("t", True)
    assert is_last([run], ONE)
    assert not is_last([run], Allowance(runs=2))
    assert not is_last([run], Allowance(trials=1))
    assert is_last([model, trial], Allowance(runs=1, trials=1))
    assert not is_last([trial], Allowance(runs=1, trials=1))
    check_allowance([trial], Allowance(runs=1, trials=1))
    with pytest.raises(Refused):
        check_allowance([trial], dataclasses.replace(Allowance(runs=1, trials=1), trial=True))


# -- seeds ---------------------------------------------------------------------------------------------------------


def test_seeds_are_replaced_by_later_ones_and_overwritten(tmp_path):
    session = session_of(b"run")
    later = [{number: SecretSeed.fresh() for number in SEEDS} for _ in range(3)]
    with open_store(tmp_path / "s") as store:
        run = store.begin_hidden(session, SEEDS)
        for round_number, seeds in enumerate(later, 1):
            run.keep_seeds(round_number, seeds)
        with pytest.raises(StoreError, match="cannot follow"):
            run.keep_seeds(2, later[1])
    data = next((tmp_path / "s").rglob("*.seeds")).read_bytes()
    assert not any(seed in data for old in (SEEDS, later[0]) for seed in revealed(old).values())
    with open_store(tmp_path / "s") as store:
        round_number, seeds = store.hidden_run(session).seeds()
        assert (round_number, revealed(seeds)) == (3, revealed(later[2]))


def filled(store, session):
    table, _ = store.table(session, INDEX)
    client = Client(
        session, INDEX, store.secret(session), *rows_of(INDEX), table, mask_secret=store.mask_secret(session)
    )
    fetch(session, dealers(session, store.secret(session), INDEX), client, table)
    table.flush()
    return client, table


def test_dealt_seeds_go_when_the_last_run_begins_and_rows_can_still_be_dealt(tmp_path):
    session = session_of(b"run")
    with open_store(tmp_path / "s") as store:
        client, table = filled(store, session)
        receiver = session.seed_sets.holders(session.seed_sets.dealt_by(INDEX)[0])[-1]
        own = client.deal_set_up([receiver])[0]
        held = [table.set_up(dealer) for dealer in range(5)]
        store.begin_hidden(session, SEEDS)
        assert store.mask_secret(session) is None
        seeds = [len(values) - check_bytes(session) for values in held]
        assert sum(any(values[:size]) for values, size in zip(held, seeds, strict=True)) >= 2
        for dealer, values in enumerate(held):
            assert table.set_up(dealer) == bytes(seeds[dealer]) + values[seeds[dealer] :]
        erased = Client(session, INDEX, store.secret(session), *rows_of(INDEX), table, seeds_erased=True)
        assert erased.deal(0).residues.equal(client.deal(0).residues)
        again = erased.deal_set_up([receiver])[0]
        assert again[: seeds[INDEX]] == bytes(seeds[INDEX]) != own[: seeds[INDEX]]
        assert again[seeds[INDEX] :] == own[seeds[INDEX] :]
        erased.receive_set_up(0, held[0])  # a dealer that sends its seeds again does no harm
        assert not any(table.set_up(0)[: seeds[0]])
    dealt = [values[i : i + 32] for values, size in zip(held, seeds, strict=True) for i in range(0, size, 32)]
    for path in (path for path in (tmp_path / "s").rglob("*") if path.is_file()):
        assert not any(seed in path.read_bytes() for seed in dealt if any(seed)), path


def test_a_lost_set_up_file_is_not_asked_for_again_once_seeds_are_erased(tmp_path):
    session = session_of(b"run")
    with open_store(tmp_path / "s") as store:
        filled(store, session)
        store.begin_hidden(session, SEEDS)
    next((tmp_path / "s").rglob("shares.setup")).unlink()
    with open_store(tmp_path / "s") as store:
        table, _ = store.table(session, INDEX)
        assert [missing_slices(session, dealer, table) for dealer in range(5)] == [[]] * 5
        assert store.hidden_run(session) is not None


def test_a_crash_after_the_run_counted_still_erases_the_dealt_seeds(tmp_path, monkeypatch):
    session = session_of(b"run")
    with open_store(tmp_path / "s") as store, monkeypatch.context() as patched:
        filled(store, session)
        patched.setattr(
            "dresfl.storage.share_store.erase_mask_secret", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            store.begin_hidden(session, SEEDS)
    assert list((tmp_path / "s").rglob("mask.secret"))
    with open_store(tmp_path / "s") as store:
        table, _ = store.table(session, INDEX)
        assert not list((tmp_path / "s").rglob("mask.secret"))
        assert not any(table.set_up(0)[: -check_bytes(session)])


def test_seeds_stay_while_another_run_is_allowed(tmp_path):
    session = session_of(b"run")
    with open_store(tmp_path / "s", Allowance(runs=2)) as store:
        _, table = filled(store, session)
        before = [table.set_up(dealer) for dealer in range(5)], store.mask_secret(session).reveal()
        store.begin_hidden(session, SEEDS)
        assert ([table.set_up(dealer) for dealer in range(5)], store.mask_secret(session).reveal()) == before


def test_the_mask_secret_is_kept_and_is_not_the_secret_of_rows(tmp_path):
    session = session_of(b"run")
    with open_store(tmp_path / "s") as store:
        client, _ = filled(store, session)
        everybody = range(5)
        dealt = client.deal_set_up(everybody)
        rows_only = Client(session, INDEX, store.secret(session), *rows_of(INDEX))
        assert rows_only.deal_set_up(everybody) != dealt
    with open_store(tmp_path / "s") as store:
        again = Client(session, INDEX, store.secret(session), *rows_of(INDEX), mask_secret=store.mask_secret(session))
        assert again.deal_set_up(everybody) == dealt
    path = next((tmp_path / "s").rglob("mask.secret"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with open_store(tmp_path / "s") as store, pytest.raises(StoreError, match="damaged"):
        store.mask_secret(session)


def test_a_store_of_the_open_mode_begins_no_hidden_run(tmp_path):
    with open_store(tmp_path / "s", None) as store, pytest.raises(StoreError, match="open mode"):
        store.begin_hidden(session_of(), SEEDS)


def test_all_slices_are_there(tmp_path):
    """The fixture deals every slice, so that the tests above look at real shares."""
    session = session_of(b"run")
    with open_store(tmp_path / "s") as store:
        table, _ = store.table(session, INDEX)
        client = Client(session, INDEX, store.secret(session), *rows_of(INDEX), table)
        assert fetch(session, dealers(session, store.secret(session), INDEX), client, table) == all_slices(session)
        with pytest.raises(MessageError, match="other set-up values"):
            client.receive_set_up(0, bytes(len(table.set_up(0))))


def test_files_with_seeds_that_are_replaced_or_left_by_a_crash_are_overwritten(tmp_path):
    session, kept = session_of(b"run"), tmp_path / "kept"
    with open_store(tmp_path / "s") as store:
        _, table = filled(store, session)
        path = next((tmp_path / "s").rglob("shares.setup"))
        values = [table.set_up(dealer) for dealer in range(5)]
    path.unlink()
    with open_store(tmp_path / "s") as store:
        table, _ = store.table(session, INDEX)
        table.put_set_up(0, values[0])
        table.flush()
        os.link(path, kept)  # the blocks of the file that is replaced
        assert values[0] in kept.read_bytes()
        table.put_set_up(1, values[1])
        table.flush()
        assert values[1] in path.read_bytes()
        assert not any(kept.read_bytes())
    part = path.with_name(".shares.setup.part")
    part.write_bytes(values[0])
    os.link(part, tmp_path / "left")
    with open_store(tmp_path / "s") as store:
        store.table(session, INDEX)
    assert not part.exists()
    assert not any((tmp_path / "left").read_bytes())


@pytest.mark.parametrize("loss", ["forget", "index", "set-up"])
def test_shares_that_are_lost_with_their_digests_after_the_check_are_not_dealt_again(tmp_path, loss):
    """The verdict is on those that were checked. A dealer and the coordinator could put others in their place."""
    session = session_of(b"run")
    folder = tmp_path / "s" / session.sharing_id.hex()
    with open_store(tmp_path / "s") as store:
        filled(store, session)
        store.keep_verdict(session, Verdict())
    with open_store(tmp_path / "s") as store:
        assert store.table(session, INDEX)[0].complete
        if loss == "forget":
            store.forget(session.sharing_id.hex())
    if loss == "index":
        data = bytearray((folder / "shares.index").read_bytes())
        data[3] ^= 1
        (folder / "shares.index").write_bytes(data)
    elif loss == "set-up":
        (folder / "shares.setup").unlink()
    for _ in range(2):
        with open_store(tmp_path / "s") as store, pytest.raises(Refused, match="would be unchecked"):
            store.table(session, INDEX)


def test_rows_that_are_damaged_after_the_check_are_fetched_again(tmp_path):
    session = session_of(b"run")
    with open_store(tmp_path / "s") as store:
        filled(store, session)
        store.keep_verdict(session, Verdict())
    path = tmp_path / "s" / session.sharing_id.hex() / "shares.rows"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with open_store(tmp_path / "s") as store:
        table, damage = store.table(session, INDEX)
        assert damage
        assert not table.complete
