"""A yardstick for Round 1: logistic regression on each view, pooled. Local models that it beats are under-trained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gainroute._util.arrays import Float32Array
from gainroute._util.blas import one_thread
from gainroute.routing import _newton
from gainroute.routing.calibrate import softmax
from gainroute.routing.types import FloatArray, IntArray
from gainroute.training.data.splits import stratified_split
from gainroute.training.prepare import Prepared

__all__ = ["logistic_accuracy", "logistic_posteriors", "pooled_accuracy"]

_LAMS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
_HELD_OUT = 0.1  # of the training part, by which λ is chosen
_WIDEST = 256  # wider views are projected at random: a fit takes seconds, and the yardstick stays a simple model
_DISTANCE = 1e-3


def logistic_accuracy(prepared: Prepared, seed: int = 0) -> float:
    """Accuracy on the test part of one logistic regression per view, their posteriors averaged.

    Parameters
    ----------
    prepared
        The parts; only the training part is fitted on, and λ is chosen on a slice of it.
    seed
        Of that slice, and of the projection of wide views.
    """
    train, test = prepared.train, prepared.test
    posteriors = [
        logistic_posteriors(view.clean, train.labels, new, train.classes, seed)
        for view, new in zip(train.views, test.views, strict=True)
    ]
    return pooled_accuracy(posteriors, test.labels)


def logistic_posteriors(
    view: Float32Array, labels: IntArray, new: Float32Array, classes: int, seed: int = 0
) -> Float32Array:
    """Posteriors (N, K) for `new` by a logistic regression on one view; parameters as of `logistic_accuracy`."""
    with one_thread():
        theta = _fit(_features(view, seed), labels, classes, seed)
        return softmax((theta @ _features(new, seed)).T).astype(np.float32)


def pooled_accuracy(posteriors: Sequence[Float32Array], labels: IntArray) -> float:
    """Accuracy of the mean of posteriors, one (N, K) per view."""
    return float((np.sum(posteriors, axis=0).argmax(axis=1) == labels).mean())


def _features(view: Float32Array, seed: int) -> FloatArray:
    """A view as (D + 1, N), with a row of ones."""
    x = view.reshape(len(view), -1).astype(np.float64)
    if x.shape[1] > _WIDEST:
        x = x @ np.random.default_rng(seed).normal(size=(x.shape[1], _WIDEST)) / np.sqrt(x.shape[1])
    return np.vstack([x.T, np.ones(len(x))])


def _fit(z: FloatArray, labels: IntArray, classes: int, seed: int) -> FloatArray:
    """θ (K, D + 1) with the λ of the largest likelihood on held-out samples, fitted on all samples."""
    rows, held_out = stratified_split(labels, _HELD_OUT, seed)
    origin = theta = np.zeros((classes, len(z)))
    best, chosen = np.inf, _LAMS[0]
    for lam in _LAMS:
        theta = _newton.minimise(z[:, rows], labels[rows], origin, lam, start=theta, distance=_DISTANCE)
        p = softmax((theta @ z[:, held_out]).T)[np.arange(len(held_out)), labels[held_out]]
        loss = -float(np.log(np.maximum(p, 1e-300)).sum())
        if loss > best:
            break
        best, chosen = loss, lam
    return _newton.minimise(z, labels, origin, chosen, start=theta, distance=_DISTANCE)
