"""What holds for every input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import world

import gainroute as gr
from gainroute.routing.decide import calibration_threshold

QUICK = settings(max_examples=12)  # each example fits a router
seeds = st.integers(0, 10_000)
ROUTERS = [
    gr.ExpectedGainRouter,
    gr.ExpectedGainRouter.paper,
    gr.ConfidenceRouter,
    gr.CalibratedConfidenceRouter,
    gr.AgreementRouter,
    gr.ConformalRouter,
    gr.QualityRouter,
    gr.TwoStageDeferRouter,
    gr.LearnedGainRouter,
    gr.RandomRouter,
]


@QUICK
@given(seed=seeds, k=st.integers(2, 6), threshold=st.sampled_from(["cross-fitted", "calibration", "certified"]))
def test_renaming_classes_changes_nothing_but_names(seed, k, threshold):
    data, new = world(240, 2, k, seed), world(60, 2, k, seed + 1)
    rename = np.random.default_rng(seed).permutation(k)  # class c is now called rename[c]
    back = np.argsort(rename)
    router = gr.ExpectedGainRouter(0.3, threshold=threshold).fit(data.local, data.labels, data.strong)
    renamed = gr.ExpectedGainRouter(0.3, threshold=threshold).fit(
        data.local[:, :, back], rename[data.labels], rename[data.strong]
    )
    assert renamed.threshold_ == pytest.approx(router.threshold_, abs=1e-9)
    one, two = router.route(new.local), renamed.route(new.local[:, :, back])
    np.testing.assert_allclose(two.score, one.score, atol=1e-9)
    np.testing.assert_allclose(two.calibrated[:, rename], one.calibrated, atol=1e-9)
    np.testing.assert_array_equal(two.weak_prediction, rename[one.weak_prediction])


@QUICK
@given(seed=seeds, m=st.integers(2, 5))
def test_the_order_of_the_parties_does_not_matter(seed, m):
    data, new = world(200, m, 4, seed), world(50, m, 4, seed + 1)
    order = np.random.default_rng(seed).permutation(m)
    one = gr.ExpectedGainRouter(0.3).fit(data.local, data.labels, data.strong)
    two = gr.ExpectedGainRouter(0.3).fit(data.local[order], data.labels, data.strong)
    np.testing.assert_allclose(two.route(new.local[order]).score, one.route(new.local).score, atol=1e-9)
    assert two.threshold_ == pytest.approx(one.threshold_, abs=1e-9)


@QUICK
@given(seed=seeds, k=st.integers(2, 6), make=st.sampled_from(ROUTERS[4:8]))
def test_baselines_do_not_depend_on_the_order_of_classes_and_parties(seed, k, make):
    data, new = world(120, 3, k, seed), world(30, 3, k, seed + 1)
    rng = np.random.default_rng(seed)
    rename, order = rng.permutation(k), rng.permutation(3)
    back = np.argsort(rename)
    one = make(0.3, threshold="calibration").fit(data.local, data.labels, data.strong)
    two = make(0.3, threshold="calibration").fit(
        data.local[order][:, :, back], rename[data.labels], rename[data.strong]
    )
    np.testing.assert_allclose(
        two.route(new.local[order][:, :, back]).score, one.route(new.local).score, rtol=1e-5, atol=1e-5
    )


@QUICK
@given(seed=seeds, k=st.integers(2, 8), calibration=st.sampled_from(["dirichlet", "temperature", "none"]))
def test_under_accuracy_scores_lie_between_minus_one_and_one(seed, k, calibration):
    data, new = world(150, 2, k, seed), world(100, 2, k, seed + 1)
    router = gr.ExpectedGainRouter(0.2, calibration=calibration).fit(data.local, data.labels, data.strong)
    decision = router.route(new.local)
    assert np.abs(decision.score).max() <= 1
    np.testing.assert_allclose(decision.calibrated.sum(axis=1), 1, atol=1e-12)


@QUICK
@given(seed=seeds, k=st.integers(2, 8))
def test_with_a_perfect_strong_route_the_score_is_the_chance_of_a_weak_error(seed, k):
    m = np.random.default_rng(seed).dirichlet(np.ones(k), size=50)
    weak = m.argmax(axis=1)
    score = gr.expected_gain(m, np.ones(k), weak)
    np.testing.assert_allclose(score, 1 - m[np.arange(50), weak], atol=1e-12)
    np.testing.assert_allclose(gr.expected_gain(m, np.eye(k), weak), score, atol=1e-12)
    np.testing.assert_allclose(gr.expected_gain(m, np.eye(k), weak, utility=np.eye(k)), score, atol=1e-12)


@given(
    scores=st.lists(st.floats(-1, 1), min_size=1, max_size=60),
    budget=st.one_of(st.floats(0, 1), st.integers(0, 100).map(lambda i: i / 100)),
)
def test_the_in_sample_rate_never_exceeds_the_budget(scores, budget):
    values = np.array(scores)
    tau = calibration_threshold(values, budget)
    above = (values > tau).sum()
    assert above / len(values) <= budget
    if len(set(scores)) == len(scores):
        largest = max(k for k in range(len(scores) + 1) if k / len(scores) <= budget)
        assert above == largest


@QUICK
@given(seed=seeds, budget=st.floats(0.01, 0.99), router=st.sampled_from(ROUTERS[:4]))
def test_the_calibration_rule_spends_the_floor_of_the_budget(seed, budget, router):
    data = world(173, 2, 4, seed)
    fitted = router(budget, threshold="calibration").fit(data.local, data.labels, data.strong)
    assert fitted.route(data.local).escalate.sum() == np.floor(173 * budget)


@given(
    seed=seeds,
    levels=st.integers(1, 50),
    n=st.integers(1, 80),
)
def test_accuracy_follows_from_rate_precision_and_neutrality(seed, levels, n):
    rng = np.random.default_rng(seed)
    weak, strong, labels = rng.integers(3, size=(3, n))
    curve = gr.evaluation.tradeoff_curve(rng.integers(levels, size=n), weak, strong, labels)
    weak_accuracy = (weak == labels).mean()
    rate = curve.escalation_rate
    np.testing.assert_allclose(
        curve.accuracy, weak_accuracy + rate * (2 * curve.precision + curve.neutral - 1), atol=1e-12
    )
    assert curve.accuracy[0] == weak_accuracy
    assert curve.accuracy[-1] == pytest.approx((strong == labels).mean())
    assert curve.precision[0] == curve.neutral[0] == 0
    assert len(rate) == n + 1


@pytest.mark.parametrize("seed", range(4))
def test_ties_count_as_the_expectation_under_random_breaking(seed):
    rng = np.random.default_rng(seed)
    score = rng.integers(2, size=5).astype(float)
    weak, strong, labels = rng.integers(2, size=(3, 5))
    curve = gr.evaluation.tradeoff_curve(score, weak, strong, labels)
    every_order = [
        gr.evaluation.tradeoff_curve(score + 1e-3 * np.array(order), weak, strong, labels)
        for order in itertools.permutations(range(5))
    ]
    for name in ("accuracy", "precision", "neutral", "utility"):
        expected = np.mean([getattr(c, name) for c in every_order], axis=0)
        np.testing.assert_allclose(getattr(curve, name), expected, atol=1e-12)


@pytest.mark.parametrize("make", ROUTERS)
def test_routing_is_pure(make):
    data, new = world(300, 3, 4, 0), world(200, 3, 4, 1)
    router = make(budget=0.3).fit(data.local, data.labels, data.strong)
    given_to_it = new.local.copy()
    whole = router.route(new.local)
    again = router.route(new.local)
    np.testing.assert_array_equal(new.local, given_to_it)
    np.testing.assert_array_equal(whole.score, again.score)
    one_by_one = np.concatenate([router.route(new.local[:, [i]]).score for i in range(20)])
    np.testing.assert_allclose(one_by_one, whole.score[:20], atol=1e-12)


@pytest.mark.parametrize("make", ROUTERS)
@pytest.mark.parametrize("threshold", ["cross-fitted", "calibration", "certified"])
def test_budget_zero_escalates_none_and_one_all(make, threshold):
    data, new = world(200, 2, 3, 0), world(100, 2, 3, 1)
    for budget, rate in ((0, 0), (1, 1), (0.0, 0), (1.0, 1)):
        router = make(budget, threshold=threshold, folds=5).fit(data.local, data.labels, data.strong)
        assert router.route(new.local).escalate.mean() == rate
        assert router.expected_rate_ == (rate, rate, rate)


@QUICK
@given(seed=seeds)
def test_a_large_batch_is_routed_like_its_blocks(seed):
    data, new = world(200, 2, 3, seed), world(60_000, 2, 3, seed + 1)
    router = gr.ExpectedGainRouter(0.2, threshold="calibration").fit(data.local, data.labels, data.strong)
    whole = router.route(new.local)
    part = router.route(new.local[:, 43_000:45_000])
    np.testing.assert_allclose(whole.score[43_000:45_000], part.score, atol=1e-13)
    np.testing.assert_array_equal(whole.escalate[43_000:45_000], part.escalate)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_half_and_single_precision_are_accepted(dtype):
    data, new = world(400, 2, 5, 0), world(100, 2, 5, 1)
    router = gr.ExpectedGainRouter(0.3).fit(data.local, data.labels, data.strong)
    coarse = gr.ExpectedGainRouter(0.3).fit(data.local.astype(dtype), data.labels, data.strong)
    np.testing.assert_allclose(coarse.route(new.local.astype(dtype)).score, router.route(new.local).score, atol=0.05)


def test_lists_of_parties_and_a_single_party_are_what_they_look_like():
    data = world(200, 2, 3, 0)
    stacked = gr.ExpectedGainRouter(0.3).fit(data.local, data.labels, data.strong)
    listed = gr.ExpectedGainRouter(0.3).fit(list(data.local), data.labels.tolist(), data.strong.tolist())
    assert stacked.threshold_ == listed.threshold_
    single = gr.ExpectedGainRouter(0.3).fit(data.local[0], data.labels, data.strong)
    assert single.n_parties_ == 1
    assert single.route(data.local[0]).score.shape == (200,)
