"""The processes that share one simulated run, as torchrun starts them: who computes what, and where they meet.

A *rank* is one of `size` processes. Each computes some residue channels of every round and keeps all of the weights.
Channels meet at one place, where decoded columns are lifted:

    1. every rank sends each other rank that one's columns of its own channels   (M_r,P) -> (M,P/size)
    2. every rank lifts its columns                                             (M,P/size) -> (P/size,)
    3. every rank sends the integers it lifted to all                           (P/size,) -> (P,)

So all ranks have the same integers and take the same step. Tensors travel by NCCL between GPUs, else by gloo through
the hosts' memory. Two ranks on one GPU use gloo: NCCL wants a GPU for each.
"""

import contextlib
import datetime
import json
import os
import re
from collections.abc import Iterator
from typing import Literal, TypeVar, final, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from dresfl.errors import DresError, UsageError
from dresfl.field import ResidueSystem
from dresfl.protocol import Training

Backend = Literal["gloo", "nccl"]
Value = TypeVar("Value")

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets them, and others can
_PATIENCE = datetime.timedelta(minutes=30)  # for a rank that is alive and silent: it may be reading a large data set
_ALIGNED = 16  # a GPU lifts fastest where every channel's columns begin at a multiple of this
_COLUMNS = 2**20  # that are lifted together, so that float64 copies of them stay small


def launched() -> bool:
    """Whether this process is one of several ranks, or a single one that torchrun started.

    >>> launched()
    False
    """
    return all(os.environ.get(name) for name in _VARIABLES)


