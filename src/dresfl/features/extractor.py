"""The network that turns images into features, with a digest of it for the cache."""

import hashlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from dresfl.errors import DataError, UsageError

from .settings import Features
from .vgg import VGG19, load_vgg19


@final
@dataclass(frozen=True, eq=False)
class Extractor:
    """A frozen module for images (B,3,H,W), float32 in [0, 1], resized to `image_size`; it makes (B,F)."""

    name: str
    module: nn.Module
    image_size: int
    mirror: bool
    device: str
    digest: str  # of everything that decides the features, except the images and the precision
    weights_sha256: str  # of its tensors alone

    def __call__(self, images: Tensor) -> Tensor:
        """Images (B,H,W,C) in [0, 1], on the device -> features (B,F). Gray ones are repeated to three channels."""
        x = images.permute(0, 3, 1, 2)  # (B,C,H,W)
        x = resized(x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x, self.image_size)
        features = self._checked(x)
        return (features.float() + self._checked(x.flip(3)).float()) / 2 if self.mirror else features

    def _checked(self, x: Tensor) -> Tensor:
        """What the module makes of images (B,3,H,W): (B,F), or an error that says what it made instead."""
        try:
            features: object = self.module(x)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a user's module raises
            raise DataError(
                f"{self.name} failed: {type(error).__name__}: {error}",
                f"it is given float32 images {tuple(x.shape)} on {self.device}",
            ) from error
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(x):
            made = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise DataError(
                f"{self.name} makes {made} of {len(x)} images, wanted ({len(x)}, F)",
                "end the module with torch.nn.Flatten()",
            )
        return features


def resized(images: Tensor, size: int) -> Tensor:
    """(B,C,H,W) -> (B,C,size,size), bilinear as torchvision's Resize on tensors: corners not aligned, antialiased.

    Antialiasing acts where an image shrinks; where it grows it would change nothing and take time.
    """
    if not size or images.shape[2:] == (size, size):
        return images
    shrinks = max(images.shape[2:]) > size
    return nn.functional.interpolate(images, size=(size, size), mode="bilinear", antialias=shrinks)


def load_extractor(settings: Features, folder: Path | None, device: str) -> Extractor:
    """The extractor that the settings name, on the device: vgg19 in float16 on a GPU, a user's own as it comes."""
    digest = hashlib.sha256(
        f"dresfl features 1, images of {settings.image_size}{', mirrored' * settings.mirror}\n".encode()
    )
    module: nn.Module
    if settings.extractor == "vgg19":
        if folder is None:
            raise DataError("vgg19 reads its weights from the data folder, and none was given", "give it with --data")
        module = load_vgg19(folder / settings.weights)
    else:
        file, _, function = settings.extractor.rpartition(":")
        module = _made_by(Path(file), function)
        digest.update(hashlib.sha256(Path(file).read_bytes()).digest() + function.encode())
    for part in _tensors(module):
        digest.update(part)
    weights = weights_sha256(module)
    module = module.eval().requires_grad_(False).to(device)
    if isinstance(module, VGG19) and device != "cpu":
        module.use(torch.float16)
    return Extractor(
        settings.extractor,
        module,
        settings.image_size,
        settings.mirror,
        device,
        digest.hexdigest(),
        weights,
    )


def weights_sha256(module: nn.Module) -> str:
    """The digest of a module's tensors: of each, in order of their names, a line that describes it, then its bytes."""
    digest = hashlib.sha256()
    for part in _tensors(module):
        digest.update(part)
    return digest.hexdigest()


def _tensors(module: nn.Module) -> Iterator[bytes | memoryview]:
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, Tensor):
            yield f"{name} {value.dtype} {tuple(value.shape)}\n".encode()
            yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        else:
            yield f"{name} {value!r}\n".encode()


def _made_by(path: Path, function: str) -> nn.Module:
    """What a function in the user's own file returns. This runs the file, as its user wishes."""
    if not path.is_file():
        raise UsageError(
            f"there is no file {path}", "features.extractor is FILE.py:FUNCTION, from where you run dresfl"
        )
    spec = importlib.util.spec_from_file_location(f"dresfl_extractor_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported", "give a Python file")
    namespace = importlib.util.module_from_spec(spec)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)  # so that weights drawn at random, e.g. a random projection, are the same in every run
        try:
            spec.loader.exec_module(namespace)
            made = getattr(namespace, function)()
        except Exception as error:  # whatever the user's code raises
            raise UsageError(f"{path}:{function} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise UsageError(f"{path}:{function} returned a {type(made).__name__}, wanted a torch.nn.Module")
    return made
