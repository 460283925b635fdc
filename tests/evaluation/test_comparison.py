"""Cross-validated comparison: against the library's own measures, and with a winner and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gainroute as gr
from gainroute import evaluation
from gainroute.errors import LabelError, SettingError, TooFewSamplesError
from gainroute.evaluation.compare import ORACLE, REFERENCE, Candidate, candidates, compare_routers
from gainroute.routing.calibrate import folds_of


def draw(n: int = 600, k: int = 3, seed: int = 0) -> tuple[Any, Any, Any]:
    """Classes that differ in how reliable the strong route is: confidence alone cannot know."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n)
    z = rng.normal(size=(2, n, k))
    z[:, np.arange(n), labels] += 1.0
    local = np.exp(z) / np.exp(z).sum(axis=2, keepdims=True)
    right = rng.random(n) < np.linspace(1.0, 0.2, k)[labels]
    return local, labels, np.where(right, labels, (labels + 1) % k)


class Knowing(gr.Router):
    """Prefers class 0, which the strong route always knows."""

    def score(self, round_one: gr.RoundOne) -> Any:
        return round_one.pooled[:, 0]


FEW: dict[str, Candidate] = {
    "expected-gain": gr.ExpectedGainRouter.paper,
    REFERENCE: gr.ConfidenceRouter,
    "knowing": Knowing,
}


def test_each_fold_is_evaluated_by_itself_and_weighed_by_its_size() -> None:
    local, labels, strong = draw(203)
    made = compare_routers(local, labels, strong, routers=FEW, folds=4, budgets=[0.1, 0.3])
    by_hand = np.zeros((2, 2))
    shares = np.zeros(2)
    for fold in folds_of(203, 4, 0):
        kept = np.setdiff1d(np.arange(203), fold)
        router = gr.ExpectedGainRouter.paper().fit(local[:, kept], labels[kept], strong[kept])
        decision = router.route(local[:, fold])
        sides = decision.weak_prediction, strong[fold], labels[fold]
        oracle = evaluation.oracle_score(*sides)
        for row, score in enumerate((decision.score, oracle)):
            curve = evaluation.tradeoff_curve(score, *sides)
            for i, rate in enumerate((0.1, 0.3)):
                by_hand[row, i] += len(fold) / 203 * np.interp(rate, curve.escalation_rate, curve.accuracy)
            chord = curve.accuracy[0] + curve.escalation_rate * (curve.accuracy[-1] - curve.accuracy[0])
            above = curve.accuracy - chord
            shares[row] += len(fold) * np.sum((above[1:] + above[:-1]) / 2 * np.diff(curve.escalation_rate))
    rows = {row.name: row for row in made.rows}
    np.testing.assert_allclose(rows["expected-gain"].value, by_hand[0])
    np.testing.assert_allclose(rows[ORACLE].value, by_hand[1])
    assert rows["expected-gain"].oracle_share == pytest.approx(shares[0] / shares[1])
    assert rows[ORACLE].oracle_share == pytest.approx(1)


def test_a_router_that_knows_more_beats_confidence_beyond_its_interval() -> None:
    made = compare_routers(*draw(1200), routers=FEW)
    assert "expected-gain" in made.winners
    assert REFERENCE not in made.winners
    assert ORACLE not in made.winners
    rows = {row.name: row for row in made.rows}
    assert (rows[REFERENCE].difference == 0).all()
    assert (rows["expected-gain"].low <= rows["expected-gain"].difference).all()
    assert (rows["expected-gain"].difference <= rows["expected-gain"].high).all()


def test_no_router_beats_confidence_where_there_is_nothing_to_know() -> None:
    rng = np.random.default_rng(1)
    local = rng.dirichlet(np.ones(3), size=(2, 300))
    labels = rng.integers(3, size=300)
    made = compare_routers(local, labels, labels, routers={"random": gr.RandomRouter})
    assert made.winners == ()
    assert [row.name for row in made.rows] == ["random", REFERENCE, ORACLE]
    assert made.strong == 1.0


def test_all_routers_take_part_by_default_and_progress_is_told() -> None:
    told: list[str] = []
    made = compare_routers(*draw(150), folds=2, progress=told.append)
    assert [row.name for row in made.rows] == [*candidates(), ORACLE]
    assert len(told) == 2 * len(candidates())


def test_weights_and_a_utility_change_what_is_measured() -> None:
    local, labels, strong = draw(300)
    weight = np.where(labels == 0, 3.0, 1.0)
    u = np.array([[1.0, -2, 0], [0, 1, 0], [0, 0, 5]])
    made = compare_routers(local, labels, strong, routers=FEW, sample_weight=weight, utility=u, folds=3)
    assert made.measure == "utility"
    weak = gr.pool_mean(local).argmax(axis=1)
    assert made.weak == pytest.approx(np.average(u[labels, weak], weights=weight))
    assert made.strong == pytest.approx(np.average(u[labels, strong], weights=weight))


def test_one_s_own_weak_answer_is_used() -> None:
    local, labels, strong = draw(200)
    made = compare_routers(local, labels, strong, routers=FEW, weak_prediction=np.zeros(200, dtype=int))
    assert made.weak == pytest.approx((labels == 0).mean())


def test_rare_classes_are_warned_of_once() -> None:
    local, labels, strong = draw(200)
    labels[labels == 2] = 1
    labels[0] = 2
    with pytest.warns(gr.GainrouteWarning, match=r"class\(es\) 2 have fewer than 10 samples") as seen:
        compare_routers(local, labels, strong, routers=FEW)
    assert len(seen) == 1


def test_bad_input_is_named() -> None:
    local, labels, strong = draw(30)
    for settings, error, message in (
        ({"folds": 1}, SettingError, "folds is 1"),
        ({"folds": 20}, TooFewSamplesError, "30 samples are too few for 20 folds; at least 40"),
        ({"budgets": []}, SettingError, "budgets is empty"),
        ({"budgets": [1.5]}, SettingError, r"budgets is 1.5; it lies in \[0, 1\]"),
    ):
        with pytest.raises(error, match=message):
            compare_routers(local, labels, strong, **settings)
    with pytest.raises(LabelError):
        compare_routers(local, labels + 1, strong)
