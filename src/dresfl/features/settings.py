"""The [features] table of a run's configuration."""

from dataclasses import dataclass
from typing import final

from dresfl.errors import UsageError


@final
@dataclass(frozen=True)
class Features:
    """Which extractor, and which per-sample transforms after it: power, then L2 norm, then (x − center)·scale.

    >>> Features().plain, Features(extractor="vgg19").plain
    (True, False)
    """

    extractor: str = ""  # "" none, "vgg19", or "FILE.py:FUNCTION"
    weights: str = "vgg19-features.pth"  # of vgg19: a checkpoint in the data folder
    image_size: int = 224  # images are resized to this; 0 leaves them
    mirror: bool = False  # extract from the image and from its mirror image, and take the mean of both
    power: float = 1.0  # sign(x)·|x|^power
    l2_norm: bool = False
    center: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.extractor not in ("", "vgg19"):
            file, colon, function = self.extractor.rpartition(":")
            if not (colon and file.endswith(".py") and function.isidentifier()):
                raise UsageError(
                    f"features.extractor = {self.extractor!r} is not known",
                    'use "vgg19", or "FILE.py:FUNCTION" for a function that returns a torch.nn.Module',
                )
        if not 0 <= self.image_size <= 4096:
            raise UsageError(f"features.image_size must lie in 0..4096, not {self.image_size}")
        if self.extractor == "vgg19" and 0 < self.image_size < 32:
            raise UsageError(f"vgg19 halves images five times: image_size must be at least 32, not {self.image_size}")
        if self.mirror and not self.extractor:
            raise UsageError("features.mirror averages what an extractor makes, and there is none")
        if not self.power > 0:
            raise UsageError(f"features.power must be positive, not {self.power}")
        if self.scale == 0:
            raise UsageError("features.scale must not be 0")

    @property
    def plain(self) -> bool:
        """Whether inputs stay as the data set has them."""
        return not self.extractor and not self.transforms

    @property
    def transforms(self) -> bool:
        """Whether anything is done to the extracted values."""
        return self.power != 1 or self.l2_norm or self.center != 0 or self.scale != 1
