"""Augmentation of images: mirrored and shifted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gainroute.routing.types import IntArray
from gainroute.training.data.quadrants import joined, quadrants

__all__ = ["FlipShift", "shift_images"]


def shift_images(images: npt.NDArray[np.float32], by: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Move each image (N, C, H, W) by up to `by` pixels along both axes, repeating its edge."""
    if by == 0:
        return images
    count, _, height, width = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (by, by), (by, by)), mode="edge")
    top, left = rng.integers(0, 2 * by + 1, (2, count))
    moved = np.empty_like(images)
    # There are few distinct shifts and many images: one slice copy per shift instead of one per image.
    for dy in range(2 * by + 1):
        for dx in range(2 * by + 1):
            rows = np.flatnonzero((top == dy) & (left == dx))
            moved[rows] = padded[rows, :, dy : dy + height, dx : dx + width]
    return moved


@dataclass(frozen=True)
class FlipShift:
    """Whole images, mirrored with probability 1/2 (if `flip`) and shifted by up to `shift` pixels, then cut.

    The view of a mirrored image is the mirrored view of the neighbour, so the quadrants change sides as well. Only an
    experiment that holds all views can do this; parties that hold one each cannot.
    """

    views: Sequence[npt.NDArray[np.float32]]  # the quadrants
    flip: bool
    shift: int

    def __call__(self, party: int, rows: IntArray, rng: np.random.Generator, /) -> npt.NDArray[np.float32]:
        """The quadrants of `rows` that `party` sees of the altered images."""
        images = joined([view[rows] for view in self.views])
        if self.flip:
            mirrored = rng.random(len(images)) < 0.5
            images[mirrored] = images[mirrored][..., ::-1]
        return quadrants(shift_images(images, self.shift, rng))[party]
