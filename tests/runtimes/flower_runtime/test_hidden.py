"""Hidden runs over a stand-in for Flower: several bundles a hop, with clients that stay and without."""

from pathlib import Path

import pytest

from consortium import Consortium
from dresfl.federation.messages import HopAnswered, Opened, Resume
from dresfl.model import weights_sha256
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.flower_runtime.post import Failure

from .wire import Kinds, Run, Wire, settings


@pytest.mark.parametrize("lasting", [True, False], ids=["a worker stays", "a process for each bundle"])
def test_a_hidden_run(tmp_path: Path, lasting: bool) -> None:
    consortium = Consortium(
        tmp_path, clients=5, rounds=2, hidden=HiddenSettings(schedule="S2", trusted_dealers=True, runs=2)
    )
    run, wire = Run(consortium), Wire(consortium, lasting=lasting)
    run.play(wire)
    model, session = run.host.machine.model, run.host.machine.session
    assert model is not None
    assert session is not None
    stores = {i: consortium.folder / f"store-{i}" for i in range(5)}
    assert weights_sha256(model) == consortium.hidden_model(session, stores, consortium.agreement.roster)
    hops = [kinds for _, kinds in wire.sent if Opened in kinds]
    histories = [kinds for _, kinds in wire.sent if Resume in kinds]
    assert hops
    assert (len(histories) < len(hops)) == lasting


def test_a_node_fails_in_the_middle(tmp_path: Path) -> None:
    """What it answered may be lost: it is greeted anew, and says where it stands."""
    failed: list[int] = []

    def fault(node: int, kinds: Kinds, reply: bytes) -> bytes | Failure | None:
        if Opened in kinds and len(failed) < 3:
            failed.append(node)
            return Failure("the node is gone")
        return reply

    consortium = Consortium(tmp_path, clients=5, rounds=2, hidden=HiddenSettings(schedule="S2", trusted_dealers=True))
    run, wire = Run(consortium, settings(deadline=60.0)), Wire(consortium, fault, lasting=True)
    run.play(wire)
    assert run.host.machine.model is not None
    assert len(failed) == 3
    assert HopAnswered.KIND == 12
