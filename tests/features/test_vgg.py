"""VGG19's stack against one written out by hand, with small random weights under a checkpoint's names."""

import hashlib

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from dresfl.errors import DataError
from dresfl.features import Features, check_weights, official
from dresfl.features.extractor import load_extractor
from dresfl.features.vgg import VGG19, load_vgg19

# Configuration E of the paper, with torchvision's numbers: a width, or M for max pooling.
LAYOUT = [4, 4, "M", 3, 5, "M", 4, 4, 4, 4, "M", 5, 5, 5, 5, "M", 6, 6, 6, 6, "M"]
CONVOLUTIONS = (0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34)
POOLINGS = (4, 9, 18, 27, 36)


def tiny_weights():
    generator = torch.Generator().manual_seed(0)
    weights, channels = {}, 3
    for number, width in zip(CONVOLUTIONS, (w for w in LAYOUT if w != "M"), strict=True):
        weights[f"features.{number}.weight"] = torch.randn(width, channels, 3, 3, generator=generator) * 0.25
        weights[f"features.{number}.bias"] = torch.randn(width, generator=generator) * 0.1
        channels = width
    return weights


def by_hand(weights, images):
    """In float64, layer by layer as numbered, from images (B,3,H,W) in [0, 1]."""
    x = images.double()
    for channel, (mean, std) in enumerate(((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))):
        x[:, channel] = (x[:, channel] - mean) / std
    for number in range(37):
        if number in CONVOLUTIONS:
            weight, bias = (weights[f"features.{number}.{part}"].double() for part in ("weight", "bias"))
            x = functional.conv2d(x, weight, bias, padding=1)
        elif number in POOLINGS:
            x = functional.max_pool2d(x, 2)
        else:
            x = x.clamp(min=0)
    return functional.adaptive_avg_pool2d(x, 7).flatten(1)


@pytest.mark.parametrize("size", [32, 64, 224])
def test_the_stack_is_the_one_written_out_by_hand(size):
    weights = tiny_weights()
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    got = VGG19(weights)(images)
    wanted = by_hand(weights, images)
    assert got.shape == (2, 6 * 7 * 7)
    assert got.dtype == torch.float32
    assert wanted.max() > 0.01
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.max()))


def test_one_convolution_by_plain_sums():
    """The innermost twin's own check: a convolution and its ReLU as sums over windows, in NumPy."""
    weights = tiny_weights()
    image = np.random.default_rng(0).random((3, 6, 6)).astype(np.float32)
    weight, bias = (weights[f"features.0.{part}"].numpy() for part in ("weight", "bias"))
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
    wanted = np.empty((4, 6, 6), np.float32)
    for channel, row, column in np.ndindex(4, 6, 6):
        wanted[channel, row, column] = (weight[channel] * padded[:, row : row + 3, column : column + 3]).sum()
    wanted = np.maximum(wanted + bias[:, None, None], 0)
    got = VGG19(weights).features[:2](torch.from_numpy(image)[None])[0]
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_features_are_in_torchvisions_order():
    """At 224 the last pooling leaves 7x7, and a row is channel by channel, each row by row."""
    model = VGG19(tiny_weights())
    images = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(2))
    maps = model.features((images - model.mean) / model.std)  # (1,6,7,7)
    assert maps.shape == (1, 6, 7, 7)
    features = model(images).view(6, 7, 7)
    torch.testing.assert_close(features, maps[0], rtol=1e-5, atol=1e-6)


def test_float16_stays_close():
    model = VGG19(tiny_weights())
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    exact = model(images)
    model.use(torch.float16)
    half = model(images)
    assert half.dtype == torch.float16
    assert model.mean.dtype == torch.float32
    torch.testing.assert_close(half.float(), exact, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("name", ["vgg.pth", "vgg.safetensors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_checkpoints_are_read_as_they_come(tmp_path, name, dtype):
    weights = {key: tensor.to(dtype) for key, tensor in tiny_weights().items()}
    whole = {**weights, "classifier.0.weight": torch.zeros(3, 3)}
    save = save_file if name.endswith("safetensors") else torch.save
    save(whole, tmp_path / name)
    loaded = load_vgg19(tmp_path / name)
    assert loaded.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[key].float()) for key, tensor in loaded.state_dict().items())


class Program:
    """What a hostile checkpoint would hold: unpickling it calls something."""

    def __reduce__(self):
        return (print, ("ran",))


def test_bad_checkpoints_are_refused(tmp_path, capsys):
    with pytest.raises(DataError, match="there is no VGG19 checkpoint") as caught:
        load_vgg19(tmp_path / "nowhere.pth")
    assert "features.weights" in caught.value.hint
    for name in ("junk.pth", "junk.safetensors"):
        (tmp_path / name).write_bytes(b"junk")
        with pytest.raises(DataError, match="cannot read the checkpoint"):
            load_vgg19(tmp_path / name)
    torch.save(Program(), tmp_path / "hostile.pth")
    with pytest.raises(DataError, match="cannot read the checkpoint"):
        load_vgg19(tmp_path / "hostile.pth")
    assert capsys.readouterr().out == ""
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    with pytest.raises(DataError, match="holds a list"):
        load_vgg19(tmp_path / "list.pth")


def test_another_network_is_refused():
    weights = tiny_weights()
    del weights["features.34.bias"]
    with pytest.raises(DataError, match=r"features\.34: .* has none"):
        VGG19(weights)
    with pytest.raises(DataError, match=r"features\.5: wanted weights") as caught:
        VGG19({**tiny_weights(), "features.5.weight": torch.zeros(3, 9, 3, 3)})
    assert "vgg19_bn" in caught.value.hint


def test_a_checkpoint_is_told_by_its_checksum(tmp_path, monkeypatch):
    assert [one.verdict for one in check_weights(tmp_path)] == ["missing"]
    path = tmp_path / "vgg19-features.pth"
    torch.save(tiny_weights(), path)
    (found,) = check_weights(tmp_path)
    assert found.verdict == "other file"
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    settings = Features(extractor="vgg19", image_size=32)
    assert load_extractor(settings, tmp_path, "cpu").weights_sha256 in found.note
    monkeypatch.setattr(official, "_TORCHVISION", found.sha256)
    assert [one.verdict for one in check_weights(tmp_path)] == ["official"]
    path.write_bytes(b"no checkpoint")
    assert [one.verdict for one in check_weights(tmp_path)] == ["damaged"]
