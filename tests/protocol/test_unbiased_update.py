"""Lemma 1 on the real code: over all batches and all rounding coins, a round's update is η∇ℓ, exactly.

Batches and coins are public random words. These tests put every outcome of them in turn through the whole round
(encode, answer, decode, step), with other clients missing each time, and add the weights up in fractions.
"""

import itertools
from fractions import Fraction

import pytest
import torch

from dresfl.coding import CodeParameters
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session, Training
from dresfl.quantize import stochastic_round
from dresfl.runtimes.local import Dropouts, LocalFederation
from outcomes import Outcomes

ROWS = (1, 1, 3, 1, 1)  # of each client; with two shards most coded rows hide leftovers, and B does not divide m


class Small:
    """A federation that is small enough for all its batches to be tried. Weights are multiples of ½."""

    def __init__(self, sizes, shards, input_bits, optimizer):
        self.sizes, self.input_bits = sizes, input_bits
        network = mlp(sizes, input_bits=input_bits, weight_bits=1)
        parameters = CodeParameters(len(ROWS), shards, 1, batch_size=2)
        self.session = Session(network=network, parameters=parameters, client_rows=ROWS, seed=3)
        generator = torch.Generator().manual_seed(5)
        self.data = [
            (
                torch.randint(-1, 3, (rows, sizes[0]), generator=generator, dtype=torch.int32),
                torch.randint(0, 2, (rows, sizes[-1]), generator=generator, dtype=torch.int32),
            )
            for rows in ROWS
        ]
        self.initial = torch.arange(network.num_parameters) * 7 % 5 - 2
        self.training = Training(self.session, optimizer, 2**31)
        survivors = tuple(itertools.permutations(range(len(ROWS)), self.session.recovery_threshold))
        dropouts = Dropouts((0.5,) * len(ROWS), 0, survivors)  # others in every round
        self.federation = LocalFederation(self.session, self.training, self.data, dropouts, "coded")
        self.outcomes = Outcomes(self.session)

    def update(self, draws, coin):
        """(W − W⁺) as integers, of one batch and one coin."""
        self.outcomes.draws, self.outcomes.coin = draws, coin
        self.training.weights = self.initial
        record, _ = self.federation.run_round()
        assert record.outcome == "stepped"
        return (self.initial - self.training.weights).tolist()

    def every_update(self, coins):
        """The updates of all batches and of coins (j + ½)/J: all are equally likely."""
        for draws in itertools.product(range(sum(ROWS)), repeat=self.session.batch_size):
            yield draws, [self.update(draws, Fraction(2 * j + 1, 2 * coins)) for j in range(coins)]

    def gradient(self):
        """∇ℓ at the initial weights, in fractions: the mean over all rows of all clients."""
        rows = [(x, y) for inputs, targets in self.data for x, y in zip(inputs.tolist(), targets.tolist(), strict=True)]
        return mean([row_gradient(self.sizes, self.initial.tolist(), self.input_bits, *row) for row in rows])


def row_gradient(sizes, weights, input_bits, inputs, targets):
    """∇ of ‖f(x) − y‖² by hand, in fractions; weights are integers times ½, a square lies between layers."""
    values, layers = [Fraction(w, 2) for w in weights], []
    for fan_in, fan_out in itertools.pairwise(sizes):
        matrix = [[values.pop(0) for _ in range(fan_out)] for _ in range(fan_in)]
        layers.append((matrix, [values.pop(0) for _ in range(fan_out)]))
    x, kept = [Fraction(v, 2**input_bits) for v in inputs], []
    for depth, (matrix, bias) in enumerate(layers):
        z = [sum(x[i] * matrix[i][j] for i in range(len(x))) + bias[j] for j in range(len(bias))]
        kept.append((x, z))
        x = [v * v for v in z] if depth < len(layers) - 1 else z
    delta, found = [2 * (a - b) for a, b in zip(x, targets, strict=True)], []
    for (matrix, _), (x, _), below in zip(layers[::-1], kept[::-1], [*kept[-2::-1], None], strict=True):
        found = [v * d for v in x for d in delta] + delta + found
        if below is not None:
            back = [sum(m * d for m, d in zip(row, delta, strict=True)) for row in matrix]
            delta = [2 * z * b for z, b in zip(below[1], back, strict=True)]
    return found


def mean(vectors):
    return [Fraction(sum(column), len(vectors)) for column in zip(*vectors, strict=True)]


def squares(vector):
    return sum(v * v for v in vector)


CASES = [  # sizes, shards, input bits, rate, coins: ηg/δ is a multiple of 1/coins
    ((2, 2), 1, 1, 2.0, 4),
    ((2, 2), 2, 1, 4.0, 4),
    ((2, 1, 2), 1, 0, 0.25, 8),
]


