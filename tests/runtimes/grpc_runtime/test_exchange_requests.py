"""What a dealer does with requests that make no sense: the connection ends, not the process."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dresfl.runtimes.grpc_runtime.exchange import Exchange

from consortium import Consortium
from dresfl.errors import MessageError
from dresfl.federation import make_session
from dresfl.field import SecretSeed
from dresfl.protocol import Client

from .federation import Events


@pytest.mark.parametrize(("receiver", "number"), [(0, 0), (6, 0), (1, 1), (1, 2**32 - 1)])
def test_requests_for_what_does_not_exist(tmp_path: Path, receiver: int, number: int) -> None:
    consortium = Consortium(tmp_path)
    session = make_session(consortium.agreement, [len(inputs) for inputs, _ in consortium.rows], b"n", b"r")
    client = Client(session, 0, SecretSeed.fresh(), *consortium.rows[0])
    unused: Any = SimpleNamespace()
    credentials = consortium.credentials(consortium.clients_keys[0])
    exchange = Exchange(unused, client, unused, credentials, unused, Events().log)
    assert exchange._dealt(1, 0)
    with pytest.raises(MessageError):
        exchange._dealt(receiver, number)
