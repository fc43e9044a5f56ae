"""What the compiled kernels share: how they are compiled and kept, the machine's vectors, and vector code as LLVM IR.

LLVM makes the machine's instructions of it: AVX-512, AVX2 or NEON. Addresses and strides are integers, in bytes.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function as declare
from numba.extending import intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _digest() -> str:
    """A digest of all files of this folder, which the name of every kernel on disk carries.

    Numba looks at a kernel's own file alone when it decides whether the one on disk is still good. These kernels share
    code across files.
    """
    texts = (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(b"".join(texts)).hexdigest()[:12]


_DIGEST = _digest()


def compiled(function: _Function) -> _Function:
    """A kernel: compiled when it is first called, and kept on disk."""
    # "contract" allows multiply-add, and no other liberty: x − p·q then is exact up to |x| = 2^53
    function.__qualname__ += f"-{_DIGEST}"
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
    try:
        made: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep compiled code in: compile once per process
        made = numba.njit(**options)(function)
    return made


def _shape() -> tuple[int, int, int]:
    """Lanes of a float64 vector, rows and vectors of a tile: as many results as the registers hold."""
    features = str(numba.config.CPU_FEATURES or llvm.get_host_cpu_features().flatten()).split(",")
    if "+avx512f" in features:
        return 8, 8, 2  # 16 of 32 registers: no other shape was faster, and this one divides 64
    if "+avx2" in features:
        return 4, 6, 2  # 12 of 16
    return (2, 6, 4) if "+neon" in features else (2, 4, 2)


LANES, ROWS, VECTORS = _shape()
WIDTH = LANES * VECTORS
LANES32 = 2 * LANES


I32, I64, F64 = ir.IntType(32), ir.IntType(64), ir.DoubleType()
VF, VI = ir.VectorType(F64, LANES), ir.VectorType(I32, LANES32)
_FUSE = ("contract",)  # multiply-add where the machine has it; both forms are exact here


def at(b: Any, address: Any, offset: Any, kind: Any) -> Any:
    offset = ir.Constant(I64, offset) if isinstance(offset, int) else offset
    return b.inttoptr(b.add(address, offset), kind.as_pointer())


def splat(b: Any, value: Any) -> Any:
    undefined = ir.Constant(VF, ir.Undefined)
    first = b.insert_element(undefined, value, ir.Constant(I32, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, LANES), [0] * LANES))


def repeat(b: Any, count: Any, carried: list[Any], body: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """`count` ≥ 1 times: carried = body(carried), held in registers."""

    def counted(state: list[Any]) -> list[Any]:
        return [b.sub(state[0], ir.Constant(I64, 1)), *body(state[1:])]

    return while_positive(b, [count, *carried], counted)[1:]


def while_positive(b: Any, before: list[Any], body: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """carried = body(carried), held in registers, once, and again while the first of them is above 0."""
    entry, block = b.block, b.append_basic_block("loop")
    b.branch(block)
    b.position_at_end(block)
    phis = [b.phi(value.type) for value in before]
    after = body(phis)
    latch, end = b.block, b.append_basic_block("end")
    b.cbranch(b.icmp_signed(">", after[0], ir.Constant(I64, 0)), block, end)
    for phi, first, next_ in zip(phis, before, after, strict=True):
        phi.add_incoming(first, entry)
        phi.add_incoming(next_, latch)
    b.position_at_end(end)
    return after


def change_if(b: Any, flag: Any, values: list[Any], change: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """change(values) if `flag` is not 0, else the values."""
    before, then, end = b.block, b.append_basic_block("then"), b.append_basic_block("end")
    b.cbranch(b.icmp_signed("!=", flag, ir.Constant(I64, 0)), then, end)
    b.position_at_end(then)
    changed = change(values)
    last = b.block
    b.branch(end)
    b.position_at_end(end)
    phis = [b.phi(value.type) for value in values]
    for phi, old, new in zip(phis, values, changed, strict=True):
        phi.add_incoming(old, before)
        phi.add_incoming(new, last)
    return phis


def tile_of(choices: Sequence[tuple[int, int]]) -> Any:
    """out[r,:] = start[r,:] + Σ_k left[r,k]·right[k,:] for a tile of `rows` × `vectors`·LANES, held in registers.

    choices: which (rows, vectors) there are. Reduced after every `step` terms if `reducing` is not 0; else the sum is
    stored as it is, for a later pass.
    """

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        chosen = b.add(b.mul(arguments[0], ir.Constant(I64, _MOST_VECTORS)), arguments[1])
        end = b.append_basic_block("tiled")
        branch = b.switch(chosen, end)
        for rows, vectors in choices:
            block = b.append_basic_block(f"tile{rows}x{vectors}")
            branch.add_case(ir.Constant(I64, rows * _MOST_VECTORS + vectors), block)
            b.position_at_end(block)
            _emit_tile(b, rows, vectors, arguments[2:])
            b.branch(end)
        b.position_at_end(end)
        return context.get_dummy_value()

    def tile(
        typing: Any, rows: Any, vectors: Any, left: Any, left_row: Any, left_k: Any, right: Any, right_k: Any,
        inner: Any, step: Any, reducing: Any, p: Any, inverse: Any, start: Any, start_row: Any, out: Any, out_row: Any,
    ) -> Any:  # fmt: skip
        integers, floats = [types.intp] * 10, [types.float64] * 2
        return types.void(*integers, *floats, *[types.intp] * 4), emit

    return intrinsic(tile)


_MOST_VECTORS = 16


def _emit_tile(b: Any, rows: int, vectors: int, arguments: Any) -> None:
    left, left_row, left_k, right, right_k, inner, step, reducing = arguments[:8]
    p, inverse, start, start_row, out, out_row = arguments[8:]
    rint = declare(b.module, ir.FunctionType(VF, [VF]), f"llvm.rint.v{LANES}f64")
    spots = [(r, 8 * LANES * v) for r in range(rows) for v in range(vectors)]
    left_rows, start_rows, out_rows = (
        [b.mul(stride, ir.Constant(I64, r)) for r in range(rows)] for stride in (left_row, start_row, out_row)
    )
    modulus, reciprocal = splat(b, p), splat(b, inverse)

    def multiply_add(carried: list[Any]) -> list[Any]:
        x, y, *sums = carried
        columns = [b.load(at(b, y, 8 * LANES * v, VF), align=8) for v in range(vectors)]
        found = []
        for r in range(rows):
            factor = splat(b, b.load(at(b, x, left_rows[r], F64)))
            for v in range(vectors):
                product = b.fmul(factor, columns[v], flags=_FUSE)
                found.append(b.fadd(sums[r * vectors + v], product, flags=_FUSE))
        return [b.add(x, left_k), b.add(y, right_k), *found]

    def reduce(sums: list[Any]) -> list[Any]:
        quotients = [b.call(rint, [b.fmul(s, reciprocal)]) for s in sums]
        return [b.fsub(s, b.fmul(q, modulus, flags=_FUSE), flags=_FUSE) for s, q in zip(sums, quotients, strict=True)]

    def reduced(carried: list[Any]) -> list[Any]:
        rest, *state = carried
        count = b.select(b.icmp_signed("<", rest, step), rest, step)
        x, y, *sums = repeat(b, count, state, multiply_add)
        return [b.sub(rest, count), x, y, *change_if(b, reducing, sums, reduce)]

    sums = [b.load(at(b, b.add(start, start_rows[r]), column, VF), align=8) for r, column in spots]
    sums = while_positive(b, [inner, left, right, *sums], reduced)[3:]
    for (r, column), value in zip(spots, sums, strict=True):
        b.store(value, at(b, b.add(out, out_rows[r]), column, VF), align=8)


def access(kind: Any, type_: Any, writing: bool) -> Any:
    """One value at an address: read it, or write it."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        pointer = at(b, arguments[0], 0, kind)
        if not writing:
            return b.load(pointer)
        b.store(arguments[1], pointer)
        return context.get_dummy_value()

    def read(typing: Any, address: Any) -> Any:
        return type_(types.intp), emit

    def write(typing: Any, address: Any, value: Any) -> Any:
        return types.void(types.intp, type_), emit

    return intrinsic(write if writing else read)


def to_pointer() -> Any:
    """An address as what `numba.carray` takes."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        return b.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    def pointer(typing: Any, address: Any) -> Any:
        return types.voidptr(types.intp), emit

    return intrinsic(pointer)


read, write = access(F64, types.float64, False), access(F64, types.float64, True)
read32, write32 = access(I32, types.int32, False), access(I32, types.int32, True)
pointer = to_pointer()
