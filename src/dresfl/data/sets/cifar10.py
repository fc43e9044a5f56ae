"""CIFAR-10."""

from functools import partial

from dresfl.data.pickles import read_cifar
from dresfl.data.sources import image_source

SOURCE = image_source(
    "cifar10",
    "CIFAR-10",
    num_classes=10,
    train=tuple(f"cifar-10-batches-py/data_batch_{batch}" for batch in range(1, 6)),
    test=("cifar-10-batches-py/test_batch",),
    parse=partial(read_cifar, label_key="labels"),
)
