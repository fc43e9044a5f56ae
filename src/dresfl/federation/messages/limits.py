"""How large messages can be: longer ones are refused before they are read."""

from dresfl.protocol import Answer, Session, final_sum, most_findings_bytes
from dresfl.protocol.hidden.answers import HopAnswer
from dresfl.protocol.hidden.published import published_bytes
from dresfl.sealing import OVERHEAD

from ..agreement import Agreement
from ..sealed_slices import most_sealed_bytes
from .form import HEAD_BYTES
from .meeting import AGREEMENT_BYTES

_HASH = 16
_ATTESTED = 80  # bytes around what one client attests
_SIGNED = 80  # bytes around a client's share in a sum, and of its signature
_MARGIN = 2**16  # of a history beyond what was published


def largest_message(agreement: Agreement) -> int:
    """The most bytes that any message of a federation has."""
    session = agreement.sample_session()
    parameters = session.network.num_parameters
    terms = 68 * session.num_clients + 200
    checked = _HASH * len(session.seed_sets.sets) + most_findings_bytes(session)
    payloads = [4 * parameters, most_sealed_bytes(session), terms, checked, AGREEMENT_BYTES]
    if session.hidden is None:
        payloads.append(Answer.size(session.field, parameters))
    else:
        payloads += [session.num_clients * (checked + _ATTESTED), *_of_hops(session), _of_sum(session)]
    return HEAD_BYTES + max(payloads)


def _of_sum(session: Session) -> int:
    """Of the sum at the end: shares of all clients and their signatures."""
    plan = final_sum(session)
    each = 0 if plan is None else plan.packed_bytes + 2 * plan.field.residue_bytes * plan.count
    return session.num_clients * (each + OVERHEAD + _SIGNED)  # one prime more than the sample has may be needed


def _of_hops(session: Session) -> list[int]:
    """Of the hidden mode: an answer, and the longest history. One prime more than the sample has may be needed."""
    plan = session.hidden_plan
    rounds = [plan.hops(number) for number in {0, min(1, plan.rounds - 1), plan.rounds - 1, plan.rounds}]
    more = 1 + 1 / len(session.field.moduli)
    answers = [HopAnswer.size(session, hop) for hops in rounds for hop in hops]
    published = max(sum(published_bytes(session, hop) for hop in hops) for hops in rounds)
    weights = max(published_bytes(session, hop) for hops in rounds for hop in hops if hop.moves_weights)
    losses = 8 * 4 * plan.rounds if plan.settings.validation_every else 0
    history = 2 * published + 2 * weights
    return [int(more * max(answers)), int(more * history) + losses + _MARGIN]
