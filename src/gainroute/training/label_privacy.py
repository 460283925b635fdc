"""Label differential privacy: K-ary randomised response."""

from __future__ import annotations

import math

import numpy as np

from gainroute.errors import SettingError
from gainroute.routing.types import IntArray

__all__ = ["keep_probability", "randomise_labels"]


def keep_probability(classes: int, epsilon: float) -> float:
    """Probability that randomised response keeps a label: e^ε / (e^ε + K − 1).

    Examples
    --------
    >>> round(keep_probability(10, 3.0), 3)
    0.691
    """
    if classes < 2 or not epsilon > 0:
        raise SettingError(f"classes {classes}, epsilon {epsilon}: at least 2 classes and epsilon above 0 are needed")
    return 1.0 / (1.0 + (classes - 1) * math.exp(-epsilon))


def randomise_labels(labels: IntArray, classes: int, epsilon: float, rng: np.random.Generator) -> IntArray:
    """Keep each label with `keep_probability`, else draw one of the K − 1 others: ε-differentially private per label.

    Parameters
    ----------
    labels
        (N,), 0 … K − 1.
    classes
        K.
    epsilon
        The ratio of the probabilities of any output under two labels is at most e^ε.
    rng
        Unpredictable to others: seeded from the operating system.
    """
    kept = rng.random(len(labels)) < keep_probability(classes, epsilon)
    others = (labels + rng.integers(1, classes, len(labels))) % classes
    return np.where(kept, labels, others).astype(np.int64)
