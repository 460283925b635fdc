"""From the pooled posterior to P(y = k | pooled): Dirichlet calibration, temperature scaling, or none.

A stage such as `DirichletCalibration` holds settings; its `fit`, or a `fit_…` function, returns a frozen calibrator,
callable on (N, K). Fit calibrators on data that trained none of the models.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gainroute._util.arrays import shown
from gainroute._util.blas import one_thread
from gainroute._util.registry import Registry
from gainroute.errors import GainrouteWarning, SettingError
from gainroute.routing import _newton
from gainroute.routing.inputs import as_posteriors, as_weights, check_positive, ones
from gainroute.routing.labels import as_labels
from gainroute.routing.types import ArrayLike, FloatArray, IntArray, Stage

__all__ = [
    "CALIBRATORS",
    "DirichletCalibration",
    "DirichletCalibrator",
    "IdentityCalibrator",
    "NoCalibration",
    "TemperatureCalibration",
    "TemperatureCalibrator",
    "fit_dirichlet",
    "fit_temperature",
    "folds_of",
    "identity_calibration",
    "softmax",
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

LAM_GRID = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
EPS_GRID = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2)
CV_FOLDS = 5
PATIENCE = 2
ROUGH_DISTANCE = 1e-3  # from its optimum, of a map that is only compared with others
FOLD_DISTANCE = 1e-5  # of a fold's map, at most: scores to five digits, in two thirds of the time


def softmax(logits: FloatArray) -> FloatArray:
    """Rowwise softmax, computed in place."""
    logits -= np.maximum.reduce(logits, axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits @ ones(logits.shape[1])[:, None]
    return logits


@dataclass(frozen=True, eq=False)
class DirichletCalibrator:
    """m(p) = softmax(W log(p + ε) + b) (eq. 15).

    Attributes
    ----------
    weight : (K, K)
        W.
    bias : (K,)
        b.
    lam, eps
        λ of the fit, and ε, the floor under the logarithm; the values chosen if they were "cv".
    unseen : (U,)
        Classes without a calibration sample. Their calibrated mass stays their pooled mass, and the map
        shares the rest among the other classes.
    """

    weight: FloatArray
    bias: FloatArray
    lam: float
    eps: float
    unseen: IntArray

    def __call__(self, posteriors: FloatArray) -> FloatArray:
        """Calibrate posteriors, (N, K) → (N, K)."""
        features = posteriors + self.eps
        np.log(features, out=features)
        logits = features @ self.weight.T
        logits += self.bias
        if not len(self.unseen):
            return softmax(logits)
        logits[:, self.unseen] = -np.inf
        calibrated = softmax(logits)
        kept = posteriors[:, self.unseen]
        calibrated *= np.clip(1 - kept.sum(axis=1, keepdims=True), 0, 1)
        calibrated[:, self.unseen] = kept
        return calibrated


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
        return solve_dirichlet(pooled, labels, fitted.lam, fitted.eps, weight, fitted, FOLD_DISTANCE)


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


# ---- what all fits share -----------------------------------------------------------------------------


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


def folds_of(samples: int, folds: int, seed: int = 0) -> list[IntArray]:
    """Held-out rows of each fold, drawn from the number of samples alone, independent of the labels."""
    order = np.random.default_rng(seed).permutation(samples)
    return [np.sort(order[i::folds]) for i in range(min(folds, samples))]


def stratified_folds(labels: IntArray, folds: int, seed: int = 0) -> list[IntArray]:
    """Held-out rows of each fold, with each class spread evenly over the folds, however the classes are numbered."""
    order = np.random.default_rng(seed).permutation(len(labels))
    _, first, group = np.unique(labels[order], return_index=True, return_inverse=True)
    order = order[np.argsort(first[group], kind="stable")]
    return [np.sort(order[i::folds]) for i in range(min(folds, len(labels)))]


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
        λ > 0; "cv" chooses it by cross-validated negative log-likelihood.
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


def solve_dirichlet(
    p: FloatArray,
    y: IntArray,
    lam: float | Literal["cv"],
    eps: float | Literal["cv"],
    weight: FloatArray,
    start: DirichletCalibrator | None = None,
    distance: float = _newton.DISTANCE,
) -> DirichletCalibrator:
    """`fit_dirichlet` on checked arrays, without the warning about unseen classes, and with an optional warm start."""
    check_choices(lam, eps)
    if lam == "cv" or eps == "cv":
        lam, eps = _choose(p, y, LAM_GRID if lam == "cv" else (lam,), EPS_GRID if eps == "cv" else (eps,), weight)
    classes = p.shape[1]
    unseen = unseen_classes(y, classes, weight)
    seen = np.setdiff1d(np.arange(classes), unseen)
    origin = np.eye(classes, classes + 1)
    features = np.vstack([np.log(p + eps).T, np.ones(len(p))])
    column = np.full(classes, -1)
    column[seen] = np.arange(len(seen))
    used = weight > 0
    begin = None if start is None else np.column_stack([start.weight, start.bias])[seen]
    theta = origin.copy()
    with one_thread():
        theta[seen] = _newton.minimise(
            np.ascontiguousarray(features[:, used]), column[y[used]], origin[seen], lam, weight[used], begin, distance
        )
    return DirichletCalibrator(
        weight=np.ascontiguousarray(theta[:, :-1]),
        bias=theta[:, -1].copy(),
        lam=float(lam),
        eps=float(eps),
        unseen=unseen,
    )


def check_choices(lam: float | Literal["cv"], eps: float | Literal["cv"]) -> None:
    """Refuse a λ or ε that is neither positive nor "cv"."""
    for value, name in ((lam, "lam"), (eps, "eps")):
        if isinstance(value, str):
            if value != "cv":
                raise SettingError(
                    f'{name} is {shown(value)}; it is a number > 0, or "cv" to choose it by cross-validation'
                )
        else:
            check_positive(value, name)


def _choose(
    p: FloatArray, y: IntArray, lams: Sequence[float], epses: Sequence[float], weight: FloatArray
) -> tuple[float, float]:
    """λ and ε with the smallest out-of-fold negative log-likelihood."""
    parts = list(_splits(len(p), CV_FOLDS))
    best, choice = np.inf, (lams[0], epses[0])
    for eps in epses:
        starts: list[DirichletCalibrator | None] = [None] * len(parts)
        least, worse = np.inf, 0
        for lam in sorted(lams, reverse=True):  # the strongest penalty is solved fastest, and starts the next
            if worse == PATIENCE:  # weaker penalties would only overfit more
                break
            loss = 0.0
            for i, (fit, held_out) in enumerate(parts):
                calibrator = solve_dirichlet(p[fit], y[fit], lam, eps, weight[fit], starts[i], ROUGH_DISTANCE)
                starts[i] = calibrator
                m = calibrator(p[held_out])[np.arange(len(held_out)), y[held_out]]
                loss -= float(weight[held_out] @ np.log(np.maximum(m, 1e-300)))
            worse = 0 if loss < least else worse + 1
            least = min(loss, least)
            if loss < best:
                best, choice = loss, (lam, eps)
    return choice


def _splits(samples: int, folds: int) -> Iterator[tuple[IntArray, IntArray]]:
    if samples < 2:
        raise SettingError(f'"cv" needs at least 2 samples, there are {samples}; set lam and eps to numbers')
    everything = np.arange(samples)
    for held_out in folds_of(samples, folds):
        yield np.setdiff1d(everything, held_out), held_out


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
