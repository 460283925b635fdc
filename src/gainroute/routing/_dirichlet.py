"""The Dirichlet map, its fit on checked arrays, and the choice of λ and ε by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from gainroute._util.arrays import Float32Array, shown
from gainroute._util.blas import one_thread
from gainroute.errors import SettingError
from gainroute.routing import _newton
from gainroute.routing._many_classes import MANY, fit_map
from gainroute.routing.folds import folds_of, unseen_classes
from gainroute.routing.inputs import check_positive, ones
from gainroute.routing.types import FloatArray, IntArray

__all__ = [
    "FOLD_GAP",
    "GAP",
    "LAM_GRID",
    "DirichletCalibrator",
    "check_choices",
    "choice_folds",
    "choose_dirichlet",
    "label_loss",
    "mapped",
    "refit_dirichlet",
    "softmax",
    "solve_chosen",
    "solve_dirichlet",
    "solve_seen",
]

LAM_GRID = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
EPS_GRID = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2)
CV_FOLDS = 5
PATIENCE = 2
ROUGH_DISTANCE = 1e-3  # from its optimum, of a map that is only compared with others
FOLD_DISTANCE = 1e-5  # of a fold's map, at most: scores to five digits, in two thirds of the time
MANY_FOLDS = 2  # of the CV_FOLDS, that compare maps of many classes
# Decrease of the objective per sample by the last step of a fit with many classes: of a fold, and of all samples.
FOLD_GAP, GAP = 1e-4, 1e-6


def softmax(logits: FloatArray) -> FloatArray:
    """Rowwise softmax, computed in place."""
    logits -= np.maximum.reduce(logits, axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits @ ones(logits.shape[1])[:, None].astype(logits.dtype, copy=False)
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

    @cached_property
    def diagonal(self) -> bool:
        """Whether W is diagonal: the map chosen for many classes with few samples."""
        return bool(np.count_nonzero(self.weight) == np.count_nonzero(np.diagonal(self.weight)))

    def __call__(self, posteriors: FloatArray) -> FloatArray:
        """Calibrate posteriors, (N, K) → (N, K)."""
        features = posteriors + self.eps
        np.log(features, out=features)
        logits = features * np.diagonal(self.weight) if self.diagonal else features @ self.weight.T
        logits += self.bias
        return mapped(logits, posteriors, self.unseen)


def mapped(logits: FloatArray, posteriors: FloatArray, unseen: IntArray) -> FloatArray:
    """The softmax of a map's logits (N, K), in which unseen classes keep the mass that they have in `posteriors`."""
    if not len(unseen):
        return softmax(logits)
    logits[:, unseen] = -np.inf
    calibrated = softmax(logits)
    kept = posteriors[:, unseen]
    calibrated *= np.clip(1 - kept.sum(axis=1, keepdims=True), 0, 1)
    calibrated[:, unseen] = kept
    return calibrated


def solve_dirichlet(
    p: FloatArray,
    y: IntArray,
    lam: float | Literal["cv"],
    eps: float | Literal["cv"],
    weight: FloatArray,
    start: DirichletCalibrator | None = None,
    distance: float = _newton.DISTANCE,
    soft: FloatArray | None = None,
) -> DirichletCalibrator:
    """`fit_dirichlet` on checked arrays, without the warning about unseen classes, and with an optional warm start.

    The map is fitted to `soft` labels (N, K) instead of `y` where there are any.
    """
    check_choices(lam, eps)
    if lam == "cv" or eps == "cv":
        early = lam == "cv" and p.shape[1] > MANY
        _, near = choose_dirichlet(p, y, lam, eps, weight, soft, early=early)
        return solve_chosen(near, p, y, weight, soft, early=early)
    penalty, origin = lam, np.eye(p.shape[1], p.shape[1] + 1)
    return _solve(
        p, y, lam, eps, weight, start, soft,
        lambda z, target, seen, w, begin, t: _newton.minimise(
            z, target, origin[seen], penalty, w, begin, distance, soft=t
        ),
    )  # fmt: skip


