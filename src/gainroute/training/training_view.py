"""The view that a party trains on: clean, or altered differently in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gainroute.routing.types import IntArray
from gainroute.training.optimise import derive

__all__ = ["TrainingView", "forward_all", "place", "to_tensor"]

Altered = Callable[[IntArray, np.random.Generator], npt.NDArray[np.float32]]


def to_tensor(view: npt.NDArray[np.float32], device: str) -> Tensor:
    """A view as the input of a model; its memory layout follows from the model's weights, see `place`."""
    return torch.from_numpy(np.ascontiguousarray(view, dtype=np.float32)).to(device)


def place(model: nn.Module, device: str) -> nn.Module:
    """Move a model to its device, with channels last in memory if that is safe: it trains a fifth faster.

    With fewer than 8 channels in a convolution, torch 2.13 writes outside its buffers on the CPU when
    channels are last (seen as "corrupted double-linked list" in the backward pass), so such a model keeps
    the usual layout.
    """
    widths = [module.out_channels for module in model.modules() if isinstance(module, nn.Conv2d)]
    placed: nn.Module = model.to(device)
    if widths and all(width % 8 == 0 for width in widths):
        placed = placed.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return placed


@dataclass(frozen=True)
class TrainingView:
    """One party's training samples.

    Attributes
    ----------
    clean
        (N, …), standardised.
    rows
        (N,) their rows in the official training part.
    altered
        Returns rows of that part, altered at random and standardised; None for no augmentation.
    """

    clean: npt.NDArray[np.float32]
    rows: IntArray
    altered: Altered | None = None

    def take(self, chosen: IntArray) -> TrainingView:
        """Only the chosen samples."""
        return TrainingView(self.clean[chosen], self.rows[chosen], self.altered)

    def epoch(self, seed: int, epoch: int, *, augment: bool) -> npt.NDArray[np.float32]:
        """The whole view for one epoch. Parties with the same seed alter a sample in the same way."""
        if not augment or self.altered is None:
            return self.clean
        return self.altered(self.rows, np.random.default_rng(derive(seed, "augment", epoch)))


def forward_all(model: nn.Module, view: npt.NDArray[np.float32], device: str, size: int = 512) -> Tensor:
    """The outputs of `model` for every row, in inference mode, on the CPU."""
    model.eval()
    with torch.inference_mode():
        outputs = [model(to_tensor(view[i : i + size], device)).cpu() for i in range(0, len(view), size)]
    return torch.cat(outputs)
