"""MNIST: handwritten digits."""

from dresfl.data.idx import idx_pair, read_images
from dresfl.data.sources import image_source

SOURCE = image_source(
    "mnist",
    "MNIST",
    num_classes=10,
    train=idx_pair("MNIST/raw/train"),
    test=idx_pair("MNIST/raw/t10k"),
    parse=read_images,
)
