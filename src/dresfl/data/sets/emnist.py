"""EMNIST, the balanced split: handwritten letters and digits."""

from functools import partial

from dresfl.data.idx import idx_pair, read_images
from dresfl.data.sources import image_source

SOURCE = image_source(
    "emnist",
    "EMNIST",
    num_classes=47,
    train=idx_pair("EMNIST/raw/emnist-balanced-train"),
    test=idx_pair("EMNIST/raw/emnist-balanced-test"),
    parse=partial(read_images, transposed=True),  # NIST's files hold images column by column, unlike MNIST's
)
