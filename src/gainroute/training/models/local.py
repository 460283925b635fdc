"""Round 1: the small classifier that each party runs on its own view."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gainroute.training.models.convolution import Convolution

__all__ = ["LocalCNN", "LocalMLP"]


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        Convolution(inputs, outputs, stride=stride),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class LocalCNN(nn.Module):
    """Four strided 3 × 3 blocks, one refinement block, average pooling, dropout, a linear layer.

    Images are (channels, size, size). Blocks stop striding at `smallest` pixels, by default 2, because a quadrant of a
    digit has only 4 × 4. `widths` are the channels after each strided block; the refinement block keeps the last. A
    classifier that may defer has one output more than there are classes.
    """

    def __init__(
        self,
        *,
        channels: int,
        size: int,
        outputs: int,
        widths: Sequence[int] = (8, 16, 32, 32),
        dropout: float = 0.1,
        smallest: int = 2,
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for width in widths:
            stride = 2 if size > smallest else 1
            blocks.append(_block(channels, width, stride))
            channels, size = width, -(-size // stride)
        blocks.append(_block(channels, channels, 1))
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(channels, outputs)

    def forward(self, view: Tensor) -> Tensor:
        """Logits (N, outputs) of images (N, C, H, W)."""
        pooled = self.blocks(view).mean(dim=(2, 3))
        logits: Tensor = self.classify(self.dropout(pooled))
        return logits


class LocalMLP(nn.Module):
    """A small perceptron with one hidden layer per entry of `widths`, which may be empty; `outputs` as above.

    It is for feature vectors; the values of an image are read in a row.
    """

    def __init__(self, *, features: int, outputs: int, widths: Sequence[int] = (16,), dropout: float = 0.1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Linear(features, width), nn.ReLU(inplace=True)]
            features = width
        self.layers = nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(features, outputs))

    def forward(self, view: Tensor) -> Tensor:
        """Logits (N, outputs) of views (N, …) with d values each."""
        logits: Tensor = self.layers(view.flatten(1))
        return logits
