"""EMNIST, the balanced split: handwritten letters and digits."""

from functools import partial

from dresfl.data.idx import idx_content, idx_pair, read_images
from dresfl.data.sources import Published, image_source

SOURCE = image_source(
    "emnist",
    "EMNIST",
    num_classes=47,
    train=idx_pair("EMNIST/raw/emnist-balanced-train"),
    test=idx_pair("EMNIST/raw/emnist-balanced-test"),
    parse=partial(read_images, transposed=True),  # NIST's files hold images column by column, unlike MNIST's
    content=idx_content,
    # SHA-256 of the packed files in NIST's archive. Nobody lists those of the unpacked ones: their sizes are known
    published=(
        Published(("74295e75e4e9fa2c102147460ee7eb763653d5132d883a84fb88932bfb8d2db4",), size=16 + 112_800 * 784),
        Published(("b46d41e5156a0a8aaaa4d18979fdd1588850fa8571018acffd5d93b325a7d6ed",), size=8 + 112_800),
        Published(("117fc12b015e37ea98bfb2cbba3f77c3782c056cdbd219b87abfc8661d7135db",), size=16 + 18_800 * 784),
        Published(("a67cac948379b67270b9a4d0a01c8ec661598accf2f2b1964340b7c83cb175cd",), size=8 + 18_800),
    ),
)
