"""VGG19's convolution stack (Simonyan and Zisserman, 2015, configuration E), from a torchvision checkpoint.

Layers carry torchvision's numbers, so a checkpoint's `features.N.weight` and `features.N.bias` fit as they are; what
else it holds (the classifier) is left out. The widths are the checkpoint's own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dresfl.errors import DataError

# Convolutions between poolings. torchvision numbers all layers, the ReLU after each and the poolings too.
_BLOCKS = (2, 2, 4, 4, 4)

# The mean and standard deviation of ImageNet's channels, which the weights were trained to.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)

_OUT = 7  # the side of what is left of an image of 224; other sizes are pooled to it


@final
class VGG19(nn.Module):
    """Images (B,3,H,W) in [0, 1] -> (B,49·C) features, in torchvision's order: channel, row, column.

    `weights` holds `features.N.weight` (C,in,3,3) and `features.N.bias` (C,) for the sixteen convolutions. They
    compute in float32 unless `use` says otherwise; the images are normalised in float32 before.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for convolutions in _BLOCKS:
            for _ in range(convolutions):
                weight, bias = _weights_of(weights, len(layers), channels)
                convolution = nn.Conv2d(channels, len(bias), 3, padding=1, device="meta")
                convolution.weight = nn.Parameter(
                    weight.to(torch.float32, memory_format=torch.channels_last), requires_grad=False
                )
                convolution.bias = nn.Parameter(bias.to(torch.float32), requires_grad=False)
                layers += [convolution, nn.ReLU(inplace=True)]
                channels = len(bias)
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.dtype = torch.float32
        self.register_buffer("mean", torch.tensor(_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(_STD).view(3, 1, 1), persistent=False)

    def use(self, dtype: torch.dtype) -> None:
        """Let the convolutions compute in another precision."""
        self.features.to(dtype)
        self.dtype = dtype

    def forward(self, images: Tensor) -> Tensor:
        x = ((images - self.mean) / self.std).to(self.dtype, memory_format=torch.channels_last)
        x = nn.functional.adaptive_avg_pool2d(self.features(x), _OUT)  # (B,C,7,7); at 224 this changes nothing
        return x.flatten(1)


def load_vgg19(path: Path) -> VGG19:
    """The stack with the weights of a checkpoint: what torchvision saves, or a safetensors file of the same names.

    A .pth file is read with torch's `weights_only`, so it holds tensors and runs no code.
    """
    try:
        if path.suffix == ".safetensors":
            weights = load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise DataError(
            f"there is no VGG19 checkpoint {path}",
            "put torchvision's vgg19 weights there, or name another file with features.weights",
        ) from error
    except Exception as error:  # a damaged or hostile file can provoke nearly any, and none is our bug
        raise DataError(f"cannot read the checkpoint {path}: {error}", "fetch it again from where it came") from error
    if not isinstance(weights, Mapping):
        raise DataError(f"{path} holds a {type(weights).__name__}, wanted tensors by name", "save a state_dict")
    return VGG19(weights)


def _weights_of(weights: Mapping[str, Tensor], number: int, channels: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of one convolution, checked."""
    weight, bias = (weights.get(f"features.{number}.{part}") for part in ("weight", "bias"))
    wanted = f"features.{number}: wanted weights (C, {channels}, 3, 3) and biases (C,)"
    hint = "take torchvision's vgg19 (not vgg19_bn, not another VGG)"
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor):
        raise DataError(f"{wanted}, but the checkpoint has none", hint)
    if weight.ndim != 4 or weight.shape[1:] != (channels, 3, 3) or bias.shape != weight.shape[:1]:
        raise DataError(f"{wanted}, but they are {tuple(weight.shape)} and {tuple(bias.shape)}", hint)
    return weight, bias
