"""Convolutions that are fast on maps of a few pixels, with weights that may be standardised."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Convolution"]


class Convolution(nn.Conv2d):
    """`nn.Conv2d` with padding and without bias, in its parameters and its results.

    The last blocks of a small net work on maps of 1 × 1 or 2 × 2 pixels, where most taps of a 3 × 3 kernel read padding
    only and each output reads every input. That is a matrix product, and as such a step of training takes half the time
    (`make bench TOPIC=training`).

    With `standardised` weights, those of each output have mean 0 and unit norm: a net with group normalisation then
    learns in fewer epochs.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1, standardised: bool = False
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.standardised = standardised

    def forward(self, maps: Tensor) -> Tensor:
        """(N, outputs, H / stride, W / stride) of maps (N, inputs, H, W)."""
        weight: Tensor = self.weight
        if self.standardised:
            weight = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
            weight = weight / (weight.square().sum(dim=(1, 2, 3), keepdim=True) + 1e-5).sqrt()
        height, width = maps.shape[2:]
        if self.kernel_size != (3, 3) or max(height, width) > 2:
            return functional.conv2d(maps, weight, stride=self.stride, padding=self.padding)
        rows, columns = range(0, height, self.stride[0]), range(0, width, self.stride[1])
        taps = [weight[:, :, 1 - y : 1 - y + height, 1 - x : 1 - x + width] for y in rows for x in columns]
        outputs = functional.linear(maps.flatten(1), torch.cat([tap.flatten(1) for tap in taps]))
        return outputs.reshape(-1, len(rows), len(columns), self.out_channels).permute(0, 3, 1, 2)
