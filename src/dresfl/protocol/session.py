"""What all clients and the coordinator agree on before they begin: sizes, network, code, field, each round's rows.

Shards. A client has m = sK + q rows; q is the remainder where K does not divide m. Row r < s of the coded data hides
rows rK … rK+K−1, one in each shard. The q rows left over get q more coded rows, s … s+q−1. Coded row s+j hides leftover
(j + k) mod q in shard k, so that each leftover appears K times among them. A round draws *original* rows uniformly: a
draw v < sK selects coded row v div K, and a leftover v = sK + j selects coded row s+j. So every original row enters the
K-fold batch with expectation K/m per draw: no row is lost and none is favoured.

Batches. A batch has B draws. The rows of all clients, laid end to end, are cut into B equal strata, and the b-th draw
is uniform in the b-th stratum. So each row is equally likely (to within 2^−60, since draws have 64 bits). On average a
client supplies its proportion of the B rows, and in every batch it is within two of that. The rows of excluded dealers
are left out as if there were none. With s local steps a round t has the batches st … st+s−1.

Held-out rows. A hidden run may hold out a share of each client's coded rows, the last of its s whole ones, for the
validation loss. No batch draws them.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from dresfl.coding import CodeParameters, LagrangeCode, recovery_threshold
from dresfl.errors import DataError, FieldError, InfeasiblePlan, UsageError
from dresfl.field import (
    ByteField,
    Domain,
    PublicStream,
    ResidueField,
    ResidueSystem,
    choose_moduli,
    modulus_limit,
    num_value_moduli,
)
from dresfl.kernels import fused_kernels
from dresfl.masking import HiddenFamilies, MaskFamily, SeedSets, hidden_families, zero_sum_family
from dresfl.model import Network

from .hidden.bit_layout import BitLayout
from .hidden.plan import HiddenPlan, held_out_rows, refuse_local_steps
from .hidden.range_proof import RangeProof, plan_range_proof
from .local_plan import LocalPlan, refuse_infeasible

# Layers with at least so many weights are faster with int8 products than with float64 ones. In smaller layers the
# launches take the time, not the products.
_BYTES_FROM = 2**20
_ROWS_LIMIT = 2**31  # all rows together stay below it
_DRAWS_LIMIT = 2**62  # and B times as many below this


@final
@dataclass(frozen=True)
class BatchRows:
    """The coded rows of one round, the same for every client: dealer and row number, each (B,) int64.

    With s local steps there are s·B of them, the mini-batch of the first step first.
    """

    dealers: Tensor
    rows: Tensor


@final
@dataclass(frozen=True)
class Session:
    """The public parameters of one federation. Everybody may know everything in it."""

    network: Network
    parameters: CodeParameters
    client_rows: tuple[int, ...]
    seed: int
    moduli: tuple[int, ...] = ()  # chosen from the network's needs if empty
    nonce: bytes = b""  # over a network: fresh public bytes, new with every sharing
    run_nonce: bytes = b""  # the same for every run: several runs may use one sharing
    excluded: tuple[int, ...] = ()  # the dealers whose shares failed their check: no batch draws their rows
    hidden: HiddenPlan | None = None  # of the hidden mode; None: the open mode
    local: LocalPlan | None = None  # of several local steps; None: one, which the coordinator takes
    run: bytes = b""  # the run digest of a hidden run: its weights W_0 and its batches follow from it
    device: str = "cpu"  # where the holder of this object computes: no part of the session's identity
    channels: tuple[int, int] | None = None  # the first and the end of those it computes, of all: no part of it either

    def __post_init__(self) -> None:
        if len(self.client_rows) != self.num_clients:
            raise UsageError(f"{self.num_clients} clients, but row counts of {len(self.client_rows)}")
        if sum(self.client_rows) >= _ROWS_LIMIT or self.batch_size * sum(self.client_rows) >= _DRAWS_LIMIT:
            raise UsageError("more than 2^31 rows are not supported")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must lie in 0..2^63-1, not {self.seed}")
        if list(self.excluded) != sorted(set(self.excluded)) or not set(self.excluded) < set(range(self.num_clients)):
            raise UsageError(f"excluded dealers {self.excluded} must be ascending, distinct, and not all clients")
        if min(self.client_rows) < 0 or not any(self.client_rows[client] for client in self.included):
            raise DataError("no client has rows", "clients without rows may help, but somebody must have some")
        if self.hidden is not None:
            refuse_local_steps(self.parameters)
        if (self.parameters.local_steps > 1) != (self.local is not None):
            raise UsageError(
                f"{self.parameters.local_steps} local steps, but {'no' if self.local is None else 'a'} plan"
            )
        if self.local is not None:
            self._check_local(self.local)
        if self.hidden is None and self.answers_needed > self.num_clients and self.parameters.max_liars:
            raise InfeasiblePlan(
                f"{self.num_clients} clients cannot outvote {self.parameters.max_liars} liars: {self.answers_needed} "
                f"answers are needed, {self.recovery_threshold} and two for each liar",
                f"use at least {self.answers_needed} clients, or allow for fewer liars",
            )
        _ = self.code  # checks Theorem 1 and the room for points now, not in the first round

    def _check_local(self, local: LocalPlan) -> None:
        steps, wanted = local.steps, (self.network, self.parameters.local_steps, self.batch_size, self.num_shards)
        if (steps.network, steps.num_steps, steps.batch_size, steps.num_shards) != wanted:
            raise UsageError(
                "the plan of the local steps is one of another network or of other sizes", "use make_local_plan"
            )
        refuse_infeasible(self.parameters, local)

    @property
    def num_clients(self) -> int:
        """N."""
        return self.parameters.num_clients

    @property
    def num_shards(self) -> int:
        """K."""
        return self.parameters.num_shards

    @property
    def max_colluders(self) -> int:
        """T."""
        return self.parameters.max_colluders

    @property
    def batch_size(self) -> int:
        """B."""
        return self.parameters.batch_size

    # -- arithmetic ------------------------------------------------------------------------------------------

    @property
    def needed_bits(self) -> float:
        """An estimate of the bits of the largest decoded integer, over the K·B rows of a round."""
        if self.local is not None:
            return self.local.steps.needed_bits
        return self.network.needed_bits(self.batch_size * self.num_shards)

    @property
    def hidden_plan(self) -> HiddenPlan:
        """The plan of a session in the hidden mode."""
        if self.hidden is None:
            raise UsageError("this session is one of the open mode")
        return self.hidden

    @property
    def mask_degree(self) -> int:
        """How many masks hide each coded row: T, or in the hidden mode T_d ≥ T."""
        return self.max_colluders if self.hidden is None else self.hidden.mask_degree

    @property
    def degree(self) -> int:
        """The degree of what is opened, as a polynomial in the shares."""
        if self.local is not None:
            return self.local.steps.degree
        return self.network.gradient_degree if self.hidden is None else self.hidden.degree

    @cached_property
    def field(self) -> ResidueSystem:
        """What the holder of this object computes in: the session's residue system, or some channels of it."""
        return self.whole_field if self.channels is None else self.whole_field.part(*self.channels)

    @cached_property
    def whole_field(self) -> ResidueSystem:
        """The session's residue system, with all its channels."""
        if self.hidden is not None:
            return self.hidden.field(self.device)
        return choose_field(self.network, self.parameters, self.moduli, self.device, self.local)

    @property
    def recovery_threshold(self) -> int:
        """R: the answers that fix what is opened."""
        return recovery_threshold(self.degree, self.num_shards, self.mask_degree)

    @property
    def answers_needed(self) -> int:
        """R + 2A: so many answers outvote A liars among them. The hidden mode's plan has its own number."""
        if self.hidden is not None:
            return self.hidden.answers_needed
        return self.recovery_threshold + 2 * self.parameters.max_liars

    @cached_property
    def code(self) -> LagrangeCode[Tensor]:
        return LagrangeCode(
            self.field,
            num_clients=self.num_clients,
            num_shards=self.num_shards,
            max_colluders=self.mask_degree,
            degree=self.degree,
        )

    @cached_property
    def mask_family(self) -> MaskFamily:
        """Whose seeds blind the answers, with its certificate; InfeasiblePlan if there is none for this setting."""
        sizes = self.num_clients, self.num_shards, self.max_colluders, self.recovery_threshold
        return zero_sum_family(self.field.moduli, *sizes)

    @property
    def seed_sets(self) -> SeedSets:
        """Who holds and who makes the mask seeds that dealers give out."""
        return self.mask_family.seed_sets if self.hidden is None else self.hidden_families.seed_sets

    @cached_property
    def hidden_families(self) -> HiddenFamilies:
        """Whose seeds mask and blind the hops of the hidden mode, with their certificates."""
        sizes = self.num_clients, self.num_shards, self.max_colluders, self.mask_degree
        return hidden_families(self.field.moduli, *sizes, self.degree)

    @cached_property
    def stream(self) -> PublicStream:
        """The common public randomness."""
        return PublicStream(self._stream_seed)

    @cached_property
    def device_stream(self) -> PublicStream:
        """The same stream, computed on the session's device."""
        return PublicStream(self._stream_seed, self.device)

    @property
    def _stream_seed(self) -> int:
        """The seed of the agreement; in a hidden run one that no other run has."""
        if not self.run:
            return self.seed
        digest = hashlib.sha256(b"dresfl hidden stream" + self.seed.to_bytes(8, "little") + self.run).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    @cached_property
    def sharing_digest(self) -> bytes:
        """SHA-256 of everything that decides what a share is, and nothing else."""
        values: dict[str, object] = {
            "code": [self.num_clients, self.num_shards, self.max_colluders],
            "opening": [self.recovery_threshold, self.parameters.max_liars],  # decide seeds and check values
            "client_rows": self.client_rows,
            "row": [self.network.input_size, self.network.num_classes, self.network.input_bits],
            "moduli": self.whole_field.moduli,
            "nonce": self.nonce.hex(),
        }
        if self.network.target_bits:
            values["targets"] = [self.network.target_bits, self.network.target_limit]
        if self.hidden is not None:
            bounds = self.bit_layout.bounds if self.bit_layout is not None else []
            values["hidden"] = [self.hidden.degree, self.hidden.mask_degree, *bounds]
        return _digest(values)

    @property
    def sharing_id(self) -> bytes:
        """16 bytes that shares and masks carry. A share outlives a run: other runs on the same rows use it again."""
        return self.sharing_digest[:16]

    @cached_property
    def session_id(self) -> bytes:
        """16 bytes that tasks and answers carry. Who has other parameters, or is in another run, refuses them."""
        values: dict[str, object] = {
            "sharing": self.sharing_digest.hex(),
            "layers": [layer.to_dict() for layer in self.network.layers],
            "network": [self.network.input_shape, self.network.weight_bits],
            "batch_size": self.batch_size,
            "seed": self.seed,
            "run_nonce": self.run_nonce.hex(),
            "excluded": self.excluded,
        }
        if self.hidden is not None:
            plan = self.hidden
            values["hidden"] = {
                "settings": dataclasses.asdict(plan.settings),
                "optimizer": dataclasses.asdict(plan.optimizer),
                "rounds": plan.rounds,
                "run": self.run.hex(),
            }
        if self.local is not None:
            values["local"] = {"steps": self.local.steps.num_steps, **self.local.to_dict()}
        return _digest(values)[:16]

    # -- rows ------------------------------------------------------------------------------------------------

    @property
    def row_width(self) -> int:
        """Values in a row as it is dealt and kept: its bits, or inputs, then targets."""
        if self.bit_layout is not None:
            return self.bit_layout.num_bits
        return self.network.input_size + self.network.num_classes

    @cached_property
    def bit_layout(self) -> BitLayout | None:
        """How rows are dealt as bits, so that their ranges can be proven; None: they are dealt as they are."""
        if self.hidden is None or self.hidden.settings.trusted_dealers:
            return None
        bound = 2.0**self.network.input_magnitude
        return BitLayout.of(self.network, 0.0 if self.hidden.settings.nonnegative_inputs else -bound, bound)

    @cached_property
    def range_proof(self) -> RangeProof | None:
        """How the ranges of rows are proven; None: they are not. InfeasiblePlan if the moduli are not fit for it."""
        if self.bit_layout is None:
            return None
        return plan_range_proof(
            self.field.moduli,
            self.bit_layout,
            num_clients=self.num_clients,
            max_deviating=self.max_deviating,
            num_masks=self.hidden_families.num_masks,
            most_rows=max(self.coded_rows(client) for client in range(self.num_clients)),
            kappa=self.hidden_plan.kappa,
        )

    @property
    def max_deviating(self) -> int:
        """e = min(max(A,T), (N−K−T) div 2): so many receivers may deviate on a dealer that stays."""
        spare = self.num_clients - self.num_shards - self.mask_degree
        return min(max(self.parameters.max_liars, self.max_colluders), spare // 2)

    @property
    def max_lying_receivers(self) -> int:
        """T, or 0 where the agreement says that clients are honest: so many values of a check may be lies."""
        honest = self.hidden is not None and self.hidden.settings.honest_clients
        return 0 if honest else self.max_colluders

    def coded_rows(self, client: int) -> int:
        """How many rows a client's coded data set has: about 1/K of its own."""
        whole, rest = divmod(self.client_rows[client], self.num_shards)
        return whole + rest

    def shard_rows(self, client: int) -> Tensor:
        """(coded rows, K) int64: which original rows each coded row hides."""
        whole, rest = divmod(self.client_rows[client], self.num_shards)
        shards = torch.arange(self.num_shards)
        regular = torch.arange(whole).view(-1, 1) * self.num_shards + shards
        leftover = (torch.arange(rest).view(-1, 1) + shards) % max(1, rest) + whole * self.num_shards
        return torch.cat((regular, leftover))

    @property
    def included(self) -> tuple[int, ...]:
        """The dealers whose rows enter batches: all that are not excluded."""
        return tuple(client for client in range(self.num_clients) if client not in self.excluded)

    def without(self, excluded: Iterable[int]) -> "Session":
        """The same session after these dealers, too, are excluded: other batches and another identity, same shares."""
        left_out = tuple(sorted({*self.excluded, *excluded}))
        if self.hidden is None or not self.hidden.validation_rows:
            return dataclasses.replace(self, excluded=left_out)
        rows = sum(self.held_out(client) for client in range(self.num_clients) if client not in left_out)
        if not rows:
            raise InfeasiblePlan("no row is left for the validation: all clients with such rows are excluded")
        return dataclasses.replace(
            self, excluded=left_out, hidden=dataclasses.replace(self.hidden, validation_rows=rows)
        )

    def held_out(self, client: int) -> int:
        """How many of a client's coded rows are held out for the validation loss: the last of its whole ones."""
        if self.hidden is None:
            return 0
        share = self.hidden.settings.validation_share
        return held_out_rows(self.client_rows[client], self.num_shards, share)

    @cached_property
    def _drawn(self) -> tuple[int, ...]:
        """How many rows of each client batches draw from: of an excluded dealer none, and none that is held out."""
        counts = (rows - self.num_shards * self.held_out(client) for client, rows in enumerate(self.client_rows))
        return tuple(0 if client in self.excluded else rows for client, rows in enumerate(counts))

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """Where each client's rows end among those that batches draw from."""
        return tuple(itertools.accumulate(self._drawn))

    @cached_property
    def _draw_tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """For each client, (N,): rows that batches draw from, where they end, and all its rows."""
        return torch.tensor(self._drawn), torch.tensor(self._ends), torch.tensor(self.client_rows)

    def validation_rows(self) -> BatchRows:
        """The coded rows that are held out, dealer by dealer."""
        places = [
            (client, self.client_rows[client] // self.num_shards - self.held_out(client) + row)
            for client in self.included
            for row in range(self.held_out(client))
        ]
        table = torch.tensor(places, dtype=torch.int64).view(-1, 2)
        return BatchRows(table[:, 0], table[:, 1])

    def batch_rows(self, round_number: int) -> BatchRows:
        """I_t: the coded rows of a round, from the common seed; of all its local steps one after the other."""
        steps = self.parameters.local_steps
        batch = self.batches(torch.arange(round_number * steps, (round_number + 1) * steps))
        return BatchRows(batch.dealers.flatten(), batch.rows.flatten())

    def batches(self, rounds: Tensor) -> BatchRows:
        """The coded rows of several mini-batches at once, of rounds without local steps: dealers and rows (rounds,B).

        The b-th draw r, 64 bits, stands for place ⌊(b + r/2^64)·m/B⌋ of the m rows end to end, computed exactly as
        ⌊(b·m + ⌊r·m/2^64⌋)/B⌋ in 63 bits.
        """
        total, size, shards = self._ends[-1], self.batch_size, self.num_shards
        words = self.stream.words_of(Domain.BATCH, rounds, 2 * size).view(-1, size, 2)
        high, low = words[..., 0], words[..., 1]
        scaled = (high * total + (low * total >> 32)) >> 32  # ⌊r·m/2^64⌋
        places = (torch.arange(size) * total + scaled) // size
        drawn, ends, held = self._draw_tables
        dealers = torch.searchsorted(ends, places, right=True)
        counts = drawn[dealers]
        rows = places - ends[dealers] + counts
        whole = counts // shards
        leftover = held[dealers] // shards + rows - whole * shards
        return BatchRows(dealers, torch.where(rows < whole * shards, rows // shards, leftover))


def _digest(values: dict[str, object]) -> bytes:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()


def most_client_rows(parameters: CodeParameters) -> int:
    """How many rows each client may have if all together must fit a session, whatever the others have.

    >>> most_client_rows(CodeParameters(num_clients=3))
    715827882
    """
    return min(_ROWS_LIMIT - 1, (_DRAWS_LIMIT - 1) // parameters.batch_size) // parameters.num_clients


def choose_field(
    network: Network,
    parameters: CodeParameters,
    moduli: tuple[int, ...] = (),
    device: str = "cpu",
    local: LocalPlan | None = None,
) -> ResidueSystem:
    """The field for a setting: room for all points, for the gradient's integers, and for the headroom.

    The moduli follow from the public parameters, so that everybody chooses the same. Networks with large layers get
    primes below 256, if those suffice, for the int8 units of GPUs; all others get large primes for float64. The device
    decides only how residues are stored. With local steps all networks get large primes.
    """
    shards, colluders, batch = parameters.num_shards, parameters.max_colluders, parameters.batch_size
    bits = network.needed_bits(batch * shards) if local is None else local.steps.needed_bits
    points = parameters.num_clients + shards + colluders
    short_sums = network.longest_product(batch * shards) <= ByteField.LONGEST_SUM
    if not moduli and local is None and network.largest_matrix >= _BYTES_FROM and short_sums:
        with contextlib.suppress(FieldError):  # too many points or bits for them
            moduli = choose_moduli(bits, more_than=points, limit=256)
    if not moduli:
        degree, longest = network.gradient_degree, network.longest_product(batch)
        if local is not None:
            degree, longest = local.steps.degree, local.steps.longest_product
        longest = max(longest, recovery_threshold(degree, shards, colluders))
        moduli = choose_moduli(bits, more_than=points, limit=modulus_limit(longest))
    kept = num_value_moduli(moduli, bits)
    if kept is None:
        raise UsageError(
            f"the moduli hold too little: {bits:.0f} bits and headroom are needed",
            "leave the moduli out to have them chosen",
        )
    in_bytes = fused_kernels(device) and moduli[-1] < 256 and short_sums and local is None
    return ByteField(moduli, kept, device) if in_bytes else ResidueField(moduli, kept, device)
