"""Whether the VGG19 checkpoint in a data folder is torchvision's. Whoever holds the folder runs this."""

import hashlib
from pathlib import Path
from typing import Final

from dresfl.data import Finding
from dresfl.errors import DataError

from .extractor import weights_sha256
from .settings import Features
from .vgg import load_vgg19

# torchvision gives it out as vgg19-dcbb9e9d.pth, whose name has the first digits
_TORCHVISION: Final = "dcbb9e9dad569fff7a846263a77324fc34978fea2bfb039c012d710e1776ae44"


def check_weights(folder: Path) -> list[Finding]:
    """One finding, for the checkpoint's file; its note has the digest that records carry."""
    file = Features().weights
    path = folder / file
    if not path.is_file():
        return [Finding("vgg19", file, "missing")]
    try:
        with path.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
        note = f"extractor_sha256 of records made with it: {weights_sha256(load_vgg19(path))}"
    except (OSError, DataError) as error:
        return [Finding("vgg19", file, "damaged", note=str(error))]
    return [Finding("vgg19", file, "official" if sha256 == _TORCHVISION else "other file", sha256, note)]
