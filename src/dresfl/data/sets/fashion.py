"""Fashion-MNIST: articles of clothing."""

from dresfl.data.idx import idx_content, idx_pair, read_images
from dresfl.data.sources import Published, image_source

SOURCE = image_source(
    "fashion",
    "Fashion-MNIST",
    num_classes=10,
    train=idx_pair("FashionMNIST/raw/train"),
    test=idx_pair("FashionMNIST/raw/t10k"),
    parse=read_images,
    content=idx_content,
    # the packed files' MD5 as torchvision has them, then the unpacked files' MD5
    published=(
        Published(("8d4fb7e6c68d591d4c3dfef9ec88bf0d",), ("f4a8712d7a061bf5bd6d2ca38dc4d50a",), 47_040_016),
        Published(("25c81989df183df01b3e8a0aad5dffbe",), ("9018921c3c673c538a1fc5bad174d6f9",), 60_008),
        Published(("bef4ecab320f06d8554ea6380940ec79",), ("8181f5470baa50b63fa0f6fddb340f0a",), 7_840_016),
        Published(("bb300cfdad3c16e7a12a480ee83cd310",), ("15d484375f8d13e6eb1aabb0c3f46965",), 10_008),
    ),
)
