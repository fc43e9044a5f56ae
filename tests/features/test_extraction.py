"""Images to features: a user's own module, the cache, resizing, and what is refused."""

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from dresfl.data import DataSet, Split
from dresfl.errors import DataError, DresError, UsageError
from dresfl.features import Features, extract_features
from dresfl.features.cache import read_rows, write_rows
from dresfl.features.extractor import load_extractor, resized
from dresfl.features.split import extracted

from .test_vgg import tiny_weights

MEANS = """
import torch

class Means(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, images):
        print("extracting")
        return self.scale * images.mean((2, 3))

def means():
    return Means()

def drawn():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16, 5))

def wide():
    return torch.nn.Identity()

def huge():
    return torch.nn.Sequential(means(), Times(1e6))

def picky():
    return torch.nn.Linear(7, 7)

def broken():
    raise ValueError("no such weights")

def nothing():
    return 3

class Times(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(MEANS)
    return lambda function: Features(extractor=f"{tmp_path / 'own.py'}:{function}", image_size=0)


def images(rows, channels=3, seed=0):
    generator = np.random.default_rng(seed)
    inputs = generator.random((rows, 4, 4, channels)).astype(np.float32)
    return DataSet(inputs, generator.integers(0, 2, rows), 2, "toy")


@pytest.fixture
def split():
    return Split(images(70), images(5, seed=1))  # more than two blocks on a CPU, and less than one


@pytest.mark.parametrize("channels", [1, 3])
def test_a_users_own_module(own, channels):
    split = Split(images(70, channels), images(5, channels, seed=1))
    got = extract_features(split, own("means"), None, "cpu")
    for part, original in ((got.train, split.train), (got.test, split.test)):
        wanted = np.broadcast_to(2 * original.inputs.mean((1, 2)), (original.num_rows, 3))  # gray: three times
        assert part.inputs.dtype == np.float32
        np.testing.assert_allclose(part.inputs, wanted, rtol=1e-3)
        assert np.array_equal(part.labels, original.labels)


def test_weights_drawn_at_random_are_the_same_each_time(own, split):
    before = torch.random.get_rng_state()
    first, again = (extract_features(split, own("drawn"), None, "cpu").train.inputs for _ in range(2))
    assert np.array_equal(first, again)
    assert first.shape == (70, 5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_features_say_what_they_were_made_from(own, split, tmp_path):
    made = extract_features(split, own("drawn"), None, "cpu").origin
    assert made.data == split.origin.data
    again = extract_features(split, Features(own("drawn").extractor, image_size=0, power=0.5), None, "cpu").origin
    assert again == made  # settings are in the record's configuration; the weights are the same
    (tmp_path / "own.py").write_text(MEANS.replace("2.0", "3.0"))
    assert extract_features(split, own("means"), None, "cpu").origin.extractor not in (None, made.extractor)
    moved = extract_features(split, Features(center=0.5), None, "cpu").origin
    assert (moved.data, moved.extractor) == (split.origin.data, None)
    assert extract_features(split, Features(), None, "cpu").origin == split.origin


def test_features_are_extracted_once(own, split, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DRESFL_CACHE", raising=False)
    data = tmp_path / "data"
    first = extract_features(split, own("means"), data, "cpu")
    assert capsys.readouterr().out.count("extracting") == 4
    again = extract_features(split, own("means"), data, "cpu")
    other = extract_features(split, Features(own("means").extractor, image_size=0, power=0.5), data, "cpu")
    assert capsys.readouterr().out == ""
    assert np.array_equal(first.train.inputs, again.train.inputs)
    np.testing.assert_allclose(other.test.inputs, np.sqrt(first.test.inputs), rtol=1e-6)
    files = sorted(path.name for path in (data / "features").iterdir())
    assert [name.rpartition(".")[2] for name in files] == ["json", "lock", "npy"] * 2
    stored = np.load(data / "features" / files[5])
    assert (stored.dtype, stored.shape) == (np.float16, (70, 3))
    description = json.loads((data / "features" / files[3]).read_text())
    assert (description["data"], description["part"], description["device"]) == ("toy", "train", "cpu")
    assert description["images_sha256"] == hashlib.sha256(split.train.inputs.tobytes()).hexdigest()


def test_what_decides_the_features_decides_the_file(own, split, tmp_path, monkeypatch):
    """Other images, another size, other code: another file. Another cache folder: that folder."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("DRESFL_CACHE", str(cache))

    def count():
        return len(list(cache.glob("*-train-*.npy")))

    settings = own("means")
    extract_features(split, settings, None, "cpu")
    assert count() == 1
    extract_features(Split(images(70, seed=5), split.test), settings, None, "cpu")
    assert count() == 2
    extract_features(split, Features(settings.extractor, image_size=8), None, "cpu")
    assert count() == 3
    (tmp_path / "own.py").write_text(MEANS.replace("2.0", "3.0"))
    extract_features(split, settings, None, "cpu")
    assert count() == 4
    extract_features(split, own("drawn"), None, "cpu")
    assert count() == 5


