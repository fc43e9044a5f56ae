"""Whether a hop was published as the clients sent it: check A, which every hop has, and check C, for those who ask.

Notation: v_i is what client i hides in a hop, the value at its point of a polynomial v of degree D. u is what the
coordinator published, and û(x) the polynomial of degree below K with û(β_k) = u_k. (Where sums alone are opened:
û = u/K everywhere.) The hop was published truly if (v − û)(β_k) = 0 for every k (there: Σ_k (v − û)(β_k) = 0).

**The check values.** d = Σ_e ρ_e·(v − û)_e over all values e of the hop, S times with other factors ρ, for each prime.
Client i computes d_i, the value of d at its point. If any value was published falsely modulo p, then d(β_k) = 0 for
all k (the sum: 0) with probability p^−S at most, as long as u was published before ρ was known to whoever chose it.
Check values add up over the hops of a round: those of hops that open every shard in one sum, those of hops that open
sums alone in another. So a false hop is not forgotten when a true one follows it.

**Check A.** ρ comes from the key that all clients share, labelled by the chain *after* the publication. The next answer
is padded by words expanded from a key Q, made of one part for each β_k and one more. Each client sends shares of
Q_k + χ·d along: polynomials whose value at β_k is Q_k + Σ_s χ_s d_s(β_k), and others whose sum over the β is the last
part plus Σ_s χ_s Σ_k d_s(β_k), all hidden by zero words. If all hops of the round so far, or of the round before at the
start of one, were true in every prime, enough of the shares give Q, and the coordinator takes the pads away. If one was
false in any prime, that prime's part of Q is hidden by χ·d, uniform and unknown to the coordinator. So each later
answer is noise to it, the final weights too. At the start of a round there is always a value under a mask, which nobody
can guess: so the coordinator cannot publish that hop truly and be rid of the sums of the round before. It protects
against a coordinator that cheats alone: every client knows the common key.

**Check C.** For safety against the coordinator together with T clients, clients send each other their d, sealed. Here ρ
comes from the chain itself (Fiat and Shamir), so it can be tried out, and S is larger. A client goes on only if at
least R + T of the d lie on one polynomial of degree D that is zero where it must be.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dresfl.coding import LagrangeCode, locate_errors
from dresfl.errors import MessageError
from dresfl.field import ResidueSystem

KEY_WORDS = 6  # of each part of Q for each prime: 6·23 bits are more than 128
_CHECK_A_BITS = 44
_CHECK_C_BITS = 104  # whoever chooses u can try 2^60 of them


def repetitions(moduli: Sequence[int], tries: int, *, confirmed: bool) -> int:
    """S: so many check values that no false hop passes in a run, but with probability 2^−44 (check C: 2^−104) at most.

    tries: how many false hops a run gives room for: its hops, times the groups of clients that could be told others.

    >>> repetitions((2**24 - 3,), 2**18, confirmed=False)
    3
    """
    wanted = (_CHECK_C_BITS if confirmed else _CHECK_A_BITS) + math.log2(tries)
    return math.ceil(wanted / math.log2(min(moduli)))


def check_values(field: ResidueSystem, factors: Tensor, difference: Tensor) -> Tensor:
    """d: factors (M,S,E), v − û at the own point (M,E) -> (M,S)."""
    return field.matmul(factors, difference.unsqueeze(2))[:, :, 0]


class Unconfirmed(MessageError):
    """The check values that have come do not confirm a hop. More of them may: liars are among these, or too few."""


def check_confirmed(
    code: LagrangeCode[Tensor],
    values: Mapping[int, Tensor],
    own: int,
    *,
    total: bool,
    max_colluders: int,
) -> None:
    """A client's check C: the d (M,S) of at least R + T clients lie on polynomials that are zero where they must.

    The client's own is one of them: if it was an outlier, its next answer would give its share of the weights away.
    Unconfirmed: fewer agree, but T liars may be the reason. MessageError: they cannot be, or R + T say that the hop was
    not published truly. Then the client sends nothing more in this run.
    """
    field, threshold = code.field, code.recovery_threshold
    if not isinstance(field, ResidueSystem):
        raise TypeError("check values are residues")
    agreeing, clients = threshold + max_colluders, sorted(values)
    if len(clients) < agreeing:
        raise Unconfirmed(f"{len(clients)} clients confirm the last hop, {agreeing} are needed")
    points = [code.client_points[client] for client in clients]
    table = torch.stack([values[client] for client in clients], 2)  # (M,S,n)
    allowed = min(len(clients) - agreeing, (len(clients) - threshold) // 2)
    wrong = locate_errors(field.moduli, points, table.to(torch.int64).numpy(), threshold, allowed)
    if wrong is None:
        reason = "the clients' check values of the last hop do not lie on one polynomial"
        raise Unconfirmed(reason) if len(clients) < agreeing + max_colluders else MessageError(reason)
    if own in {clients[place] for place in wrong}:
        raise MessageError("this client's check value of the last hop is not on the polynomial of the others")
    honest = [place for place in range(len(clients)) if place not in wrong][:threshold]
    chosen = torch.stack([values[clients[place]] for place in honest], 1)  # (M,R,S)
    survivors = [clients[place] for place in honest]
    found = code.decode_sum(chosen, survivors) if total else code.decode(chosen, survivors)
    if bool(found.any()):
        raise MessageError("the last hop was not published as the clients sent it")
