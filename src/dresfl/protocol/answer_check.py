"""Which clients lied in a round: each answer is summed with secret factors as it comes, and the sums are looked at.

Notation: P values of an answer for each prime p, t combinations, R the threshold, A the most liars. The answers,
blinded or not, are values of P polynomials of degree < R in each prime. So are t combinations Σ_i f_i·(answer)_i of
them, and a client whose combination is not on the polynomial of the others has lied. The coordinator draws the factors
f, integers uniform in [0, 2^21), from the operating system's generator, anew for every round, and shows them to nobody.

**How often a lie is missed.** q = ⌈2^21/p⌉/2^21 is the largest probability that a factor has one given residue; q =
2^−21 for p ≥ 2^21. A client that lies modulo p adds errors e_1..e_P to its values, of which some e_i ≠ 0. The client
has not seen the factors. Whatever the other factors are, at most one residue of f_i makes Σ f_i e_i = 0. So one
combination misses the lie with probability at most q, and all t with at most q^t. `num_combinations` takes the least t
for which q^t < 2^−40, q of the smallest prime: t = 2 for primes above 2^21, t = 9 for p = 23. With n ≥ R + 2A answers
of which at most A are lies, the polynomial that at least n − A of the answers lie on is the honest one, so each liar
whose combination is wrong is named, and nobody else.

**The limit.** More than A liars are seen, and the round is refused, unless they agree on what to say: n − R − A + 1 who
do, A + 1 of R + 2A, can move the values to another polynomial that only A honest answers contradict.
"""

import secrets
from typing import NoReturn, final

import numpy as np

from dresfl.coding import locate_errors
from dresfl.field import FACTOR_BITS, Factors, Residues, Sums

from .random_factors import largest_probability, least_combinations
from .session import Session


def num_combinations(session: Session) -> int:
    """t: the least for which q^t < 2^−40, q of the smallest prime."""
    return least_combinations(1, largest_probability(session.field.moduli[0]))


@final
class AnswerCheck:
    """The check of one round's answers, at the coordinator. Its factors are secret, and it is used for one round."""

    def __init__(self, session: Session) -> None:
        self._session = session
        shape = num_combinations(session), session.network.num_parameters
        words = np.frombuffer(secrets.token_bytes(4 * shape[0] * shape[1]), dtype=np.uint32)
        self._factors: Factors = (words >> (32 - FACTOR_BITS)).astype(np.int32).reshape(shape)
        self._sums: dict[int, Sums] = {}

    def __repr__(self) -> str:
        return f"AnswerCheck({len(self._sums)} answers, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the factors of an AnswerCheck are secret and are not pickled")

    def add(self, client: int, residues: Residues) -> None:
        """Sum a client's answer (M,P), packed or not, with the factors."""
        self._sums[client] = self._session.field.weighted_sums(residues, self._factors)

    def liars(self) -> tuple[int, ...] | None:
        """The clients whose answers are not on the polynomial of the others; None: more than A are not."""
        session, clients = self._session, sorted(self._sums)
        points = [session.code.client_points[client] for client in clients]
        values = np.stack([self._sums[client] for client in clients], 2)  # (M,t,n)
        most = session.parameters.max_liars
        found = locate_errors(session.field.moduli, points, values, session.recovery_threshold, most)
        return None if found is None else tuple(clients[position] for position in found)
