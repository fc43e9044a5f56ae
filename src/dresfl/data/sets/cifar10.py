"""CIFAR-10."""

from functools import partial

from dresfl.data.pickles import binary_rows, read_cifar
from dresfl.data.sources import Published, image_source

SOURCE = image_source(
    "cifar10",
    "CIFAR-10",
    num_classes=10,
    train=tuple(f"cifar-10-batches-py/data_batch_{batch}" for batch in range(1, 6)),
    test=("cifar-10-batches-py/test_batch",),
    parse=partial(read_cifar, label_key="labels"),
    content=partial(binary_rows, label_key="labels"),
    # the files' MD5 as torchvision has them, then SHA-1 of the same rows in the binary version, as MXNet has them
    published=(
        Published(("c99cafc152244af753f735de768cd75f",), ("aadd24acce27caa71bf4b10992e9e7b2d74c2540",), 30_730_000),
        Published(("d4bba439e000b95fd0a9bffe97cbabec",), ("c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",), 30_730_000),
        Published(("54ebc095f3ab1f0389bbae665268c751",), ("1dd00a74ab1d17a6e7d73e185b69dbf31242f295",), 30_730_000),
        Published(("634d18415352ddfa80567beed471001a",), ("aab85764eb3584312d3c7f65fd2fd016e36a258e",), 30_730_000),
        Published(("482c414d41f54cd18b22e5b47cb7c3cb",), ("26e2849e66a845b7f1e4614ae70f4889ae604628",), 30_730_000),
        Published(("40351d587109b95175f43aff81a1287e",), ("67eb016db431130d61cd03c7ad570b013799c88c",), 30_730_000),
    ),
)
