"""A pool that learns from the strong route, and the corrected score: optimal, guarded, and kept in artifacts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from scipy.optimize import minimize

import gainroute as gr
import gainroute.routing.taught as taught_pooling
from gainroute.evaluation.metrics import negative_log_likelihood
from gainroute.routing._dirichlet import solve_dirichlet
from gainroute.routing._many_classes import fit_map
from gainroute.routing._map_fit import FittedMap, MapFit, logs_of_parties
from gainroute.routing.adapted import AdaptedPooling
from gainroute.routing.correction import correction_of, fit_correction
from gainroute.routing.pool import LogLinearPool, fit_log_linear
from gainroute.routing.taught import LABEL, TaughtPool, TaughtPooling, TrainingPart, soft_labels
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
    assert isinstance(TaughtPooling().fit(local, labels, np.ones(400), soft), LogLinearPool)


# ---- the training part ------------------------------------------------------------------------------


def test_with_few_calibration_samples_the_training_part_teaches_more_than_they_do() -> None:
    (local, labels, strong), (more, known, _), (new, truth, _) = (
        federation(seed, samples) for seed, samples in ((2, 150), (4, 3000), (3, 4000))
    )
    alone, helped = (
        gr.ExpectedGainRouter(threshold="calibration").fit(
            local, labels, strong.argmax(axis=1), strong_posterior=given, training=training
        )
        for given, training in ((strong, None), (None, (more, known)))
    )
    assert taught_pool(helped).training_weight > 0
    better, usual = helped.route(new), alone.route(new)
    assert negative_log_likelihood(better.calibrated, truth) < negative_log_likelihood(usual.calibrated, truth)
    assert np.mean(better.weak_prediction == truth) > np.mean(usual.weak_prediction == truth)


def test_a_training_part_that_misleads_is_not_used() -> None:
    local, labels, strong = federation(2, 400)
    overfitted = np.tile(np.eye(6)[labels] * 0.94 + 0.01, (2, 1, 1))  # what the local models have learned by heart
    with_it, without = (
        gr.ExpectedGainRouter().fit(local, labels, strong_posterior=strong, training=training)
        for training in ((overfitted, np.random.default_rng(0).permutation(labels)), None)
    )
    assert np.array_equal(with_it.route(local).score, without.route(local).score)


def test_the_map_of_the_training_part_is_the_optimum_for_its_weight() -> None:
    local, labels, _ = federation(0, 200, classes=3)
    more, known, _ = federation(1, 300, classes=3)
    pooling = TaughtPooling(lam=2.0, training_weight=0.5)
    found = pooling.fit(local, labels, np.ones(200), np.eye(3)[labels], TrainingPart(more, known))
    assert isinstance(found, TaughtPool)
    held = pooling._samples(found.pool, local, labels, np.ones(200), None).pooled
    pooled = np.concatenate([held, found.pool(more)])
    soft = np.concatenate([np.eye(3)[labels], 0.5 * np.eye(3)[known]])  # half a label is a label of half the weight
    best = minimize(objective, np.eye(3, 4).ravel(), (pooled, soft, 2.0), method="BFGS", options={"gtol": 1e-7})
    assert np.allclose(np.column_stack([found.map_weight, found.map_bias]).ravel(), best.x, atol=1e-4)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (3, "training is 3; a pair is needed"),
        ((np.full((3, 5, 6), 1 / 6), np.zeros(5, dtype=int)), "come from 3 part"),
        ((np.full((2, 5, 4), 1 / 4), np.zeros(5, dtype=int)), "classes"),
        ((np.full((2, 5, 6), 1 / 6), np.zeros(4, dtype=int)), "training labels"),
        ((np.full((2, 5, 6), 1 / 6), np.full(5, 6)), "training labels"),
        ((np.full((2, 5, 6), np.nan), np.zeros(5, dtype=int)), "training posteriors"),
    ],
)
def test_a_bad_training_part_is_refused_by_name(training: Any, message: str) -> None:
    local, labels, strong = federation(2, 60)
    with pytest.raises(gr.errors.GainrouteError, match=message):
        gr.ExpectedGainRouter().fit(local, labels, strong_posterior=strong, training=training)


@pytest.mark.parametrize("weight", [-1, np.inf, "all", None])
def test_a_training_weight_is_a_number_or_chosen(weight: Any) -> None:
    with pytest.raises(gr.errors.SettingError, match="training_weight is"):
        gr.ExpectedGainRouter(training_weight=weight)


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


# ---- a map of every party ---------------------------------------------------------------------------


def parties_that_know_different_classes(seed: int, samples: int) -> tuple[FloatArray, IntArray, FloatArray]:
    """The first party tells the first three classes apart and guesses among the others, the second the other way round.

    Each is as certain where it guesses as where it knows: no pool of the two can tell.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(6, size=samples)
    local = np.empty((2, samples, 6))
    for party, known in enumerate(((0, 1, 2), (3, 4, 5))):
        others = [k for k in range(6) if k not in known]
        said = np.where(np.isin(labels, known), labels, rng.choice(others, size=samples))
        logits = 4.0 * np.eye(6)[said] + 0.3 * rng.normal(size=(samples, 6))
        local[party] = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return local, labels, 0.9 * np.eye(6)[labels] + 0.1 / 6


