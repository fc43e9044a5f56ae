"""That dealt rows and labels are in range: what receivers publish of shared bits, and what everybody concludes.

A dealer whose "row" is huge would read hidden weights off an honest hop: the product leaves its mask. So rows are dealt
as bits (bit_layout.py), and the clients check, on their shares alone, that they are bits. Notation: n bits a coded row,
w factor bits, K shards at β_1..β_K, T colluders, f the polynomial of degree T' that a bit was dealt with, D ≥ 2T' the
degree of openings, R = D + 1, p one of the C moduli, M their product, "mods M" the representative in (−M/2, M/2).

When all shares are on all disks, the coins of the dealers' check are shown. They give public factors: ρ and σ below
2^21, and c uniform in [0, 2^w). For each dealer, S and U times with other factors, receiver i publishes at its point

    (1)  Σ_rows ρ_row·( Σ_bits σ_bit·(f² − f) + σ_n·(Σ_label f − 1) ) + ζ                  degree 2T' + zero words
    (2)  Σ_rows Σ_bits c_{row,bit}·f + r + ζ                                               degree T' + zero words

ζ: words of degree ≤ D that vanish at every β, from seeds that were dealt. r: a sum of A bounded integers in [0, 2^m),
one from each mask seed, another one at every β. Anybody who has all published values decodes them at β_1..β_K, and a
dealer passes if (1) is 0 in every channel and (2), as an integer mods M, lies in [0, L] with L = A(2^m − 1) + bits·(2^w
− 1). For an honest dealer both hold always.

**What a dealer that passes has dealt.** The dealers' check leaves at most e receivers out as deviating. The shares of
the honest ones that are left, R at least, lie on one polynomial and fix f at every β. For each choice of those who are
left out f is known before the coins are.

*(1) In every channel every bit is 0 or 1, and the label's sum is 1.* Let some f² − f, or a label's sum less 1, not be 0
modulo p at β_k. All of them at β_k are a matrix Z ≠ 0 of rows and n + 1 columns, and (1) is ρᵀZσ. It is 0 with
probability at most 2q − q², q = 2^−21 (as in dealer_check.py), and S times with at most its S-th power.

*(2) Every bit is the same in all channels.* After (1) a bit is an idempotent e of Z_M: 0, 1, or one of the 2^C − 2
others, which are 0 modulo some primes and 1 modulo the rest. Suppose that some bit is one of those. Keep all factors
but its own c. If (2) lies in [0, L] for two values c ≠ c', then their difference (c − c')·e + (r − r') is at most L in
magnitude mods M, and r, r' lie in [0, A(2^m − 1)], whatever they depend on. So |d·e mods M| ≤ L + A(2^m − 1) for d =
|c − c'| in 1 … 2^w − 1. `smallest_multiple` computes the least |d·e mods M| of all idempotents and all such d, and
`plan_range_proof` refuses moduli for which it is not larger. So at most one of 2^w values of c passes: one sum misses
with probability at most 2^−w, and U of them with 2^−(wU). (With w = 1 these are sums of random subsets. The wider the
factors are, the fewer sums are needed.)

So the bits are bits as integers. The layout then makes every input an integer in its range. The classes of a label
sum to 1 modulo primes that are larger than their number, so exactly one of them is 1. Targets that are numbers are
proven like inputs; such a row has no label, and the factor of its sum is 0.

**How often a bad dealer is missed.** Each client commits to its coin before anything is dealt and shows it when its
shares are on its disk. So factors cannot be tried out by hashing, as in a Fiat–Shamir proof that 104 bits guard. What
is left: a coordinator in league with the dealer sees all coins and then says which clients take part. Those are at most
2^N choices, and no more than 2^64 can be tried (`coin_choices`). And T receivers that lie may decide who is left out as
deviating: C(N,e) choices. S and U are the least for which N·C(N,e)·2^min(N,64) times the probability of one miss is
below 2^−41 each: over all N dealers, whatever is tried, a bad row is missed with probability 2^−40 at most.

**Receivers that lie.** A dealer is judged here only if its shares passed the dealers' check, and only on receivers that
deviate on no dealer and hold the same seeds as others. Then all honest values lie on polynomials of degree ≤ D by
themselves, so a value that deviates is its receiver's fault, never the dealer's. `judge_ranges` locates at most e =
min((n−R)/2, n−R−T) liars among n receivers, jointly for all dealers. The n − e ≥ R + T values that agree contain R
honest ones, so what is decoded is true: T liars can neither have an honest dealer excluded nor have a bad one pass. If
more than e values deviate, nobody can be named and nothing is concluded: the run does not begin.

**What is published says no more than that.** Given what T clients know, (1) is a uniform polynomial among those that
vanish at every β, since the zero words span them for every coalition (`masking.hidden_families` certifies it). (2) is
the values u = v + r at β and otherwise uniform likewise. r contains an integer uniform in [0, 2^m) that no T clients
know, and 0 ≤ v ≤ bits·(2^w − 1) ≤ 2^(m−κ). So u is within 2^−κ of a distribution that does not depend on v, for each of
N·K·U values. Labels contain the coins: if a client were to answer for other coins, its masks would be others, too.
"""

