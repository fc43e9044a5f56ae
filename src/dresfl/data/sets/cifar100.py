"""CIFAR-100, with its fine labels."""

from functools import partial

from dresfl.data.pickles import read_cifar
from dresfl.data.sources import image_source

SOURCE = image_source(
    "cifar100",
    "CIFAR-100",
    num_classes=100,
    train=("cifar-100-python/train",),
    test=("cifar-100-python/test",),
    parse=partial(read_cifar, label_key="fine_labels"),
)
