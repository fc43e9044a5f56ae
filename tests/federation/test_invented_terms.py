"""A coordinator of the roster that signs one invented run after the other: a client's disk stays as it was."""

import secrets
from pathlib import Path

from consortium import Consortium
from dresfl.federation import Introduction, Site, Terms, Workplace
from dresfl.federation.actions import Join
from dresfl.federation.enrolment import signed_begin
from dresfl.federation.site import Membership
from dresfl.storage import ShareStore, data_digest

BEGINS = 100
MANY_ROWS = 500  # of each other client, as the coordinator says: space for them would be megabytes


def taken(folder: Path) -> int:
    """The bytes that a folder takes on its disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


def test_a_hundred_invented_begins_take_no_space(tmp_path: Path) -> None:
    consortium = Consortium(tmp_path, clients=5, rounds=2)
    folder = tmp_path / "store"
    with ShareStore.open(folder, data_digest(*consortium.rows[0])) as store:
        keys = consortium.clients_keys[0]
        workplace = Workplace(consortium.agreement, keys, consortium.roster, store, lambda: consortium.rows[0])
        for _ in range(BEGINS):
            challenge = secrets.token_bytes(16)
            site = Site(
                consortium.agreement, consortium.roster, 0, workplace.introduce, challenge=lambda told=challenge: told
            )
            site.connected(0.0)
            others = [Introduction(MANY_ROWS + i, secrets.token_bytes(64)) for i in range(4)]
            terms = Terms.settle([workplace.introduce(), *others])
            begin = signed_begin(consortium.coordinator, consortium.roster, 0, challenge, terms)
            (join,) = site.received(begin.encode(), 0.0)
            assert isinstance(join, Join)
            assert isinstance(workplace.perform(join), Membership)
        assert taken(folder) < 2**20
        assert len(store.sharings()) == 1
    session = terms.session(consortium.agreement)
    assert (folder / session.sharing_id.hex() / "shares.rows").stat().st_size > 20 * 4 * MANY_ROWS
