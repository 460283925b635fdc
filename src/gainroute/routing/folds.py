"""Which samples a fold holds out, what held-out samples say of a gain, and which classes a set of samples lacks."""

from __future__ import annotations

import warnings

import numpy as np

from gainroute.errors import GainrouteWarning
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["folds_of", "pays", "stratified_folds", "unseen_classes", "warn_unseen"]

ERRORS = 2.0


def folds_of(samples: int, folds: int, seed: int = 0) -> list[IntArray]:
    """Held-out rows of each fold, drawn from the number of samples alone, independent of the labels."""
    order = np.random.default_rng(seed).permutation(samples)
    return [np.sort(order[i::folds]) for i in range(min(folds, samples))]


def stratified_folds(labels: IntArray, folds: int, seed: int = 0) -> list[IntArray]:
    """Held-out rows of each fold, with each class spread evenly over the folds, however the classes are numbered.

    Classes with fewer samples than half the folds are drawn together. Spread one by one, each fold would lack a sample
    of just those rare classes that it holds out, and of no other.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    _, first, group, count = np.unique(labels[order], return_index=True, return_inverse=True, return_counts=True)
    first[2 * count < folds] = len(labels)
    order = order[np.argsort(first[group], kind="stable")]
    return [np.sort(order[i::folds]) for i in range(min(folds, len(labels)))]


def pays(gain: FloatArray, weight: FloatArray) -> bool:
    """Whether the mean gain of held-out samples, (N,), lies above zero by more than two standard errors."""
    share = weight / weight.sum()
    mean = float(share @ gain)
    return mean > ERRORS * float(np.sqrt(np.square(share) @ np.square(gain - mean)))


def unseen_classes(labels: IntArray, classes: int, weight: FloatArray | None = None) -> IntArray:
    """Classes that no sample (of positive weight) belongs to."""
    return np.flatnonzero(np.bincount(labels, weight, minlength=classes) <= 0)


def warn_unseen(unseen: IntArray) -> None:
    """Warn which classes have no calibration sample, and what is done about them."""
    if len(unseen):
        listed = ", ".join(map(str, unseen[:20])) + (", …" if len(unseen) > 20 else "")
        warnings.warn(
            f"no calibration sample of class(es) {listed}: their calibrated mass stays their pooled mass, and their "
            "reliability is the overall rate; add samples of these classes to calibrate them",
            GainrouteWarning,
            stacklevel=3,
        )
