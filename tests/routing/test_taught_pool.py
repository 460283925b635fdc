"""A pool that learns from the strong route, and the corrected score: optimal, guarded, and kept in artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import gainroute as gr
from gainroute.evaluation.metrics import negative_log_likelihood
from gainroute.routing._dirichlet import solve_dirichlet
from gainroute.routing._many_classes import fit_map
from gainroute.routing.correction import correction_of, fit_correction
from gainroute.routing.taught import LABEL, TaughtPool, soft_labels
from gainroute.routing.types import FloatArray, IntArray, RoundOne


def federation(seed: int, samples: int, classes: int = 6) -> tuple[FloatArray, IntArray, FloatArray]:
    """Two parties that see a noisy hint of what a sample is, the labels, and a strong route that sees it clearly.

    A label is drawn from what the sample is: the strong posterior tells more about Round 1 than the label does.
    """
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=(samples, classes))
    strong = np.exp(truth) / np.exp(truth).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(classes, p=p) for p in strong])
    mixing = np.eye(classes) + 0.4 * np.random.default_rng(1).normal(size=(classes, classes))
    local = np.exp(truth @ mixing + rng.normal(size=(2, samples, classes)))
    return local / local.sum(axis=2, keepdims=True), labels, strong


def taught_pool(router: gr.Router) -> TaughtPool:
    pool = router._pipeline.pool
    assert isinstance(pool, TaughtPool)
    return pool


def objective(theta: FloatArray, p: FloatArray, soft: FloatArray, lam: float) -> float:
    """−Σₙ Σₖ t[k] log m[k] + λ(‖W − I‖² + ‖b‖²), written down anew."""
    k = p.shape[1]
    at = theta.reshape(k, k + 1)
    logits = np.log(p + 1e-6) @ at[:, :-1].T + at[:, -1]
    logs = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
    return float(-np.sum(soft * logs) + lam * np.sum((at - np.eye(k, k + 1)) ** 2))


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_soft_labels_add_up_to_one_and_are_labels_where_no_answer_is_known(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    teacher, labels, known = rng.dirichlet(np.ones(classes), 9), rng.integers(classes, size=9), rng.random(9) < 0.5
    soft = soft_labels(teacher, labels, known)
    assert np.allclose(soft.sum(axis=1), 1)
    assert np.array_equal(soft[~known], np.eye(classes)[labels[~known]])
    assert np.allclose(soft[known], LABEL * np.eye(classes)[labels[known]] + (1 - LABEL) * teacher[known])


def test_the_map_is_the_optimum_for_soft_labels() -> None:
    local, labels, strong = federation(0, 200, classes=3)
    soft = soft_labels(strong, labels, np.ones(200, dtype=bool))
    found = solve_dirichlet(local[0], labels, 2.0, 1e-6, np.ones(200), soft=soft)
    best = minimize(objective, np.eye(3, 4).ravel(), (local[0], soft, 2.0), method="BFGS", options={"gtol": 1e-7})
    assert found.taught
    assert np.allclose(np.column_stack([found.weight, found.bias]).ravel(), best.x, atol=1e-4)


@pytest.mark.parametrize("diagonal", [True, False])
def test_soft_labels_without_a_teacher_are_labels(diagonal: bool) -> None:
    local, labels, _ = federation(0, 300)
    one_hot = np.eye(6)[labels]
    hard, soft = (solve_dirichlet(local[0], labels, 1.0, 1e-6, np.ones(300), soft=t) for t in (None, one_hot))
    assert np.allclose(hard.weight, soft.weight, atol=1e-8)
    z = np.vstack([np.log(local[0] + 1e-6).T, np.ones(300)])
    many, many_soft = (
        fit_map(z, labels, np.arange(6), 1.0, np.ones(300), None, 1e-8, diagonal=diagonal, soft=t)
        for t in (None, one_hot.T)
    )
    assert np.allclose(many, many_soft, atol=1e-5)


def test_a_class_without_a_sample_stays_as_pooled_whatever_the_teacher_says() -> None:
    local, labels, strong = federation(0, 300)
    labels[labels == 2] = 3
    soft = soft_labels(strong, labels, np.ones(300, dtype=bool))
    found = solve_dirichlet(local[0], labels, 1.0, 1e-6, np.ones(300), soft=soft)
    assert found.unseen.tolist() == [2]
    assert np.allclose(found(local[0])[:, 2], local[0][:, 2])


def test_with_few_samples_the_strong_route_teaches_more_than_labels() -> None:
    (local, labels, strong), (new, truth, _) = federation(2, 400), federation(3, 4000)
    taught, default = (
        gr.ExpectedGainRouter(pooling=pooling, threshold="calibration").fit(local, labels, strong_posterior=strong)
        for pooling in ("taught", "log-linear")
    )
    assert isinstance(taught._pipeline.pool, TaughtPool)
    better, usual = taught.route(new), default.route(new)
    assert negative_log_likelihood(better.calibrated, truth) < negative_log_likelihood(usual.calibrated, truth)
    assert np.mean(better.weak_prediction == truth) > np.mean(usual.weak_prediction == truth)
    assert np.array_equal(better.weak_prediction, better.calibrated.argmax(axis=1))


def test_soft_labels_that_mislead_are_not_used() -> None:
    local, labels, _ = federation(2, 400)
    soft = soft_labels(np.random.default_rng(0).dirichlet(np.ones(6), 400), labels, np.ones(400, dtype=bool))
    assert not solve_dirichlet(local[0], labels, "cv", 1e-6, np.ones(400), soft=soft).taught


def test_without_strong_posteriors_it_is_the_log_linear_pool() -> None:
    local, labels, strong = federation(2, 400)
    taught, log_linear = (
        gr.ExpectedGainRouter(pooling=pooling).fit(local, labels, strong.argmax(axis=1)).route(local)
        for pooling in ("taught", "log-linear")
    )
    assert np.array_equal(taught.score, log_linear.score)
    assert np.array_equal(taught.pooled, log_linear.pooled)


def test_a_sample_that_lacks_a_party_gets_the_mean_of_the_others() -> None:
    local, labels, strong = federation(2, 400)
    router = gr.ExpectedGainRouter(pooling="taught", threshold="calibration").fit(
        local, labels, strong_posterior=strong
    )
    present = np.ones((2, 400), dtype=bool)
    present[1, ::2] = False
    decision, whole = router.route(local, present=present), router.route(local)
    assert np.allclose(decision.pooled[::2], local[0, ::2])
    assert np.array_equal(decision.pooled[1::2], whole.pooled[1::2])
    assert decision.incomplete[::2].all()
    assert not decision.escalate[::2].any()


def test_a_sum_of_log_odds_is_pooled_alike() -> None:
    local, labels, strong = federation(2, 400)
    router = gr.ExpectedGainRouter(pooling="taught", pooled_only=True).fit(local, labels, strong_posterior=strong)
    pool = taught_pool(router)
    logs = np.log(local + pool.eps)
    total = np.einsum("m,mnk->nk", pool.weight, logs[..., :-1] - logs[..., -1:])
    assert np.allclose(pool.from_log_odds(total), pool(local))


# ---- the correction ---------------------------------------------------------------------------------


def round_one(seed: int, samples: int = 2000) -> RoundOne:
    local, _, _ = federation(seed, samples)
    pooled = local.mean(axis=0)
    return RoundOne(local, pooled, pooled.argmax(axis=1), pooled)


def test_what_agreement_tells_about_the_gain_is_found() -> None:
    at, value = round_one(0), np.full(6, 0.9)
    agree = (at.local.argmax(axis=2) == at.weak_prediction).mean(axis=0)
    unexplained = 0.3 * (0.8 - agree) + np.random.default_rng(1).normal(scale=0.3, size=2000)
    fitted = fit_correction(at, value, unexplained, np.ones(2000))
    assert fitted is not None
    new = round_one(5)
    votes = (new.local.argmax(axis=2) == new.weak_prediction).mean(axis=0)
    assert np.corrcoef(correction_of(fitted, new, value), votes)[0, 1] < -0.95


def test_where_nothing_is_left_nothing_is_corrected() -> None:
    noise = np.random.default_rng(3).normal(size=2000)
    assert fit_correction(round_one(0), np.full(6, 0.9), noise, np.ones(2000)) is None
    few = round_one(0, samples=5)
    assert fit_correction(few, np.full(6, 0.9), np.ones(5), np.ones(5)) is None


def confused(seed: int, samples: int = 3000) -> tuple[FloatArray, IntArray, IntArray]:
    """A strong route that is right exactly where the two parties disagree, which no posterior of a class can tell."""
    local, labels, _ = federation(seed, samples)
    differ = local[0].argmax(axis=1) != local[1].argmax(axis=1)
    return local, labels, np.where(differ, labels, (labels + 1) % 6)


def test_a_corrected_score_ranks_better_and_its_explanation_adds_up() -> None:
    local, labels, strong = confused(2)
    new, truth, answer = confused(7)
    gains = []
    for correction in ("none", "cv"):
        router = gr.ExpectedGainRouter(0.2, correction=correction).fit(local, labels, strong)
        decision = router.route(new)
        right = np.where(decision.escalate, answer == truth, decision.weak_prediction == truth)
        gains.append(right.mean() - np.mean(decision.weak_prediction == truth))
        assert abs(decision.escalate.mean() - 0.2) < 0.03
        why = router.explain(new[:, 0])
        assert why.score == pytest.approx(float(why.contribution.sum()) + why.correction)
        assert (why.correction != 0) == (correction == "cv") == ("correction" in str(why))
    assert gains[1] > gains[0] + 0.02


def test_a_utility_is_not_corrected() -> None:
    local, labels, strong = confused(2, samples=600)
    router = gr.ExpectedGainRouter(correction="cv", utility=np.eye(6)).fit(local, labels, strong)
    assert router.explain(local[:, 0]).correction == 0


@pytest.mark.parametrize("threshold", ["calibration", "cross-fitted", "certified"])
def test_saved_and_loaded_it_routes_as_before(threshold: Any, tmp_path: Path) -> None:
    local, labels, strong = federation(2, 600)
    router = gr.ExpectedGainRouter(0.3, pooling="taught", correction="cv", threshold=threshold)
    router.fit(local, labels, strong_posterior=strong)
    gr.save(router, tmp_path / "router.safetensors")
    loaded = gr.load(tmp_path / "router.safetensors")
    assert np.array_equal(loaded.route(local).score, router.route(local).score)
    assert np.array_equal(loaded.route(local).pooled, router.route(local).pooled)
    assert loaded.settings() == router.settings()


def test_routers_of_subsets_take_its_penalty_if_they_are_taught() -> None:
    local, labels, strong = federation(2, 600)
    router = gr.ExpectedGainRouter(pooling="taught").fit(local, labels, strong_posterior=strong)
    answers: dict[tuple[int, ...], FloatArray | IntArray] = {(0,): strong, (1,): strong.argmax(axis=1)}
    taught, untaught = gr.fit_subsets(router, local, labels, answers).subset_routers_.values()
    assert taught.settings()["lam"] == taught_pool(router).lam
    assert untaught.settings()["lam"] == "cv"
    plain = gr.ExpectedGainRouter(pooling="taught").fit(local, labels, strong.argmax(axis=1))
    (subset,) = gr.fit_subsets(plain, local, labels, {(0,): strong}).subset_routers_.values()
    assert subset.settings()["pooling"] == "log-linear"
    assert subset.settings()["lam"] == plain.calibrator_.lam
