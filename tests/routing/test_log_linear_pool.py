"""The log-linear pool and the blend: optimal, indifferent to order, careful with few samples, and kept in artifacts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import gainroute as gr
from gainroute.routing.answer import LOG_LINEAR_BLEND, crossfit_blend, use_if_better
from gainroute.routing.samples import Samples
from gainroute.routing.types import FloatArray, IntArray


def views(
    seed: int, samples: int = 300, classes: int = 4, knows: tuple[float, ...] = (1.0, 2.0, 0.0)
) -> tuple[FloatArray, IntArray]:
    """Local posteriors of parties that know the label more or less well, and the labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=samples)
    logits = rng.normal(size=(len(knows), samples, classes)) + np.multiply.outer(knows, np.eye(classes)[labels])
    local = np.exp(logits)
    return local / local.sum(axis=2, keepdims=True), labels


def objective(theta: FloatArray, local: FloatArray, labels: IntArray, lam: float) -> float:
    """−Σ log p(y) + λ(‖w − 1/M‖² + ‖b‖²), written down anew."""
    m = len(local)
    logits = np.einsum("m,mnk->nk", theta[:m], np.log(local + 1e-6)) + theta[m:]
    chosen = logits[np.arange(len(labels)), labels] - np.logaddexp.reduce(logits, axis=1)
    return float(-chosen.sum() + lam * (np.sum((theta[:m] - 1 / m) ** 2) + np.sum(theta[m:] ** 2)))


@pytest.mark.parametrize("lam", [0.1, 1.0, 30.0])
def test_the_fit_is_the_optimum_of_the_objective(lam: float) -> None:
    local, labels = views(0)
    pool = gr.fit_log_linear(local, labels, lam=lam)
    start = np.concatenate([np.full(3, 1 / 3), np.zeros(4)])
    best = minimize(objective, start, (local, labels, lam), method="BFGS", options={"gtol": 1e-7})
    assert np.allclose(np.concatenate([pool.weight, pool.bias]), best.x, atol=1e-4)
    assert objective(np.concatenate([pool.weight, pool.bias]), local, labels, lam) <= best.fun + 1e-9


def test_who_knows_more_counts_for_more_and_who_guesses_for_nothing() -> None:
    local, labels = views(1, samples=4000)
    weight = gr.fit_log_linear(local, labels).weight
    assert weight[1] > weight[0] > 5 * abs(weight[2])


@given(seed=st.integers(0, 10_000), parties=st.permutations(range(3)), columns=st.permutations(range(4)))
@settings(max_examples=20, deadline=None)
def test_neither_the_order_of_parties_nor_of_classes_matters(seed: int, parties: list[int], columns: list[int]) -> None:
    local, labels = views(seed, samples=60)
    place = np.argsort(columns)
    pooled = gr.fit_log_linear(local, labels)(local)
    turned = local[parties][:, :, columns]
    assert np.allclose(gr.fit_log_linear(turned, place[labels])(turned), pooled[:, columns], atol=1e-7)


def test_a_weight_of_two_is_the_sample_twice_and_of_zero_none() -> None:
    local, labels = views(2, samples=50)
    weight = np.random.default_rng(0).integers(3, size=50)
    rows = np.repeat(np.arange(50), weight)
    weighted = gr.fit_log_linear(local, labels, sample_weight=weight)
    repeated = gr.fit_log_linear(local[:, rows], labels[rows])
    assert np.allclose(weighted.weight, repeated.weight)
    assert np.allclose(weighted.bias, repeated.bias)


def test_a_class_without_samples_keeps_its_mass() -> None:
    local, labels = views(3)
    kept = labels != 2
    pool = gr.fit_log_linear(local[:, kept], labels[kept])
    assert pool.bias[2] == 0
    assert (pool(local[:, ~kept]).argmax(axis=1) == 2).mean() > 0.3


def test_a_sample_that_lacks_a_party_gets_the_mean_of_those_present() -> None:
    local, labels = views(4)
    router = gr.ExpectedGainRouter(pooling="log-linear").fit(local, labels, labels)
    present = np.ones(local.shape[:2], dtype=bool)
    present[0, :5] = False
    present[:, 5] = False
    sent = np.where(present[..., None], local, np.nan)
    decision = router.route(sent, present=present)
    assert np.allclose(decision.pooled[:5], local[1:, :5].mean(axis=0))
    assert decision.weak_prediction[5] == -1
    assert np.isnan(decision.pooled[5]).all()
    assert not decision.escalate[:6].any()
    assert decision.incomplete[:6].all()
    assert np.allclose(decision.pooled[6:], router.route(local).pooled[6:])


