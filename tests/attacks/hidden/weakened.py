"""The hidden mode without one of its rules, for controls: each function takes one rule away from clients or labels."""

import hashlib

import pytest
import torch
from torch import Tensor

from dresfl.field import ResidueSystem
from dresfl.masking import hidden_masks
from dresfl.model.program import Guard
from dresfl.protocol.hidden import answers, client, ledger, opening, published
from dresfl.protocol.hidden.client import HiddenClient
from dresfl.protocol.hidden.ledger import Ledger
from dresfl.protocol.hidden.plan import Hop, Item
from dresfl.protocol.hidden.seeds import RunSeeds
from dresfl.protocol.session import Session


def no_check(patch: pytest.MonkeyPatch) -> None:
    """Clients do not look whether a hop was published truly: all check values are zero."""

    def forget(self: HiddenClient, values: Tensor, first: bool, total: bool) -> None:
        self._check = torch.zeros((values.shape[0], 2 * values.shape[1]), dtype=values.dtype)

    patch.setattr(HiddenClient, "_add_check", forget)


def check_before_gradients_alone(patch: pytest.MonkeyPatch) -> None:
    """Trap 1: the key depends on the check values where weights move, and in no hop before."""
    honest = HiddenClient._key_share

    def share(self: HiddenClient, words: Tensor) -> Tensor:
        check = self._check
        if check is not None and not self.ledger.current.moves_weights:
            self._check = torch.zeros_like(check)
        found = honest(self, words)
        self._check = check
        return found

    patch.setattr(HiddenClient, "_key_share", share)


def a_key_for_each_prime(patch: pytest.MonkeyPatch) -> None:
    """Trap 2: each prime's residues are padded by a key of that prime alone."""
    plain = hidden_masks.pad

    def keys(field: ResidueSystem, words: Tensor) -> bytes:
        return b"".join(hashlib.sha256(channel.numpy().tobytes()).digest() for channel in words)

    def pad(field: ResidueSystem, key: bytes, label: bytes, count: int) -> Tensor:
        if len(key) == 32:
            return plain(field, key, label, count)
        each = [key[start : start + 32] for start in range(0, len(key), 32)]
        return torch.stack([plain(field, one, label, count)[channel] for channel, one in enumerate(each)])

    _everywhere(patch, "pad_key", keys)
    patch.setattr(hidden_masks, "pad", pad)
    patch.setattr(opening, "pad", pad)


def a_key_of_the_first_shard(patch: pytest.MonkeyPatch) -> None:
    """Trap 13: the key is read at the first shard's point alone."""
    honest = answers.pad_key
    _everywhere(patch, "pad_key", lambda field, words: honest(field, words[:, :1].contiguous()))


def _everywhere(patch: pytest.MonkeyPatch, name: str, value: object) -> None:
    for module in (answers, client, opening):
        patch.setattr(module, name, value)


def any_residue(patch: pytest.MonkeyPatch) -> None:
    """Trap 12: residues at or above their prime are taken, and reduced."""
    honest = client.unpack_published

    def reduced(session: Session, hop: Hop, data: bytes | memoryview) -> Tensor:
        size, moduli = session.field.residue_bytes, session.field.moduli
        each, found = len(data) // len(moduli), bytearray()
        for channel, p in enumerate(moduli):
            part = data[channel * each : (channel + 1) * each]
            for start in range(0, each, size):
                found += (int.from_bytes(part[start : start + size], "little") % p).to_bytes(size, "little")
        return honest(session, hop, bytes(found))

    patch.setattr(client, "unpack_published", reduced)


def any_range(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: published values are taken whatever their size."""

    def cut(field: ResidueSystem, item: Item, values: Tensor, num_masks: int, kappa: int) -> Tensor:
        assert item.shift is not None
        moved = field.add_integer(values, published.centre(num_masks, item.shift))
        return field.floor_shift(moved.flatten(1), item.shift)[0].view(values.shape)

    patch.setattr(client, "cut", cut)


def labels_without_the_chain(patch: pytest.MonkeyPatch) -> None:
    """Labels name the round and the hop, and not what was published before."""
    patch.setattr(Ledger, "_base", property(lambda self: bytes(32)))


def labels_without_the_run(patch: pytest.MonkeyPatch) -> None:
    """Trap 6: the chain begins with the same hash in every run, and seeds are those that were dealt."""
    honest = ledger.Ledger.__init__
    patch.setattr(Ledger, "__init__", lambda self, plan, run: honest(self, plan, bytes(32)))


def labels_without_the_weights_before(patch: pytest.MonkeyPatch) -> None:
    """Trap 7: the label of a weight hop does not contain the weight broadcast before it."""
    patch.setattr(Ledger, "_base", property(lambda self: self.chain))


def answers_without_a_check_value(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: a client that came back answers at once, though it has no check value of the hop before."""
    honest = HiddenClient._restart

    def restart(self: HiddenClient, *arguments: object) -> None:
        honest(self, *arguments)  # type: ignore[arg-type]
        self._check = torch.zeros((len(self._field.moduli), 2 * self._repetitions), dtype=self._field.dtype)

    patch.setattr(HiddenClient, "_restart", restart)


def no_guards(patch: pytest.MonkeyPatch) -> None:
    """Trap 11: nobody looks at the guards' quotients."""
    patch.setattr(Guard, "check", lambda self, opened, summed=1: None)


def seeds_of_every_run(patch: pytest.MonkeyPatch) -> None:
    """Trap 6: all runs on one sharing use the same seeds."""
    patch.setattr(RunSeeds, "begin", classmethod(lambda cls, dealt, run: cls(dealt)))


def seeds_that_never_change(patch: pytest.MonkeyPatch) -> None:
    """Rule 13: the seeds of a round are those of the rounds before."""
    patch.setattr(RunSeeds, "of", lambda self, round_number: self._rounds[0])
    patch.setattr(RunSeeds, "forget", lambda self, round_number: None)


def no_signatures(patch: pytest.MonkeyPatch) -> None:
    """A run begins however many clients have signed its start."""
    patch.setattr(client, "signatures_needed", lambda num_clients, max_colluders: 0)
