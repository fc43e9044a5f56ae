"""Blinding: what the expansion of seeds costs next to the bare keystream, and what certificates cost.

    python -m dresfl.experiments.bench.masks

prints JSON. Both times of a ratio are of one process and one thread, in turns.
"""

import itertools
import json
import math
import time
from typing import Any

import torch

from dresfl.coding import CodeParameters
from dresfl.errors import InfeasiblePlan
from dresfl.field import ResidueField, SecretSeed, choose_moduli
from dresfl.kernels import chacha20_blocks
from dresfl.masking import HiddenMasks, MaskFamily, certify, hidden_families, zero_sum_family
from dresfl.model import mlp
from dresfl.protocol.session import choose_field

from .timing import interleaved

_PLACES = 55_050  # parameters of 784-64-64-10
_BITS = 180  # and headroom: nine primes
_LAYERS = {2: (784, 10), 4: (784, 64, 10), 8: (784, 64, 64, 10)}  # by the gradient's degree
_HIDDEN_VALUES = 72_074  # opened in a round of the hidden mode: 2·64·(64 + 64) + 64·10 and the parameters
_HIDDEN_BITS = 140  # and headroom: seven primes
_HIGH_BITS, _LOW_BITS = 126, 18
_NARROW = 6_780_383  # the limit for sums of 784 products: primes that reject more words


