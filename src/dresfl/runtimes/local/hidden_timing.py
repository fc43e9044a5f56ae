"""What a hidden round costs its parties in CPU time, played by real clients in one thread.

Messages are packed and unpacked as on a network, but not sent.
"""

import statistics
import time

from dresfl.protocol.hidden.answers import HopAnswer
from dresfl.protocol.hidden.opening import HopOpening

from .hidden import HiddenFederation


def timed_round(federation: HiddenFederation) -> tuple[float, float]:
    """Play one round: the median client's CPU seconds, and the coordinator's."""
    session, cpu = federation.session, time.thread_time
    spent = dict.fromkeys((client.index for client in federation.clients), 0.0)
    coordinator = 0.0
    for _ in range(len(federation.ledger.hops)):
        opening, opened = HopOpening(session, federation.ledger), None
        for client in federation.clients:
            start = cpu()
            answer = client.answer()
            if answer is None:
                raise RuntimeError("a client is silent")
            sent = answer.encode(session.field)
            spent[client.index] += cpu() - start
            start = cpu()
            came = HopAnswer.decode_from(client.index, sent, session, federation.ledger.current)
            opened = opening.add(came) or opened
            coordinator += cpu() - start
        if opened is None:
            raise RuntimeError("the answers did not open the hop")
        start = cpu()
        federation.note(opened.published)
        coordinator += cpu() - start
        for client in federation.clients:
            start = cpu()
            client.receive(opened.published)
            spent[client.index] += cpu() - start
        if session.hidden_plan.settings.check == "C":
            _confirm(federation, spent)
    return statistics.median(spent.values()), coordinator


def _confirm(federation: HiddenFederation, spent: dict[int, float]) -> None:
    values = {client.index: client.check_value for client in federation.clients if client.check_value is not None}
    for client in federation.clients:
        start = time.thread_time()
        client.confirm(values)
        spent[client.index] += time.thread_time() - start