def test_parties_that_know_different_classes_are_believed_about_these() -> None:
    (local, labels, strong), (new, truth, _) = (
        parties_that_know_different_classes(s, n) for s, n in ((0, 600), (1, 3000))
    )
    router = gr.ExpectedGainRouter(threshold="calibration").fit(local, labels, strong_posterior=strong)
    assert taught_pool(router).map_weight.shape == (2, 6, 6)
    plain = gr.ExpectedGainRouter(threshold="calibration", pooled_only=True).fit(local, labels, strong_posterior=strong)
    right, pooled = (np.mean(r.route(new).weak_prediction == truth) for r in (router, plain))
    assert right > pooled + 0.05


def test_the_map_of_every_party_is_the_optimum() -> None:
    local, labels, strong = federation(0, 300, classes=3)
    pool = fit_log_linear(local, labels)
    soft = soft_labels(strong, labels, np.ones(300, dtype=bool))
    origin = np.column_stack([*(w * np.eye(3) for w in pool.weight), pool.bias])
    fit = MapFit(logs_of_parties(local, pool.eps), pool(local), labels, np.ones(300), soft, origin)
    found = fit.solve(FittedMap(origin, 2.0, np.array([], dtype=int)))
    mapped = TaughtPool.of_theta(pool, pool.eps, found)

    def logs_of(weight: FloatArray, bias: FloatArray) -> FloatArray:
        logits: FloatArray = np.einsum("mjk,mnk->nj", weight, np.log(local + pool.eps)) + bias
        return logits - np.logaddexp.reduce(logits, axis=1)[:, None]

    def cost(theta: FloatArray) -> float:
        weight, bias = theta[:18].reshape(2, 3, 3), theta[18:]
        away = np.sum((weight - pool.weight[:, None, None] * np.eye(3)) ** 2) + np.sum((bias - pool.bias) ** 2)
        return float(-np.sum(soft * logs_of(weight, bias)) + 2.0 * away)

    best = minimize(cost, np.zeros(21), method="BFGS", options={"gtol": 1e-6})
    assert np.allclose(np.concatenate([mapped.map_weight.ravel(), mapped.map_bias]), best.x, atol=2e-3)
    assert np.allclose(np.log(mapped(local)), logs_of(mapped.map_weight, mapped.map_bias), atol=1e-6)
    assert np.array_equal(mapped.theta, found.theta)


def test_a_class_that_nobody_has_seen_keeps_its_pooled_mass_in_the_map_of_every_party() -> None:
    local, labels, strong = parties_that_know_different_classes(0, 600)
    rows = labels != 2
    local, labels, strong = local[:, rows], labels[rows], strong[rows]
    with pytest.warns(gr.errors.GainrouteWarning):
        router = gr.ExpectedGainRouter(threshold="calibration").fit(local, labels, strong_posterior=strong)
    pool = taught_pool(router)
    assert pool.map_weight.ndim == 3
    assert pool.unseen.tolist() == [2]
    assert np.allclose(pool(local)[:, 2], pool.pool(local)[:, 2])
    assert np.allclose(pool(local).sum(axis=1), 1)


def test_the_map_of_every_party_is_saved_and_lacks_nobody(tmp_path: Path) -> None:
    local, labels, strong = parties_that_know_different_classes(0, 600)
    router = gr.ExpectedGainRouter().fit(local, labels, strong_posterior=strong)
    gr.save(router, tmp_path / "router.safetensors")
    present = np.ones((2, 600), dtype=bool)
    present[1, ::2] = False
    for made in (router, gr.load(tmp_path / "router.safetensors")):
        decision, whole = made.route(local, present=present), router.route(local)
        assert np.allclose(decision.pooled[::2], local[0, ::2])
        assert np.allclose(decision.pooled[1::2], whole.pooled[1::2])


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


