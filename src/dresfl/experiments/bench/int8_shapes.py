"""The exact int8 product in the shapes that networks have, on a GPU: one JSON line for each.

    python -m dresfl.experiments.bench.int8_shapes

Operands are uniform residues, as every coded value is: zeros would draw less power and run a quarter faster. Each shape
runs for a second without a pause, so the GPU's power limit is part of the figure. TOPS counts 2·M·m·n·k operations;
the reduction to int8, and any copy of a factor, are inside the time.
"""

import json

import torch

from .products import byte_operands, check_product, shape_name
from .timing import interleaved

# Channels, shape (m,n) @ (n,k), and whether the inner axis of both factors is contiguous, as the tensor cores need it.
CASES = [
    (30, (1280, 25088, 4096), True),
    (30, (1280, 4096, 4096), True),
    (4, (8192, 8192, 8192), True),
    (30, (25088, 1280, 4096), False),
    (30, (4096, 1280, 4096), False),
    (30, (1280, 1024, 1024), True),
    (30, (1280, 784, 64), True),
]


def main() -> None:
    """Measure every case on the GPU."""
    for channels, shape, inner_major in CASES:
        field, left, right = byte_operands(shape, channels, "cuda", inner_major=inner_major)
        check_product(left, right, field.matmul(left, right), field.moduli)
        call = {"exact": lambda f=field, a=left, b=right: f.matmul(a, b)}
        seconds = interleaved(call, 1.0, device="cuda", turn=0.1)["exact"].median
        m, n, k = shape
        row = {"shape": shape_name(shape), "channels": channels, "inner_major": inner_major}
        tops = 2e-12 * channels * m * n * k / seconds
        print(json.dumps({**row, "tops": round(tops, 1), "seconds": seconds, "gpu": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