@pytest.mark.parametrize(("sizes", "shards", "input_bits", "rate", "coins"), CASES)
def test_the_update_is_unbiased_and_its_variance_is_that_of_batches_and_coins(sizes, shards, input_bits, rate, coins):
    small = Small(sizes, shards, input_bits, Optimizer("sgd", rate, "constant"))
    expected = [2 * Fraction(rate) * g for g in small.gradient()]  # ηδ⁻¹∇ℓ, in units of δ = ½
    of_batches, coin_variances, all_updates = [], [], []
    for _, updates in small.every_update(coins):
        centre = mean(updates)  # ηg/δ of this batch
        parts = [v - v.__floor__() for v in centre]
        coin_variances.append(sum(part * (1 - part) for part in parts))
        of_batches.append(centre)
        all_updates += updates
    assert mean(all_updates) == expected
    assert any(value for value in expected)
    # and the second moment: E‖u − η∇ℓ‖² = η²V + δ²EΣf(1−f), with no other term
    whole = mean([[squares(a - b for a, b in zip(update, expected, strict=True))] for update in all_updates])[0]
    batch_variance = mean([[squares(a - b for a, b in zip(g, expected, strict=True))] for g in of_batches])[0]
    assert batch_variance > 0
    assert any(coin_variances)
    assert whole == batch_variance + Fraction(sum(coin_variances), len(coin_variances))


def test_a_clipped_update_is_biased():
    """So the lemma is of plain steps; and a test of it can fail."""
    small = Small((2, 2), 1, 1, Optimizer("sgd", 1.0, "constant", max_norm=1.0))
    updates = [update for _, each in small.every_update(4) for update in each]
    expected = [float(2 * g) for g in small.gradient()]
    found = [float(v) for v in mean(updates)]
    # clipping to one length would be unbiased up to a factor only if all batches pointed one way
    cosine = sum(a * b for a, b in zip(found, expected, strict=True)) / (squares(found) * squares(expected)) ** 0.5
    assert cosine < 0.999


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_every_row_enters_batches_equally_often(shards):
    """Over all batches, whatever K: K times for each draw and each outcome."""
    rows = (*ROWS, 2, 2, 5, 1)
    parameters = CodeParameters(len(rows), shards, 1, batch_size=3)
    session = Session(network=mlp((2, 1), input_bits=1, weight_bits=1), parameters=parameters, client_rows=rows, seed=0)
    outcomes, seen = Outcomes(session), dict.fromkeys(((i, r) for i, m in enumerate(rows) for r in range(m)), 0)
    for x in range(sum(rows)):  # draws are independent, so one loop for all three is enough
        outcomes.draws = (x,) * 3
        batch = session.batch_rows(0)
        for dealer, row in zip(batch.dealers.tolist(), batch.rows.tolist(), strict=True):
            for original in session.shard_rows(dealer)[row].tolist():
                seen[dealer, original] += 1
    assert set(seen.values()) == {3 * shards}


@pytest.mark.parametrize("total", [3, 7, 1000, 2**31 - 1])
def test_the_outcomes_are_equally_likely(total):
    """Of 2^64 words each outcome x gets those from ⌈x·2^64/m⌉ on: ⌊2^64/m⌋ of them, or one more."""
    rows = (total - 2, 1, 1)
    network = mlp((2, 1), input_bits=1, weight_bits=1)
    session = Session(network=network, parameters=CodeParameters(3, batch_size=1), client_rows=rows, seed=0)
    outcomes = Outcomes(session)
    outcomes.draws = (0,)

    def place(word):
        outcomes.first_word = lambda x: word
        batch = session.batch_rows(0)
        return sum(rows[: int(batch.dealers[0])]) + int(batch.rows[0])

    for x in {1, 2, total // 2, total - 2, total - 1}:
        edge = -(-x * 2**64 // total)
        assert (place(edge - 1), place(edge)) == (x - 1, x)
    assert (place(0), place(2**64 - 1)) == (0, total - 1)


@pytest.mark.parametrize("power", [1, 4, 10, 20])
def test_no_gamma_bounds_the_variance_of_rounding_near_zero(power):
    """Assumption 3 of the paper wants Var Q(z) ≤ γ²z². At z = 2^−k it is z(1−z), so γ² would be 2^k − 1."""
    coins = 2**power
    noise = (torch.arange(coins, dtype=torch.float64) + 0.5) / coins
    for value in (1 / coins, -1 / coins):
        rounded = stochastic_round(torch.full_like(noise, value), noise)
        assert rounded.mean().item() == value
        variance = (rounded - value).square().mean().item()
        assert variance == pytest.approx((coins - 1) * value**2, rel=1e-12)
        assert variance <= min(0.25, abs(value))  # what holds instead
