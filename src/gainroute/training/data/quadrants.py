"""Images cut into quadrants, one per party."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["QUADRANTS", "joined", "quadrants"]

QUADRANTS = ("top-left", "top-right", "bottom-left", "bottom-right")


def quadrants(images: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], ...]:
    """The four quarters of images (N, C, H, W), in the order of `QUADRANTS`."""
    height, width = images.shape[2] // 2, images.shape[3] // 2
    return tuple(
        np.ascontiguousarray(images[:, :, top : top + height, left : left + width], dtype=np.float32)
        for top in (0, height)
        for left in (0, width)
    )


def joined(views: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """The images (N, C, H, W) whose `quadrants` these are."""
    top, bottom = (np.concatenate(half, axis=3) for half in (views[:2], views[2:]))
    return np.concatenate([top, bottom], axis=2)
