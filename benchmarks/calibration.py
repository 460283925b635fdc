"""Dirichlet calibration: time until the objective is within 1e-6 of the optimum, each solver on the same objective.

Quality: held-out likelihood of what a router gives by default, against probmetrics' structured matrix scaling (SMS).
With many classes: CPU time of the fit that chooses λ, against scikit-learn's LogisticRegressionCV on the same features.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from benchmarks.problems import posteriors
from benchmarks.rows import Row, interleaved, row, timed
from gainroute import ExpectedGainRouter, evaluation, fit_dirichlet
from gainroute._util.blas import one_thread
from gainroute.routing import _newton

__all__ = ["run"]

Array = npt.NDArray[Any]
SIZES = ((10, 5000, 9, ">= 3"), (40, 2000, 9, ">= 3"), (100, 5000, 3, ">= 1.5"), (100, 10000, 3, ">= 1.5"))
LAM, EPS, WITHIN = 1.0, 1e-6, 1e-6
DRAWS = {(10, 5000): 4, (40, 2000): 4, (100, 5000): 1}  # of calibration samples, for the quality of a router's default
LEVEL = "<= 1.001"
MANY = 500, 3000  # classes, samples


def run() -> Iterator[Row]:
    """Measure every size against scipy's L-BFGS-B, torch's LBFGS and probmetrics."""
    for classes, samples, repeats, bar in SIZES:
        local, y = posteriors(classes, samples)
        p = local[0]
        optimum = _optimum(p, y)
        target = optimum + WITHIN * abs(optimum)
        solvers: list[Callable[[], float]] = [partial(solve, p, y, target) for solve in (_ours, _scipy, _torch)]
        solvers.append(partial(timed, partial(_probmetrics, p, y)))
        ours, lbfgs, torch_lbfgs, structured = interleaved(solvers, repeats)
        size = f"K={classes} N={samples}"
        yield row(f"{size}: seconds to 1e-6, against scipy L-BFGS-B", ours, lbfgs, lbfgs / ours, bar)
        yield row(f"{size}: seconds to 1e-6, against torch LBFGS float64", ours, torch_lbfgs, torch_lbfgs / ours)
        yield row(f"{size}: seconds, against probmetrics SMS (own objective)", ours, structured, structured / ours)
        yield from _quality(size, p, y, classes)
    yield from _many_classes()


def _many_classes() -> Iterator[Row]:
    """λ by cross-validation; scikit-learn makes as many fits as ours: five values of C in two folds, one thread."""
    from sklearn.linear_model import LogisticRegressionCV

    (local, y), (new, truth) = posteriors(*MANY), posteriors(*MANY, seed=1)
    size, fitted = f"K={MANY[0]} N={MANY[1]}", []
    regression = LogisticRegressionCV(Cs=5, cv=2, scoring="neg_log_loss", use_legacy_attributes=False)
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore")  # classes without samples, in both
        ours = _cpu(lambda: fitted.append(fit_dirichlet(local[0], y, lam="cv")))
        router = _cpu(lambda: ExpectedGainRouter().fit(local, y, y))
        theirs = _cpu(lambda: regression.fit(np.log(local[0] + EPS), y))
    rows = np.flatnonzero(np.isin(truth, regression.classes_))
    column = np.searchsorted(regression.classes_, truth[rows])
    likelihood = regression.predict_proba(np.log(new[0][rows] + EPS))[np.arange(len(rows)), column]
    own, other = evaluation.negative_log_likelihood(fitted[0](new[0][rows]), truth[rows]), -np.log(likelihood).mean()
    yield row(f"{size}: CPU seconds, λ chosen, against LogisticRegressionCV", ours, theirs, theirs / ours)
    yield row(f"{size}: held-out NLL, against LogisticRegressionCV", own, other, own / other)
    yield row(f"{size}: CPU seconds of a router's whole fit", router, None, None)


def _cpu(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def _quality(size: str, p: Array, y: Array, classes: int) -> Iterator[Row]:
    new, truth = posteriors(classes, 10_000, seed=1)
    held_out = new[0]
    ours = fit_dirichlet(p, y, lam=LAM, eps=EPS)(held_out)
    theirs = _probmetrics(p, y).predict_proba(held_out)
    if (draws := DRAWS.get((classes, len(y)))) is not None:
        found = np.mean(
            [_default_against_sms(classes, len(y), seed, held_out, truth) for seed in range(2, 2 + draws)], 0
        )
        about = f"{size}: held-out NLL of the default router, against SMS, mean of {draws}"
        yield row(about, found[0], found[1], found[0] / found[1], LEVEL)
    for name, measure in (
        ("NLL", evaluation.negative_log_likelihood),
        ("ECE", evaluation.expected_calibration_error),
    ):
        a, b = measure(ours, truth), measure(theirs, truth)
        yield row(f"{size}: held-out {name} at λ = 1, against SMS", a, b, a / b)


def _default_against_sms(classes: int, samples: int, seed: int, new: Array, truth: Array) -> tuple[float, float]:
    local, y = posteriors(classes, samples, seed=seed)
    router = ExpectedGainRouter(threshold="calibration").fit(local, y, y)
    ours, theirs = router.route(new).calibrated, _probmetrics(local[0], y).predict_proba(new)
    likelihood = evaluation.negative_log_likelihood
    return likelihood(ours, truth), likelihood(theirs, truth)


def _features(p: Array) -> tuple[Array, Array]:
    return np.vstack([np.log(p + EPS).T, np.ones(len(p))]), np.eye(p.shape[1], p.shape[1] + 1)


def _optimum(p: Array, y: Array) -> float:
    best = float("inf")

    def keep(value: float) -> bool:
        nonlocal best
        best = min(best, value)
        return False

    z, origin = _features(p)
    _newton.minimise(z, y, origin, LAM, callback=keep)
    return best


def _ours(p: Array, y: Array, target: float) -> float:
    begin = time.perf_counter()
    z, origin = _features(p)
    _newton.minimise(z, y, origin, LAM, callback=lambda value: value <= target)
    return time.perf_counter() - begin


def _scipy(p: Array, y: Array, target: float) -> float:
    begin = time.perf_counter()
    z, origin = _features(p)
    samples = np.arange(len(y))

    def objective(flat: Array) -> tuple[float, Array]:
        theta = flat.reshape(origin.shape)
        logits = theta @ z
        top = logits.max(axis=0)
        m = np.exp(logits - top)
        total = m.sum(axis=0)
        value = float((np.log(total) + top - logits[y, samples]).sum() + LAM * np.square(theta - origin).sum())
        m /= total
        m[y, samples] -= 1
        return value, (m @ z.T + 2 * LAM * (theta - origin)).ravel()

    def stop(intermediate_result: Any) -> None:
        if intermediate_result.fun <= target:
            raise StopIteration

    options = {"maxiter": 100_000, "maxfun": 1_000_000, "ftol": 0.0, "gtol": 0.0}
    found = minimize(objective, origin.ravel(), jac=True, method="L-BFGS-B", options=options, callback=stop)
    taken = time.perf_counter() - begin
    if found.fun > target:
        raise RuntimeError(f"L-BFGS-B stopped at {found.fun}, {target} was the target")
    return taken


def _torch(p: Array, y: Array, target: float) -> float:
    import torch

    begin = time.perf_counter()
    z_, origin_ = _features(p)
    z, origin, labels = torch.from_numpy(z_), torch.from_numpy(origin_), torch.from_numpy(y)
    theta = origin.clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS(
        [theta], max_iter=20, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=0, tolerance_change=0
    )

    def closure() -> Any:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy((theta @ z).T, labels, reduction="sum")
        loss = loss + LAM * (theta - origin).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(1000):
        optimiser.step(closure)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            logits = (theta @ z).T
            value = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            if float(value + LAM * (theta - origin).square().sum()) <= target:
                return time.perf_counter() - begin
    raise RuntimeError("torch LBFGS did not reach the target")


def _probmetrics(p: Array, y: Array) -> Any:
    from probmetrics.calibrators import get_calibrator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_calibrator("sms", sms_print_init_info=False).fit(p, y)
