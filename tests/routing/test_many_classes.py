"""Many classes: the map is chosen by cross-validation, folds start near their optimum, and progress is reported."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import gainroute as gr
from gainroute._util.progress import BarProgress, Progress
from gainroute.cli.fit import SLOW, progress_for
from gainroute.routing import _dirichlet
from gainroute.routing._dirichlet import refit_dirichlet, solve_dirichlet
from gainroute.routing._many_classes import MANY
from gainroute.routing.pool import LogLinearPooling
from gainroute.routing.types import FloatArray, IntArray

K = MANY + 2


def posteriors(samples: int, confused: float = 0.0, parties: int = 1, seed: int = 0) -> tuple[FloatArray, IntArray]:
    """Overconfident posteriors, (M, N, K), which take class k for class k + 1 with a strength of `confused`."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % K)
    rows = np.arange(samples)
    logits = rng.normal(size=(parties, samples, K))
    logits[:, rows, labels] += 2.5
    logits[:, rows, (labels + 1) % K] += confused
    p = np.exp(2 * logits)
    return p / p.sum(axis=2, keepdims=True), labels


def loss(calibrator: object, seed: int, confused: float = 0.0) -> float:
    new, truth = posteriors(2000, confused, seed=seed)
    return gr.evaluation.negative_log_likelihood(calibrator(new[0]), truth)  # type: ignore[operator]


def test_few_samples_of_many_classes_get_a_diagonal_map_that_is_better_than_a_full_one() -> None:
    (p,), y = posteriors(4 * K)
    chosen = gr.fit_dirichlet(p, y, lam="cv")
    assert chosen.diagonal
    full = min(loss(gr.fit_dirichlet(p, y, lam=lam), 1) for lam in (10.0, 1000.0))
    assert loss(chosen, 1) < full


def test_classes_that_are_taken_for_others_get_a_full_map() -> None:
    (p,), y = posteriors(6 * K, confused=2.2)
    chosen = gr.fit_dirichlet(p, y, lam="cv")
    assert not chosen.diagonal
    exact = gr.fit_dirichlet(p, y, lam=chosen.lam)
    assert loss(chosen, 1, 2.2) == pytest.approx(loss(exact, 1, 2.2), rel=1e-3)


def test_a_given_penalty_keeps_the_objective_of_the_paper() -> None:
    (p,), y = posteriors(3 * K)
    fitted = solve_dirichlet(p, y, 1.0, 1e-6, np.ones(len(y)))
    residual = fitted(p)
    residual[np.arange(len(y)), y] -= 1
    gradient = residual.T @ np.log(p + 1e-6) + 2 * (fitted.weight - np.eye(K))
    assert np.abs(gradient).max() < 1e-6


@pytest.mark.parametrize("confused", [0.0, 2.2])
def test_a_fold_refitted_from_the_whole_equals_its_own_fit(confused: float) -> None:
    (p,), y = posteriors(8 * K, confused)
    weight = np.ones(len(y))
    whole = solve_dirichlet(p, y, "cv", 1e-6, weight)
    kept = np.arange(len(y)) % 10 > 0
    near = refit_dirichlet(whole, p[kept], y[kept], weight[kept])
    anew = refit_dirichlet(near, p[kept], y[kept], weight[kept])  # one more step from there
    assert near.diagonal == whole.diagonal
    difference = np.abs(near(p[~kept]) - anew(p[~kept])).max()
    assert difference < 0.1 * np.abs(near(p[~kept]) - whole(p[~kept])).max()


def test_the_pool_of_a_fold_starts_from_that_of_all_samples() -> None:
    local, y = posteriors(8 * K, parties=2)
    weight, kept = np.ones(len(y)), np.arange(len(y)) % 10 > 0
    stage = LogLinearPooling()
    whole = stage.fit(local, y, weight)
    near = stage.refit(whole, local[:, kept], y[kept], weight[kept])
    exact = stage.fit(local[:, kept], y[kept], weight[kept])
    np.testing.assert_allclose(near.weight, exact.weight, atol=1e-4)
    np.testing.assert_allclose(near.bias, exact.bias, atol=1e-3)


class Steps(Progress):
    def __init__(self) -> None:
        self.total, self.done = 0, 0

    def start(self, name: str, total: int, done: int = 0) -> None:
        self.total = total

    def advance(self, note: str = "") -> None:
        self.done += 1


@pytest.mark.parametrize(("threshold", "steps"), [("cross-fitted", 12), ("calibration", 2)])
def test_every_step_of_a_fit_is_reported(threshold: str, steps: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=200)
    local = rng.dirichlet(np.ones(3), size=(2, 200))
    progress = Steps()
    gr.ExpectedGainRouter(folds=10, threshold=threshold).fit(local, y, y, progress=progress)
    assert (progress.total, progress.done) == (steps, steps)


def test_the_command_shows_a_bar_in_a_terminal_only_where_the_fit_takes_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_for(SLOW + 1) as shown, progress_for(SLOW) as silent:
        assert isinstance(shown, BarProgress)
        assert type(silent) is Progress


def test_a_given_penalty_is_fitted_exactly_also_where_the_floor_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dirichlet, "EPS_GRID", (1e-6, 1e-3))
    (p,), y = posteriors(2 * K)
    found = solve_dirichlet(p, y, 30.0, "cv", np.ones(len(y)))
    exact = solve_dirichlet(p, y, 30.0, found.eps, np.ones(len(y)))
    assert np.array_equal(found.weight, exact.weight)