def choose_dirichlet(
    p: FloatArray,
    y: IntArray,
    lam: float | Literal["cv"],
    eps: float | Literal["cv"],
    weight: FloatArray,
    soft: FloatArray | None = None,
    *,
    judged: int | None = None,
    early: bool = False,
) -> tuple[float, DirichletCalibrator]:
    """The smallest out-of-fold negative log-likelihood of the labels, and a map with the λ and ε that have it.

    Only the first `judged` samples are ever held out, by default all; the others belong to every fit. If λ is chosen,
    fits may stop `early`, and a diagonal map is tried as well; losses found either way do not compare.
    """
    check_choices(lam, eps)
    lams, epses = LAM_GRID if lam == "cv" else (lam,), EPS_GRID if eps == "cv" else (eps,)
    choose = _choose_map if lam == "cv" and early else _choose
    return choose(p, y, lams, epses, weight, soft, len(p) if judged is None else judged)


def solve_chosen(
    near: DirichletCalibrator,
    p: FloatArray,
    y: IntArray,
    weight: FloatArray,
    soft: FloatArray | None = None,
    *,
    early: bool = False,
) -> DirichletCalibrator:
    """Fit the map that `choose_dirichlet` has chosen to all samples."""
    if early:
        return _solve_map(p, y, near.lam, near.eps, weight, near, GAP, soft, diagonal=near.diagonal)
    return solve_dirichlet(p, y, near.lam, near.eps, weight, soft=soft)


def refit_dirichlet(
    fitted: DirichletCalibrator,
    p: FloatArray,
    y: IntArray,
    weight: FloatArray,
    soft: FloatArray | None = None,
    *,
    early: bool = False,
) -> DirichletCalibrator:
    """Fit on almost the same samples, starting from `fitted`, with its λ and ε, as exactly as a fold needs."""
    if early or p.shape[1] > MANY:
        return _solve_map(p, y, fitted.lam, fitted.eps, weight, fitted, FOLD_GAP, soft, diagonal=fitted.diagonal)
    return solve_dirichlet(p, y, fitted.lam, fitted.eps, weight, fitted, FOLD_DISTANCE, soft)


def _solve(
    p: FloatArray,
    y: IntArray,
    lam: float,
    eps: float,
    weight: FloatArray,
    start: DirichletCalibrator | None,
    soft: FloatArray | None,
    minimise: Callable[..., FloatArray],
) -> DirichletCalibrator:
    """Fit (W, b) by `minimise(z, target, seen, weight, start, soft)`."""
    features = np.vstack([np.log(p + eps).T, np.ones(len(p))])
    begin = None if start is None else np.column_stack([start.weight, start.bias])
    theta, unseen = solve_seen(features, y, weight, np.eye(p.shape[1], p.shape[1] + 1), begin, soft, minimise)
    return DirichletCalibrator(
        weight=np.ascontiguousarray(theta[:, :-1]),
        bias=theta[:, -1].copy(),
        lam=float(lam),
        eps=float(eps),
        unseen=unseen,
    )


def solve_seen(
    features: FloatArray | Float32Array,
    y: IntArray,
    weight: FloatArray,
    origin: FloatArray,
    start: FloatArray | None,
    soft: FloatArray | None,
    minimise: Callable[..., FloatArray],
) -> tuple[FloatArray, IntArray]:
    """Fit the rows of classes that have samples by `minimise(z, target, seen, weight, start, soft)`.

    Returns θ (K, D), which for the other classes is the `origin` (K, D), and these classes. `features` are (D, N).
    """
    classes = len(origin)
    unseen = unseen_classes(y, classes, weight)
    seen = np.setdiff1d(np.arange(classes), unseen)
    column = np.full(classes, -1)
    column[seen] = np.arange(len(seen))
    used = weight > 0
    targets = None
    if soft is not None:
        targets = np.ascontiguousarray(soft[np.ix_(used, seen)].T)
        targets /= targets.sum(axis=0)
    theta = origin.copy()
    with one_thread():
        theta[seen] = minimise(
            np.ascontiguousarray(features[:, used]), column[y[used]], seen, weight[used],
            None if start is None else start[seen], targets,
        )  # fmt: skip
    return theta, unseen


