"""What all participants must hold alike before they begin, and the session that follows from it.

Every participant writes the agreement down for itself, from its own configuration. A client shows its own in its Hello:
if the two differ, the coordinator can say where. Row counts and nonces become known at enrolment. They and the
agreement, and nothing else, make the session.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, final, get_args

from dresfl.coding import CodeParameters
from dresfl.data import check_class_weights
from dresfl.errors import InfeasiblePlan, MessageError, Refused, UsageError
from dresfl.masking import hidden_families
from dresfl.model import Layer, Network
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, most_client_rows, slice_rows
from dresfl.protocol.hidden.plan import HiddenPlan, make_plan
from dresfl.protocol.hidden.settings import DEGREES, HiddenSettings
from dresfl.quantize import Quantizer

FORMAT = "dresfl agreement 4"
ACCEPTED = "accepted"
Mode = Literal["open", "hidden"]
_SAMPLE_MODULI = (16777199, 16777213)  # mask sets depend on no modulus
_MORE_BYTES = 4096  # than twice the own: so long an agreement of others is still compared key by key
MOST_SLICES = 2**19  # of one dealer: half a terabyte. A Holding has a bit for each


@final
@dataclass(frozen=True)
class Agreement:
    """The public parameters of a federation, the same at every participant.

    >>> from dresfl.model import Dense
    >>> agreement = Agreement((Dense(2),), (3,), num_clients=3, rounds=10)
    >>> make_session(agreement, (5, 4, 6), nonce=b"sharing", run_nonce=b"run").recovery_threshold
    3
    """

    layers: tuple[Layer, ...]
    input_shape: tuple[int, ...]
    num_clients: int
    rounds: int
    input_bits: int = 4
    weight_bits: int = 10
    shift: float = 0.0  # added to real inputs before they are rounded
    input_bound: float = 1.0  # no |input|, shift included, is larger: the moduli depend on it
    num_shards: int = CodeParameters.num_shards
    max_colluders: int = CodeParameters.max_colluders
    batch_size: int = CodeParameters.batch_size
    seed: int = 0
    roster: str = ""  # hex digest of the roster
    max_liars: int = CodeParameters.max_liars  # clients whose answers may be false in one round
    mode: Mode = "open"  # open: the paper's protocol, weights and sums are seen; hidden: the final model alone
    rows_can_be_computed: str = ""  # "accepted": everybody knows what the open mode gives away, and agrees to it
    record: bool = False  # whether every participant writes down what it sees, for those who study the protocol
    # Of the hidden mode, where clients derive everything: how it runs, and the optimiser. None in the open mode, where
    # the coordinator alone needs an optimiser.
    hidden: HiddenSettings | None = None
    optimizer: Optimizer | None = None
    # These are written only where they are not the defaults: other agreements have the bytes that they always had.
    target_bits: int = 0  # of a regression; 0: the targets are classes
    target_bound: float = 1.0  # no |target| of a regression is larger
    class_weights: tuple[int, ...] = ()  # how often each client repeats its rows of each class; empty: once

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise UsageError(f"mode = {self.mode!r} is not known", 'use mode = "hidden" or mode = "open"')
        if (self.mode == "hidden") != (self.hidden is not None) or (self.hidden is None) != (self.optimizer is None):
            raise UsageError(
                f"mode = {self.mode!r} with{'' if self.hidden else 'out'} settings of the hidden mode, and "
                f"with{'' if self.optimizer else 'out'} an optimiser",
                "the agreement has both in the hidden mode, and neither in the open mode",
            )
        if self.record and self.hidden is not None:
            raise UsageError("record is of the open mode", "take it out: a hidden run has no transcript")
        if self.rows_can_be_computed not in ("", ACCEPTED):
            raise UsageError(
                f"rows_can_be_computed = {self.rows_can_be_computed!r} is not known", f'write "{ACCEPTED}" or nothing'
            )
        for name in ("shift", "input_bound", "target_bound"):
            object.__setattr__(self, name, float(getattr(self, name)))  # 1 and 1.0 have one digest
        if not math.isfinite(self.shift):
            raise UsageError(f"shift must be finite, not {self.shift}")
        if not 0 < self.input_bound < math.inf:
            raise UsageError(f"input_bound must be positive and finite, not {self.input_bound}")
        if not 0 < self.target_bound < math.inf or (self.target_bound != 1 and not self.target_bits):
            raise UsageError(
                f"target_bound = {self.target_bound} is not positive and finite, or not of a regression",
                "give a regression target_bits, for example 10",
            )
        if not 1 <= self.rounds < 2**32:
            raise UsageError(f"rounds must lie in 1..2^32-1, not {self.rounds}")
        if self.max_colluders < 1:
            raise UsageError(
                f"max_colluders must be at least 1, not {self.max_colluders}: without a mask a share is the row itself",
                "real participants need T of at least 1",
            )
        check_class_weights(self.class_weights, self.described_network.num_labels)
        _ = self.quantizer, self.sample_session()  # they check the rest

    @property
    def parameters(self) -> CodeParameters:
        """N, K, T and the batch."""
        return CodeParameters(
            self.num_clients, self.num_shards, self.max_colluders, self.batch_size, max_liars=self.max_liars
        )

    def check_masks(self) -> None:
        """Refuse a setting without a certified family of masks, before anything is sent."""
        _ = self.sample_session().seed_sets

    def sample_session(self) -> Session:
        """A session of this agreement with few rows: for what does not depend on them."""
        share = self.hidden.validation_share if self.hidden is not None else 0.0
        rows = math.ceil(2 * self.num_shards / share) if share else 1  # some can be held out
        return make_session(self, (rows,) * self.num_clients, b"", b"")

    def check_consent(self) -> None:
        """Refuse to begin in the open mode without everybody's consent to what it gives away.

        The hidden mode gives nothing away before the end. There every dealer's rows are proved to be in range, unless
        the agreement itself says that dealers are trusted.
        """
        if self.mode == "open" and self.rows_can_be_computed != ACCEPTED:
            raise UsageError(
                "in the open mode every participant is sent weights from which rows of others can be computed, and the "
                "agreement does not accept that",
                f'if all participants do, write rows_can_be_computed = "{ACCEPTED}" into agreement.toml',
            )

    @property
    def quantizer(self) -> Quantizer:
        """How a client turns its real inputs and targets into the integers it shares."""
        return Quantizer(self.input_bits, self.shift, self.target_bits)

    @cached_property
    def network(self) -> Network:
        """The network whose weights come out. In the hidden mode all weights have one scale, which the plan chooses."""
        return self.described_network if self.hidden is None else self.sample_session().network

    @cached_property
    def described_network(self) -> Network:
        """The network as the agreement describes it, with the weights' scale of the open mode."""
        return Network(
            self.layers,
            self.input_shape,
            self.input_bits,
            self.weight_bits,
            input_magnitude=max(0.0, math.log2(self.input_bound)),
            target_bits=self.target_bits,
            target_magnitude=math.log2(self.target_bound),
        )

    def to_dict(self) -> dict[str, object]:
        """The agreement as plain values, as its JSON has them."""
        values: dict[str, object] = {"format": FORMAT, **{name: getattr(self, name) for name in self.__match_args__}}
        values["layers"] = [layer.to_dict() for layer in self.layers]
        for name, settings in (("hidden", self.hidden), ("optimizer", self.optimizer)):
            values[name] = None if settings is None else _plain(settings)
        values["input_shape"] = list(self.input_shape)
        values["class_weights"] = list(self.class_weights)
        for name, default in (("target_bits", 0), ("target_bound", 1.0), ("class_weights", [])):
            if values[name] == default:
                del values[name]
        return values

    def encode(self) -> bytes:
        """Canonical JSON: keys sorted, no spaces, ASCII; equal agreements have equal bytes."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":")).encode()

    def check_row_count(self, rows: int) -> None:
        """A coordinator's check of a client: all together fit a session, and its slices a Holding."""
        most = min(most_client_rows(self.parameters), MOST_SLICES * slice_rows(self.sample_session()))
        if rows > most:
            raise Refused(
                f"the client has {rows} rows, but each of {self.num_clients} may have {most} at most",
                "leave some of its rows out",
            )

    def check_round(self, round_number: int) -> None:
        """A client's check of a task: it answers the rounds agreed on, and no others."""
        if round_number >= self.rounds:
            raise MessageError(f"a task of round {round_number} came, but {self.rounds} rounds are agreed on")

    def check_end(self, round_number: int) -> None:
        """A client's check of the end: it comes after the last round agreed on."""
        if round_number != self.rounds:
            raise MessageError(f"the end came after {round_number} rounds, but {self.rounds} are agreed on")

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the canonical JSON: participants with another one refuse each other."""
        return hashlib.sha256(self.encode()).digest()

    def differences(self, other: bytes) -> list[str]:
        """How another participant's `encode` differs, one line for each key: for a refusal's log line and nothing else.

        `other` is foreign: anything may be in it, and what cannot be read is said to be so. One that is much longer
        than the own one is not looked at: reading it would cost more than it tells.
        """
        if len(other) > 2 * len(self.encode()) + _MORE_BYTES:
            return [f"theirs has {len(other)} bytes, ours {len(self.encode())}"]
        try:
            theirs = json.loads(other)
        except (ValueError, RecursionError):
            theirs = None
        if not isinstance(theirs, Mapping):
            return ["theirs cannot be read"]
        ours = self.to_dict()
        keys = sorted({*ours, *(key for key in theirs if isinstance(key, str))})
        absent = object()
        return [
            f"{_short(key)}: {_short(ours.get(key, '-'))} here, {_short(theirs.get(key, '-'))} there"
            for key in keys
            if ours.get(key, absent) != theirs.get(key, absent)
        ][:20]


def _short(value: object) -> str:
    text = ascii(value) if not isinstance(value, str) else ascii(value)[1:-1]
    return text if len(text) <= 80 else text[:77] + "..."


def _plain(settings: HiddenSettings | Optimizer) -> dict[str, object]:
    """Settings as plain values. 1 and 1.0 have one form where a number may be broken."""
    return {
        entry.name: float(getattr(settings, entry.name))
        if isinstance(entry.default, float)
        else getattr(settings, entry.name)
        for entry in dataclasses.fields(settings)
    }


@lru_cache(maxsize=16)
def _plan(agreement: Agreement, client_rows: tuple[int, ...]) -> HiddenPlan:
    """The plan of a hidden run. client_rows: empty if there is no validation, whose rows alone it depends on."""
    settings, optimizer = agreement.hidden, agreement.optimizer
    if settings is None or optimizer is None:
        raise UsageError("this agreement is of the open mode")
    return make_plan(
        agreement.described_network,
        agreement.parameters,
        settings,
        optimizer,
        agreement.rounds,
        client_rows=client_rows,
        num_masks=num_mask_seeds(agreement.parameters, settings),
    )


def num_mask_seeds(parameters: CodeParameters, settings: HiddenSettings) -> int:
    """The mask seeds of one sharing, if there are more masks than colluders; 0: the plan knows."""
    if settings.mask_degree in (0, parameters.max_colluders):
        return 0
    sizes = parameters.num_clients, parameters.num_shards, parameters.max_colluders, settings.mask_degree
    degrees = [DEGREES[settings.schedule]] if settings.schedule else sorted(DEGREES.values())
    for degree in degrees:
        try:
            return hidden_families(_SAMPLE_MODULI, *sizes, degree).num_masks
        except InfeasiblePlan as error:
            refusal = error
    raise refusal


def make_session(
    agreement: Agreement,
    client_rows: Sequence[int],
    nonce: bytes,
    run_nonce: bytes,
    device: str = "cpu",
) -> Session:
    """The session of an agreement, once row counts and nonces are known. Every participant makes it for itself.

    nonce: the sharing's (`sharing_nonce`); a later run on the same sharing has the same one and another run_nonce.
    """
    hidden = None
    if agreement.hidden is not None:
        hidden = _plan(agreement, tuple(client_rows) if agreement.hidden.validation_every else ())
    return Session(
        network=agreement.described_network if hidden is None else hidden.network,
        parameters=agreement.parameters,
        client_rows=tuple(client_rows),
        seed=agreement.seed,
        nonce=nonce,
        run_nonce=run_nonce,
        hidden=hidden,
        device=device,
    )


def sharing_nonce(server: bytes, contributions: Sequence[bytes]) -> bytes:
    """The nonce of a new sharing: from the server's 16 fresh bytes and the clients' contributions, 64 each, in order.

    Each client finds its own contribution in it (`ShareStore.owns`), so nobody can bring back a sharing that this
    client's secret did not deal for these rows and this roster. A coordinator can bring back one that it did: then
    the same clients get the same shares, which tell nobody more.
    """
    if len(server) != 16 or any(len(part) != 64 for part in contributions):
        raise UsageError("a sharing's nonce needs 16 bytes of the server and 64 of every client")
    return hashlib.sha256(b"dresfl sharing nonce" + server + b"".join(contributions)).digest()
