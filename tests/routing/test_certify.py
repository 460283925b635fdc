"""Guarantees on the answers that are kept: exact, valid, not vacuous, and refused where they cannot be had."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest
from synthetic import world

import gainroute as gr
from gainroute.errors import SettingError, ShapeError, TooFewSamplesError
from gainroute.routing.certify import binomial_bound, certify_kept_error
from gainroute.routing.types import ThresholdScores

EASY = world(1200, 3, 4, 0, strength=2.5)


def scored(score: np.ndarray, right: np.ndarray) -> ThresholdScores:
    return ThresholdScores(score, np.ones(len(score)), right, right)


def drawn(n: int, rng: np.random.Generator, slope: float = 0.4) -> ThresholdScores:
    """Uniform scores, the weak answer wrong with probability slope · s: the true kept error at τ is slope · τ / 2."""
    score = rng.random(n)
    return scored(score, rng.random(n) >= slope * score)


def fitted(data=EASY, budget: float = 0.3, **settings) -> gr.ExpectedGainRouter:
    router = gr.ExpectedGainRouter(budget, pooling="mean", lam=1.0, blend="none", **settings)
    return router.fit(data.local, data.labels, data.strong)


# ---- the bound ----------------------------------------------------------------------------------


@given(st.integers(0, 400), st.integers(0, 400), st.floats(0.5, 0.999))
def test_the_bound_is_that_of_clopper_and_pearson(count, more, confidence):
    of = count + more
    bound = float(binomial_bound(count, of, confidence))
    if not more:
        assert bound == 1
        return
    exact = binomtest(count, of, alternative="less").proportion_ci(confidence, method="exact").high
    assert bound == pytest.approx(exact, rel=1e-9)
    assert bound == pytest.approx(beta.ppf(confidence, count + 1, more), rel=1e-9)
    assert binom.cdf(count, of, bound) == pytest.approx(1 - confidence, rel=1e-6)


def test_a_threshold_passes_exactly_where_the_binomial_distribution_says():
    rng = np.random.default_rng(0)
    held = drawn(500, rng)
    thresholds = np.linspace(0.2, 1, 60)
    tau = gr.kept_error_threshold(held.score, held.weak_right, thresholds, 0.12, 0.9)
    kept = [held.weak_right[held.score <= t] for t in thresholds]
    passes = [binom.cdf((~right).sum(), len(right), 0.12) <= 0.1 for right in kept]
    assert tau == thresholds[passes.index(False) - 1]
    assert 10 < passes.index(False) < 60


# ---- validity -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [300, 1000])
def test_the_promise_is_broken_in_at_most_the_stated_share_of_draws(n):
    """1,000 draws at δ = 0.1: the true error at τ, known here, exceeds α in at most 10 % of them, and in some."""
    rng = np.random.default_rng(n)
    broken, certified = 0, 0
    for _ in range(1000):
        try:
            found = certify_kept_error(drawn(n, rng), drawn(n, rng), 0.14, 0.9)
        except SettingError:
            continue
        certified += 1
        broken += 0.2 * min(found.threshold, 1) > 0.14
    assert certified > 800
    assert 20 <= broken <= 100


def test_both_promises_hold_together_in_the_stated_share_of_draws():
    rng = np.random.default_rng(3)
    broken = {"error": 0, "rate": 0, "either": 0}
    for _ in range(1000):
        try:
            found = certify_kept_error(drawn(800, rng), drawn(800, rng), 0.14, 0.9, budget=0.45)
        except SettingError:
            continue
        wrong, over = 0.2 * min(found.threshold, 1) > 0.14, 1 - found.threshold > 0.45
        broken["error"] += wrong
        broken["rate"] += over
        broken["either"] += wrong or over
    assert max(broken["error"], broken["rate"]) <= 50
    assert 10 <= broken["either"] <= 100


def test_an_error_that_rises_and_falls_again_is_covered_too():
    """Fixed-sequence tests need no monotone error: here it is 30 % for scores in the middle, and 0 elsewhere."""
    rng = np.random.default_rng(4)

    def bump(n: int) -> ThresholdScores:
        score = rng.random(n)
        return scored(score, (rng.random(n) >= 0.3) | (score < 0.3) | (score > 0.6))

    def true_error(tau: float) -> float:
        return 0.3 * np.clip(tau - 0.3, 0, 0.3) / tau

    broken = 0
    for _ in range(400):
        found = certify_kept_error(bump(600), bump(600), 0.1, 0.9)
        broken += true_error(min(found.threshold, 1)) > 0.1
    assert broken <= 40


def test_the_threshold_is_near_the_best_one():
    """The true error reaches α = 0.1 at τ = 0.5; with 20,000 samples the certified τ is just below, on average."""
    rng = np.random.default_rng(5)
    found = [certify_kept_error(drawn(20_000, rng), drawn(20_000, rng), 0.1, 0.95).threshold for _ in range(20)]
    assert 0.45 < np.mean(found) < 0.49


# ---- ties, nothing kept, everything kept ----------------------------------------------------------


def test_answers_at_the_threshold_are_kept_and_counted():
    """Three distinct scores, as with votes: ties are kept or escalated together, as `route` does."""
    rng = np.random.default_rng(6)
    score = rng.integers(3, size=900).astype(float)
    right = rng.random(900) >= np.array([0.01, 0.1, 0.6])[score.astype(int)]
    found = certify_kept_error(scored(score[:450], right[:450]), scored(score[450:], right[450:]), 0.1, 0.95)
    assert found.threshold == 1.0
    assert found.kept == (score[:450] <= 1).sum()
    assert found.wrong == (~right[:450] & (score[:450] <= 1)).sum()


def test_a_weak_route_that_is_good_enough_alone_is_never_escalated():
    score = np.random.default_rng(7).random(200)
    found = certify_kept_error(scored(score, np.ones(200, bool)), scored(score, np.ones(200, bool)), 0.05, 0.95)
    assert found.threshold == np.inf
    assert (found.kept, found.wrong) == (200, 0)
    both = certify_kept_error(
        scored(score, np.ones(200, bool)), scored(score, np.ones(200, bool)), 0.05, 0.95, budget=0.0
    )
    assert both.threshold == np.inf


def test_nothing_kept_is_no_evidence():
    score = np.ones(100)
    with pytest.raises(SettingError, match=r"0 of 0 kept held-out answers are wrong, and the true error may be 1\. "):
        gr.kept_error_threshold(score, np.ones(100, bool), [0.5, 2.0], 0.1)
    with pytest.raises(SettingError, match="0 of 0 kept"):
        gr.kept_error_threshold(-np.inf * score, np.ones(100, bool), [-np.inf], 0.1)  # −∞ escalates everything


def test_no_threshold_below_the_minimum_gain_is_considered():
    rng = np.random.default_rng(8)
    held, before = drawn(2000, rng), drawn(2000, rng)
    assert certify_kept_error(held, before, 0.1, 0.95, min_gain=0.3).threshold == pytest.approx(
        certify_kept_error(held, before, 0.1, 0.95).threshold, abs=0.02
    )
    with pytest.raises(SettingError, match=r"at score > 0\.7, where the test starts"):
        certify_kept_error(held, before, 0.1, 0.95, min_gain=0.7)


# ---- what cannot be had -----------------------------------------------------------------------------


def test_too_few_samples_are_refused_with_the_smallest_number():
    for n, alpha in ((58, 0.05), (28, 0.1)):
        with pytest.raises(TooFewSamplesError, match=rf"{n} held-out samples cannot .* {n + 1} kept ones are needed"):
            gr.kept_error_threshold(np.arange(n), np.ones(n, bool), [np.inf], alpha)
        assert gr.kept_error_threshold(np.arange(n + 1), np.ones(n + 1, bool), [np.inf], alpha) == np.inf
    with pytest.raises(TooFewSamplesError, match="50 held-out samples"):
        fitted(EASY.take(np.arange(100)), threshold="certified-error", kept_error=0.05)


def test_an_error_that_cannot_be_had_names_one_that_can():
    with pytest.raises(SettingError, match="What could be had instead: kept_error=") as refused:
        fitted(threshold="certified-error", kept_error=0.005)
    alpha = float(re.search(r"instead: kept_error=([0-9.]+[0-9])", str(refused.value))[1])
    assert fitted(threshold="certified-error", kept_error=alpha).guarantee_.kept_error == alpha
    with pytest.raises(SettingError):
        fitted(threshold="certified-error", kept_error=alpha - 0.002)


def test_both_that_cannot_be_had_name_what_can():
    with pytest.raises(SettingError, match=r"budget 0\.05 and kept_error 0\.1 cannot both be certified") as refused:
        fitted(EASY, 0.05, threshold="certified-both", kept_error=0.1)
    text = str(refused.value)
    budget = float(re.search(r"instead: budget=([0-9.]+) with kept_error=0\.1", text)[1])
    alpha = float(re.search(r"kept_error=([0-9.]+) with budget=0\.05", text)[1])
    assert budget > 0.05 and alpha > 0.1  # noqa: PT018
    one = fitted(EASY, budget, threshold="certified-both", kept_error=0.1)
    assert (one.guarantee_.budget, one.guarantee_.kept_error) == (budget, 0.1)
    two = fitted(EASY, 0.05, threshold="certified-both", kept_error=alpha)
    assert (two.guarantee_.budget, two.guarantee_.kept_error) == (0.05, alpha)
    assert one.expected_rate_[0] < budget
    assert two.expected_rate_[0] < 0.05


def test_impossible_settings_are_refused():
    for value in (None, 0, 1, -0.1, "0.1", True, np.nan):
        with pytest.raises(SettingError, match=r"kept_error is .*above 0 and below 1, such as 0\.05"):
            gr.ExpectedGainRouter(threshold="certified-error", kept_error=value)
    for rule in ("cross-fitted", "certified", "calibration", 0.1):
        with pytest.raises(SettingError, match=r"promises nothing about it; use threshold=.certified-error"):
            gr.ExpectedGainRouter(threshold=rule, kept_error=0.05)
    with pytest.raises(SettingError, match=r"confidence is 1\.0"):
        fitted(threshold="certified-error", kept_error=0.2, confidence=1.0)
    weighted = gr.ConfidenceRouter(threshold="certified-error", kept_error=0.2)
    with pytest.raises(SettingError, match="differ in weight"):
        weighted.fit(EASY.local, EASY.labels, EASY.strong, sample_weight=np.linspace(1, 2, 1200))
    assert not hasattr(weighted, "threshold_")
    with pytest.raises(ShapeError, match=r"weak_right \(2,\)"):
        gr.kept_error_threshold(np.zeros(3), np.ones(2, bool), [0.0], 0.1)
    with pytest.raises(SettingError, match="NaN"):
        gr.kept_error_threshold([0.0, np.nan], [True, True], [0.0], 0.1)
    with pytest.raises(SettingError, match="there is no threshold"):
        gr.kept_error_threshold([0.0, 1.0], [True, True], [], 0.1)


# ---- routers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["certified-error", "certified-both"])
def test_a_router_fits_on_one_half_and_tests_on_the_other(rule):
    router = fitted(threshold=rule, kept_error=0.15, budget=0.5)
    held = router.threshold_scores_
    assert len(held.score) == 600
    promised = router.guarantee_
    kept = held.score <= router.threshold_
    assert (promised.kept, promised.wrong) == (kept.sum(), (kept & ~held.weak_right).sum())
    level = 0.05 if rule == "certified-error" else 0.025
    assert binom.cdf(promised.wrong, promised.kept, 0.15) <= level
    assert promised.budget == (None if rule == "certified-error" else 0.5)
    # The labels of the testing half do not change what was fitted, and only they decide on τ.
    order = np.random.default_rng(0).permutation(1200)
    spoiled = EASY.labels.copy()
    spoiled[order[600:800]] = (spoiled[order[600:800]] + 1) % 4
    again = gr.ExpectedGainRouter(0.9, threshold="cross-fitted").set_params(
        **{**router.settings(), "kept_error": 0.6, "budget": 0.9}
    )
    again.fit(EASY.local, spoiled, EASY.strong)
    np.testing.assert_array_equal(again.route(EASY.local).score, router.route(EASY.local).score)


def test_on_new_data_the_kept_answers_are_as_good_as_promised():
    new = world(20_000, 3, 4, 1, strength=2.5)
    for router in (gr.ConfidenceRouter, gr.CalibratedConfidenceRouter, gr.ExpectedGainRouter):
        made = router(threshold="certified-error", kept_error=0.15).fit(EASY.local, EASY.labels, EASY.strong)
        decision = made.route(new.local)
        kept = ~decision.escalate
        assert kept.mean() > 0.3
        assert (decision.weak_prediction != new.labels)[kept].mean() <= 0.15


def test_fewer_escalations_for_a_larger_error():
    rates = [fitted(threshold="certified-error", kept_error=alpha).expected_rate_[0] for alpha in (0.1, 0.15, 0.2)]
    assert rates[0] > rates[1] > rates[2]


def test_a_guarantee_belongs_to_its_threshold():
    router = fitted(threshold="certified-error", kept_error=0.15)
    tau, promised = router.threshold_, router.guarantee_
    assert promised.threshold == tau
    assert promised.text == (
        f"With 95 % confidence, at most 15 % of the kept answers are wrong (from 600 held-out samples: "
        f"{promised.kept} kept, {promised.wrong} of them wrong)."
    )
    router.threshold_ = router.threshold_for(0.2)
    assert router.guarantee_ is None
    router.threshold_ = tau
    assert router.guarantee_ == promised
    assert fitted().guarantee_ is None
    rate = fitted(threshold="certified").guarantee_
    assert (rate.budget, rate.kept_error, rate.samples) == (0.3, None, 600)
    assert rate.text.startswith("With 95 % confidence, at most 30 % of samples are escalated (from 600")


def test_another_budget_gives_its_own_threshold_without_a_guarantee():
    router = fitted(threshold="certified-error", kept_error=0.15)
    score = router.threshold_scores_.score
    assert router.threshold_for(0.25) == gr.calibration_threshold(score, 0.25)
    both = fitted(threshold="certified-both", kept_error=0.15, budget=0.5)
    assert both.threshold_for(0.25) == gr.certified_threshold(both.threshold_scores_.score, 0.25)


def test_a_guarantee_is_saved_with_the_router(tmp_path):
    path = tmp_path / "router.safetensors"
    for settings in (
        {"threshold": "certified-error", "kept_error": 0.15},
        {"threshold": "certified-both", "kept_error": 0.15, "budget": 0.5},
        {"threshold": "certified"},
    ):
        router = fitted(**settings)
        gr.save(router, path)
        loaded = gr.load(path)
        assert loaded.guarantee_ == router.guarantee_ is not None
        assert repr(loaded) == repr(router)
        np.testing.assert_array_equal(loaded.route(EASY.local).escalate, router.route(EASY.local).escalate)
        router.threshold_ += 0.1  # no longer that of the guarantee, which is not saved either
        gr.save(router, path)
        assert gr.load(path).guarantee_ is None
