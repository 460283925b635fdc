"""3 × 3 convolutions that are fast on maps of a few pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Conv3x3"]


class Conv3x3(nn.Conv2d):
    """A 3 × 3 convolution with padding and without bias: `nn.Conv2d`, in its parameters and its results.

    The last blocks of a small net work on maps of 1 × 1 or 2 × 2 pixels, where most taps read padding only and each
    output reads every input. That is a matrix product, and as such a step of training is several times as fast (`make
    bench TOPIC=training`).
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__(inputs, outputs, 3, stride=stride, padding=1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """(N, outputs, H / stride, W / stride) of maps (N, inputs, H, W)."""
        height, width = maps.shape[2:]
        if max(height, width) > 2:
            return super().forward(maps)
        rows, columns = range(0, height, self.stride[0]), range(0, width, self.stride[1])
        taps = [self.weight[:, :, 1 - y : 1 - y + height, 1 - x : 1 - x + width] for y in rows for x in columns]
        outputs = functional.linear(maps.flatten(1), torch.cat([tap.flatten(1) for tap in taps]))
        return outputs.reshape(-1, len(rows), len(columns), self.out_channels).permute(0, 3, 1, 2)
