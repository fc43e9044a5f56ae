"""Fashion-MNIST: articles of clothing."""

from dresfl.data.idx import idx_pair, read_images
from dresfl.data.sources import image_source

SOURCE = image_source(
    "fashion",
    "Fashion-MNIST",
    num_classes=10,
    train=idx_pair("FashionMNIST/raw/train"),
    test=idx_pair("FashionMNIST/raw/t10k"),
    parse=read_images,
)
