"""Mean 0 and variance 1 per channel, as measured on the training part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Standardiser", "fit_standardiser"]


@dataclass(frozen=True)
class Standardiser:
    """The mean and deviation of each channel of a view, (C,)."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, view: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """`view` (N, C, …) with each channel shifted and scaled."""
        shape = (1, -1) + (1,) * (view.ndim - 2)
        mean = np.asarray(self.mean, np.float32).reshape(shape)
        scale = (1 / np.asarray(self.deviation)).astype(np.float32).reshape(shape)
        return np.asarray((view.astype(np.float32) - mean) * scale, dtype=np.float32)


def fit_standardiser(view: npt.NDArray[Any]) -> Standardiser:
    """Measure the channels of a training view (N, C, …); a constant channel is shifted only."""
    axes = (0, *range(2, view.ndim))
    mean = view.mean(axis=axes, dtype=np.float64)
    deviation = view.std(axis=axes, dtype=np.float64)
    deviation = np.where(deviation > 0, deviation, 1.0)
    return Standardiser(tuple(mean.tolist()), tuple(deviation.tolist()))
