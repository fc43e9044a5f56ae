"""MNIST: handwritten digits."""

from dresfl.data.idx import idx_content, idx_pair, read_images
from dresfl.data.sources import Published, image_source

SOURCE = image_source(
    "mnist",
    "MNIST",
    num_classes=10,
    train=idx_pair("MNIST/raw/train"),
    test=idx_pair("MNIST/raw/t10k"),
    parse=read_images,
    content=idx_content,
    # the packed files' MD5 as torchvision has them, then the unpacked files' MD5
    published=(
        Published(("f68b3c2dcbeaaa9fbdd348bbdeb94873",), ("6bbc9ace898e44ae57da46a324031adb",), 47_040_016),
        Published(("d53e105ee54ea40749a09fcbcd1e9432",), ("a25bea736e30d166cdddb491f175f624",), 60_008),
        Published(("9fb629c4189551a2d022fa330f9573f3",), ("2646ac647ad5339dbf082846283269ea",), 7_840_016),
        Published(("ec29112dd5afa0611ce80d1b7f02629c",), ("27ae3e4e09519cfbb04c329615203637",), 10_008),
    ),
)
