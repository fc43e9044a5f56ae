"""What a client publishes of all dealers once the coins are shown, and what everybody concludes from it.

    hashes   of the mask seeds that the client holds (set_up.py)
    values   residues (M,N,t): its combinations of every dealer's shares (dealer_check.py)
    ranges   residues (M,N,S+U), where rows are dealt as bits: its part of the proofs that they are (range_proof.py)

`conclude` depends on what was published alone, so whoever has all of it comes to the same verdict.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dresfl.errors import MessageError
from dresfl.masking import HiddenMasks

from .dealer_check import Verdict, combine_shares, fewest_receivers, judge, num_combinations
from .hidden.range_proof import fewest_range_receivers, judge_ranges, most_sums, proof_digest, range_values
from .session import Session
from .set_up import SetUp, seed_hashes, seeds_of
from .shares import ShareTable


@final
@dataclass(frozen=True, eq=False)
class Findings:
    """What one client publishes."""

    hashes: tuple[bytes, ...]  # of the seeds that it holds, by their numbers, ascending
    values: Tensor
    ranges: Tensor | None = None

    def pack(self, session: Session) -> bytes:
        """The residues, as they travel: values, then ranges."""
        parts = [self.values, *([] if self.ranges is None else [self.ranges])]
        return b"".join(session.field.pack(part) for part in parts)

    @classmethod
    def unpack(cls, session: Session, client: int, hashes: tuple[bytes, ...], packed: bytes | memoryview) -> "Findings":
        """What a client has published. MessageError if it has another form than it must have."""
        held = session.seed_sets.held_by(client)
        if len(hashes) != len(held):
            raise MessageError(f"{len(hashes)} hashes of seeds came, but client {client} holds {len(held)}")
        if len(packed) != findings_bytes(session):
            raise MessageError(f"check values of {len(packed)} bytes came, not {findings_bytes(session)}")
        field, clients, proof = session.field, session.num_clients, session.range_proof
        middle = clients * num_combinations(session) * len(field.moduli) * field.residue_bytes
        values = field.unpack(packed[:middle], (clients, num_combinations(session)))
        ranges = None if proof is None else field.unpack(packed[middle:], (clients, proof.num_values))
        return cls(hashes, values, ranges)


def findings_bytes(session: Session) -> int:
    """The size of a client's packed values."""
    proof = session.range_proof
    each = num_combinations(session) + (0 if proof is None else proof.num_values)
    return session.num_clients * each * len(session.field.moduli) * session.field.residue_bytes


def most_findings_bytes(session: Session) -> int:
    """The size that a client's packed values have at most, whatever the row counts."""
    if session.range_proof is None:
        return findings_bytes(session)
    each = (
        num_combinations(session)
        + session.range_proof.num_squares
        + most_sums(session.num_clients, session.max_deviating)
    )
    return session.num_clients * each * len(session.field.moduli) * session.field.residue_bytes


def examine_dealers(
    session: Session, index: int, table: ShareTable, set_ups: Sequence[SetUp], coins: bytes
) -> Findings:
    """A client's part of the check, with these common coins. It must give it for one set of coins only.

    set_ups: those that it holds, dealer by dealer (`held_set_ups`).
    """
    seeds = seeds_of(set_ups)
    values = [combine_shares(session, table, dealer, coins, held.check) for dealer, held in enumerate(set_ups)]
    ranges, proof = None, session.range_proof
    if proof is not None:
        rows = [session.coded_rows(dealer) for dealer in range(session.num_clients)]
        masks = HiddenMasks(session.field, session.hidden_families, index, seeds)
        digest = proof_digest(session.sharing_digest, coins)
        ranges = range_values(session.field, proof, table, rows, digest, masks)
    return Findings(tuple(seed_hashes(session, seeds)), torch.stack(values, 1), ranges)


def checkers_needed(session: Session) -> int:
    """How many clients must take part in the check of the dealers if it does not wait for the others."""
    needed = max(session.answers_needed, fewest_receivers(session))
    if session.range_proof is None:
        return needed
    return max(needed, fewest_range_receivers(session.code, session.max_lying_receivers))


@final
@dataclass(frozen=True)
class Conclusion:
    """A verdict, and where seeds differ: the dealer of a seed, and a holder of another one than most hold."""

    verdict: Verdict
    different_seeds: tuple[tuple[int, int], ...] = ()


def conclude(session: Session, published: Mapping[int, Findings]) -> Conclusion:
    """What everybody concludes from what clients have published, by their numbers.

    A client that holds another seed than most cannot mask with them: it deviates. Ranges are judged on the receivers
    that do not deviate. TooFewAnswers if those are too few, or if more of them lie than can be named.
    """
    there = sorted(published)
    verdict = judge(session, torch.stack([published[client].values for client in there], 3), there)
    different = _different_seeds(session, published)
    excluded, deviating = set(verdict.excluded), {*verdict.deviating, *(holder for _, holder in different)}
    proof = session.range_proof
    if proof is not None:
        receivers = [client for client in there if client not in deviating]
        dealers = [client for client in range(session.num_clients) if client not in excluded]
        ranges = [published[client].ranges for client in receivers]
        table = torch.stack([values for values in ranges if values is not None], 3) if ranges else torch.empty(0)
        found = judge_ranges(session.code, proof, table, receivers, dealers, session.max_lying_receivers)
        excluded.update(found.excluded)
        deviating.update(found.lying)
    return Conclusion(Verdict(tuple(sorted(excluded)), tuple(sorted(deviating))), tuple(different))


def _different_seeds(session: Session, published: Mapping[int, Findings]) -> list[tuple[int, int]]:
    seed_sets, found = session.seed_sets, []
    held = {
        client: dict(zip(seed_sets.held_by(client), said.hashes, strict=True)) for client, said in published.items()
    }
    for number in range(len(seed_sets.sets)):
        dealer = seed_sets.dealer(number)
        hashes = {client: held[client][number] for client in seed_sets.holders(number) if client in held}
        first = [dealer] if dealer in hashes else []  # of equals, the dealer's counts
        counts = Counter(hashes[client] for client in (*first, *(c for c in hashes if c != dealer)))
        most = counts.most_common(1)[0][0] if counts else b""
        found += [(dealer, holder) for holder, other in hashes.items() if other != most]
    return found
