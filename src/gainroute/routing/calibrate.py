"""From the pooled posterior to P(y = k | pooled): Dirichlet calibration, temperature scaling, or none.

A stage such as `DirichletCalibration` holds settings; its `fit`, or a `fit_…` function, returns a frozen calibrator,
callable on (N, K). Fit calibrators on data that trained none of the models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gainroute._util.registry import Registry
from gainroute.routing._dirichlet import (
    LAM_GRID,
    DirichletCalibrator,
    check_choices,
    refit_dirichlet,
    softmax,
    solve_dirichlet,
)
from gainroute.routing.folds import folds_of, stratified_folds, unseen_classes, warn_unseen
from gainroute.routing.inputs import as_posteriors, as_weights, check_positive
from gainroute.routing.labels import as_labels
from gainroute.routing.types import ArrayLike, FloatArray, IntArray, Stage

__all__ = [
    "CALIBRATORS",
    "LAM_GRID",
    "DirichletCalibration",
    "DirichletCalibrator",
    "IdentityCalibrator",
    "NoCalibration",
    "TemperatureCalibration",
    "TemperatureCalibrator",
    "check_choices",
    "fit_dirichlet",
    "fit_temperature",
    "folds_of",
    "identity_calibration",
    "softmax",
    "solve_dirichlet",
    "stratified_folds",
    "unseen_classes",
    "warn_unseen",
]

CALIBRATORS: Registry[type[Stage]] = Registry(
    "gainroute.calibrators",
    "calibration",
    {
        "dirichlet": "gainroute.routing.calibrate:DirichletCalibration",
        "temperature": "gainroute.routing.calibrate:TemperatureCalibration",
        "none": "gainroute.routing.calibrate:NoCalibration",
    },
)


@dataclass(frozen=True, eq=False)
class TemperatureCalibrator:
    """m(p) = softmax(log(p + ε) / T)."""

    temperature: float
    eps: float

    def __call__(self, posteriors: FloatArray) -> FloatArray:
        """Calibrate posteriors, (N, K) → (N, K)."""
        return softmax(np.log(posteriors + self.eps) / self.temperature)


@dataclass(frozen=True, eq=False)
class IdentityCalibrator:
    """m(p) = p: no calibration."""

    def __call__(self, posteriors: FloatArray) -> FloatArray:
        """Return the posteriors, (N, K), unchanged."""
        return posteriors


identity_calibration = IdentityCalibrator()


# ---- stages: settings, and a fit on checked arrays ---------------------------------------------------


@dataclass(frozen=True)
class DirichletCalibration:
    """Dirichlet calibration, see `fit_dirichlet`; λ and ε are numbers > 0, or "cv" to choose them."""

    lam: float | Literal["cv"] = 1.0
    eps: float | Literal["cv"] = 1e-6

    def fit(self, pooled: FloatArray, labels: IntArray, weight: FloatArray) -> DirichletCalibrator:
        """Fit on pooled posteriors (N, K)."""
        return solve_dirichlet(pooled, labels, self.lam, self.eps, weight)

    def refit(
        self, fitted: DirichletCalibrator, pooled: FloatArray, labels: IntArray, weight: FloatArray
    ) -> DirichletCalibrator:
        """Fit on almost the same samples, starting from `fitted`, with the λ and ε it has chosen."""
        return refit_dirichlet(fitted, pooled, labels, weight)


@dataclass(frozen=True)
class TemperatureCalibration:
    """Temperature scaling, see `fit_temperature`."""

    eps: float = 1e-6

    def fit(self, pooled: FloatArray, labels: IntArray, weight: FloatArray) -> TemperatureCalibrator:
        """Fit on pooled posteriors (N, K)."""
        return solve_temperature(pooled, labels, self.eps, weight)


@dataclass(frozen=True)
class NoCalibration:
    """The calibrated posterior is the pooled one."""

    def fit(self, pooled: FloatArray, labels: IntArray, weight: FloatArray) -> IdentityCalibrator:  # noqa: ARG002
        """Return the identity: there is nothing to fit."""
        return identity_calibration


# ---- fits on arrays as users have them ---------------------------------------------------------------


def fit_dirichlet(
    posteriors: ArrayLike,
    labels: ArrayLike,
    lam: float | Literal["cv"] = 1.0,
    eps: float | Literal["cv"] = 1e-6,
    sample_weight: ArrayLike | None = None,
) -> DirichletCalibrator:
    """Fit Dirichlet calibration by the paper's objective (eq. 16).

    Minimises −Σₙ log m(p⁽ⁿ⁾)[y⁽ⁿ⁾] + λ(‖W − I‖²_F + ‖b‖²₂), a sum over samples, with log(p + ε) not
    renormalised. The optimum is unique and is found to about 1e-11 in (W, b).

    Parameters
    ----------
    posteriors : (N, K)
        Pooled posteriors of the calibration samples.
    labels : (N,)
        Their true classes, 0 … K−1.
    lam
        λ > 0; "cv" chooses it by cross-validated negative log-likelihood, and with more than 128 classes also whether
        W is diagonal: (W, b) are then drawn towards one temperature, W = tI.
    eps
        ε > 0; "cv" likewise. It matters if posteriors hold exact zeros (half precision, hard votes).
    sample_weight : (N,), optional

    Returns
    -------
    DirichletCalibrator

    Examples
    --------
    >>> import numpy as np
    >>> overconfident = np.array([[0.99, 0.01]] * 8 + [[0.01, 0.99]] * 8)
    >>> labels = [0] * 6 + [1] * 2 + [1] * 6 + [0] * 2
    >>> fit_dirichlet(overconfident, labels, lam=0.01)(overconfident[:1]).round(2)
    array([[0.75, 0.25]])
    """
    p = as_posteriors(posteriors).astype(np.float64, copy=False)
    y = as_labels(labels, classes=p.shape[1], length=len(p))
    weight = as_weights(sample_weight, len(p))
    calibrator = solve_dirichlet(p, y, lam, eps, weight)
    warn_unseen(calibrator.unseen)
    return calibrator


def fit_temperature(
    posteriors: ArrayLike, labels: ArrayLike, eps: float = 1e-6, sample_weight: ArrayLike | None = None
) -> TemperatureCalibrator:
    """Fit temperature scaling: the T > 0 that minimises the negative log-likelihood of softmax(log(p + ε)/T).

    Parameters
    ----------
    posteriors : (N, K)
    labels : (N,)
    eps
        ε > 0.
    sample_weight : (N,), optional

    Examples
    --------
    >>> import numpy as np
    >>> overconfident = np.array([[0.99, 0.01]] * 4)
    >>> fit_temperature(overconfident, [0, 0, 0, 1])(overconfident[:1]).round(2)
    array([[0.75, 0.25]])
    """
    p = as_posteriors(posteriors).astype(np.float64, copy=False)
    y = as_labels(labels, classes=p.shape[1], length=len(p))
    return solve_temperature(p, y, check_positive(eps, "eps"), as_weights(sample_weight, len(p)))


def solve_temperature(p: FloatArray, y: IntArray, eps: float, weight: FloatArray) -> TemperatureCalibrator:
    """`fit_temperature` on checked arrays."""
    from scipy.optimize import minimize_scalar  # takes half a second, and few fits need it

    logits = np.log(p + eps)
    rows = np.arange(len(y))

    def loss(log_temperature: float) -> float:
        m = softmax(logits / np.exp(log_temperature))[rows, y]
        return float(-weight @ np.log(np.maximum(m, 1e-300)))

    # One-dimensional and unimodal: the loss is convex in 1/T. The bounds are T from 1/150 to 150.
    found = minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded", options={"xatol": 1e-10})
    return TemperatureCalibrator(temperature=float(np.exp(found.x)), eps=float(eps))