def test_files_from_before_the_training_part_are_read(tmp_path: Path) -> None:
    local, labels, strong = federation(2, 600)
    router = gr.ExpectedGainRouter(0.3).fit(local, labels, strong_posterior=strong)
    gr.save(router, tmp_path / "router.safetensors")
    with safe_open(tmp_path / "router.safetensors", framework="numpy") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del tensors["pool.training_weight"]
    metadata = json.loads(header["metadata"])
    del metadata["settings"]["training_weight"]
    save_file(tensors, tmp_path / "old.safetensors", metadata=header | {"metadata": json.dumps(metadata)})
    loaded = gr.load(tmp_path / "old.safetensors")
    assert taught_pool(loaded).training_weight == 0
    assert np.array_equal(loaded.route(local).score, router.route(local).score)


def test_routers_of_subsets_learn_from_their_share_of_the_training_part(tmp_path: Path) -> None:
    (local, labels, strong), (more, known, _) = federation(2, 150), federation(4, 3000)
    router = gr.ExpectedGainRouter().fit(local, labels, strong_posterior=strong, training=(more, known))
    assert taught_pool(router).training_weight > 0
    fitted = gr.fit_subsets(router, local, labels, {(0,): strong}, training=(more, known))
    gr.save(fitted, tmp_path / "router.safetensors")
    for made in (fitted, gr.load(tmp_path / "router.safetensors")):
        subset = made.subset_routers_[(0,)]
        assert taught_pool(subset).training_weight == taught_pool(router).training_weight
        assert subset.settings()["training_weight"] == taught_pool(router).training_weight


def test_routers_of_subsets_take_its_penalty_if_they_are_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taught_pooling, "MOST_WEIGHTS", 0)  # no map of every party: a subset has fewer of them
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


# ---- moved by labels from service -------------------------------------------------------------------


def moved(local: FloatArray, labels: IntArray, strong: FloatArray, old: gr.Router) -> gr.Router:
    """`old` refitted from a log in which every sample was escalated and got a label."""
    n = len(labels)
    log = gr.LoggedDecisions(local, labels, strong.argmax(axis=1), np.ones(n), threshold=np.zeros(n))
    return gr.recalibrate(old, log, min_explored=0)


def test_a_refit_from_few_labels_keeps_what_was_learned_where_inputs_are_as_before() -> None:
    (local, labels, strong), (new, truth, _) = federation(2, 3000), federation(3, 4000)
    old = gr.ExpectedGainRouter(threshold="calibration").fit(local, labels, strong_posterior=strong)
    again = moved(*federation(4, 220), old)
    right, before = (np.mean(r.route(new).weak_prediction == truth) for r in (again, old))
    assert right > before - 0.01
    assert taught_pool(again).lam >= 100
    forgetful = gr.ExpectedGainRouter(threshold="calibration", pooling="log-linear")
    few, few_labels, few_strong = federation(4, 220)
    anew = forgetful.fit(few, few_labels, strong_posterior=few_strong)
    assert right > np.mean(anew.route(new).weak_prediction == truth) + 0.02


def test_a_class_that_the_log_lacks_keeps_what_was_learned_of_it() -> None:
    (local, labels, strong), (new, truth, _) = federation(2, 3000), federation(3, 4000)
    old = gr.ExpectedGainRouter(threshold="calibration").fit(local, labels, strong_posterior=strong)
    few, few_labels, _ = federation(4, 600)
    rows = few_labels != 2
    before, pooling = taught_pool(old), AdaptedPooling(taught_pool(old), TaughtPooling())
    pool = pooling.refit(before, few[:, rows], few_labels[rows], np.ones(rows.sum()))
    assert isinstance(pool, TaughtPool)
    assert pool.unseen.tolist() == []
    assert np.array_equal(pool.theta[2], before.theta[2])
    assert not np.allclose(pool.theta[1], before.theta[1])
    found, known = (np.mean(p(new).argmax(axis=1)[truth == 2] == 2) for p in (pool, before))
    assert found > known - 0.05


def test_a_refit_follows_inputs_that_have_changed() -> None:
    local, labels, strong = federation(2, 3000)
    old = gr.ExpectedGainRouter(threshold="calibration").fit(local, labels, strong_posterior=strong)

    def turned(seed: int, samples: int) -> tuple[FloatArray, IntArray, FloatArray]:
        """Both parties confuse every class with its neighbour."""
        at, truth, sure = federation(seed, samples)
        return np.roll(at, 1, axis=2), truth, sure

    again, (new, truth, _) = moved(*turned(4, 2000), old), turned(3, 4000)
    assert np.mean(again.route(new).weak_prediction == truth) > np.mean(old.route(new).weak_prediction == truth) + 0.2
