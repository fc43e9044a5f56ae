"""Sealed slices: one place for each, whatever carries them."""

import pytest
import torch

from dresfl.errors import MessageError, SealError
from dresfl.federation import SealedSlices, most_sealed_bytes, sealed_bytes, sealed_slices
from dresfl.federation.sealed_slices import missing_slices
from dresfl.protocol import Client
from dresfl.sealing import Identity, Roster
from dresfl.storage import ShareStore, data_digest
from five_clients import ROWS, all_slices, dealers, rows_of, session_of

INDEX = 2
SERVER = Identity.create("coordinator")
IDENTITIES = [Identity.create(f"site-{i}") for i in range(len(ROWS))]
ROSTER = Roster.create(SERVER, SERVER.card, [identity.card for identity in IDENTITIES])


@pytest.fixture
def session():
    return session_of()


@pytest.fixture
def receiver(tmp_path, session):
    """The client at INDEX over its own disk, and its side of the sharing."""
    with ShareStore.open(tmp_path / "store", data_digest(*rows_of(INDEX))) as store:
        table, _ = store.table(session, INDEX)
        client = Client(session, INDEX, store.secret(session), *rows_of(INDEX), table)
        yield SealedSlices(client, table, IDENTITIES[INDEX], ROSTER), table


def dealing(session):
    """All clients' sides of the sharing, for dealing only."""
    return [SealedSlices(client, None, IDENTITIES[client.index], ROSTER) for client in dealers(session)]


@pytest.mark.parametrize("group", [1, 2, 32])
def test_one_by_one_is_all_at_once(session, receiver, group, monkeypatch):
    """Also when other receivers, of the same group or another, are served in between."""
    monkeypatch.setattr(sealed_slices, "_GROUP", group)
    everybody, (own, table) = dealing(session), receiver
    own.keep_own()
    for dealer, number in all_slices(session):
        if dealer == INDEX:
            continue
        for other in range(len(ROWS)):
            if other not in (dealer, INDEX):
                everybody[dealer].deal(other, number)
        sealed = everybody[dealer].deal(INDEX, number)
        assert len(sealed) == sealed_bytes(session, dealer, number) <= most_sealed_bytes(session)
        own.keep(dealer, number, sealed)
        again = everybody[dealer].deal(INDEX, number)
        assert again != sealed  # a fresh key for each envelope
        own.keep(dealer, number, again)
    assert table.complete
    for dealer, client in enumerate(dealers(session)):
        if dealer != INDEX:
            share = client.deal(INDEX)
            count = share.residues.shape[1]
            kept = table.rows(torch.full((count,), dealer), torch.arange(count))
            assert kept.tolist() == share.residues.tolist()


def test_neighbours_are_encoded_once(session, monkeypatch):
    calls = []
    deal_to = Client.deal_to
    monkeypatch.setattr(Client, "deal_to", lambda self, *place: calls.append(place) or deal_to(self, *place))
    dealer = dealing(session)[0]
    for number in (0, 1):
        for receiver in (1, 2, 3, 4):
            dealer.deal(receiver, number)
    assert [place[0] for place in calls] == [[1, 2, 3, 4]] * 2


@pytest.mark.parametrize(("receiver", "number"), [(0, 0), (5, 0), (-1, 0), (1, 3), (1, -1), (1, 2**32 - 1)])
def test_places_that_do_not_exist(session, receiver, number):
    dealer = dealing(session)[0]
    with pytest.raises(MessageError):
        dealer.deal(receiver, number)


def test_slices_at_another_place(session, receiver):
    own, table = receiver
    everybody = dealing(session)
    sealed = everybody[0].deal(INDEX, 0)
    for dealer, number in ((0, 1), (1, 0)):
        with pytest.raises(SealError):
            own.keep(dealer, number, sealed)
    with pytest.raises(SealError):
        own.keep(0, 0, everybody[0].deal(3, 0))
    for dealer in (-1, 5):
        with pytest.raises(MessageError, match="does not exist"):
            own.keep(dealer, 0, sealed)
    with pytest.raises(MessageError, match="there is no slice"):
        own.keep(0, 3, sealed)
    assert 0 in missing_slices(session, 0, table)