@final
class Ranks:
    """This process among the ranks of its run. `join` makes it; every rank makes the same calls in the same order."""

    def __init__(self, device: str, backend: Backend) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device, self.backend = device, backend
        self._carrier = "cuda" if backend == "nccl" else "cpu"  # where tensors are when they travel

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which alone evaluates, writes files and shows progress."""
        return self.rank == 0

    def channels(self, count: int) -> tuple[int, int]:
        """The first and the end of this rank's channels, of `count` in all: as many as others have, or one more."""
        if self.size > count:
            raise UsageError(
                f"{self.size} ranks are too many: the run has {count} residue channels, one for each prime",
                f"start at most {count} ranks (torchrun --nproc-per-node)",
            )
        return self._span(self.rank, count)

    def _span(self, rank: int, count: int) -> tuple[int, int]:
        return count * rank // self.size, count * (rank + 1) // self.size

    # -- where channels meet ---------------------------------------------------------------------------------

    def lift(self, field: ResidueSystem, residues: Tensor) -> tuple[Tensor, Tensor]:
        """The integers (P,) of which this rank has channels (M_r,P), and how many are out of range; alike on all ranks.

        field: the whole system, whose channels the ranks have in order.
        """
        (mine, columns), moduli = residues.shape, len(field.moduli)
        width = -(-columns // (_ALIGNED * self.size)) * _ALIGNED  # of a rank's columns, filled up with zeros at the end
        travels = torch.int8 if field.dtype == torch.int8 else torch.int32  # primes have at most 24 bits
        sent = torch.zeros((self.size, mine, width), dtype=travels, device=residues.device)
        for rank in range(self.size):
            block = residues[:, rank * width : (rank + 1) * width]
            sent[rank, :, : block.shape[1]] = block
        received = torch.empty(moduli * width, dtype=travels, device=self._carrier)
        spans = [self._span(rank, moduli) for rank in range(self.size)]
        sizes = [(end - first) * width for first, end in spans]
        with self._among_ranks():
            dist.all_to_all_single(received, sent.to(self._carrier).flatten(), sizes, [mine * width] * self.size)
        lifted = self._lifted(field, received.view(moduli, width).to(field.device))  # (width + 1,)
        found = torch.empty((self.size, width + 1), dtype=torch.float64, device=self._carrier)
        with self._among_ranks():
            dist.all_gather(list(found.unbind()), lifted.to(self._carrier))
        found = found.to(field.device)
        return found[:, :width].reshape(-1)[:columns], found[:, width].sum().to(torch.int64)

    def _lifted(self, field: ResidueSystem, residues: Tensor) -> Tensor:
        """The integers of some columns, and then how many of them are out of range: (M,n) -> (n + 1,)."""
        ones = torch.ones((len(field.moduli), 1), dtype=field.dtype, device=field.device)
        pieces = [residues[:, first : first + _COLUMNS] for first in range(0, residues.shape[1], _COLUMNS)]
        integers, exceeded = zip(
            *(field.decode_lift(ones, x.to(field.dtype).unsqueeze(1)) for x in pieces), strict=True
        )
        return torch.cat([*integers, torch.stack(exceeded).sum().to(torch.float64).view(1)])

    # -- what else ranks tell each other ---------------------------------------------------------------------

    def share(self, value: Value) -> Value:
        """Rank 0's value, on every rank. It is one that JSON can hold."""
        text = json.dumps(value).encode() if self.leads else b""
        size = torch.tensor([len(text)])
        with self._among_ranks():
            dist.broadcast(size, 0)
            octets = torch.tensor(list(text) if self.leads else [0] * int(size), dtype=torch.uint8)
            dist.broadcast(octets, 0)
        shared: Value = json.loads(bytes(octets.tolist()))
        return shared

    def share_training(self, training: Training) -> None:
        """Set every rank's training to where rank 0's stands."""
        state = training.state()
        with self._among_ranks():
            for name in sorted(state):
                dist.broadcast(state[name], 0)
        if not self.leads:
            training.restore(state)

    def check_same(self, digest: bytes, what: str, hint: str) -> None:
        """Refuse to go on if a rank's digest (32 bytes) is not that of all others; `what` it is of."""
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        digests = torch.empty((self.size, mine.numel()), dtype=torch.uint8)
        with self._among_ranks():
            dist.all_gather(list(digests.unbind()), mine)
        other = [rank for rank in range(self.size) if not digests[rank].equal(digests[0])]
        if other:
            raise DresError(f"rank {other[0]} has another {what} than rank 0", hint)

    @contextlib.contextmanager
    def _among_ranks(self) -> Iterator[None]:
        """Say in plain words that another rank is gone."""
        try:
            yield
        except RuntimeError as error:  # gloo's and NCCL's are of this kind
            raise DresError(
                f"the other ranks cannot be reached any more ({_reason(error)})",
                "look for the error of the rank that ended first; then start all ranks again, with --resume",
            ) from error


@contextlib.contextmanager
def join(device: str, backend: str = "") -> Iterator[Ranks]:
    """Meet the other ranks; torchrun's environment says where. The ranks are of this block.

    backend: gloo or nccl; empty: nccl if every rank has a GPU of its own, else gloo.
    """
    _check_backend(device, backend)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    apart = device == "cuda" and local <= torch.cuda.device_count() and dist.is_nccl_available()
    chosen: Backend = "nccl" if backend == "nccl" or (apart and not backend) else "gloo"
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if chosen == "nccl" else "gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        places = ", ".join(f"{name}={os.environ.get(name)}" for name in _VARIABLES)
        raise DresError(
            f"the ranks did not meet ({_reason(error)})",
            f"this one has {places}; start all of them with torchrun, and let GLOO_SOCKET_IFNAME name the network",
        ) from error
    try:
        yield Ranks(device, chosen)
    except BaseException:
        if chosen == "gloo":  # nccl would wait for ranks that may be gone
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _reason(error: Exception) -> str:
    """The first sentence of an error of torch's, without the place in its source.

    >>> _reason(RuntimeError("[/gloo/pair.cc:537] Read error: Connection reset by peer. This is typical.\\nMore."))
    'Read error: Connection reset by peer'
    """
    return re.sub(r"^\[[^]]*\] *", "", str(error).strip()).split("\n")[0].split(". ")[0]


def _check_backend(device: str, backend: str) -> None:
    if backend and backend not in get_args(Backend):
        raise UsageError(f"the backend {backend!r} is not known", f"use one of {', '.join(get_args(Backend))}")
    if backend == "nccl" and device != "cuda":
        raise UsageError("nccl joins GPUs, but the device is the CPU", "use --backend gloo, or --device cuda")