def _solve_map(
    p: FloatArray,
    y: IntArray,
    lam: float,
    eps: float,
    weight: FloatArray,
    start: DirichletCalibrator | None,
    gap: float,
    soft: FloatArray | None,
    *,
    diagonal: bool,
) -> DirichletCalibrator:
    """Fit a full or diagonal map of many classes until a step lowers the objective by less than `gap` per sample."""

    def minimise(z: FloatArray, target: IntArray, seen: IntArray, w: FloatArray, begin: Any, t: Any) -> FloatArray:
        end = gap * float(w.sum())
        return fit_map(z.astype(np.float32), target, seen, lam, w, begin, end, diagonal=diagonal, soft=t)

    return _solve(p, y, lam, eps, weight, start, soft, minimise)


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
    p: FloatArray,
    y: IntArray,
    lams: Sequence[float],
    epses: Sequence[float],
    weight: FloatArray,
    soft: FloatArray | None,
    judged: int,
) -> tuple[float, DirichletCalibrator]:
    """`choose_dirichlet` over two grids."""
    parts = choice_folds(len(p), judged, early=False)
    found: tuple[float, DirichletCalibrator] | None = None
    for eps in epses:
        starts: list[DirichletCalibrator | None] = [None] * len(parts)
        least, worse = np.inf, 0
        for lam in sorted(lams, reverse=True):  # the strongest penalty is solved fastest, and starts the next
            if worse == PATIENCE:  # weaker penalties would only overfit more
                break
            loss = 0.0
            for i, (fit, held_out) in enumerate(parts):
                calibrator = solve_dirichlet(
                    p[fit], y[fit], lam, eps, weight[fit], starts[i], ROUGH_DISTANCE, _rows(soft, fit)
                )
                starts[i] = calibrator
                loss += _loss(calibrator, p[held_out], y[held_out], weight[held_out])
            worse = 0 if loss < least else worse + 1
            least = min(loss, least)
            if found is None or loss < found[0]:
                found = loss, calibrator
    assert found is not None  # noqa: S101 (neither grid is empty)
    return found


def _choose_map(
    p: FloatArray,
    y: IntArray,
    lams: Sequence[float],
    epses: Sequence[float],
    weight: FloatArray,
    soft: FloatArray | None,
    judged: int,
) -> tuple[float, DirichletCalibrator]:
    """The same on two folds, for a diagonal or a full map; the map was fitted without the first."""
    parts = choice_folds(len(p), judged, early=True)
    grid = sorted(lams, reverse=True)
    best: tuple[float, list[DirichletCalibrator]] = np.inf, []
    for eps in epses:
        for diagonal in (True, False):
            tried: dict[int, tuple[float, list[DirichletCalibrator]]] = {}

            def loss_at(i: int, near: int, eps: float = eps, diagonal: bool = diagonal, tried: Any = tried) -> float:
                loss, fitted = 0.0, []
                for fold, (fit, held_out) in enumerate(parts):
                    start = tried[near][1][fold] if near in tried else None
                    samples = p[fit], y[fit], grid[i], eps, weight[fit]
                    fitted.append(_solve_map(*samples, start, FOLD_GAP, _rows(soft, fit), diagonal=diagonal))
                    loss += _loss(fitted[-1], p[held_out], y[held_out], weight[held_out])
                tried[i] = loss, fitted
                return loss

            # Every second penalty first, until they get worse; then the neighbours of the best.
            least = 0
            for i in range(0, len(grid), 2):
                if loss_at(i, i - 2) > tried[least][0]:
                    break
                least = i
            for i in {least - 1, least + 1} & set(range(len(grid))):
                loss_at(i, least)
            best = min(best, *tried.values(), key=lambda found: found[0])
    return best[0], best[1][0]


def _rows(soft: FloatArray | None, rows: IntArray) -> FloatArray | None:
    return None if soft is None else soft[rows]


def _loss(calibrator: DirichletCalibrator, p: FloatArray, y: IntArray, weight: FloatArray) -> float:
    return label_loss(calibrator(p), y, weight)


def label_loss(posteriors: FloatArray, y: IntArray, weight: FloatArray) -> float:
    """Negative log-likelihood of labels (N,)."""
    return -float(weight @ np.log(np.maximum(posteriors[np.arange(len(y)), y], 1e-300)))


def choice_folds(samples: int, judged: int, *, early: bool) -> list[tuple[IntArray, IntArray]]:
    """The rows that maps are fitted to and judged on by `choose_dirichlet`."""
    return list(_splits(samples, judged, CV_FOLDS))[: MANY_FOLDS if early else CV_FOLDS]


def _splits(samples: int, judged: int, folds: int) -> Iterator[tuple[IntArray, IntArray]]:
    if judged < 2:
        raise SettingError(f'"cv" needs at least 2 samples, there are {judged}; set lam and eps to numbers')
    everything = np.arange(samples)
    for held_out in folds_of(judged, folds):
        yield np.setdiff1d(everything, held_out), held_out
