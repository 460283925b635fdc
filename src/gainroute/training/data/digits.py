"""The digits inside scikit-learn: 1,797 images of 8 × 8 pixels, one quadrant per party; nothing to download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import MissingExtraError
from gainroute.training.data.augment import FlipShift
from gainroute.training.data.dataset import Dataset, Part
from gainroute.training.data.settings import DataSettings
from gainroute.training.data.splits import stratified_split

__all__ = ["QUADRANTS", "load_digits", "quadrants"]

QUADRANTS = ("top-left", "top-right", "bottom-left", "bottom-right")

# The digits have no official test part: this one is fixed, independent of the seed of a run.
_TEST_SHARE, _TEST_SEED = 0.3, 20240


def quadrants(images: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], ...]:
    """The four quarters of images (N, C, H, W), in the order of `QUADRANTS`."""
    height, width = images.shape[2] // 2, images.shape[3] // 2
    return tuple(
        np.ascontiguousarray(images[:, :, top : top + height, left : left + width], dtype=np.float32)
        for top in (0, height)
        for left in (0, width)
    )


def load_digits(settings: DataSettings, _data_dir: Path | None = None) -> Dataset:
    """Load the digits: four parties, ten classes, a fixed stratified 30 % as test part; they are never mirrored."""
    try:
        from sklearn.datasets import load_digits as embedded
    except ImportError as error:
        raise MissingExtraError("The digits come with scikit-learn, which", "torch") from error
    bunch = embedded()
    images = (bunch.images[:, None] / 16).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    first, second = stratified_split(labels, _TEST_SHARE, _TEST_SEED)
    whole = Part(np.arange(len(labels)), labels, quadrants(images))
    train = whole.take(first)
    shift = settings.augment.shift
    augment = FlipShift(train.views, flip=False, shift=shift) if shift else None
    return Dataset("digits", train, whole.take(second), tuple("0123456789"), QUADRANTS, augment)
