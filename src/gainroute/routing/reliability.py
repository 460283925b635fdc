"""How often the strong route is right, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy.special import betaln

from gainroute.errors import SettingError
from gainroute.routing.inputs import as_weights
from gainroute.routing.labels import as_labels, class_count
from gainroute.routing.types import ArrayLike, FloatArray, IntArray, LabelArray

__all__ = ["SHRINKAGE", "classwise_reliability", "confusion_matrix", "estimate_confusion", "posterior_given"]

Shrinkage = Literal["none", "empirical-bayes"]
SHRINKAGE = ("none", "empirical-bayes")


def confusion_matrix(
    labels: ArrayLike,
    strong_prediction: ArrayLike,
    *,
    classes: int | Sequence[Any] | LabelArray | None = None,
    sample_weight: ArrayLike | None = None,
    shrinkage: Shrinkage = "none",
) -> FloatArray:
    """Estimate C[k, c] = P(strong answer c | truth k) (eq. 14).

    Parameters
    ----------
    labels, strong_prediction : (N,)
        Truth and strong answer of the calibration samples; a strong answer of −1 (or None) is no answer.
    classes
        K, or the labels in column order; by default, the largest label plus one.
    sample_weight : (N,), optional
    shrinkage
        "none" is the paper's plain ratio. "empirical-bayes" draws the rows of rare classes towards the
        overall rate, the more the classes resemble each other.

    Returns
    -------
    (K, K)
        Rows sum to one minus the share of samples without an answer. The row of a class without samples
        holds the overall rate on the diagonal and spreads the rest evenly.

    Examples
    --------
    >>> confusion_matrix([0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1])
    array([[0.75, 0.25],
           [0.  , 1.  ]])
    """
    truth = as_labels(labels, classes=classes)
    answer = as_labels(strong_prediction, classes=classes, length=len(truth), name="strong_prediction", missing=True)
    k = class_count(classes, truth, answer)
    return estimate_confusion(truth, answer, k, as_weights(sample_weight, len(truth)), shrinkage)


def classwise_reliability(
    labels: ArrayLike,
    strong_prediction: ArrayLike,
    *,
    classes: int | Sequence[Any] | LabelArray | None = None,
    sample_weight: ArrayLike | None = None,
    shrinkage: Shrinkage = "none",
) -> FloatArray:
    """Diagonal of `confusion_matrix`: C[k, k] = P(strong answer right | truth k), (K,).

    Examples
    --------
    >>> classwise_reliability([0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1])
    array([0.75, 1.  ])
    """
    matrix = confusion_matrix(
        labels, strong_prediction, classes=classes, sample_weight=sample_weight, shrinkage=shrinkage
    )
    return np.diagonal(matrix).copy()


def estimate_confusion(
    labels: IntArray,
    strong_prediction: IntArray,
    classes: int,
    weight: FloatArray,
    shrinkage: Shrinkage = "none",
) -> FloatArray:
    """`confusion_matrix` on checked arrays."""
    if shrinkage not in SHRINKAGE:
        raise SettingError(f"reliability shrinkage is {shrinkage!r}; allowed are {', '.join(map(repr, SHRINKAGE))}")
    # A last column collects the samples that got no answer.
    cells = labels * (classes + 1) + np.where(strong_prediction < 0, classes, strong_prediction)
    counts = np.bincount(cells, weight, minlength=classes * (classes + 1)).reshape(classes, classes + 1)
    total = counts.sum(axis=1)
    counts = counts[:, :classes]
    overall = float(np.trace(counts) / total.sum())
    prior = np.full((classes, classes), (1 - overall) / (classes - 1))
    np.fill_diagonal(prior, overall)
    strength = _prior_strength(np.diagonal(counts), total, overall) if shrinkage == "empirical-bayes" else 0.0
    with np.errstate(invalid="ignore"):
        matrix: FloatArray = (counts + strength * prior) / (total + strength)[:, None]
    matrix[total == 0] = prior[total == 0]
    return matrix


def _prior_strength(right: FloatArray, total: FloatArray, mean: float) -> float:
    """Pseudo-counts of the Beta prior with the overall mean that makes the classes' hits most likely."""
    from scipy.optimize import minimize_scalar  # takes half a second, and few fits need it

    if not 0 < mean < 1:
        return 1.0
    used = total > 0
    hits, misses = right[used], (total - right)[used]

    def loss(log_strength: float) -> float:
        a, b = mean * np.exp(log_strength), (1 - mean) * np.exp(log_strength)
        return float(np.sum(betaln(a, b) - betaln(hits + a, misses + b)))

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(0.5), np.log(1e5)), method="bounded").x))


def posterior_given(calibrated: FloatArray, confusion: FloatArray, prediction: IntArray) -> FloatArray:
    """P(y = k | Round 1, strong answer c) ∝ m[k]·C[k, c], (N, K), for a strong answer without a posterior."""
    joint = calibrated * confusion[:, prediction].T
    total = joint.sum(axis=1, keepdims=True)
    return np.where(total > 0, joint / np.where(total > 0, total, 1), calibrated)
