"""SVHN, cropped digits: house numbers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dresfl.data.dataset import Labels
from dresfl.data.files import damaged
from dresfl.data.mat import read_mat
from dresfl.data.sources import Pixels, Published, image_source


def _read(paths: Sequence[Path]) -> tuple[Pixels, Labels]:
    variables = read_mat(paths[0])
    if not {"X", "y"} <= variables.keys():
        raise damaged(paths[0], f"holds {sorted(variables)}, wanted X and y")
    images, labels = variables["X"], variables["y"].ravel().astype(np.int64)
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise damaged(paths[0], f"its X has the shape {images.shape}, wanted (32, 32, 3, rows)")
    labels[labels == 10] = 0  # the authors number the digits 1 to 10
    return images.transpose(3, 0, 1, 2), labels  # (H,W,C,B) -> (B,H,W,C)


SOURCE = image_source(
    "svhn",
    "SVHN",
    num_classes=10,
    train=("SVHN/train_32x32.mat",),
    test=("SVHN/test_32x32.mat",),
    parse=_read,
    # the files' MD5 as torchvision has them; no checksum of their values is published
    published=(Published(("e26dedcc434d2e4c54c9b2d4a06d8373",)), Published(("eb5a983be6a315427106f1b164d9cef3",))),
)
