"""Bytes that one client's gradient and one coded round move outside their products, and the operations inside them.

    python -m dresfl.experiments.bench.traffic
    python src/dresfl/experiments/bench/traffic.py      (with an older dresfl on the path: counts that one)

Two counts, in bytes:

- `between_calls`: what torch operations and compiled kernels read and write of the tensors they are given, the factors
  and results of the products left out. Views move nothing.
- `with_scratch`: the same, and every pass over the scratch memory inside the call that computes a whole gradient.
  That memory stays in the second-level cache of one core.

One JSON line for each of gradient and round.
"""

import json
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dresfl
from dresfl.experiments.bench import stages
from dresfl.kernels import cpu

_PRODUCTS = ("product", "combine_rows")  # kernels that are products
_VIEWS = (
    "view", "reshape", "expand", "slice", "select", "unsqueeze", "squeeze", "transpose", "permute", "unbind", "split",
    "as_strided", "t.", "alias", "detach", "empty", "sym_size", "_unsafe_view", "_local_scalar_dense", "lift_fresh",
)  # fmt: skip


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of torch's operations, and of the compiled kernels that are handed to threads."""

    def __init__(self, setting: stages.Setting) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: dict[str, int] = {}
        self.scratch = 0
        self._setting = setting

    def note(self, name: str, count: int) -> None:
        self.bytes[name] = self.bytes.get(name, 0) + count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.")
        if not name.startswith(_VIEWS):
            given = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            made = [x for x in torch.utils._pytree.tree_leaves(found) if isinstance(x, Tensor)]
            self.note(f"torch {name.split('.')[0]}", sum(x.nbytes for x in given) + sum(x.nbytes for x in made))
        return found

    def kernel(self, name: str, units: int, numbers: Any) -> None:
        if name == "chain_gradient":
            # what it is given and gives back are factors and results of products
            self.scratch += units * _scratch_bytes(self._setting.layers, numbers[1])
        elif name not in _PRODUCTS:
            self.note(name, _KERNELS[name](units, *numbers))


# What a kernel reads and writes, in bytes: of its units and numbers.
_KERNELS: dict[str, Any] = {
    "reduce": lambda units, channels, columns, *_: 16 * channels * columns,
    "canonical": lambda units, channels, columns, *_: 16 * channels * columns,
    "mixed_radix": lambda units, channels, columns, *_: 16 * channels * columns,
    "nearest": lambda units, channels, columns, *_: 8 * channels * columns + 8 * columns,
    "embed": lambda units, channels, columns, *_: 8 * columns + 8 * channels * columns,
    "combine": lambda units, channels, rows, columns, b_columns, *_: 8 * channels * (2 * rows * columns + b_columns),
    "chacha20": lambda units, *_: 112 * units,  # a key, a counter and a nonce read, a block written
    "decode_lift": lambda units, channels, answers, values, columns, *_: 8 * columns,  # the answers are factors
}


def _scratch_bytes(layers: tuple[int, ...], rows: int) -> int:
    """Passes of one client in one channel over values between its products, all kept in scratch memory."""
    hidden, last = layers[1:-1], layers[-1]
    square = 2 * sum(hidden)  # read, written
    error = 3 * last  # found, wanted, written
    down = 3 * sum(hidden)  # delta and value read, delta written
    bias = sum(hidden) + last  # every delta is summed over the rows
    return 8 * rows * (square + error + down + bias)


def _names(kernel: Any) -> str:
    return str(kernel.__name__).split("-")[0]


def count(name: str, setting: stages.Setting) -> dict[str, Any]:
    """Bytes and operations of one call, after a first one that compiles and fills caches."""
    session = setting.session("cpu")
    call = stages.gradient(session) if name == "gradient" else stages.federation(session).run_round
    call()
    counter = Counter(setting)
    with _counted(counter), counter:
        call()
    answers = 1 if name == "gradient" else session.recovery_threshold
    flops = sum(2 * left.numel() * right.shape[-1] for left, right in stages._layers(session, answers))
    outside = sum(counter.bytes.values())
    top = sorted(counter.bytes.items(), key=lambda entry: -entry[1])[:12]
    return {
        "what": name,
        "version": dresfl.__version__,
        "between_calls": outside,
        "with_scratch": outside + counter.scratch,
        "product_flop": flops,
        "bytes_per_flop": (outside + counter.scratch) / flops,
        "most": dict(top),
    }


class _Wrapped:
    """The compiled kernels, two of which do not go through `share`."""

    def __init__(self, kernels: Any, counter: Counter) -> None:
        self._kernels, self._counter = kernels, counter

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)
        if name == "words_to_residues":
            return self._noting(name, kernel, lambda a: 12 * math.prod(a[:3]))  # words of 4 bytes, residues of 8
        if name == "pack_weights":
            return self._noting(name, kernel, lambda a: self._packed())
        return kernel

    def _packed(self) -> int:
        """Weights read; matrices and, above the first layer, their transposes written."""
        sizes = list(zip(self._counter._setting.layers, self._counter._setting.layers[1:], strict=False))
        read = sum((i + 1) * o for i, o in sizes)
        return 8 * (read + sum(i * o for i, o in sizes) + sum(i * o for i, o in sizes[1:]))

    def _noting(self, name: str, kernel: Any, size: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self._counter.note(name, size(arguments))
            return kernel(*arguments)

        return call


class _counted:
    """Every compiled kernel is noted in this block."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def __enter__(self) -> None:
        import importlib

        self.places = [(cpu, "_share" if hasattr(cpu, "_share") else "share")]
        if not hasattr(cpu, "_share"):
            self.places.append((importlib.import_module("dresfl.kernels.cpu.chain"), "share"))
        share = getattr(*self.places[0])

        def noting(kernel: Any, units: int, large: bool, *arguments: Any) -> None:
            numbers = arguments[0] if arguments and isinstance(arguments[0], tuple) else arguments
            self.counter.kernel(_names(kernel), units, numbers)
            share(kernel, units, large, *arguments)

        self.share, self.kernels = share, cpu._compiled
        for module, name in self.places:
            setattr(module, name, noting)
        cpu._compiled = _Wrapped(cpu._compiled, self.counter)

    def __exit__(self, *error: object) -> None:
        for module, name in self.places:
            setattr(module, name, self.share)
        cpu._compiled = self.kernels


def main() -> None:
    """Count both."""
    torch.set_num_threads(1)
    for name in ("gradient", "round"):
        print(json.dumps(count(name, stages.Setting())))


if __name__ == "__main__":
    main()
