"""The digits inside scikit-learn: 1,797 images of 8 × 8 pixels, one quadrant per party; nothing to download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gainroute.errors import MissingExtraError
from gainroute.training.data.augment import FlipShift
from gainroute.training.data.dataset import Dataset, Part
from gainroute.training.data.quadrants import QUADRANTS, quadrants
from gainroute.training.data.settings import DataSettings
from gainroute.training.data.splits import fixed_test_split

__all__ = ["load_digits"]


def load_digits(settings: DataSettings, _data_dir: Path | None = None) -> Dataset:
    """Load the digits: four parties, ten classes, a fixed stratified 30 % as test part; they are never mirrored."""
    try:
        from sklearn.datasets import load_digits as embedded
    except ImportError as error:
        raise MissingExtraError("The digits come with scikit-learn, which", "torch") from error
    bunch = embedded()
    images = (bunch.images[:, None] / 16).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    first, second = fixed_test_split(labels)
    whole = Part(np.arange(len(labels)), labels, quadrants(images))
    train = whole.take(first)
    shift = settings.augment.shift
    augment = FlipShift(train.views, flip=False, shift=shift) if shift else None
    return Dataset("digits", train, whole.take(second), tuple("0123456789"), QUADRANTS, augment)