def test_a_killed_extraction_leaves_nothing_to_read(own, split, tmp_path, monkeypatch):
    def some(extractor, images):
        yield next(extracted(extractor, images))
        raise KeyboardInterrupt

    monkeypatch.setattr("dresfl.features.split.extracted", some)
    with pytest.raises(KeyboardInterrupt):
        extract_features(split, own("means"), tmp_path, "cpu")
    monkeypatch.undo()
    assert [path.suffix for path in sorted((tmp_path / "features").iterdir())] == [".json", ".lock"]
    assert extract_features(split, own("means"), tmp_path, "cpu").train.input_shape == (3,)


def test_cache_files_are_checked(tmp_path):
    path = tmp_path / "x.npy"
    blocks = [np.full((2, 3), 1, np.float16), np.full((1, 3), 2, np.float16)]
    write_rows(path, 3, iter(blocks))
    assert np.array_equal(read_rows(path, 3), np.concatenate(blocks))
    with pytest.raises(DataError, match="wanted 4 rows"):
        read_rows(path, 4)
    np.save(path, np.zeros((3, 3), np.float32))
    with pytest.raises(DataError, match="float32"):
        read_rows(path, 3)
    path.write_bytes(b"junk")
    with pytest.raises(DataError, match="cannot read") as caught:
        read_rows(path, 3)
    assert "delete the file" in caught.value.hint
    with pytest.raises(RuntimeError, match="3 of 4 rows"):
        write_rows(tmp_path / "short.npy", 4, iter(blocks))
    assert not list(tmp_path.glob("short*"))


def test_a_folder_that_cannot_be_written_is_named(own, split, tmp_path):
    (tmp_path / "features").write_text("a file")
    with pytest.raises(DresError, match="cannot write the features") as caught:
        extract_features(split, own("means"), tmp_path, "cpu")
    assert "DRESFL_CACHE" in caught.value.hint


def test_of_two_runs_one_extracts(own, split, tmp_path, capsys):
    """Locks belong to open files, so threads stand for processes here."""
    together = threading.Barrier(2)

    def run():
        together.wait()
        return extract_features(split, own("means"), tmp_path, "cpu").train.inputs

    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result() for future in [pool.submit(run), pool.submit(run)])
    assert capsys.readouterr().out.count("extracting") == 4
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        ("wide", DataError, "wanted (32, F)"),
        ("huge", DataError, "beyond float16's 65504"),
        ("picky", DataError, "failed: RuntimeError"),
        ("broken", UsageError, "failed: ValueError: no such weights"),
        ("absent", UsageError, "failed: AttributeError"),
        ("nothing", UsageError, "returned a int, wanted a torch.nn.Module"),
    ],
)
def test_what_an_own_module_does_wrong_is_said(own, split, function, error, words):
    with pytest.raises(error) as caught:
        extract_features(split, own(function), None, "cpu")
    assert words in str(caught.value)


def test_missing_files_are_named(split, tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        extract_features(split, Features("nowhere.py:f"), None, "cpu")
    with pytest.raises(DataError, match="data folder"):
        extract_features(split, Features("vgg19"), None, "cpu")
    with pytest.raises(DataError, match="no VGG19 checkpoint"):
        extract_features(split, Features("vgg19"), tmp_path, "cpu")
    rows = DataSet(np.zeros((2, 3), np.float32), np.array([0, 1]), 2, "rows")
    (tmp_path / "own.py").write_text(MEANS)
    with pytest.raises(DataError, match="wants images"):
        extract_features(Split(rows, rows), Features(f"{tmp_path / 'own.py'}:means"), None, "cpu")


@pytest.mark.parametrize("size", [3, 4, 7, 28])
def test_resizing_is_bilinear_without_aligned_corners(size):
    """Growing: by the formula, edges repeated. Shrinking: antialiased, as torchvision's Resize does on tensors."""
    image = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = resized(image, size)
    assert got.shape == (1, 3, size, size)
    ratio = 4 / size
    reach = max(1.0, ratio)  # a triangle as wide as the coarser of both grids
    weights = np.zeros((size, 4))
    for place in range(size):
        centre = (place + 0.5) * ratio
        weights[place] = np.maximum(0, 1 - np.abs(np.arange(4) + 0.5 - centre) / reach)
        weights[place] /= weights[place].sum()
    wanted = weights @ image.numpy() @ weights.T
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-6)
    assert resized(image, 0) is image