def expansion(num_clients: int, threshold: int, limit: int, seconds: float) -> dict[str, Any]:
    """`uniform_sum` of one client's seeds, compared with the bare ChaCha20 blocks of as many words."""
    moduli = choose_moduli(_BITS, more_than=num_clients + 2, limit=limit)
    field, seeds = ResidueField(moduli, len(moduli) - 1), num_clients - threshold + 2
    keys = torch.randint(-(2**31), 2**31, (seeds, 8), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    coefficients = field.embed(torch.arange(seeds) * 1234567 + 89)
    blocks = -(-_PLACES // 16)
    streams = len(moduli) * seeds
    many_keys = keys.repeat(len(moduli), 1).repeat_interleave(blocks, 0)
    counters = torch.arange(blocks, dtype=torch.int32).repeat(streams)
    nonces = torch.zeros((streams * blocks, 3), dtype=torch.int32)
    timings = interleaved(
        {
            "sum": lambda: field.uniform_sum(keys, coefficients, _PLACES),
            "keystream": lambda: chacha20_blocks(many_keys, counters, nonces),
        },
        seconds,
    )
    words = streams * _PLACES
    return {
        "seeds": seeds,
        "primes": len(moduli),
        "bits_of_primes": math.log2(moduli[-1]),
        "places": _PLACES,
        "seconds": timings["sum"].median,
        "keystream_seconds": timings["keystream"].median,
        "ratio_to_keystream": timings["sum"].median / timings["keystream"].median,
        "ns_per_word": timings["sum"].per(words).median * 1e9,
        "keystream_ns_per_word": timings["keystream"].per(words).median * 1e9,
        "best_ns_per_word": timings["sum"].per(words).best * 1e9,
        "runs": timings["sum"].runs,
    }


def certificate(num_clients: int, num_shards: int, max_colluders: int, degree: int, in_bytes: bool) -> dict[str, Any]:
    """One setting's family: its size, and the seconds to make it and to check it; or why there is none.

    The primes are a session's, or `in_bytes` all primes below 256 that have room for the points.
    """
    threshold = degree * (num_shards + max_colluders - 1) + 1
    points = num_clients + num_shards + max_colluders
    if in_bytes:
        moduli = tuple(p for p in range(points + 1, 256) if all(p % q for q in range(2, 16)))
    else:
        network = mlp(_LAYERS[degree], input_bits=4, weight_bits=10)
        moduli = choose_field(network, CodeParameters(num_clients, num_shards, max_colluders)).moduli
    found = {
        "clients": num_clients,
        "shards": num_shards,
        "colluders": max_colluders,
        "degree": degree,
        "threshold": threshold,
        "primes": len(moduli),
        "largest_prime": moduli[-1],
    }
    start = time.perf_counter()
    try:
        family = zero_sum_family(moduli, num_clients, num_shards, max_colluders, threshold)
    except InfeasiblePlan as error:
        return {**found, "refused": str(error)}
    made = time.perf_counter()
    certify(moduli, family, num_shards)
    checked = time.perf_counter()
    return {**found, **_sizes(family), "seconds": made - start, "certify_seconds": checked - made}


def _sizes(family: MaskFamily) -> dict[str, Any]:
    held = [len(family.seed_sets.held_by(client)) for client in range(family.num_clients)]
    return {"sets": len(family.sets), "seeds_of_a_client": [min(held), max(held)]}


def hidden_round(
    num_clients: int, max_colluders: int, mask_degree: int, degree: int, seconds: float, values: int = _HIDDEN_VALUES
) -> dict[str, Any]:
    """All masks that one client expands in one round of the hidden mode, and what a call costs for six values.

    784-64-64-10 and 64 rows: so many values are opened under masks of two parts, h and l, and blinded by zeros.
    """
    moduli = choose_moduli(_HIDDEN_BITS, more_than=num_clients + mask_degree + 1)
    start = time.perf_counter()
    families = hidden_families(moduli, num_clients, 1, max_colluders, mask_degree, degree)
    made = time.perf_counter() - start
    seeds = {number: SecretSeed.fresh() for number in range(len(families.seed_sets.sets))}
    masks = HiddenMasks(ResidueField(moduli, len(moduli)), families, 0, seeds)
    timings = interleaved(
        {
            "high": lambda: masks.bounded(b"h", _HIGH_BITS, values, total=False),
            "low": lambda: masks.bounded(b"l", _LOW_BITS, values, total=False),
            "zeros": lambda: masks.zeros(b"z", values, total=False),
            "six_bounded": lambda: masks.bounded(b"l", _LOW_BITS, 6, total=False),
            "six_zeros": lambda: masks.zeros(b"key", 6, total=False),
            "ratchet": lambda: masks.ratcheted(b"round"),
        },
        seconds,
    )
    held = [number for number, sets in enumerate(families.seed_sets.sets) if 0 not in sets]
    return {
        "clients": num_clients,
        "colluders": max_colluders,
        "mask_degree": mask_degree,
        "answers": families.opened_degree + 1,
        "primes": len(moduli),
        "values": values,
        "mask_seeds": sum(number in families.mask_seeds for number in held),
        "zero_words": sum(number in families.zero_seeds(total=False) for number in held),
        "family_seconds": made,
        "round_seconds": sum(timings[part].median for part in ("high", "low", "zeros")),
        "best_round_seconds": sum(timings[part].best for part in ("high", "low", "zeros")),
        **{f"{part}_seconds": timing.median for part, timing in timings.items()},
        "runs": timings["high"].runs,
    }


def certificates(clients: tuple[int, ...]) -> list[dict[str, Any]]:
    """All settings of one or two shards and colluders and degrees 2, 4 and 8 that so many clients can decode."""
    found = []
    for num_clients, colluders, shards, degree in itertools.product(clients, (1, 2), (1, 2), (2, 4, 8)):
        if degree * (shards + colluders - 1) + 1 <= num_clients:
            found += [certificate(num_clients, shards, colluders, degree, in_bytes) for in_bytes in (False, True)]
    return found


def main() -> None:
    """Measure everything; under two minutes on one core."""
    torch.set_num_threads(1)
    zero_sum_family((101,), 5, 1, 1, 3)  # loads what is loaded once
    report = {
        "expansion": [expansion(20, 9, limit, seconds=5.0) for limit in (2**24, _NARROW)],
        "hidden_rounds": [
            hidden_round(20, *rest, seconds=5.0) for rest in ((1, 1, 4), (1, 1, 2), (2, 2, 4), (4, 8, 2), (4, 6, 2))
        ],
        "certificates": certificates((12, 20, 50)),
        "more_colluders": [certificate(20, 1, *rest, False) for rest in itertools.product((3, 4), (2, 4))],
        "many_clients": [certificate(1000, 1, 1, degree, False) for degree in (2, 8)],
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
