"""How much a hidden run can give away or miss, as formulas: the error terms of docs/explanation/hidden-mode.md.

Every term is a bound on a probability, or on a statistical distance, written in bits: b bits mean at most 2^−b. Small
numbers are bad. Notation: N clients, T colluders, R the threshold, p the smallest prime, κ the masks' surplus, V the
values that the run opens under masks, H its hops.

    openings    V·2^−κ                       what all published values tell beyond their coins
    check A     H·⌊N/R⌋·p^−S                 a false hop passes: it can be tried in every hop, on so many groups
    guess       H·⌊N/R⌋·2^−(κ + bits)        the true value of a round's first hop is named by whoever cannot read it
    pad key     2^W·p^−6                     a pad's key is found by trying, with the tag to compare
    check C     2^W·p^−S_C                   a false hop is found by trying that passes: factors come from a hash
    answers     H·q^t                        false answers pass at the coordinator, in some hop
    dealers     N·C·2^min(N,64)·(N over e)·(2q − q²)^t   shares that are on no polynomial pass the check of dealers
    ranges      N·2^min(N,64)·((2q − q²)^S + 2^−wU)     rows out of range pass their proof
    keys        uses²/2^257                  two uses of seeds get the same key
    hashes      2^(2W)/2^257                 two different courses of a run get the same chain

q = ⌈2^21/p⌉/2^21, C the number of primes. W = 64: nobody makes more than 2^64 tries or hashes while it matters. (A try
at check C hashes all that was published in a hop and expands S_C factors for each value.) What is not here: the
advantage of telling HMAC-SHA256 and ChaCha20 from random functions, of breaking TLS 1.3, X25519 or Ed25519.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import final

from ..random_factors import coin_choices, largest_probability, least_combinations
from .check import KEY_WORDS, repetitions
from .plan import HiddenPlan, Hop

WORK = 64  # log2 of the tries, and of the hashes, that anybody makes
LEAST = 40  # bits that every promise of a run keeps
_HASH = 256
_COMMON_USES = 7  # labels of a hop beside two for each masked item: zeros, key, key zeros, key sums, chi, rho, pad


def together(*bits: float) -> float:
    """The bits of a sum of bounds.

    >>> together(41, 41)
    40.0
    """
    least = min(bits)
    return least if math.isinf(least) else least - math.log2(sum(2.0 ** (least - other) for other in bits))


def openings(kappa: int, values: int) -> float:
    """V values, each within 2^−κ of what does not depend on the rows."""
    return kappa - math.log2(values)


def false_hop(modulus: int, repeated: int, log_tries: float) -> float:
    """A hop that was published falsely modulo one prime passes S check values in one of so many tries."""
    return repeated * math.log2(modulus) - log_tries


def guessed_hop(kappa: int, bits: int, log_tries: float) -> float:
    """The true value of a round's first hop is guessed, of which one value at least is masked with bits + κ bits."""
    return kappa + bits - log_tries


def found_key(modulus: int, log_tries: float = WORK) -> float:
    """A pad's key is found: the part of one prime is unknown, all else and the key's tag are known."""
    return KEY_WORDS * math.log2(modulus) - log_tries


def false_answers(modulus: int, hops: int) -> float:
    """Answers that are on no polynomial of degree D pass the coordinator's sums, in one of so many hops."""
    once = largest_probability(modulus)
    return -least_combinations(hops, once) * math.log2(once) - math.log2(hops)


def false_dealers(moduli: Sequence[int], num_clients: int, deviating: int) -> float:
    """Shares of some dealer are on no polynomial modulo some prime, and pass (`dealer_check`)."""
    once = largest_probability(min(moduli))
    sets = math.comb(num_clients, deviating) * coin_choices(num_clients) * num_clients * len(moduli)
    missed = 2 * once - once * once
    return -least_combinations(sets, missed) * math.log2(missed) - math.log2(sets)


def false_ranges(modulus: int, num_clients: int, deviating: int, squares: int, sums: int, factor_bits: int) -> float:
    """A dealer's rows are out of range and pass `range_proof`: S checks of squares, U sums with factors of w bits."""
    once = largest_probability(modulus)
    missed = together(-squares * math.log2(2 * once - once * once), float(sums * factor_bits))
    return missed - math.log2(math.comb(num_clients, deviating) * coin_choices(num_clients) * num_clients)


def equal_keys(uses: int) -> float:
    """Two of so many uses get the same 256 bits."""
    return _HASH + 1 - 2 * math.log2(uses)


@final
@dataclass(frozen=True)
class SecurityTerms:
    """All terms of one run, in bits. `security_terms` makes them."""

    openings: float
    check_a: float
    guess: float
    pad_key: float
    check_c: float  # infinite if the agreement asks for check A alone
    answers: float  # infinite, as the next one, if the agreement says that clients are honest
    dealers: float
    ranges: float  # infinite if the agreement trusts the dealers
    keys: float
    hashes: float

    @property
    def curious(self) -> float:
        """Promise H1: a coordinator and T clients that follow the protocol."""
        return together(self.openings, self.keys)

    @property
    def one_side(self) -> float:
        """Promise H2: a coordinator that cheats alone, or T clients that do."""
        coordinator = together(self.check_a, self.guess, self.pad_key, self.hashes)
        clients = together(self.answers, self.dealers, self.ranges)
        return together(self.curious, coordinator, clients)

    @property
    def both_sides(self) -> float:
        """Promise H3: a coordinator that cheats together with T clients; with check C alone."""
        return together(self.curious, self.check_c, self.guess, self.hashes, self.dealers, self.ranges)

    @property
    def weakest(self) -> tuple[str, float]:
        """The term that leaves the fewest bits."""
        return min(((field.name, getattr(self, field.name)) for field in fields(self)), key=lambda term: term[1])


def security_terms(plan: HiddenPlan, *, num_seeds: int, ranges: float = math.inf) -> SecurityTerms:
    """The terms of a run. num_seeds: all seeds of the sharing. ranges: of its range proof (`false_ranges`)."""
    parameters, settings, modulus = plan.parameters, plan.settings, min(plan.moduli)
    tries = plan.tries
    rounds = [plan.hops(number) for number in range(plan.rounds)]
    labels = sum(2 * len(hop.items) + _COMMON_USES for hops in rounds for hop in hops)
    deviating = min(
        max(parameters.max_liars, parameters.max_colluders),
        (parameters.num_clients - parameters.num_shards - plan.mask_degree) // 2,
    )
    return SecurityTerms(
        openings=openings(plan.kappa, plan.values_opened),
        check_a=false_hop(modulus, repetitions(plan.moduli, tries, confirmed=False), math.log2(tries)),
        guess=guessed_hop(plan.kappa, min(_masked_bits(hops[0]) for hops in rounds), math.log2(tries)),
        pad_key=found_key(modulus),
        check_c=(
            false_hop(modulus, repetitions(plan.moduli, tries, confirmed=True), WORK)
            if settings.check == "C"
            else math.inf
        ),
        answers=math.inf if settings.honest_clients else false_answers(modulus, plan.num_hops),
        dealers=(
            math.inf if settings.honest_clients else false_dealers(plan.moduli, parameters.num_clients, deviating)
        ),
        ranges=ranges,
        keys=equal_keys(labels * num_seeds),
        hashes=equal_keys(2**WORK),
    )


def _masked_bits(hop: Hop) -> int:
    """The bits of a hop's largest masked item."""
    return max(item.bits for item in hop.items if item.shift is not None)