def test_better_weights_answer_and_route_better_than_the_mean() -> None:
    local, labels = views(5, samples=6000, knows=(3.0, 0.0, 0.0, 0.0))
    fit, test = slice(0, 1000), slice(1000, None)
    strong = np.where(np.random.default_rng(0).random(6000) < 0.95, labels, (labels + 1) % 4)
    right = {}
    for pooling in ("mean", "log-linear"):
        router = gr.ExpectedGainRouter(0.2, pooling=pooling).fit(local[:, fit], labels[fit], strong[fit])
        decision = router.route(local[:, test])
        answer = router.answer(decision, strong[test][decision.escalate])
        right[pooling] = (
            (decision.weak_prediction == labels[test]).mean(),
            (answer.prediction == labels[test]).mean(),
        )
        assert abs(decision.escalate.mean() - 0.2) < 0.04
    assert right["log-linear"][0] > right["mean"][0] + 0.02
    assert right["log-linear"][1] > right["mean"][1] + 0.01


# ---- the blend ---------------------------------------------------------------------------------------


def strong_view(labels: IntArray, knows: float, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(len(labels), 4)) + knows * np.eye(4)[labels]
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_the_blend_is_used_where_round_one_knows_what_the_strong_route_does_not() -> None:
    local, labels = views(6, samples=3000, knows=(2.0, 2.0))
    strong = strong_view(labels, 2.5, 7)
    fit, test = slice(0, 1000), slice(1000, None)
    router, alone = (
        gr.ExpectedGainRouter(1.0, blend=blend).fit(local[:, fit], labels[fit], strong_posterior=strong[fit])
        for blend in ("cv", "none")
    )
    answers = [r.answer(r.route(local[:, test]), strong[test]).prediction for r in (router, alone)]
    blended, plain = ((answer == labels[test]).mean() for answer in answers)
    assert blended > plain + 0.03
    # What the router promises of its strong route is what it then does, on samples that it never saw.
    assert abs(router.threshold_scores_.strong_right.mean() - blended) < 0.03
    assert abs(np.average(router.reliability_) - blended) < 0.03


def test_a_blend_that_does_not_earn_its_place_is_not_used() -> None:
    local, labels = views(8, knows=(0.0, 0.0))
    strong = strong_view(labels, 3.0, 9)
    router = gr.ExpectedGainRouter(1.0, blend="cv").fit(local, labels, strong_posterior=strong)
    given_ = router.answer(router.route(local), strong)
    assert (given_.prediction == strong.argmax(axis=1)).all()
    assert np.array_equal(given_.probabilities, strong)


def test_without_a_strong_posterior_there_is_nothing_to_blend() -> None:
    local, labels = views(10)
    router = gr.ExpectedGainRouter(blend="cv").fit(local, labels, labels)
    assert np.array_equal(
        router.route(local).score, gr.ExpectedGainRouter().fit(local, labels, labels).route(local).score
    )


def test_no_usable_strong_answer_stays_none_in_the_blend() -> None:
    local, labels = views(11, samples=600, knows=(2.0, 2.0))
    strong = strong_view(labels, 2.0, 12)
    prediction = strong.argmax(axis=1)
    prediction[::3] = -1
    samples = Samples(local, labels, prediction, None, np.ones(600), strong)
    fitted = crossfit_blend(LOG_LINEAR_BLEND, samples)
    assert fitted is not None
    blend, answered = use_if_better(fitted, samples)
    assert blend is not None
    assert (answered.strong_prediction[::3] == -1).all()
    assert (answered.strong_prediction[1::3] >= 0).all()


@pytest.mark.parametrize("threshold", ["calibration", "cross-fitted", "certified"])
def test_saved_and_loaded_a_router_pools_and_blends_as_before(threshold: str, tmp_path) -> None:
    local, labels = views(13, samples=800, knows=(2.0, 2.0))
    strong = strong_view(labels, 2.0, 14)
    router = gr.ExpectedGainRouter(0.3, pooling="log-linear", blend="cv", threshold=threshold, lam="cv")
    router.fit(local, labels, strong_posterior=strong)
    gr.save(router, tmp_path / "router.safetensors")
    loaded = gr.load(tmp_path / "router.safetensors")
    before, after = router.route(local), loaded.route(local)
    assert np.array_equal(before.score, after.score)
    assert np.array_equal(before.pooled, after.pooled)
    rows = before.escalate
    first, second = (r.answer(d, strong[rows]) for r, d in ((router, before), (loaded, after)))
    assert np.array_equal(first.probabilities, second.probabilities)
    assert not np.allclose(first.probabilities[rows], strong[rows])  # the blend had a say


@pytest.mark.parametrize("setting", [{"pooling": "geometric"}, {"blend": True}])
def test_unknown_choices_are_named(setting: dict[str, object]) -> None:
    with pytest.raises(gr.errors.SettingError, match=r"allowed are 'none', 'cv'|allowed are 'mean', 'log-linear'"):
        gr.ExpectedGainRouter(**setting)
