"""A training run once more, written from SPEC.md's appendix A alone. Nothing here uses the package.

It computes the gradient of each batch directly on the integer rows, in Python integers of any size. That gives the sum
that the coding would decode, since decoding is exact. ChaCha20 is written out here, for many blocks at a time.

    python tests/reference/independent_training.py 200
"""

import hashlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Reals = npt.NDArray[np.float64]
Exact = npt.NDArray[np.object_]  # Python integers

BATCH, ROUNDING, WEIGHTS, DROPOUT_RATES, DROPOUTS = 2, 3, 4, 5, 6


# -- section 13: randomness ------------------------------------------------------------------------------------


def words(seed: int, domain: int, index: int, count: int) -> Words:
    """The first words of a public stream."""
    key = np.frombuffer(hashlib.sha256(f"dresfl public stream {seed}".encode()).digest(), "<u4")
    blocks = -(-count // 16)
    start = np.zeros((16, blocks), np.uint32)
    start[:4] = np.frombuffer(b"expand 32-byte k", "<u4")[:, None]
    start[4:12] = key[:, None]
    start[12] = np.arange(blocks)
    start[13], start[14], start[15] = domain * 256, index, 0
    state = start.copy()
    for _ in range(10):
        for a in range(4):
            _quarter(state, a, 4 + a, 8 + a, 12 + a)
        for a in range(4):
            _quarter(state, a, 4 + (a + 1) % 4, 8 + (a + 2) % 4, 12 + (a + 3) % 4)
    return (state + start).T.reshape(-1)[:count]


def _quarter(s: Words, a: int, b: int, c: int, d: int) -> None:
    """RFC 8439, section 2.1."""
    for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[x] += s[y]
        mixed = s[z] ^ s[x]
        s[z] = (mixed << np.uint32(turn)) | (mixed >> np.uint32(32 - turn))


def uniform(seed: int, domain: int, index: int, count: int) -> Reals:
    return (words(seed, domain, index, count).astype(np.float64) + 0.5) / 2**32


# -- appendix A: settings, data, clients -----------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The defaults are those of `dresfl train digits`."""

    rounds: int = 600
    seed: int = 0
    units: tuple[int, ...] = (32, 32, 10)
    input_bits: int = 4
    weight_bits: int = 10
    num_clients: int = 20
    num_shards: int = 1
    max_colluders: int = 1
    batch_size: int = 64
    partition: str = "label-sorted"
    alpha: float = 0.5
    dropout: str = "paper"
    dropout_rate: float = 0.1
    dropout_seed: int = 0
    method: str = "momentum"
    learning_rate: float = 0.03
    schedule: str = "cosine"
    decay_factor: float = 0.65
    decay_every: int = 1500
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float = 0.0


def digits() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The training rows: pixels, whole numbers from 0 to 16, and labels."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    is_test = np.zeros(len(labels), bool)
    is_test[np.argsort(labels, kind="stable")[::5]] = True
    return pixels[~is_test], labels[~is_test].astype(np.int64)


def clients(labels: npt.NDArray[np.int64], settings: Settings) -> list[npt.NDArray[np.int64]]:
    """Which training rows each client has, ascending."""
    count, generator = settings.num_clients, np.random.default_rng(settings.seed)
    if settings.partition == "label-sorted":
        parts = np.array_split(np.argsort(labels, kind="stable"), count)
    elif settings.partition == "iid":
        parts = np.array_split(generator.permutation(len(labels)), count)
    else:
        parts = [np.zeros(0, np.int64)] * count
        for label in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(generator.dirichlet(np.full(count, settings.alpha)))[:-1] * len(rows)
            pieces = np.split(rows, cuts.astype(np.int64))
            parts = [np.concatenate(pair) for pair in zip(parts, pieces, strict=True)]
        for client in range(count):
            if not len(parts[client]):
                largest = max(range(count), key=lambda other: len(parts[other]))
                parts[client], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return [np.sort(part) for part in parts]


# -- sections 5 and 13: batches and weights --------------------------------------------------------------------


def batch(settings: Settings, held: list[npt.NDArray[np.int64]], number: int) -> list[int]:
    """The training rows of a round: K for each draw."""
    sizes, shards, out = [len(rows) for rows in held], settings.num_shards, []
    total, drawn = sum(sizes), words(settings.seed, BATCH, number, 2 * settings.batch_size).tolist()
    for b in range(settings.batch_size):
        r = 2**32 * drawn[2 * b] + drawn[2 * b + 1]
        v, client = (b * total + r * total // 2**64) // settings.batch_size, 0
        while v >= sizes[client]:
            v, client = v - sizes[client], client + 1
        whole, rest = divmod(sizes[client], shards)
        if v < whole * shards:
            hidden = [v // shards * shards + k for k in range(shards)]
        else:
            hidden = [whole * shards + (v - whole * shards + k) % rest for k in range(shards)]
        out += [int(held[client][row]) for row in hidden]
    return out


def initial_weights(settings: Settings, inputs: int) -> list[tuple[Exact, Exact]]:
    """Matrix and biases of every dense layer."""
    out, fan_in = [], inputs
    for number, fan_out in enumerate(settings.units):
        width = (0.5 if number else 1.0) * math.sqrt(3.0 / fan_in)
        u = uniform(settings.seed, WEIGHTS, number, fan_in * fan_out)
        integers = np.rint((u * 2 - 1) * width * 2.0**settings.weight_bits)
        out.append((_exact(integers).reshape(fan_in, fan_out), _exact(np.zeros(fan_out))))
        fan_in = fan_out
    return out


def _exact(values: npt.NDArray[Any]) -> Exact:
    return np.array([int(value) for value in values.reshape(-1)], dtype=object).reshape(values.shape)


# -- section 14: the gradient ----------------------------------------------------------------------------------


def gradient(settings: Settings, weights: list[tuple[Exact, Exact]], x: Exact, y: Exact) -> Exact:
    """The gradient over some rows in exact integers: dense layers with squares between them."""
    scale, kept = settings.input_bits, []
    for number, (matrix, bias) in enumerate(weights):
        if number:
            kept[-1] = (*kept[-1], x)
            x, scale = x * x, 2 * scale
        kept.append((x, 2**scale))
        x = x.dot(matrix) + bias * 2**scale
        scale += settings.weight_bits
    delta = (x - y * 2**scale) * 2
    parts: list[Exact] = []
    for number in range(len(weights) - 1, -1, -1):
        x, unit = kept[number][:2]
        parts = [x.T.dot(delta).reshape(-1), delta.sum(0) * unit, *parts]
        if number:
            delta = kept[number - 1][2] * delta.dot(weights[number][0].T) * 2
    return np.concatenate(parts)


# -- section 14: the step --------------------------------------------------------------------------------------


def rate(settings: Settings, number: int) -> float:
    base = settings.learning_rate
    if settings.schedule == "cosine":
        return base * 0.5 * (1 + math.cos(math.pi * min(1.0, number / settings.rounds)))
    if settings.schedule == "step":
        return base * settings.decay_factor ** (number // settings.decay_every)
    return base


def squared_norm(values: Reals) -> float:
    squares = values * values
    size = 1
    while size < len(squares):
        size *= 2
    squares = np.concatenate((squares, np.zeros(size - len(squares))))
    while size > 1:
        size //= 2
        squares = squares[:size] + squares[size:]
    return float(squares[0])


class Optimizer:
    """Section 14's optimisers, in doubles, one operation after the other."""

    def __init__(self, settings: Settings, size: int) -> None:
        self.settings, self.steps = settings, 0
        self.velocity, self.first, self.second = np.zeros(size), np.zeros(size), np.zeros(size)

    def update(self, number: int, g: Reals, real_weights: Reals) -> Reals:
        s = self.settings
        self.steps += 1
        if s.max_norm:
            norm = math.sqrt(squared_norm(g))
            g = g * (s.max_norm / norm if norm > s.max_norm else 1.0)
        if s.method == "momentum":
            self.velocity = direction = self.velocity * s.momentum + g
        elif s.method == "adam":
            self.first = self.first * s.beta1 + g * (1 - s.beta1)
            self.second = self.second * s.beta2 + g * g * (1 - s.beta2)
            first, second = 1 / (1 - s.beta1**self.steps), 1 / (1 - s.beta2**self.steps)
            direction = (self.first * first) / (np.sqrt(self.second * second) + s.epsilon)
        else:
            direction = g
        if s.weight_decay:
            direction = direction + real_weights * s.weight_decay
        return direction * rate(s, number)


def answering(settings: Settings, number: int) -> int:
    """How many clients answer in a round."""
    count, seed = settings.num_clients, settings.dropout_seed
    if settings.dropout == "paper":
        draws = uniform(seed, DROPOUT_RATES, 0, 2 * count)
        rates = np.where(draws[::2] < 0.5, 0.99, 0.1 * draws[1::2])
    else:
        rates = np.full(count, settings.dropout_rate if settings.dropout == "bernoulli" else 0.0)
    return int((uniform(seed, DROPOUTS, number, count) >= rates).sum())


def train(settings: Settings, watch: Callable[[int], None] = lambda number: None) -> tuple[list[int], int]:
    """The weights after all rounds, and how many rounds were skipped."""
    pixels, labels = digits()
    inputs, held = pixels.shape[1], clients(labels, settings)
    rows = _exact(np.rint(pixels / 16 * 2**settings.input_bits))
    targets = _exact(labels[:, None] == np.arange(settings.units[-1]))
    weights = initial_weights(settings, inputs)
    flat = np.concatenate([part.reshape(-1) for pair in weights for part in pair])
    squares = len(settings.units) - 1
    needed = 2 ** (squares + 1) * (settings.num_shards + settings.max_colluders - 1) + 1
    out_scale = settings.input_bits * 2**squares + sum(
        settings.weight_bits * 2 ** (squares - i) for i in range(squares + 1)
    )
    scale = 2.0**settings.weight_bits
    optimizer, skipped = Optimizer(settings, len(flat)), 0
    for number in range(settings.rounds):
        watch(number)
        if answering(settings, number) < needed:
            skipped += 1
            continue
        chosen = batch(settings, held, number)
        total = gradient(settings, weights, rows[chosen], targets[chosen])
        rounded = np.array([float(value) for value in total])
        mean = rounded / 2.0 ** (2 * out_scale - settings.weight_bits)
        mean = mean * (1.0 / (settings.batch_size * settings.num_shards))
        before = flat.astype(np.float64)
        z = optimizer.update(number, mean, before / scale) * scale
        down = np.floor(z)
        flat = _exact(before - (down + (uniform(settings.seed, ROUNDING, number, len(z)) < z - down)))
        weights = _split(weights, flat)
    return flat.tolist(), skipped


def _split(shapes: list[tuple[Exact, Exact]], flat: Exact) -> list[tuple[Exact, Exact]]:
    out, start = [], 0
    for matrix, bias in shapes:
        middle, end = start + matrix.size, start + matrix.size + bias.size
        out.append((flat[start:middle].reshape(matrix.shape), flat[middle:end]))
        start = end
    return out


def weights_sha256(weights: list[int]) -> str:
    """Section 7: over the weights as little-endian integers of 64 bits."""
    return hashlib.sha256(b"".join(weight.to_bytes(8, "little", signed=True) for weight in weights)).hexdigest()


if __name__ == "__main__":
    final, missed = train(Settings(rounds=int(sys.argv[1])))
    print(weights_sha256(final), f"{missed} rounds skipped")
