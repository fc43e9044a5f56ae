"""The weight gradient's kernel on a GPU, cut in several ways: milliseconds and TB/s of output for each.

    python -m dresfl.experiments.bench.outer_shapes

One JSON line for each way. The product is that of the paper's largest head: 25088 × 64 × 4096, nine clients.
"""

import functools
import itertools
import json

import torch

from dresfl.kernels import outer_triton

from .timing import interleaved

_CHANNELS, _CLIENTS, _ROWS, _INNER, _COLUMNS = 29, 3, 25088, 64, 4096


def main() -> None:
    """Measure each way to cut the product, and a copy of as many bytes."""
    device = "cuda"
    left = torch.randint(-60, 61, (_CHANNELS, _CLIENTS, _ROWS, _INNER), dtype=torch.int8, device=device)
    right = torch.randint(-60, 61, (_CHANNELS, _CLIENTS, _COLUMNS, _INNER), dtype=torch.int8, device=device)
    moduli = torch.full((_CHANNELS,), 251, dtype=torch.int32, device=device)
    out = torch.empty((_CHANNELS, _CLIENTS, _ROWS, _COLUMNS), dtype=torch.int8, device=device)
    steps = (_CLIENTS * _ROWS, _ROWS), (_CLIENTS * _COLUMNS, _COLUMNS)
    fill = interleaved({0: functools.partial(out.fill_, 1)}, 0.5, device=device)[0].best
    print(json.dumps({"what": "fill", "ms": round(1e3 * fill, 2), "TB_per_s": round(out.nbytes / fill / 1e12, 2)}))
    want = None
    for (rows, columns, warps), tiles, stages in itertools.product(
        ((128, 128, 4), (128, 128, 8), (64, 256, 4), (128, 256, 8), (256, 128, 8), (64, 128, 4)), (1, 4, 16), (2, 4)
    ):
        if tiles == 1 and stages == 4:
            continue
        cut = {"rows": rows, "columns": columns, "warps": warps, "tiles": tiles, "stages": stages}
        call = functools.partial(outer_triton.outer_product, left, right, moduli, out, *steps, **cut)  # type: ignore[arg-type]
        try:
            best = interleaved({0: call}, 0.2, device=device)[0].best
        except Exception as error:  # what does not fit the chip is no use
            print(json.dumps({**cut, "error": str(error)[:200]}))
            continue
        sample = out[:, :, ::997, ::13].clone()
        want = sample if want is None else want
        same = bool(sample.equal(want))
        print(
            json.dumps(
                {**cut, "ms": round(1e3 * best, 2), "TB_per_s": round(out.nbytes / best / 1e12, 2), "same": same}
            )
        )


if __name__ == "__main__":
    main()
