"""The right-hand sides: they grow with what they should, and the right one holds where the printed one does not."""

from dataclasses import replace

import pytest

from dresfl.errors import UsageError
from dresfl.experiments.convergence import Constants, bound, bound_along, paper_bound

KNOWN = Constants(
    start_gap=3.0, smoothness=20.0, rate=0.01, grid=2**-6, num_weights=650, batch_variance=4.0, absolute_gradient=100.0
)


def test_a_rate_beyond_the_smoothness_is_refused():
    with pytest.raises(UsageError, match="ηL < 2"):
        replace(KNOWN, rate=0.1)


def test_each_term_by_itself():
    far = 10**12  # the start is forgotten
    assert bound(replace(KNOWN, batch_variance=0.0, grid=0.0), 100) == pytest.approx(3 / (0.01 * 100 * 0.9))
    assert bound(replace(KNOWN, grid=0.0), far) == pytest.approx(20 * 0.01 * 4 / (2 * 0.9))
    # rounding: δ²P/4 on a fine grid, δηG on a coarse one
    fine, coarse = replace(KNOWN, batch_variance=0.0, grid=2**-10), replace(KNOWN, batch_variance=0.0, grid=2**-2)
    assert bound(fine, far) == pytest.approx(20 * 2**-20 * 650 / 4 / 0.01 / (2 * 0.9))
    assert bound(coarse, far) == pytest.approx(20 * 2**-2 * 100 / (2 * 0.9))


def test_the_bound_is_that_along_a_run_with_the_largest_variances():
    assert bound(KNOWN, 50) == bound_along(KNOWN, 50, KNOWN.batch_variance, KNOWN.rounding_variance)
    assert bound(KNOWN, 50) > bound_along(KNOWN, 50, 2.0, KNOWN.rounding_variance / 2)


def printed(known, steps, gamma_squared=0.0, batch_size=8):
    variance = known.batch_variance
    return paper_bound(
        known, steps, shard_variance=variance, gamma_squared=gamma_squared, batch_size=batch_size, num_shards=1
    )


def test_the_printed_second_term_has_one_rate_and_one_batch_size_too_many():
    known, far = replace(KNOWN, grid=0.0), 10**12
    ratio = bound(known, far) / printed(known, far)
    assert ratio == pytest.approx(8 / known.rate)


def test_the_printed_bound_says_nothing_for_a_large_gamma():
    assert printed(KNOWN, 10, gamma_squared=8.0) is not None
    assert printed(KNOWN, 10, gamma_squared=10.0) is None


@pytest.mark.parametrize("rate", [0.4, 0.1, 0.02])
def test_one_weight_whose_noise_is_known_in_full(rate):
    """ℓ = w²/2 with gradient noise ±s: E w² goes to ηs²/(2 − η). The bound is met, the printed one is broken."""
    noise, square, total, steps = 4.0, 1.0, 0.0, 5000
    for _ in range(steps):
        total += square  # E‖∇ℓ‖² = E w²
        square = (1 - rate) ** 2 * square + rate**2 * noise
    known = Constants(0.5, 1.0, rate, 0.0, 1, noise, 10.0)
    assert printed(known, steps, batch_size=1) < total / steps <= bound(known, steps)
    assert square == pytest.approx(bound(known, 10**15), rel=1e-6)  # in the limit no smaller bound holds


@pytest.mark.parametrize("rate", [0.4, 0.1, 0.02])
def test_one_weight_on_a_grid(rate):
    """The same with no noise but rounding, from exact chances: the walk stays in motion, whatever the rate."""
    grid, steps, width = 0.25, 3000, 8
    places = range(-width, width + 1)  # w = grid·place; the minimum lies between two places
    target = grid / 2
    chances = dict.fromkeys(places, 0.0)
    chances[4] = 1.0
    total, largest = 0.0, 0.0
    for _ in range(steps):
        total += sum(chance * (grid * place - target) ** 2 for place, chance in chances.items())
        largest = max(largest, sum(chance * abs(grid * place - target) for place, chance in chances.items()))
        after = dict.fromkeys(places, 0.0)
        for place, chance in chances.items():
            moved = place - rate * (grid * place - target) / grid
            low = int(moved // 1)
            after[low] += chance * (1 - (moved - low))
            if moved > low:
                after[low + 1] += chance * (moved - low)
        chances = after
    known = Constants((4 * grid - target) ** 2 / 2, 1.0, rate, grid, 1, 0.0, largest)
    assert printed(known, steps) < total / steps <= bound(known, steps)
