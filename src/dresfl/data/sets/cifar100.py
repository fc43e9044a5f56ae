"""CIFAR-100, with its fine labels."""

from functools import partial

from dresfl.data.pickles import binary_rows, read_cifar
from dresfl.data.sources import Published, image_source

# The coarse class of each fine class. The binary version, whose checksums are known, has both.
_COARSE = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)  # fmt: skip

SOURCE = image_source(
    "cifar100",
    "CIFAR-100",
    num_classes=100,
    train=("cifar-100-python/train",),
    test=("cifar-100-python/test",),
    parse=partial(read_cifar, label_key="fine_labels"),
    content=partial(binary_rows, label_key="fine_labels", coarse=_COARSE),
    # the files' MD5 as torchvision has them, then SHA-1 of the same rows in the binary version, as MXNet has them
    published=(
        Published(("16019d7e3df5f24257cddd939b257f8d",), ("e207cd2e05b73b1393c74c7f5e7bea451d63e08e",), 153_700_000),
        Published(("f0ef6b0ae62326f3e7ffdfab6717acfc",), ("8fb6623e830365ff53cf14adec797474f5478006",), 30_740_000),
    ),
)
