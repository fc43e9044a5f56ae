"""A client's work over a real store: what was lost or damaged shows when the client joins, not in a round."""

from pathlib import Path

from consortium import Consortium
from dresfl.errors import StoreError
from dresfl.federation import Introduction, Site, Terms, Workplace
from dresfl.federation.actions import GiveUp, Join
from dresfl.federation.enrolment import signed_begin
from dresfl.federation.site import Membership
from dresfl.storage import ShareStore, data_digest

OTHERS = [Introduction(9, bytes([i]) * 64) for i in range(1, 5)]


def workplace(consortium: Consortium, store: ShareStore) -> Workplace:
    keys = consortium.clients_keys[0]
    return Workplace(consortium.agreement, keys, consortium.roster, store, lambda: consortium.rows[0])


def test_a_damaged_record_of_answered_rounds_ends_the_client(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path, clients=5, rounds=2)
    digest, folder = data_digest(*consortium.rows[0]), tmp_path / "store"
    with ShareStore.open(folder, digest) as store:
        before = workplace(consortium, store)
        terms = Terms.settle([before.introduce(), *OTHERS])
        assert isinstance(before.perform(Join(terms)), Membership)
    session = terms.session(consortium.agreement)
    path = folder / session.sharing_id.hex() / f"{session.session_id.hex()}.answered"
    path.write_bytes(b"damage" * 20)
    with ShareStore.open(folder, digest) as store:
        after = workplace(consortium, store)
        site = Site(consortium.agreement, consortium.roster, 0, after.introduce, challenge=lambda: bytes(16))
        site.connected(0.0)
        begin = signed_begin(consortium.coordinator, consortium.roster, 0, bytes(16), terms)
        (join,) = site.received(begin.encode(), 0.0)
        assert isinstance(join, Join)
        result = after.perform(join)
        assert isinstance(result, StoreError)
        *_, end = site.worked(join, result, 0.0)
        assert isinstance(end, GiveUp)
        assert "is damaged" in str(end.error)