import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, final

import torch
from torch import Tensor

from dresfl.coding import LagrangeCode, locate_errors
from dresfl.errors import InfeasiblePlan, MessageError, TooFewAnswers, UsageError
from dresfl.field import FACTOR_BITS, Domain, Factors, Octets, PublicStream, ResidueSystem

from ..random_factors import coin_choices, largest_probability, least_combinations
from .bit_layout import BitLayout

_WORDS = 2**20  # public words that are held at a time
_MOST_MODULI = 16  # 65,534 idempotents
_NANOSECONDS = 1.7  # of one thread for a bit and a channel, all S + U sums; experiments/bench/range_proofs.py measures


class DealtBits(Protocol):
    """As much of a `ShareTable` as a proof reads."""

    def packed_rows(self, dealer: int, first: int, last: int) -> Octets:
        """Rows first … last − 1 of a dealer: (rows,M,bits·residue_bytes), packed."""

    def missing(self, dealer: int) -> list[range]:
        """The ranges of a dealer's rows that are not held."""


class ProofMasks(Protocol):
    """What one client's `masking.HiddenMasks` does for a proof."""

    def bounded(self, label: bytes, bits: int, count: int, *, total: bool) -> tuple[Tensor, Tensor]:
        """Its share of a sum of integers in [0, 2^bits) of all seeds: (M,count), to go on with and to be uploaded."""

    def zeros(self, label: bytes, count: int, *, total: bool) -> Tensor:
        """Its values of words that vanish at every β: (M,count)."""


@functools.lru_cache(maxsize=256)
def smallest_multiple(moduli: tuple[int, ...], most: int) -> int:
    """min |d·e mods M| over all idempotents e ≠ 0, 1 of Z_M and all d = 1 … most, exactly.

    |d·e mods M| is M times the distance of d·(e/M) from the nearest integer. Of all d up to `most`, the denominator of
    the last convergent of e/M that is not larger has the least distance (best approximations of the second kind are
    convergents). So a continued fraction for each idempotent is enough.

    >>> smallest_multiple((3, 5), 1), smallest_multiple((3, 5), 2)  # idempotents 6 and 10 = −5
    (5, 3)
    """
    if len(moduli) > _MOST_MODULI:
        raise InfeasiblePlan(
            f"{len(moduli)} moduli have too many idempotents to look at for a proof of ranges",
            f"use at most {_MOST_MODULI} moduli: a smaller network, batch or κ",
        )
    return min(_closest(e, math.prod(moduli), most) for e in idempotents(moduli))


