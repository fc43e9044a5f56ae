"""The transforms of single rows against their formulas in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import UsageError
from dresfl.features import Features
from dresfl.features.split import _all_transformed
from dresfl.features.transforms import transformed

values = st.floats(-1000, 1000, width=16)
settings = st.builds(
    Features,
    power=st.sampled_from([1.0, 0.5, 0.25, 2.0]),
    l2_norm=st.booleans(),
    center=st.sampled_from([0.0, 0.5, -3.0]),
    scale=st.sampled_from([1.0, 512.0, -0.1]),
)


def by_hand(row, settings):
    row = [math.copysign(abs(x) ** settings.power, x) for x in row]
    norm = math.sqrt(sum(x * x for x in row)) or 1.0
    row = [x / norm for x in row] if settings.l2_norm else row
    return [(x - settings.center) * settings.scale for x in row]


@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=1, max_size=5), settings)
def test_rows_follow_the_formula(rows, settings):
    got = transformed(torch.tensor(rows, dtype=torch.float16), settings)
    assert got.dtype == torch.float32
    largest = max(1.0, 1000**settings.power) * abs(settings.scale)
    for row, wanted in zip(got.tolist(), (by_hand(row, settings) for row in rows), strict=True):
        assert row == pytest.approx(wanted, rel=2e-6, abs=2e-6 * largest)


def test_a_row_is_transformed_alone():
    """The same bits in any company, in pieces or whole: a client needs nobody else's rows."""
    generator = np.random.default_rng(0)
    rows = np.maximum(generator.standard_normal((7, 200_000), np.float32), 0).astype(np.float16)  # two rows a piece
    settings = Features(power=0.5, l2_norm=True, center=0.001, scale=3)
    whole = _all_transformed(rows, settings)
    for place in (0, 3, 6):
        alone = transformed(torch.from_numpy(rows[place : place + 1]), settings)
        assert np.array_equal(whole[place], alone[0].numpy())
    assert np.linalg.norm(whole[0] / 3 + np.float32(0.001)) == pytest.approx(1, rel=1e-4)


def test_inputs_stay_as_they_are():
    rows = torch.tensor([[4.0, -9.0]])
    assert transformed(rows, Features(power=0.5)).tolist() == [[2, -3]]
    assert rows.tolist() == [[4, -9]]
    assert transformed(rows, Features()).tolist() == [[4, -9]]
    assert transformed(torch.zeros(1, 2), Features(l2_norm=True)).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"extractor": "vgg16"}, "features.extractor = 'vgg16' is not known"),
        ({"extractor": "file.py"}, "is not known"),
        ({"extractor": "file.txt:f"}, "is not known"),
        ({"extractor": "file.py:f()"}, "is not known"),
        ({"image_size": -1}, "image_size"),
        ({"image_size": 10**6}, "image_size"),
        ({"extractor": "vgg19", "image_size": 16}, "at least 32"),
        ({"power": 0.0}, "power must be positive"),
        ({"power": -1.0}, "power must be positive"),
        ({"scale": 0.0}, "scale must not be 0"),
    ],
)
def test_wrong_settings_are_refused(wrong, words):
    with pytest.raises(UsageError, match=words.replace(".", r"\.")):
        Features(**wrong)
