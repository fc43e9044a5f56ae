"""Whether a hop was published as the clients sent it: check A, which every hop has, and check C, for those who ask.

Notation: v_i is what client i hides in a hop, the value at its point of a polynomial v of degree D. u is what the
coordinator published, and û(x) the polynomial of degree below K with û(β_k) = u_k. (Where sums alone are opened:
û = u/K everywhere.) The hop was published truly if (v − û)(β_k) = 0 for every k (there: Σ_k (v − û)(β_k) = 0).

**The check value.** d = Σ_e ρ_e·(v − û)_e over all values e of the hop, S times with other factors ρ, for each prime.
Client i computes d_i, the value of d at its point. If any value was published falsely modulo p, then d(β_k) = 0 for
all k (the sum: 0) with probability p^−S at most, as long as u was published before ρ was known to whoever chose it.

**Check A.** ρ comes from the key that all clients share, labelled by the chain *after* the publication. The next answer
is padded by words expanded from a key Q. Each client sends a share of Q + χ·d along: a polynomial whose value at β_k is
Q_k + Σ_s χ_s d_s(β_k), hidden by zero words. If the last hop was true in every prime, enough of the shares give Q, and
the coordinator takes the pads away. If it was false in any prime, that prime's part of Q is hidden by χ·d, uniform and
unknown to the coordinator. So each later answer is noise to it, the final weights too. It protects against a
coordinator that cheats alone: every client knows the common key.

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

KEY_WORDS = 6  # of Q for each prime and shard: 6·23 bits are more than 128
_CHECK_A_BITS = 44
_CHECK_C_BITS = 104  # whoever chooses u can try 2^60 of them


def repetitions(moduli: Sequence[int], *, confirmed: bool) -> int:
    """S: so many check values that a false hop passes with probability 2^−44 (check A) or 2^−104 (check C) at most."""
    wanted = _CHECK_C_BITS if confirmed else _CHECK_A_BITS
    return math.ceil(wanted / math.log2(min(moduli)))


def check_values(field: ResidueSystem, factors: Tensor, difference: Tensor) -> Tensor:
    """d: factors (M,S,E), v − û at the own point (M,E) -> (M,S)."""
    return field.matmul(factors, difference.unsqueeze(2))[:, :, 0]


def check_confirmed(code: LagrangeCode[Tensor], values: Mapping[int, Tensor], *, total: bool, agreeing: int) -> None:
    """A client's check C: the d (M,S) of at least `agreeing` clients lie on polynomials that are zero where they must.

    MessageError if not: then the client sends nothing more in this run. agreeing: R + T, never fewer.
    """
    if len(values) < agreeing:
        raise MessageError(f"{len(values)} clients confirm the last hop, {agreeing} are needed")
    field, threshold = code.field, code.recovery_threshold
    if not isinstance(field, ResidueSystem):
        raise TypeError("check values are residues")
    clients = sorted(values)
    points = [code.client_points[client] for client in clients]
    table = torch.stack([values[client] for client in clients], 2)  # (M,S,n)
    allowed = min(len(clients) - agreeing, (len(clients) - threshold) // 2)
    wrong = locate_errors(field.moduli, points, table.to(torch.int64).numpy(), threshold, allowed)
    if wrong is None:
        raise MessageError("the clients' check values of the last hop do not lie on one polynomial")
    honest = [place for place in range(len(clients)) if place not in wrong][:threshold]
    chosen = torch.stack([values[clients[place]] for place in honest], 1)  # (M,R,S)
    survivors = [clients[place] for place in honest]
    found = code.decode_sum(chosen, survivors) if total else code.decode(chosen, survivors)
    if bool(found.any()):
        raise MessageError("the last hop was not published as the clients sent it")