def idempotents(moduli: Sequence[int]) -> list[int]:
    """The 2^C − 2 idempotents of Z_M that are neither 0 nor 1, in [0, M): 1 modulo some primes, 0 modulo the rest.

    >>> idempotents((3, 5))
    [10, 6]
    """
    product = math.prod(moduli)
    units = [product // p * pow(product // p, -1, p) for p in moduli]  # 1 modulo p, 0 modulo the others
    chosen = itertools.product((0, 1), repeat=len(moduli))
    sums = (sum(itertools.compress(units, those)) % product for those in chosen)
    return [e for e in sums if e not in (0, 1)][::-1]


def _closest(value: int, modulus: int, most: int) -> int:
    """min |d·value mods modulus| over d = 1 … most, for 0 < value < modulus."""
    before, current = (0, modulus), (1, value)  # denominator q of a convergent, and |q·value − its numerator·modulus|
    while current[1]:
        quotient = before[1] // current[1]
        following = quotient * current[0] + before[0]
        if following > most:
            break
        before, current = current, (following, before[1] - quotient * current[1])
    return current[1]


@final
@dataclass(frozen=True)
class RangeProof:
    """How the ranges of a sharing's rows are proven: everybody derives the same. Made by `plan_range_proof`."""

    layout: BitLayout
    num_squares: int  # S
    num_sums: int  # U
    factor_bits: int  # w
    mask_bits: int  # m
    num_masks: int  # A
    most_rows: int  # coded rows of a dealer, at most

    @property
    def num_values(self) -> int:
        """Values for each dealer and prime that a receiver publishes: S + U."""
        return self.num_squares + self.num_sums

    @property
    def limit(self) -> int:
        """L: no honest sum is larger."""
        largest: int = 2**self.factor_bits - 1
        return self.most_mask + self.most_rows * self.layout.num_bits * largest

    @property
    def most_mask(self) -> int:
        """A(2^m − 1): no mask is larger."""
        largest: int = 2**self.mask_bits - 1
        return self.num_masks * largest

    def fits(self, moduli: tuple[int, ...]) -> bool:
        """Whether honest sums do not wrap around, and a bit that differs between channels is caught (the module)."""
        least = smallest_multiple(moduli, 2**self.factor_bits - 1)
        return least > self.limit + self.most_mask and 2 * self.limit < math.prod(moduli)

    def check(self, moduli: tuple[int, ...]) -> None:
        """Refuse moduli with which a bit that differs between channels could pass."""
        if not self.fits(moduli):
            least = max(1, smallest_multiple(moduli, 2**self.factor_bits - 1))
            most = self.limit + self.most_mask
            raise InfeasiblePlan(
                f"the ranges of rows cannot be proven modulo these {len(moduli)} primes: a false bit may be as small "
                f"as 2^{math.log2(least):.1f}, sums and masks reach 2^{math.log2(most):.1f}",
                "use one modulus more, fewer rows a client, or a smaller κ, or agree that dealers are trusted",
            )


def plan_range_proof(
    moduli: tuple[int, ...],
    layout: BitLayout,
    *,
    num_clients: int,
    max_deviating: int,
    num_masks: int,
    most_rows: int,
    kappa: int,
) -> RangeProof:
    """The proof for a setting: the widest factors that these moduli allow, and as many sums as they then need.

    max_deviating: e, of the dealers' check. num_masks: A, the mask seeds. most_rows: of all dealers, the most coded
    rows. InfeasiblePlan if there is none.
    """
    tries = _tries(num_clients, max_deviating)
    once = largest_probability(moduli[0])
    squares = least_combinations(tries, 2 * once - once * once)
    for width in range(FACTOR_BITS, 0, -1):
        sums = least_combinations(tries, Fraction(1, 2**width))
        mask_bits = (most_rows * layout.num_bits * (2**width - 1)).bit_length() + kappa
        proof = RangeProof(layout, squares, sums, width, mask_bits, num_masks, most_rows)
        if proof.fits(moduli):
            break
    proof.check(moduli)
    return proof


def most_sums(num_clients: int, max_deviating: int) -> int:
    """U for the narrowest factors: no plan needs more sums, however many rows there are."""
    return least_combinations(_tries(num_clients, max_deviating), Fraction(1, 2))


def _tries(num_clients: int, max_deviating: int) -> int:
    """2·N·C(N,e)·2^min(N,64): the module says of what."""
    return 2 * num_clients * math.comb(num_clients, max_deviating) * coin_choices(num_clients)


# -- what a receiver publishes ---------------------------------------------------------------------------------------


def range_values(
    field: ResidueSystem,
    proof: RangeProof,
    table: DealtBits,
    coded_rows: Sequence[int],
    digest: bytes,
    masks: ProofMasks,
) -> Tensor:
    """What a receiver publishes of all dealers' rows: (M,dealers,S+U), squares first. It reads every share once.

    coded_rows: of each dealer. digest: `proof_digest`. All shares must be held, and the coins must be younger.
    """
    if any(table.missing(dealer) for dealer in range(len(coded_rows))):
        raise MessageError("shares are missing and cannot be checked", "finish the sharing first")
    columns, width, moduli = proof.layout.num_bits, proof.num_sums, len(field.moduli)
    stream = PublicStream(int.from_bytes(digest, "little"))
    sigma, rho = _square_factors(stream, proof, max(coded_rows))
    p = torch.tensor(field.moduli).view(-1, 1)
    totals = torch.zeros((moduli, len(coded_rows), proof.num_values), dtype=torch.int64)
    step = max(1, _WORDS // (max(1, width) * columns))
    for first in range(0, max(coded_rows), step):
        last = min(first + step, max(coded_rows))
        linear = _sum_factors(stream, proof, first, last)
        for dealer, rows in enumerate(coded_rows):
            end = min(last, rows)
            if first >= end:
                continue
            packed, count = table.packed_rows(dealer, first, end), end - first
            found = field.bit_sums(
                packed, proof.layout.first_label, sigma, rho[:, first:end], linear[:, :count]
            )  # (M,S), (M,U)
            totals[:, dealer] = (totals[:, dealer] + torch.cat([torch.from_numpy(sums) for sums in found], 1)) % p
    half = p.unsqueeze(2) // 2
    values = ((totals + half) % p.unsqueeze(2) - half).to(field.device, field.dtype)
    count = len(coded_rows)
    _, upload = masks.bounded(digest + b"sums", proof.mask_bits, count * width, total=False)
    zeros = masks.zeros(digest + b"zero", count * proof.num_values, total=False)
    masked = field.add(values[..., proof.num_squares :].contiguous(), upload.view(moduli, count, width))
    values = torch.cat((values[..., : proof.num_squares], masked), 2)
    return field.add(values, zeros.view(moduli, count, -1))


def proof_digest(sharing_digest: bytes, coins: bytes) -> bytes:
    """What factors and masks of a proof are made from."""
    return hashlib.sha256(b"dresfl range proof" + sharing_digest + coins).digest()


def _square_factors(stream: PublicStream, proof: RangeProof, rows: int) -> tuple[Factors, Factors]:
    """σ (S,n+1), of streams (RANGE_SQUARES, s), and ρ (S,rows), of (RANGE_SQUARES, S + s): the words' upper 21 bits."""
    streams = torch.arange(proof.num_squares)
    sigma = stream.words_of(Domain.RANGE_SQUARES, streams, proof.layout.num_bits + 1)
    rho = stream.words_of(Domain.RANGE_SQUARES, streams + proof.num_squares, rows)
    found = [(words >> (32 - FACTOR_BITS)).to(torch.int32).numpy() for words in (sigma, rho)]
    if proof.layout.first_label == proof.layout.num_bits:
        found[0][:, -1] = 0  # there is no label whose classes sum to 1
    return found[0], found[1]


def _sum_factors(stream: PublicStream, proof: RangeProof, first: int, last: int) -> Factors:
    """c (U,rows,n) of rows first … last − 1, the same for all dealers: the upper w bits of words.

    Word u·n + j of stream (RANGE_SUMS, row) is that of sum u and bit j.
    """
    count, columns = proof.num_sums, proof.layout.num_bits
    words = stream.words_of(Domain.RANGE_SUMS, torch.arange(first, last), count * columns)
    factors = (words >> (32 - proof.factor_bits)).to(torch.int32).view(last - first, count, columns)
    found: Factors = factors.swapaxes(0, 1).contiguous().numpy()
    return found


# -- what everybody concludes ----------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class RangeVerdict:
    """Client numbers, ascending."""

    excluded: tuple[int, ...]  # dealers whose rows are not proven to be in range
    lying: tuple[int, ...]  # receivers whose values do not fit those of the others


def judge_ranges(
    code: LagrangeCode[Tensor],
    proof: RangeProof,
    values: Tensor,
    receivers: Sequence[int],
    dealers: Sequence[int],
    max_colluders: int,
) -> RangeVerdict:
    """Which dealers are excluded and which receivers lie, from what was published: residues (M,all dealers,S+U,n).

    receivers: the n clients whose values these are, ascending; without those that deviate on any dealer. dealers: those
    to judge, whose shares lie on polynomials. max_colluders: T, or 0 where the agreement says that clients are honest.
    TooFewAnswers if there are too few receivers, or if more of them lie than can be named.
    """
    field, threshold = code.field, code.recovery_threshold
    spare = len(receivers) - fewest_range_receivers(code, max_colluders)
    if spare < 0:
        raise TooFewAnswers(
            f"{len(receivers)} clients can judge the ranges of rows, {threshold + max_colluders} are needed",
            "bring more clients back, and check the dealers again in a new run",
        )
    wanted = (len(field.moduli), code.num_clients, proof.num_values, len(receivers))
    if tuple(values.shape) != wanted:
        raise UsageError(f"published values of shape {tuple(values.shape)} came, {wanted} was expected")
    if not isinstance(field, ResidueSystem):
        raise TypeError("published values are residues")
    if not dealers:
        return RangeVerdict((), ())
    judged = values[:, list(dealers)]  # (M,d,S+U,n)
    points = [code.client_points[client] for client in receivers]
    errors = min((len(receivers) - threshold) // 2, spare)
    integers = judged.flatten(1, 2).to("cpu", torch.int64).numpy()
    wrong = locate_errors(field.moduli, points, integers, threshold, errors)
    if wrong is None:
        raise TooFewAnswers(
            f"more than {errors} clients publish values about the ranges of rows that do not fit: none can be named",
            "see the logs of all clients, and start a new run in a new folder",
        )
    honest = [place for place in range(len(receivers)) if place not in wrong][:threshold]
    answers = judged[..., honest].permute(0, 3, 1, 2).contiguous()  # (M,R,d,S+U)
    opened = code.decode(answers, [receivers[place] for place in honest])  # (M,K,d,S+U)
    p = torch.tensor(field.moduli, device=opened.device).view(-1, 1, 1, 1)
    squares = opened[..., : proof.num_squares].to(torch.int64) % p
    excluded = []
    for place, dealer in enumerate(dealers):
        sums = field.lift_exact(opened[:, :, place, proof.num_squares :].contiguous())
        if bool(squares[:, :, place].any()) or not all(0 <= total <= proof.limit for total in sums):
            excluded.append(dealer)
    return RangeVerdict(tuple(excluded), tuple(receivers[place] for place in wrong))


def fewest_range_receivers(code: LagrangeCode[Tensor], max_colluders: int) -> int:
    """R + T: with fewer receivers, T of them could make others believe what they like."""
    return code.recovery_threshold + max_colluders


# -- what it costs ---------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class RangeProofCost:
    """What proofs of ranges cost a federation, once in a sharing."""

    growth: float  # so many times more bytes are dealt and kept than without proofs
    share_bytes: int  # what a client keeps of all dealers' rows
    published_bytes: int  # what a client publishes
    seconds: float  # of one thread of a client


def range_proof_cost(field: ResidueSystem, proof: RangeProof, coded_rows: Sequence[int]) -> RangeProofCost:
    """The cost for dealers with so many coded rows. The seconds are those of the CPU that the benchmarks name."""
    layout, channels = proof.layout, len(field.moduli)
    bits = sum(coded_rows) * layout.num_bits
    return RangeProofCost(
        layout.num_bits / layout.row_width,
        bits * channels * field.residue_bytes,
        len(coded_rows) * proof.num_values * channels * field.residue_bytes,
        bits * channels * _NANOSECONDS * 1e-9,
    )
