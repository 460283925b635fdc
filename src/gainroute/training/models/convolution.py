"""Convolutions that are fast on maps of a few pixels, and a fixed filter that smooths images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Convolution", "Smooth"]


class Convolution(nn.Conv2d):
    """`nn.Conv2d` with padding and without bias, in its parameters and its results.

    The last blocks of a small net work on maps of 1 × 1 or 2 × 2 pixels, where most taps of a 3 × 3 kernel read padding
    only and each output reads every input. That is a matrix product, and as such a step of training takes half the time
    (`make bench TOPIC=training`).
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """(N, outputs, H / stride, W / stride) of maps (N, inputs, H, W)."""
        height, width = maps.shape[2:]
        if self.kernel_size != (3, 3) or max(height, width) > 2:
            return super().forward(maps)
        rows, columns = range(0, height, self.stride[0]), range(0, width, self.stride[1])
        taps = [self.weight[:, :, 1 - y : 1 - y + height, 1 - x : 1 - x + width] for y in rows for x in columns]
        outputs = functional.linear(maps.flatten(1), torch.cat([tap.flatten(1) for tap in taps]))
        return outputs.reshape(-1, len(rows), len(columns), self.out_channels).permute(0, 3, 1, 2)


class Smooth(nn.Module):
    """A fixed 3 × 3 binomial filter on each channel; pixels beyond the edge are those at the edge.

    It takes most of the noise of single pixels away (its deviation falls to 3/8), and little of an image.
    """

    kernel: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        row = torch.tensor([1.0, 2.0, 1.0]) / 4
        kernel = torch.outer(row, row).expand(channels, 1, 3, 3).clone()
        self.register_buffer("kernel", kernel, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) of images (N, C, H, W)."""
        padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
        return functional.conv2d(padded, self.kernel, groups=images.shape[1])
