"""The strong answer that does not forget Round 1: log q and the local log-posteriors, blended by a few weights.

Once the embeddings have come, the server still holds what every party said in Round 1. The blend is the log-linear pool
of the strong posterior and the local ones, drawn towards the strong posterior alone. It has to earn its place: it is
used only if it answers calibration samples that it was not fitted on better than the strong route alone, by more than
two standard errors.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gainroute.routing.calibrate import folds_of
from gainroute.routing.inputs import Samples
from gainroute.routing.pool import LogLinearPool, solve_log_linear
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["answer_by", "blended", "crossfit_blend", "fit_blend"]

FOLDS = 10
LAM = 1.0
EPS = 1e-6
ERRORS = 2.0


def blended(blend: LogLinearPool, strong: FloatArray, local: FloatArray) -> FloatArray:
    """Blend strong posteriors (N, K) with the local ones (M, N, K), into (N, K)."""
    return blend(np.concatenate([strong[None], local]))


def fit_blend(samples: Samples) -> LogLinearPool:
    """Fit the blend by maximum likelihood; the samples need a strong posterior."""
    assert samples.strong_posterior is not None  # noqa: S101 (crossfit_blend asks for it first)
    posteriors = np.concatenate([samples.strong_posterior[None], samples.local])
    alone = np.eye(len(posteriors))[0]
    return solve_log_linear(posteriors, samples.labels, samples.weight, LAM, EPS, alone)


def answer_by(blend: LogLinearPool | None, samples: Samples) -> Samples:
    """Give samples that the blend has not seen its strong answers; without a blend they keep their own."""
    if blend is None or samples.strong_posterior is None:
        return samples
    prediction = blended(blend, samples.strong_posterior, samples.local).argmax(axis=1)
    return replace(samples, strong_prediction=np.where(samples.strong_prediction < 0, -1, prediction))


def crossfit_blend(samples: Samples) -> tuple[LogLinearPool | None, Samples]:
    """Fit a blend and give every sample the strong answer of a blend fitted without it.

    Without a strong posterior, or where the blend does not earn its place: None, and the samples as they are.
    """
    n = len(samples)
    if samples.strong_posterior is None or n < FOLDS:
        return None, samples
    prediction: IntArray = samples.strong_prediction.copy()
    for held_out in folds_of(n, FOLDS):
        kept = np.setdiff1d(np.arange(n), held_out)
        found = blended(fit_blend(samples.take(kept)), samples.strong_posterior[held_out], samples.local[:, held_out])
        prediction[held_out] = found.argmax(axis=1)
    prediction[samples.strong_prediction < 0] = -1  # no usable answer stays none
    if not _earns_its_place(prediction, samples):
        return None, samples
    return fit_blend(samples), replace(samples, strong_prediction=prediction)


def _earns_its_place(prediction: IntArray, samples: Samples) -> bool:
    gain = (prediction == samples.labels).astype(np.float64) - (samples.strong_prediction == samples.labels)
    weight = samples.weight / samples.weight.sum()
    mean = float(weight @ gain)
    error = float(np.sqrt(np.square(weight) @ np.square(gain - mean)))
    return mean > ERRORS * error
