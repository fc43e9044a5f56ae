"""Images in folders by class."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dresfl.errors import DataError
from dresfl.tables import image_classes, read_image_folder


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_pixels_and_classes(tmp_path: Path) -> None:
    gray = np.arange(20, dtype=np.uint8).reshape(4, 5)
    save(tmp_path / "dog" / "b.png", gray)
    save(tmp_path / "cat" / "a.PNG", gray + 100)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    classes = image_classes([tmp_path])
    assert classes == ("cat", "dog")
    data = read_image_folder(tmp_path, classes)
    np.testing.assert_array_equal(
        data.inputs[..., 0], np.stack([gray + 100, gray]).astype(np.float32) / np.float32(255)
    )
    assert data.labels.tolist() == [0, 1]


def test_colours_and_sizes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    save(tmp_path / "cat" / "a.png", generator.integers(0, 256, (4, 4, 3), np.uint8))
    save(tmp_path / "dog" / "b.png", generator.integers(0, 256, (6, 4), np.uint8))
    with pytest.raises(DataError, match="2 sizes"):
        read_image_folder(tmp_path, ("cat", "dog"))
    data = read_image_folder(tmp_path, ("cat", "dog"), image_size=4)
    assert data.input_shape == (4, 4, 3)
    assert (data.inputs[1, ..., 0] == data.inputs[1, ..., 2]).all()


def test_what_is_no_image(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "a.png", np.zeros((4, 4), np.uint8))
    with pytest.raises(DataError, match="1 folders"):
        image_classes([tmp_path])
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "b.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"b\.jpg is no image"):
        read_image_folder(tmp_path, ("cat", "dog"))
    with pytest.raises(DataError, match="no images"):
        read_image_folder(tmp_path, ("bird", "fish"))
