"""Section 17 of SPEC.md in Python integers, for dense networks with squares: plan, seeds, masks, hops, checks.

Nothing here uses the package. Elements of the shares' ring are object arrays (M, …) of Python integers in [0, p).
"""

import hmac
import itertools
import math
import struct
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .masks import dealers as seed_dealers
from .masks import rank
from .spec import blinding_word, joined, label, pack, primes_below, public_key, read, sha256, word, words

Array = NDArray[np.object_]
WORDS = 6  # of each part of the key
WHOLE = 2**16 - 1  # the item of what belongs to a whole hop


# -- 17.2: the plan ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    count: int
    shift: int | None
    bits: int


@dataclass(frozen=True)
class Hop:
    items: tuple[Item, ...]
    total: bool
    moves_weights: bool = False
    opens_loss: bool = False

    @property
    def count(self) -> int:
        return sum(item.count for item in self.items)


@dataclass
class Product:
    """What a program wants opened. each (M,count) for every shard, once (M,count) one time."""

    each: Array
    shift: int | None
    magnitude: float
    once: Array | None = None
    total: bool = False
    moves: bool = False  # it is a step of weights


@dataclass
class Value:
    elements: Array
    s: int
    g: int
    m: float


Program = Generator[list[Product], list[Any], Array]


class Plan:
    """All that follows from an agreement of the hidden mode and the row counts."""

    def __init__(self, agreement: dict[str, Any], rows: list[int]) -> None:
        self.agreement, self.settings, self.optimizer = agreement, agreement["hidden"], agreement["optimizer"]
        self.N, self.K, self.T, self.A = (
            agreement[key] for key in ("num_clients", "num_shards", "max_colluders", "max_liars")
        )
        self.B, self.rounds, self.rows = agreement["batch_size"], agreement["rounds"], rows
        self.kappa = self.settings["kappa"]
        self.Td = self.settings["mask_degree"] or self.T
        assert self.Td == self.T, "this reader has no mask sets that are larger than T"
        self.n = math.comb(self.N, self.T)
        more = max(0, math.ceil(math.log2(self.n / 20) / 2))
        self.lw = self.settings["weight_bits"] or min(24, 18 + more)
        self.f = self.settings["value_bits"] or 10 + more
        self.fe = self.settings["error_bits"] or min(24, 14 + more)
        self.inputs = math.prod(agreement["input_shape"])
        self.units = [layer["units"] for layer in agreement["layers"] if layer["kind"] == "dense"]
        self.fans = list(zip([self.inputs, *self.units[:-1]], self.units, strict=True))
        self.P = sum((a + 1) * b for a, b in self.fans)
        inits = [layer["init"] for layer in agreement["layers"] if layer["kind"] == "dense"]
        self.inits = [value or (1.0 if i == 0 else 0.5) for i, value in enumerate(inits)]
        whole = [m // self.K for m in rows]
        self.held_out = [min(w - 1, int(self.settings["validation_share"] * w)) if w else 0 for w in whole]
        self.d = {"S2": 2, "S4": 4}[self.settings["schedule"]]
        self.D = self.d * (self.K + self.Td - 1)
        self.R = self.D + 1
        self.needed = self.R if self.settings["honest_clients"] else self.R + max(self.T, 2 * self.A)
        assert self.needed <= self.N
        self._walk()

    # -- steps

    def rate(self, number: int) -> float:
        own = self.optimizer
        if own["schedule"] == "step":
            return float(own["learning_rate"] * own["decay_factor"] ** (number // own["decay_every"]))
        if own["schedule"] == "cosine":
            return float((own["learning_rate"] * 0.5) * (1 + math.cos(math.pi * min(1, number / self.rounds))))
        return float(own["learning_rate"])

    def steps(self, rate: float, before: float | None) -> list[tuple[int, int, int, int]]:
        """Of each layer: τ, multiplier, keep, recall."""
        own, found = self.optimizer, []
        momentum = round(128 * own["momentum"]) / 128 if own["method"] == "momentum" else 0.0
        largest = math.log2(2 * own["learning_rate"] / (self.B * self.K))
        for scale in self.gradient_scales:
            tau = max(8, scale + 10 - math.ceil(largest) - self.lw)
            multiplier = round(math.ldexp(2 * rate / (self.B * self.K), self.lw + tau - scale))
            decay = round(2**tau * rate * own["weight_decay"])
            kept = 0 if before is None else round(2**tau * momentum * rate / before)
            faded = 0 if before is None else round(kept * before * own["weight_decay"])
            found.append((tau, multiplier, 2**tau - decay + kept, faded - kept))
        return found

    def steps_of(self, number: int) -> list[tuple[int, int, int, int]]:
        return self.steps(self.rate(number), self.rate(number - 1) if number else None)

    # -- hops

    def _walk(self) -> None:
        """Play the programs on zeros of one modulus, to see what they open."""
        self.moduli: list[int] = [2**61 - 1]
        self.guards: dict[str, tuple[int, int, float, list[int]]] = {}
        self.gradient_scales: list[int] = [0] * len(self.fans)
        bare = self._hops_of(self._training_on_zeros(carried=False, steps=[(8, 1, 2, 0)] * len(self.fans)))
        self.trips_of_training = len(bare)
        self.error_scale = self._last_error_scale
        b = [init**2 * fan_out for init, (_, fan_out) in zip(self.inits, self.fans, strict=True)]
        factors = [max(1, round(max(b) / own)) for own in b]
        norm = sum(f * own for f, own in zip(factors, b, strict=True)) * 8.0
        self.guards = {
            "error": self._guard(math.log2(self.B * self.K * 16.0) + self.error_scale, []),
            "norm": self._guard(math.log2(norm) + 2 * self.lw, factors),
        }
        for depth, (_, fan_out) in enumerate(self.fans):
            self.guards[f"size {depth}"] = self._guard(math.log2(self.B * fan_out) + 2 * (2.0 + self.f), [])
        largest = self.optimizer["learning_rate"]
        steps = self.steps(largest, largest)
        first = self._hops_of(self._training_on_zeros(carried=False, steps=steps))
        later = self._hops_of(self._training_on_zeros(carried=True, steps=steps))
        validates = bool(self.settings["validation_every"])
        checked = self._hops_of(self._validation_on_zeros()) if validates else []
        deep = sum(layer["kind"] == "square" for layer in self.agreement["layers"]) >= 2 and self.d == 4
        unit = self.inputs * 4 ** max(0.0, math.log2(self.agreement["input_bound"]))
        assert largest <= (80 if deep else 96) / unit
        more = 24 if deep and largest > 16 / unit else 0
        needed = 0.0
        for product in itertools.chain.from_iterable([*later, *checked]):
            hidden = 0.0 if product.shift is None else self.kappa + math.log2(self.n)
            needed = max(needed, math.ceil(product.magnitude) + 12 + more + hidden + 2)
        if self.trips_of_training == 1:
            needed = max(needed, self.guards["error"][2] + 32 + self.kappa + math.log2(self.n) + 2)
        self.moduli = []
        for prime in primes_below(2**24):
            if sum(map(math.log2, self.moduli)) >= needed:
                break
            self.moduli.append(prime)
        self.moduli.sort()
        self.most_bits = math.floor(sum(map(math.log2, self.moduli)) - self.kappa - math.log2(self.n) - 2)
        self.first, self.later, self.validation = (
            [self._planned(products, hops is checked) for products in hops] for hops in (first, later, checked)
        )
        self.state_size = self.P + len(self.carried)

    def _guard(self, magnitude: float, factors: list[int]) -> tuple[int, int, float, list[int]]:
        c = 4 * max(1, math.ceil(min(self.n / 2, 8 * math.sqrt(self.n / 12))))
        return max(1, math.floor(magnitude - math.log2(c))), c, magnitude, factors

    @property
    def carried(self) -> list[str]:
        if not self.guards:
            return []
        return ["error", "norm"] if self.trips_of_training == 1 else ["error"]

    def _planned(self, products: list[Product], validation: bool) -> Hop:
        items = []
        for product in products:
            bits = math.ceil(product.magnitude) + 12
            if product.moves:
                assert product.shift is not None
                bits = min(bits + (product.shift - bits - self.kappa) % 32, self.most_bits)
            else:
                bits = self.most_bits
            items.append(Item(product.each.shape[1], product.shift, bits))
        total, clear = products[0].total, products[0].shift is None
        return Hop(tuple(items), total, total and not validation, validation and clear)

    def _zeros(self, *shape: int) -> Array:
        return np.zeros((len(self.moduli), *shape), dtype=object)

    def _hops_of(self, program: Program) -> list[list[Product]]:
        found = [next(program)]
        while True:
            sent: list[Any] = [[0] if p.shift is None else p.each for p in found[-1]]
            try:
                found.append(program.send(sent))
            except StopIteration:
                return found

    def _training_on_zeros(self, *, carried: bool, steps: list[tuple[int, int, int, int]]) -> Program:
        size = self.P + (len(self.carried) if carried else 0)
        x, y = self._zeros(self.B, self.inputs), self._zeros(self.B, self.units[-1])
        return self.training(x, y, self._zeros(size), self._zeros(size), steps)

    def _validation_on_zeros(self) -> Program:
        count = sum(self.held_out)
        x, y = self._zeros(count, self.inputs), self._zeros(count, self.units[-1])
        return self.validating(x, y, self._zeros(self.P))

    def validates(self, number: int) -> bool:
        every = self.settings["validation_every"]
        return bool(every) and ((number + 1) % every == 0 or number + 1 == self.rounds)

    def hops(self, number: int) -> list[Hop]:
        hops = self.first if number == 0 else self.later
        return [*hops, *self.validation] if self.validates(number) else hops

    @property
    def final(self) -> Hop:
        return Hop((Item(self.P, None, 0),), total=False)

    @property
    def num_hops(self) -> int:
        return sum(len(self.hops(number)) for number in range(self.rounds)) + 1

    def stops(self, losses: list[int]) -> bool:
        patience = self.settings["patience"]
        return bool(patience) and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])

    # -- the program of a round

    def mod(self, values: Array) -> Array:
        return values % np.array(self.moduli, dtype=object).reshape(-1, *[1] * (values.ndim - 1))

    def _open(
        self, products: list[Product], waiting: "dict[str, Any]"
    ) -> Generator[list[Product], list[Any], list[Any]]:
        """One hop, with what the guards add to it."""
        total, count, clear = products[0].total, len(products), waiting["clear"]
        due = dict(waiting["sizes"])
        if total and "error" in waiting:
            due["error"] = waiting["error"]
        if waiting["hop"] == waiting["norm hop"] and "norm" in waiting:
            due["norm"] = waiting["norm"]
        watched = self.guards if waiting["norm hop"] >= 0 else {}  # a validation has no guards
        cuts = {name: self._guarded(name, value, total) for name, value in due.items() if name in watched}
        quotients = []
        for name, value in clear.items():
            size = math.log2(self.guards[name][1]) + 1
            once = total and not name.startswith("size") and waiting.get("cut once", True)
            quotients.append(Product(0 * value if once else value, None, size, value if once else None, total))
        sent = yield [*products, *cuts.values(), *quotients]
        for name, own, value in zip(clear, quotients, sent[count + len(cuts) :], strict=True):
            summed = self.K if total and own.once is None else 1
            assert max(value) <= summed * self.guards[name][1], f"the training diverges: {name}"
        waiting["clear"] = dict(zip(cuts, sent[count : count + len(cuts)], strict=True))
        waiting["sizes"], waiting["hop"], waiting["cut once"] = {}, waiting["hop"] + 1, total
        return sent[: len(products)]

    def _guarded(self, name: str, value: Array, total: bool) -> Product:
        shift, _, magnitude, _ = self.guards[name]
        once = total and name == "norm"
        return Product(0 * value if once else value, shift, magnitude, value if once else None, total)

    def _cut(self, value: Value, scale: int, waiting: dict[str, Any]) -> Generator[list[Product], list[Any], Value]:
        t = max(1, value.s - scale)
        flat = value.elements.reshape(len(self.moduli), -1)
        (found,) = yield from self._open([Product(flat, t, value.s + value.m)], waiting)
        return Value(found.reshape(value.elements.shape), value.s - t, 1, value.m)

    def _forward(
        self, x: Array, weights: Array, waiting: dict[str, Any]
    ) -> Generator[list[Product], list[Any], tuple[Value, list[tuple[str, Value]]]]:
        value = Value(x, self.agreement["input_bits"], 1, max(0.0, math.log2(self.agreement["input_bound"])))
        kept: list[tuple[str, Value]] = []
        at, left = 0, len(self.fans)
        layers = [layer["kind"] for layer in self.agreement["layers"]]
        for depth, kind in enumerate(layers):
            if kind == "square":
                if 2 * value.g > self.d:
                    value = yield from self._cut(value, self.f, waiting)
                kept.append((kind, value))
                value = Value(self.mod(value.elements**2), 2 * value.s, 2 * value.g, 2 * value.m)
                continue
            if value.g + 1 > self.d:
                value = yield from self._cut(value, self.f, waiting)
            kept.append((kind, value))
            fan_in, fan_out = self.fans[len(self.fans) - left]
            matrix, bias = self._matrix(weights, at, fan_in, fan_out)
            z = self.mod(np.matmul(value.elements, matrix) + 2**value.s * bias[:, None, :])
            at, left = at + (fan_in + 1) * fan_out, left - 1
            value = Value(z, value.s + self.lw, value.g + 1, 3.0)
            if left or "square" in layers[depth:]:
                value = yield from self._cut(value, self.f, waiting)
                flat = value.elements.reshape(len(self.moduli), -1)
                waiting["sizes"][f"size {len(self.fans) - left - 1}"] = self.mod((flat**2).sum(1, keepdims=True))
        return value, kept

    @staticmethod
    def _matrix(weights: Array, at: int, fan_in: int, fan_out: int) -> tuple[Array, Array]:
        end = at + fan_in * fan_out
        return weights[:, at:end].reshape(-1, fan_in, fan_out), weights[:, end : end + fan_out]

    def training(
        self, x: Array, y: Array, state: Array, before: Array, steps: list[tuple[int, int, int, int]]
    ) -> Program:
        """x (M,B,inputs), y (M,B,classes), state and the one before (M,P or more); returns the new state."""
        weights, before = state[:, : self.P], before[:, : self.P]
        late = self.d == 2 and self.guards and self.trips_of_training > 2
        waiting: dict[str, Any] = {"hop": 0, "norm hop": int(bool(late)), "clear": {}, "sizes": {}}
        if state.shape[1] > self.P:
            waiting["clear"] = {name: state[:, self.P + i : self.P + i + 1] for i, name in enumerate(self.carried)}
        starts = np.cumsum([0, *((a + 1) * b for a, b in self.fans)]).tolist()
        if self.guards:
            parts = zip(self.guards["norm"][3], itertools.pairwise(starts), strict=True)
            waiting["norm"] = self.mod(sum(f * (weights[:, i:j] ** 2).sum(1, keepdims=True) for f, (i, j) in parts))
        out, kept = yield from self._forward(x, weights, waiting)
        error = self.mod(out.elements - 2**out.s * y)
        delta = Value(error, out.s, out.g, math.log2(2.0**out.m + 1))
        gradients: list[Value] = []
        depth = len(self.fans) - 1
        for kind, value in reversed(kept):
            if kind == "square":
                if delta.g + value.g > self.d:
                    delta = yield from self._cut(delta, self.fe, waiting)
                back = self.mod(2 * value.elements * delta.elements)
                delta = Value(back, delta.s + value.s, delta.g + value.g, delta.m + 1 + value.m)
                continue
            matrix, _ = self._matrix(weights, starts[depth], *self.fans[depth])
            delta, below = yield from self._through(delta, value, matrix, depth == 0, waiting)
            if not gradients:
                flat = delta.elements.reshape(len(self.moduli), -1)
                waiting["error"] = self.mod((flat**2).sum(1, keepdims=True))
                self._last_error_scale = 2 * delta.s
            own = np.matmul(value.elements.swapaxes(1, 2), delta.elements).reshape(len(self.moduli), -1)
            whole = self.mod(np.concatenate([own, 2**value.s * delta.elements.sum(1)], 1))
            size = max(0.0, value.m) + delta.m + math.log2(self.K * self.B)
            gradients.append(Value(whole, value.s + delta.s, value.g + delta.g, size))
            if below is None:
                break
            delta, depth = below, depth - 1
        gradients.reverse()
        self.gradient_scales = [gradient.s for gradient in gradients]
        products = []
        for (tau, multiplier, keep, recall), gradient, (i, j) in zip(
            steps, gradients, itertools.pairwise(starts), strict=True
        ):
            once = self.mod(keep * weights[:, i:j] + recall * before[:, i:j])
            by_rows = gradient.s + gradient.m + math.log2(max(1, multiplier))
            size = math.log2(2.0**by_rows + 2.0 ** (2.0 + self.lw + tau))
            products.append(
                Product(self.mod(-multiplier * gradient.elements), tau, size, once=once, total=True, moves=True)
            )
        moved = yield from self._open(products, waiting)
        return np.concatenate([*moved, *(waiting["clear"][name] for name in self.carried)], 1)

    def _through(
        self, delta: Value, value: Value, matrix: Array, lowest: bool, waiting: dict[str, Any]
    ) -> Generator[list[Product], list[Any], tuple[Value, Value | None]]:
        too_high = value.g + delta.g > self.d

        def back() -> Value:
            u = self.mod(np.matmul(delta.elements, matrix.swapaxes(1, 2)))
            return Value(u, delta.s + self.lw, delta.g + 1, delta.m + 2)

        if too_high and not lowest and delta.g + 1 <= self.d:
            both, shifts, shapes = [delta, back()], [], []
            for one in both:
                shifts.append(max(1, one.s - self.fe))
                shapes.append(one.elements.shape)
            products = [
                Product(one.elements.reshape(len(self.moduli), -1), t, one.s + one.m)
                for one, t in zip(both, shifts, strict=True)
            ]
            found = yield from self._open(products, waiting)
            cut = [
                Value(values.reshape(shape), one.s - t, 1, one.m)
                for values, shape, one, t in zip(found, shapes, both, shifts, strict=True)
            ]
            return cut[0], cut[1]
        if too_high or (not lowest and delta.g + 1 > self.d):
            delta = yield from self._cut(delta, self.fe, waiting)
        if lowest:
            return delta, None
        return delta, (yield from self._cut(back(), self.fe, waiting))

    def validating(self, x: Array, y: Array, weights: Array) -> Program:
        waiting: dict[str, Any] = {"hop": 0, "norm hop": -1, "clear": {}, "sizes": {}}
        out, _ = yield from self._forward(x, weights, waiting)
        error = Value(self.mod(out.elements - 2**out.s * y), out.s, out.g, math.log2(2.0**out.m + 1))
        if 2 * error.g > self.d:
            error = yield from self._cut(error, self.fe, waiting)
        rows = self.K * x.shape[1]
        size = 2 * (error.s + error.m) + math.log2(rows * self.units[-1])
        shift = max(1, 2 * error.s - 14 + math.floor(math.log2(rows)))
        total = self.mod((error.elements.reshape(len(self.moduli), -1) ** 2).sum(1, keepdims=True))
        (kept,) = yield from self._open([Product(total, shift, size, total=True)], waiting)
        yield from self._open([Product(0 * total, None, size - shift, once=kept, total=True)], waiting)
        return weights

    # -- rows

    def drawn(self, seed: int, number: int, excluded: tuple[int, ...] = ()) -> list[tuple[int, int]]:
        """Dealers and coded rows of a round's batch."""
        key, out = public_key(seed), []
        counts = [
            0 if i in excluded else m - self.K * out_of
            for i, (m, out_of) in enumerate(zip(self.rows, self.held_out, strict=True))
        ]
        total = sum(counts)
        for b in range(self.B):
            r = 2**32 * word(key, "batch", number, 2 * b) + word(key, "batch", number, 2 * b + 1)
            v, dealer = (b * total + r * total // 2**64) // self.B, 0
            while v >= counts[dealer]:
                v, dealer = v - counts[dealer], dealer + 1
            w = counts[dealer] // self.K
            out.append((dealer, v // self.K if v < w * self.K else self.rows[dealer] // self.K + v - w * self.K))
        return out

    def held_out_rows(self, excluded: tuple[int, ...] = ()) -> list[tuple[int, int]]:
        return [
            (i, m // self.K - count + row)
            for i, (m, count) in enumerate(zip(self.rows, self.held_out, strict=True))
            if i not in excluded
            for row in range(count)
        ]


# -- 17.3: seeds -----------------------------------------------------------------------------------------------------


class Families:
    """The sets of a plan for T = 1, and the words of their seeds."""

    def __init__(self, plan: Plan) -> None:
        assert plan.T == 1, "this reader knows windows alone"
        self.plan, clients = plan, range(plan.N)
        self.masks = [(client,) for client in clients]
        self.zeros = self._windows(plan.D - plan.K)
        self.sums = self._windows(plan.D - 1) if plan.K > 1 else []
        self.sets = [*self.masks, *self.zeros, *self.sums, *[()] * plan.N]
        self.dealers = [*seed_dealers(self.sets[: len(self.sets) - plan.N], plan.N), *clients]
        self.first_zero = len(self.masks)
        self.first_sum = self.first_zero + len(self.zeros)
        self.first_common = self.first_sum + len(self.sums)

    def _windows(self, width: int) -> list[tuple[int, ...]]:
        found = [tuple(sorted((s + i) % self.plan.N for i in range(width))) for s in range(self.plan.N)]
        return list(dict.fromkeys(found))

    def point(self, client: int) -> int:
        return self.plan.K + self.plan.Td + 1 + client

    def _pi(self, members: tuple[int, ...], z: int, p: int) -> int:
        return math.prod(z - self.point(j) for j in members) % p

    def lagrange(self, k: int, z: int, p: int) -> int:
        others = [j for j in range(1, self.plan.K + 1) if j != k]
        return math.prod(z - j for j in others) * pow(math.prod(k - j for j in others), -1, p) % p

    def mask_word(self, s: int, k: int, client: int, p: int) -> int:
        z, members = self.point(client), self.masks[s]
        return self.lagrange(k, z, p) * self._pi(members, z, p) * pow(self._pi(members, k, p), -1, p) % p

    def zero_word(self, members: tuple[int, ...], client: int, p: int) -> int:
        z = self.point(client)
        return self._pi(members, z, p) * math.prod(z - k for k in range(1, self.plan.K + 1)) % p

    def sum_word(self, members: tuple[int, ...], client: int, p: int) -> int:
        z, shards = self.point(client), range(1, self.plan.K + 1)
        a = sum(self._pi(members, k, p) for k in shards)
        b = sum(k * self._pi(members, k, p) for k in shards)
        return self._pi(members, z, p) * (b - a * z) % p

    def is_certified(self, p: int) -> bool:
        """For every client c: the words of the sets that c is in have the ranks that the page asks for."""
        plan, clients = self.plan, range(self.plan.N)
        for c in clients:
            zeros = [[self.zero_word(e, j, p) for j in clients] for e in self.zeros if c in e]
            sums = [[self.sum_word(e, j, p) for j in clients] for e in self.sums if c in e]
            if rank(zeros, p) != plan.D - plan.K or (plan.K > 1 and rank(sums, p) != plan.D - 1):
                return False
        return True


def first_seeds(seeds: dict[int, bytes], run: bytes) -> dict[int, bytes]:
    purpose = label("dresfl derive") + label("hidden run") + run
    return {s: hmac.digest(seed, purpose, "sha256") for s, seed in seeds.items()}


def next_seeds(seeds: dict[int, bytes]) -> dict[int, bytes]:
    purpose = label("dresfl ratchet") + label("round")
    return {s: hmac.digest(seed, purpose, "sha256") for s, seed in seeds.items()}


class Expansion:
    """What one client makes of its seeds in one round."""

    def __init__(self, families: Families, client: int, seeds: dict[int, bytes]) -> None:
        self.families, self.plan, self.client, self.seeds = families, families.plan, client, seeds
        common = [seeds[s] for s in range(families.first_common, len(families.sets))]
        self.common_key = sha256(
            joined("common key", {"the round's seeds of the N empty sets in order": b"".join(common)})
        )

    @staticmethod
    def _key(seed: bytes, name: bytes) -> bytes:
        return hmac.digest(seed, label("dresfl hidden mask") + name, "sha256")

    def _uniform(self, key: bytes, count: int) -> Array:
        rows = []
        for m, p in enumerate(self.plan.moduli):
            found = words(key, "blinding", m, 0, count)
            limit = 2**32 // p * p
            rows.append([w % p if w < limit else blinding_word(key, p, m, j) for j, w in enumerate(found)])
        return np.array(rows, dtype=object).reshape(len(self.plan.moduli), count)

    @staticmethod
    def _bounded(key: bytes, bits: int, first: int, count: int) -> Array:
        limbs = -(-bits // 32)
        found = [words(key, "bounded", i, first, count) for i in range(limbs)]
        found[-1] = [w % 2 ** (bits - 32 * (limbs - 1)) for w in found[-1]]
        return np.array(
            [sum(w << (32 * i) for i, w in enumerate(column)) for column in zip(*found, strict=True)], object
        )

    def zeros(self, name: bytes, count: int, *, total: bool) -> Array:
        sums = total and self.plan.K > 1
        own, first = self.families, self.families.first_sum if sums else self.families.first_zero
        found: Array = np.zeros((len(self.plan.moduli), count), dtype=object)
        for s, members in enumerate(own.sums if sums else own.zeros):
            if self.client in members:
                continue
            form = own.sum_word if sums else own.zero_word
            at = [[form(members, self.client, p)] for p in self.plan.moduli]
            found = found + np.array(at, dtype=object) * self._uniform(self._key(self.seeds[first + s], name), count)
        return self.plan.mod(found)

    def bounded(self, name: bytes, bits: int, count: int, *, total: bool) -> Array:
        plan, own = self.plan, self.families
        found: Array = np.zeros((len(plan.moduli), count), dtype=object)
        for s, members in enumerate(own.masks):
            if self.client in members:
                continue
            key = self._key(self.seeds[s], name)
            shards = range(1, plan.K + 1)
            if total:
                at = [[sum(own.mask_word(s, k, self.client, p) for k in shards)] for p in plan.moduli]
                found = found + np.array(at, dtype=object) * self._bounded(key, bits, 0, count)
                continue
            for k in shards:
                at = [[own.mask_word(s, k, self.client, p)] for p in plan.moduli]
                found = found + np.array(at, dtype=object) * self._bounded(key, bits, (k - 1) * count, count)
        return plan.mod(found)

    def common(self, name: bytes, count: int) -> Array:
        return self._uniform(self._key(self.common_key, name), count)

    def pad(self, key: bytes, name: bytes, count: int) -> Array:
        return self._uniform(hmac.digest(key, label("dresfl pad") + name, "sha256"), count)


# -- 17.4: the chain -------------------------------------------------------------------------------------------------


@dataclass
class Chain:
    """Where a run stands."""

    plan: Plan
    run: bytes
    round: int = 0
    hop: int = 0
    losses: list[int] = field(default_factory=list)
    final: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        self.chain = self.omega = sha256(joined("genesis", {"run digest": self.run}))

    @property
    def hops(self) -> list[Hop]:
        return [self.plan.final] if self.final else self.plan.hops(self.round)

    @property
    def current(self) -> Hop:
        return self.hops[self.hop]

    @property
    def base(self) -> bytes:
        if not self.current.moves_weights:
            return self.chain
        losses = b"".join(loss.to_bytes(8, "little", signed=True) for loss in self.losses)
        digest = sha256(joined("losses digest", {"the losses so far, i64 each": losses}))
        terms = {"chain": self.chain, "omega": self.omega, "losses digest": digest}
        return sha256(joined("weights base", terms))

    @property
    def place(self) -> dict[str, bytes]:
        return {"round u32": struct.pack("<I", self.round), "hop u16": struct.pack("<H", self.hop)}

    def label(self, purpose: str, item: int = WHOLE) -> bytes:
        terms = {"base": self.base, **self.place, "item u16": struct.pack("<H", item), "purpose": label(purpose)}
        return sha256(joined("label", terms))

    def after_label(self, purpose: str) -> bytes:
        return sha256(joined("after label", {"chain": self.chain, "purpose": label(purpose)}))

    def advance(self, digest: bytes, loss: int | None = None) -> None:
        """A hop was published whose bytes have this hash."""
        hop = self.current
        terms = {"base": self.base, **self.place, "hash of what was published": digest}
        self.chain = sha256(joined("next chain", terms))
        if hop.moves_weights:
            self.omega = self.chain
        if loss is not None:
            self.losses.append(loss)
        self.hop += 1
        if self.hop < len(self.hops):
            return
        self.round, self.hop = self.round + 1, 0
        if self.final:
            self.ended = True
        elif self.round == self.plan.rounds or self.plan.stops(self.losses):
            self.final, self.ended = True, self.plan.settings["trial"]


def run_digest(
    roster: str,
    sharing: bytes,
    agreement: bytes,
    terms: bytes,
    coins: bytes,
    excluded: tuple[int, ...] = (),
    deviating: tuple[int, ...] = (),
) -> bytes:
    values = {
        "roster mark": sha256(
            joined("roster mark", {"the roster's digest as it stands in the agreement": roster.encode()})
        ),
        "sharing digest": sharing,
        "agreement digest": sha256(agreement),
        "terms digest": sha256(joined("terms digest", {"terms": terms})),
        "coins": coins,
        "number of excluded dealers u16": struct.pack("<H", len(excluded)),
        "excluded dealers, u16 each": b"".join(struct.pack("<H", dealer) for dealer in excluded),
        "number of deviating clients u16": struct.pack("<H", len(deviating)),
        "deviating clients, u16 each": b"".join(struct.pack("<H", client) for client in deviating),
    }
    return sha256(joined("run digest", values))


def stream_seed(seed: int, run: bytes) -> int:
    """Of the public stream that W_0 and the batches of a run come from."""
    return int.from_bytes(sha256(label("dresfl hidden stream"), seed.to_bytes(8, "little"), run)[:8], "little") // 2


def initial_weights(plan: Plan, seed: int) -> list[int]:
    """Section 13, with the hidden mode's scale."""
    key, found = public_key(seed), []
    for number, ((fan_in, fan_out), init) in enumerate(zip(plan.fans, plan.inits, strict=True)):
        width = init * math.sqrt(3 / fan_in)
        for i in range(fan_in * fan_out):
            u = (word(key, "weights", number, i) + 0.5) / 2**32
            found.append(round(((2 * u - 1) * width) * 2.0**plan.lw))
        found += [0] * fan_out
    return found


# -- 17.5 to 17.9: a client --------------------------------------------------------------------------------------------


class HiddenClient:
    """One client's hidden run. shares: what it holds of coded row (dealer, row), channel by channel."""

    def __init__(
        self,
        plan: Plan,
        index: int,
        run: bytes,
        seeds: dict[int, bytes],
        shares: dict[tuple[int, int], list[list[int]]],
        excluded: tuple[int, ...] = (),
    ) -> None:
        self.plan, self.index, self.families, self.shares, self.excluded = plan, index, Families(plan), shares, excluded
        self.chain, self.run = Chain(plan, run), run
        self.seeds = {0: first_seeds(seeds, run)}
        self.stream = stream_seed(plan.agreement["seed"], run)
        start = np.array([initial_weights(plan, self.stream)] * len(plan.moduli), dtype=object)
        self.weights = self.before = plan.mod(start)
        tries = math.log2(plan.num_hops * max(1, plan.N // plan.R))
        self.S, self.S_c = (math.ceil((bits + tries) / math.log2(plan.moduli[0])) for bits in (44, 104))
        self.checks: Array | None = None  # (M,2S)
        self.own: Array | None = None
        self.model: list[int] | None = None
        self._begin_round()

    def _begin_round(self) -> None:
        chain = self.chain
        self.expansion = self._expansion(chain.round)
        if chain.ended:
            return
        if chain.final:
            self.products = [Product(self.weights[:, : self.plan.P], None, 0.0)]
            return
        x, y = self._rows(self.plan.drawn(self.stream, chain.round, self.excluded))
        self.program = self._play(x, y, self.plan.steps_of(chain.round))
        self.products = next(self.program)

    def _expansion(self, number: int) -> Expansion:
        while number not in self.seeds:
            last = max(self.seeds)
            self.seeds[last + 1] = next_seeds(self.seeds[last])
        return Expansion(self.families, self.index, self.seeds[number])

    def _play(self, x: Array, y: Array, steps: list[tuple[int, int, int, int]]) -> Program:
        plan, number = self.plan, self.chain.round
        state = yield from plan.training(x, y, self.weights, self.before, steps)
        if plan.validates(number):
            yield from plan.validating(*self._rows(plan.held_out_rows(self.excluded)), state[:, : plan.P])
        return state

    def _rows(self, places: list[tuple[int, int]]) -> tuple[Array, Array]:
        moduli = range(len(self.plan.moduli))
        rows = np.array([[self.shares[place][m] for place in places] for m in moduli], dtype=object)
        return rows[:, :, : self.plan.inputs], rows[:, :, self.plan.inputs :]

    def _over_shards(self, values: Array) -> Array:
        return np.array(
            [[x * pow(self.plan.K, -1, p) % p for x in row] for row, p in zip(values, self.plan.moduli, strict=True)],
            dtype=object,
        )

    def _at_own_point(self, values: Array) -> Array:
        """(M,K,n) -> (M,n)."""
        z, shards = self.families.point(self.index), range(1, self.plan.K + 1)
        at = [[self.families.lagrange(k, z, p) for k in shards] for p in self.plan.moduli]
        return self.plan.mod(np.matmul(np.array(at, dtype=object)[:, None, :], values)[:, 0])

    def hidden(self) -> tuple[Array, Array, list[Array | None]]:
        """v, v blinded, and the high parts to go on with."""
        plan, chain, hop, values, highs = self.plan, self.chain, self.chain.current, [], []
        for number, (item, product) in enumerate(zip(hop.items, self.products, strict=True)):
            z = product.each if product.once is None else plan.mod(product.each + self._over_shards(product.once))
            if item.shift is None:
                if chain.final and plan.settings["model_for"] == "clients":
                    z = plan.mod(z + self.expansion.common(chain.label("model"), plan.P))
                values.append(z)
                highs.append(None)
                continue
            t, total = item.shift, hop.total
            high = self.expansion.bounded(
                chain.label("high", number), item.bits + plan.kappa - t, item.count, total=total
            )
            low = self.expansion.bounded(chain.label("low", number), t, item.count, total=total)
            up = [self._over_shards(part) if total else part for part in (high, low)]
            values.append(plan.mod(z + 2**t * up[0] + up[1]))
            highs.append(high)
        v = np.concatenate(values, 1)
        blinded = plan.mod(v + self.expansion.zeros(chain.label("zeros"), hop.count, total=hop.total))
        return v, blinded, highs

    def key(self) -> tuple[Array, Array]:
        """Q (M,K+1,6), and this client's share of the key (M,12)."""
        plan, chain, own = self.plan, self.chain, self.expansion
        q = own.common(chain.label("key"), (plan.K + 1) * WORDS).reshape(-1, plan.K + 1, WORDS)
        each = self._at_own_point(q[:, :-1]) + own.zeros(chain.label("key zeros"), WORDS, total=False)
        last = self._over_shards(q[:, -1]) + own.zeros(chain.label("key sums"), WORDS, total=True)
        if self.checks is not None:
            chi = own.common(chain.label("chi"), 2 * self.S * WORDS).reshape(-1, 2 * self.S, WORDS)
            each = each + np.matmul(self.checks[:, None, : self.S], chi[:, : self.S])[:, 0]
            last = last + np.matmul(self.checks[:, None, self.S :], chi[:, self.S :])[:, 0]
        return q, plan.mod(np.concatenate([each, last], 1))

    def packed(self, residues: Array) -> bytes:
        return b"".join(int(x).to_bytes(3, "little") for x in residues.reshape(-1))

    def answer(self) -> bytes | None:
        chain = self.chain
        if chain.ended or ((chain.round or chain.hop) and self.checks is None):
            return None
        _, blinded, _ = self.hidden()
        q, share = self.key()
        pad_key = sha256(joined("pad key", {"Q": self.packed(q)}))
        name = chain.label("pad")
        tag = sha256(joined("tag", {"label": name, "pad key": pad_key}))[:16]
        pad = self.expansion.pad(pad_key, name + struct.pack("<H", self.index), blinded.shape[1])
        values = self.packed(self.plan.mod(blinded + pad))
        place = {"round": chain.round, "hop": chain.hop, "chain": chain.chain, "tag": tag}
        return pack("HopAnswer", **place, key=self.packed(share), values=values)

    def lifted(self, values: Array) -> Array:
        """Residues (M,…) -> integers mods M."""
        product = math.prod(self.plan.moduli)
        total = sum(
            row * (product // p * pow(product // p, -1, p)) for row, p in zip(values, self.plan.moduli, strict=True)
        )
        return (total + product // 2) % product - product // 2

    def unpacked(self, published: bytes) -> Array:
        hop, plan = self.chain.current, self.plan
        shards = 1 if hop.total else plan.K
        count = len(plan.moduli) * shards * hop.count
        assert len(published) == 3 * count
        flat = [int.from_bytes(published[3 * i : 3 * i + 3], "little") for i in range(count)]
        found = np.array(flat, dtype=object).reshape(len(plan.moduli), shards, hop.count)
        assert (found == plan.mod(found)).all()
        return found

    def cut(self, item: Item, u: Array) -> Array:
        """⌊x/2^t⌋ of published residues (M,k,count), as residues."""
        plan = self.plan
        assert item.shift is not None
        t, n = item.shift, plan.n
        x = self.lifted(plan.mod(u + 2 ** (t - 1) - n * (2**t - 1) // 2))
        slack = 2**item.bits + 2 * n * 2**t
        assert ((x >= -slack) & (x <= n * 2 ** (item.bits + plan.kappa) + slack)).all()
        return plan.mod(np.array([x // 2**t] * len(plan.moduli), dtype=object))

    def receive(self, published: bytes) -> None:
        chain, plan, hop = self.chain, self.plan, self.chain.current
        u, (v, blinded, highs) = self.unpacked(published), self.hidden()
        going_on: list[Any] = []
        loss = None
        start = 0
        for item, high in zip(hop.items, highs, strict=True):
            part = u[:, :, start : start + item.count]
            start += item.count
            if high is None:
                if chain.final and plan.settings["model_for"] == "clients":
                    part = plan.mod(part - self.expansion.common(chain.label("model"), plan.P)[:, None])
                integers = self.lifted(part).reshape(-1).tolist()
                loss = integers[0] if hop.opens_loss else loss
                assert loss is None or abs(loss) < 2**62
                going_on.append(integers)
                continue
            kept = self.cut(item, part)
            going_on.append(plan.mod((kept[:, 0] if hop.total else self._at_own_point(kept)) - high))
        hat = self._over_shards(u[:, 0]) if hop.total else self._at_own_point(u)
        first = chain.hop == 0
        if chain.final:
            self.model = going_on[0][: plan.P]
            assert going_on[0] == self.model * plan.K
        else:
            try:
                self.products = self.program.send(going_on)
            except StopIteration as end:
                self.before, self.weights = self.weights, end.value
        self.after_total = hop.total
        chain.advance(sha256(published), loss)
        d = self._check(chain.after_label("rho"), plan.mod(v - hat), self.S, None)
        both = np.concatenate([0 * d, d] if hop.total else [d, 0 * d], 1)
        if first:
            self.checks = both
        elif self.checks is not None:
            self.checks = plan.mod(self.checks + both)
        if plan.settings["check"] == "C":
            self.own = self._check(chain.after_label("confirm"), plan.mod(blinded - hat), self.S_c, "factors")
        if chain.hop == 0:
            self._begin_round()

    def _check(self, name: bytes, difference: Array, count: int, public: str | None) -> Array:
        size = difference.shape[1]
        if public is None:
            rho = self.expansion.common(name, count * size)
        else:
            rho = self.expansion.pad(name, label(public), count * size)
        return self.plan.mod(np.matmul(rho.reshape(-1, count, size), difference[:, :, None])[:, :, 0])

    def _check_seal(self, client: int) -> Array:
        purpose = label("confirm seal") + struct.pack("<H", client)
        terms = {"chain": self.chain.chain, "purpose": purpose}
        return self.expansion.common(sha256(joined("after label", terms)), self.S_c)

    def sealed_check(self) -> bytes:
        """d of check C, for the other clients."""
        assert self.own is not None
        return self.packed(self.plan.mod(self.own + self._check_seal(self.index)))

    def opened_check(self, client: int, sealed: bytes) -> Array:
        """Another client's d."""
        count = len(self.plan.moduli) * self.S_c
        assert len(sealed) == 3 * count
        flat = [int.from_bytes(sealed[3 * i : 3 * i + 3], "little") for i in range(count)]
        found = np.array(flat, dtype=object).reshape(len(self.plan.moduli), self.S_c)
        return self.plan.mod(found - self._check_seal(client))

    def agrees(self, values: dict[int, Array]) -> bool:
        """Whether at least R + T check values, this client's own among them, lie on polynomials zero where they must.

        For clients that tell the truth: all values must agree.
        """
        plan, clients = self.plan, sorted(values)
        if len(clients) < plan.R + plan.T or self.own is None or (values[self.index] != self.own).any():
            return False
        first = {i: values[i] for i in clients[: plan.R]}
        if any((self._interpolated(first, self.families.point(i)) != values[i]).any() for i in clients[plan.R :]):
            return False
        shards = [self._interpolated(first, k) for k in range(1, plan.K + 1)]
        return not any(part.any() for part in ([plan.mod(sum(shards))] if self.after_total else shards))

    def _interpolated(self, values: dict[int, Array], at: int) -> Array:
        found: Any = 0
        for i in values:
            z, others = self.families.point(i), [self.families.point(j) for j in values if j != i]
            words = [
                [math.prod(at - x for x in others) * pow(math.prod(z - x for x in others), -1, p)]
                for p in self.plan.moduli
            ]
            found = found + np.array(words, dtype=object) * values[i]
        return self.plan.mod(found)

    # -- 17.9

    def catch_up(self, data: bytes) -> None:
        """Take over from a history."""
        plan, found = self.plan, read("history", data)
        states = [self.weights, self.weights]  # W_0: a client that comes back here has just begun
        chain, omega = Chain(plan, self.run), b""
        for number, hop, at, own_omega, _, _, losses, published in found["broadcasts"]:
            chain = Chain(plan, self.run, number, hop)
            chain.chain, chain.omega = at, omega or own_omega
            chain.losses = [int.from_bytes(losses[i : i + 8], "little", signed=True) for i in range(0, len(losses), 8)]
            self.chain, expansion, parts, start = chain, self._expansion(number), [], 0
            u = self.unpacked(published)
            for i, item in enumerate(chain.current.items):
                if item.shift is not None:
                    bits = item.bits + plan.kappa - item.shift
                    high = expansion.bounded(chain.label("high", i), bits, item.count, total=True)
                    parts.append(plan.mod(self.cut(item, u[:, :, start : start + item.count])[:, 0] - high))
                start += item.count
            states.append(np.concatenate(parts, 1))
            chain.advance(sha256(published))
            omega = chain.omega
        for _, part in found["after"]:
            self.chain = chain
            opens = chain.current.opens_loss
            loss = int(self.lifted(self.unpacked(part)).reshape(-1)[0]) if opens else None
            chain.advance(sha256(part) if opens else part, loss)
        self.chain, self.weights, self.before, self.checks = chain, states[-1], states[-2], None
        self._begin_round()
        for _, published in found["hops"]:
            self.receive(published)