def test_a_block_that_does_not_fit_is_halved(own, split, monkeypatch):
    """Where memory runs out, smaller blocks give the same features."""
    extractor = load_extractor(own("means"), None, "cpu")
    wanted = np.concatenate(list(extracted(extractor, split.train.inputs)))
    forward = type(extractor.module).forward
    sizes = []

    def small(module, batch):
        sizes.append(len(batch))
        if len(batch) > 9:
            raise torch.OutOfMemoryError("too large")
        return forward(module, batch)

    monkeypatch.setattr(type(extractor.module), "forward", small)
    got = np.concatenate(list(extracted(extractor, split.train.inputs)))
    assert sizes[:4] == [32, 16, 8, 8]
    assert np.array_equal(got, wanted)
    monkeypatch.setattr(type(extractor.module), "forward", lambda module, batch: small(module, range(99)))
    with pytest.raises(torch.OutOfMemoryError):
        next(extracted(extractor, split.train.inputs))


def test_without_an_extractor_pixels_are_transformed(split):
    got = extract_features(split, Features(center=0.5, scale=2), None, "cpu")
    for part, pixels in ((got.train, split.train.inputs), (got.test, split.test.inputs)):
        assert np.array_equal(part.inputs, (pixels - np.float32(0.5)) * np.float32(2))  # images stay images
    by_row = extract_features(split, Features(l2_norm=True), None, "cpu").train
    assert by_row.input_shape == (4, 4, 3)
    np.testing.assert_allclose(np.linalg.norm(by_row.inputs.reshape(70, -1), axis=1), 1, rtol=1e-6)
    assert extract_features(split, Features(), None, "cpu") is split


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_extracts_the_same_up_to_float16(tmp_path):
    """Five blocks of which the last is filled up; vgg19 in float16, a module of the user's in its own precision."""
    torch.save(tiny_weights(), tmp_path / "tiny.pth")
    (tmp_path / "own.py").write_text(MEANS)
    pixels = np.random.default_rng(0).random((1100, 32, 32, 3)).astype(np.float32)
    for settings, tolerance in (
        (Features("vgg19", "tiny.pth", image_size=64), 0.02),
        (Features(f"{tmp_path / 'own.py'}:means", image_size=16), 0.001),
    ):
        cpu, cuda = (
            np.concatenate(list(extracted(load_extractor(settings, tmp_path, device), pixels)))
            for device in ("cpu", "cuda")
        )
        assert cuda.dtype == np.float16
        np.testing.assert_allclose(cuda, cpu, rtol=tolerance, atol=tolerance * cpu.max())


def test_mirrored_features_are_the_mean_of_both_and_cached_apart(tmp_path):
    images = np.random.default_rng(3).random((2, 4, 4, 3), np.float32)
    data = Split(*(DataSet(images, np.array([0, 1]), 2, "two"),) * 2)
    name = f"{tmp_path / 'own.py'}:drawn"
    (tmp_path / "own.py").write_text(MEANS)
    plain, mirrored = (
        extract_features(data, Features(extractor=name, image_size=4, mirror=mirror), tmp_path, "cpu").train.inputs
        for mirror in (False, True)
    )
    turned = Split(*(DataSet(images[:, :, ::-1].copy(), np.array([0, 1]), 2, "two"),) * 2)
    other = extract_features(turned, Features(extractor=name, image_size=4), tmp_path, "cpu").train.inputs
    assert np.abs(mirrored - (plain + other) / 2).max() < 2e-3  # float16's rounding
    assert np.abs(plain - other).max() > 0.05
    with pytest.raises(UsageError, match="mirror"):
        Features(mirror=True)
