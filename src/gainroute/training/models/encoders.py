"""Round 2, at each party: encoders from a view to an embedding.

ResNet-18 is implemented here because torchvision cannot be imported next to the CPU build of torch.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from gainroute.errors import SettingError
from gainroute.training.models.convolution import Convolution, Smooth

__all__ = ["NORMS", "STEMS", "MLPEncoder", "ResNet18"]

# Kernel, stride, max-pool: for images from a few pixels up to those of ImageNet.
_STEMS = {
    "3x3": (3, 1, False),
    "3x3-pool": (3, 1, True),
    "3x3-stride2": (3, 2, False),
    "3x3-stride2-pool": (3, 2, True),
    "7x7-stride2-pool": (7, 2, True),
}
STEMS = tuple(_STEMS)
NORMS = ("batch", "group")
_GROUPS = 8


def _norm(kind: str, channels: int) -> nn.Module:
    """Batch normalisation, or over groups of channels within a sample.

    Noise that training did not see moves the statistics of a layer. Batch normalisation divides by those of training;
    group normalisation by those of the very sample.
    """
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(min(_GROUPS, channels), channels)


class _BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = Convolution(inputs, outputs, stride=stride)
        self.norm1 = _norm(norm, outputs)
        self.conv2 = Convolution(outputs, outputs)
        self.norm2 = _norm(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(Convolution(inputs, outputs, 1, stride=stride), _norm(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        return functional.relu(y + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """ResNet-18 without its classifier.

    After the stem there are `width` channels, 64 is usual; the embedding has 8 × width values. The stem is one of
    `STEMS`: "3x3" keeps the resolution (quadrants), "7x7-stride2-pool" is that of ImageNet. `norm` is one of `NORMS`.
    With `smooth`, the view goes through a fixed filter first.
    """

    def __init__(
        self, *, channels: int, width: int = 64, stem: str = "3x3", norm: str = "batch", smooth: bool = False
    ) -> None:
        super().__init__()
        if stem not in _STEMS:
            raise SettingError(f"stem {stem!r} is unknown: one of {', '.join(STEMS)}")
        if norm not in NORMS:
            raise SettingError(f"norm {norm!r} is unknown: one of {', '.join(NORMS)}")
        kernel, stride, pool = _STEMS[stem]
        layers: list[nn.Module] = [
            Convolution(channels, width, kernel, stride=stride),
            _norm(norm, width),
            nn.ReLU(inplace=True),
        ]
        if pool:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        inputs = width
        for stage, factor in enumerate((1, 2, 4, 8)):
            layers.append(_BasicBlock(inputs, factor * width, 1 if stage == 0 else 2, norm))
            layers.append(_BasicBlock(factor * width, factor * width, 1, norm))
            inputs = factor * width
        self.smooth: nn.Module = Smooth(channels) if smooth else nn.Identity()
        self.layers = nn.Sequential(*layers)
        self.dimension = 8 * width

    def forward(self, view: Tensor) -> Tensor:
        """Embeddings (N, 8 × width) of images (N, C, H, W)."""
        maps: Tensor = self.layers(self.smooth(view))
        return maps.mean(dim=(2, 3))


class MLPEncoder(nn.Module):
    """Two hidden layers for feature vectors; they and the embedding have 8 × width values, like a ResNet-18."""

    def __init__(self, *, features: int, width: int = 16) -> None:
        super().__init__()
        size = 8 * width
        self.layers = nn.Sequential(
            nn.Linear(features, size),
            nn.BatchNorm1d(size),
            nn.ReLU(inplace=True),
            nn.Linear(size, size),
            nn.BatchNorm1d(size),
            nn.ReLU(inplace=True),
        )
        self.dimension = size

    def forward(self, view: Tensor) -> Tensor:
        """Embeddings (N, 8 × width) of feature vectors (N, d)."""
        embedding: Tensor = self.layers(view)
        return embedding
