"""Budgets: what each rule promises, held out."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from synthetic import world

import gainroute as gr
from gainroute.routing.calibrate import stratified_folds
from gainroute.routing.decide import ranks_among, rate_interval, scores_at_ranks


@functools.cache
def easy_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Posteriors of one classifier per large view of the digits, labels, and those of a classifier on all of it."""
    digits = load_digits()
    images, train = digits.images / 16, np.arange(1797) % 2 == 0
    views = images[:, :6], images[:, 2:], images[:, :, :6], images[:, :, 2:]

    def posterior(pixels: np.ndarray, model: Any) -> np.ndarray:
        flat = pixels.reshape(len(pixels), -1)
        return model.fit(flat[train], digits.target[train]).predict_proba(flat[~train])

    local = np.stack([posterior(view, LogisticRegression(C=10, max_iter=200)) for view in views])
    return local, digits.target[~train], posterior(images, RandomForestClassifier(100, random_state=0))


@pytest.mark.slow
def test_cross_fitted_thresholds_hold_the_budget_on_new_data():
    """Over 12 random splits at B = 0.1, N = 500, K = 10, the mean rate is within 0.01 of B."""
    everything = world(40_000, 4, 10, seed=7, strength=1.2)
    paper = gr.ExpectedGainRouter.paper
    routers = {
        "default": gr.ExpectedGainRouter(0.1),
        "cross-fitted": paper(0.1, threshold="cross-fitted"),
        "calibration": paper(0.1),
    }
    rates = {name: [] for name in routers}
    for split in range(12):
        order = np.random.default_rng(split).permutation(40_000)
        fit, new = everything.take(order[:500]), everything.take(order[500:5_500])
        for name, router in routers.items():
            router.fit(fit.local, fit.labels, fit.strong)
            rates[name].append(router.route(new.local).escalate.mean())
    assert np.mean(rates["default"]) == pytest.approx(0.1, abs=0.01)
    assert np.mean(rates["cross-fitted"]) == pytest.approx(0.1, abs=0.01)
    # The reason for cross-fitting: the paper's in-sample quantile is off by more.
    assert abs(np.mean(rates["calibration"]) - 0.1) > abs(np.mean(rates["cross-fitted"]) - 0.1)


def test_certified_thresholds_are_valid_and_not_vacuous():
    """With n = 300, over 1,000 draws the true rate exceeds B in at most 7 % and at least 2 % of them."""
    rng = np.random.default_rng(0)
    for budget in (0.1, 0.2):
        exceeded = 0
        for _ in range(1000):
            tau = gr.certified_threshold(rng.random(300), budget, confidence=0.95)  # uniform: the true rate is 1 − τ
            exceeded += 1 - tau > budget
        assert 20 <= exceeded <= 70


def test_a_certified_router_fits_on_one_half_and_sets_the_threshold_on_the_other():
    data = world(600, 2, 4, 0)
    router = gr.ExpectedGainRouter(0.2, threshold="certified").fit(data.local, data.labels, data.strong)
    assert len(router.threshold_scores_.score) == 300
    k = max(k for k in range(300) if binom.cdf(k, 300, 0.2) <= 0.05)
    assert (router.threshold_scores_.score > router.threshold_).sum() == k
    # The half that set τ had no part in the fit: spoiling its labels changes no score.
    order = np.random.default_rng(0).permutation(600)
    spoiled = data.labels.copy()
    spoiled[order[300:]] = 0
    again = gr.ExpectedGainRouter(0.2, threshold="certified").fit(data.local, spoiled, data.strong)
    np.testing.assert_array_equal(again.route(data.local).score, router.route(data.local).score)
    assert again.threshold_ == router.threshold_


def test_certification_refuses_when_it_would_need_more_samples():
    with pytest.raises(gr.errors.TooFewSamplesError, match=r"29 samples cannot certify.*at least 59 are needed"):
        gr.certified_threshold(np.arange(29.0), 0.05)
    gr.certified_threshold(np.arange(59.0), 0.05)
    with pytest.raises(gr.errors.TooFewSamplesError):
        gr.certified_threshold(np.arange(58.0), 0.05)
    data = world(20, 2, 3, 0)
    with pytest.raises(gr.errors.TooFewSamplesError, match='threshold="cross-fitted"'):
        gr.ExpectedGainRouter(0.05, threshold="certified").fit(data.local, data.labels, data.strong)


def test_out_of_fold_scores_come_from_routers_that_never_saw_the_sample():
    """Each is the score that the final fit gives to the rank it has among the scores of a fit without it."""
    data = world(120, 2, 3, 0)
    router = gr.ExpectedGainRouter(0.3).fit(data.local, data.labels, data.strong)
    held_out = stratified_folds(data.labels, 20)[3]
    kept = np.setdiff1d(np.arange(120), held_out)
    part = data.take(kept)
    alone = gr.ExpectedGainRouter(0.3, threshold="calibration").fit(part.local, part.labels, part.strong)
    below = (alone.route(part.local).score[:, None] < alone.route(data.local[:, held_out]).score).sum(axis=0)
    final = np.sort(router.route(data.local).score)
    expected = np.interp((below + 0.5) / (len(kept) + 1) * 121 - 1, np.arange(120), final)
    np.testing.assert_allclose(router.threshold_scores_.score[held_out], expected, atol=1e-5)


def test_a_score_without_a_fit_is_its_own_out_of_fold_score():
    data = world(90, 2, 3, 0)
    router = gr.ConfidenceRouter(0.3).fit(data.local, data.labels, data.strong)
    np.testing.assert_array_equal(router.threshold_scores_.score, router.route(data.local).score)


def test_each_class_is_spread_over_the_folds_however_the_classes_are_numbered():
    labels = np.random.default_rng(0).integers(5, size=103)
    folds = stratified_folds(labels, 10)
    assert sorted(np.concatenate(folds).tolist()) == list(range(103))
    counts = np.array([np.bincount(labels[rows], minlength=5) for rows in folds])
    assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 1
    for one, two in zip(folds, stratified_folds(np.array([3, 0, 4, 1, 2])[labels], 10), strict=True):
        np.testing.assert_array_equal(one, two)


def test_rare_classes_are_drawn_together():
    """Spread one by one, a fold would lack a sample of exactly those classes that it holds out."""
    labels = np.arange(500) % 100
    folds = stratified_folds(labels, 20)
    assert sorted(np.concatenate(folds).tolist()) == list(range(500))
    assert {len(rows) for rows in folds} == {25}
    assert max(np.bincount(labels[rows]).max() for rows in folds) > 1


@given(st.integers(0, 10**6), st.integers(2, 40), st.integers(1, 6))
def test_ranks_are_carried_over_to_the_scores_at_these_ranks(seed, n, levels):
    """A rank lies between the weight below and the weight up to a score; at its own ranks a set is found again."""
    rng = np.random.default_rng(seed)
    reference, weight = rng.integers(levels, size=n).astype(float), rng.random(n) + 0.1
    score = np.sort(rng.integers(-1, levels + 1, size=20).astype(float))
    rank = ranks_among(reference, score, weight, rng)
    low, high = (
        np.array([weight[keep(s)].sum() for s in score]) for keep in (lambda s: reference < s, lambda s: reference <= s)
    )
    own = weight.mean()
    assert ((low / (weight.sum() + own) < rank) & (rank < (high + own) / (weight.sum() + own))).all()
    distinct, even = np.sort(rng.random(n)), np.ones(n)
    own = np.arange(1, n + 1) / (n + 1)
    np.testing.assert_allclose(scores_at_ranks(distinct, own, even), distinct)


@functools.cache
def fitted_on_easy_digits() -> list[tuple[gr.Router, np.ndarray]]:
    """Routers fitted on 200 samples each, and their scores of the others; a threshold for any budget takes no fit."""
    local, labels, strong = easy_digits()
    made = []
    for split in range(8):
        order = np.random.default_rng(split).permutation(len(labels))
        fit, new = order[:200], order[200:]
        router = gr.ExpectedGainRouter().fit(local[:, fit], labels[fit], strong_posterior=strong[fit])
        made.append((router, router.route(local[:, new]).score))
    return made


@pytest.mark.parametrize("budget", [0.1, 0.4, 0.6, 0.8])
def test_the_budget_holds_where_most_samples_are_easy(budget):
    """Four overlapping views of the digits, weak route 97 %, 200 calibration samples: the scores crowd together."""
    made = fitted_on_easy_digits()
    rates = np.array([(score > router.threshold_for(budget)).mean() for router, score in made])
    deviation = np.sqrt(budget * (1 - budget) * (1 / 200 + 1 / len(made[0][1])))
    assert abs(rates.mean() - budget) < 0.03
    assert np.abs(rates - budget).max() < 3.5 * deviation


def votes_of(local: np.ndarray) -> np.ndarray:
    """Posteriors of parties that send only their answer."""
    return np.eye(local.shape[2])[local.argmax(axis=2)]


@pytest.mark.parametrize("budget", [0.1, 0.4, 0.6, 0.8])
@pytest.mark.parametrize("router", [gr.ConfidenceRouter, gr.ExpectedGainRouter])
def test_the_budget_holds_where_scores_tie(router, budget):
    """All parties agree on most samples, so that most scores of the confidence router are equal."""
    local, labels, strong = easy_digits()
    votes, rates = votes_of(local), []
    for split in range(3):
        order = np.random.default_rng(split).permutation(len(labels))
        fit, new = order[:400], order[400:]
        made = router(budget).fit(votes[:, fit], labels[fit], strong_posterior=strong[fit])
        assert made.expected_rate_[0] == pytest.approx(budget, abs=0.01)
        rates.append(made.route(votes[:, new]).escalate.mean())
    deviation = np.sqrt(budget * (1 - budget) * (1 / 400 + 1 / len(new)))
    assert np.abs(np.array(rates) - budget).max() < 3.5 * deviation


def test_a_tied_sample_alone_always_gets_the_same_decision(tmp_path):
    local, labels, strong = easy_digits()
    votes = votes_of(local)
    router = gr.ConfidenceRouter(0.5).fit(votes, labels, strong.argmax(axis=1))
    gr.save(router, tmp_path / "router.safetensors")
    again = gr.load(tmp_path / "router.safetensors")
    assert 0 < router.tied_share_ == again.tied_share_ < 1
    np.testing.assert_array_equal(router.route(votes).escalate, again.route(votes).escalate)
    tied = np.flatnonzero(router.route(votes).score == router.threshold_)
    alone = [[r.route(votes[:, [i]]).escalate[0] for i in tied[:40]] for r in (router, again)]
    assert alone[0] == alone[1]
    assert 0 < sum(alone[0]) < 40
    # Equal samples take turns.
    equal = router.route(np.repeat(votes[:, tied[:1]], 100, axis=1)).escalate.mean()
    assert equal == pytest.approx(router.tied_share_, abs=0.02)


def test_equal_samples_take_turns_across_the_pieces_of_a_table():
    local, labels, strong = easy_digits()
    votes = np.tile(votes_of(local), (1, 3, 1))
    router = gr.ConfidenceRouter(0.5).fit(votes[:, : len(labels)], labels, strong.argmax(axis=1))
    whole = router.route(votes).escalate
    turns: dict[float, int] = {}
    pieces = [router.route(votes[:, i : i + 100], turns=turns).escalate for i in range(0, votes.shape[1], 100)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    alone = [router.route(votes[:, i : i + 100]).escalate for i in range(0, votes.shape[1], 100)]
    assert (np.concatenate(alone) != whole).any()


@pytest.mark.parametrize(
    "settings", [{"threshold": "calibration"}, {"threshold": 1.0}, {"min_gain": 1.0}, {"threshold": "certified"}]
)
def test_only_cross_fitted_thresholds_escalate_ties(settings):
    local, labels, strong = easy_digits()
    votes = votes_of(local)
    router = gr.ConfidenceRouter(0.5, **settings).fit(votes, labels, strong.argmax(axis=1))
    decision = router.route(votes)
    assert router.tied_share_ == 0
    np.testing.assert_array_equal(decision.escalate, decision.score > router.threshold_)


def test_ties_never_overshoot():
    scores = np.array([1.0] * 6 + [0.0] * 4)
    for budget in (0.1, 0.5, 0.59):
        assert (scores > gr.calibration_threshold(scores, budget)).sum() == 0
    assert (scores > gr.calibration_threshold(scores, 0.6)).sum() == 6


def test_weights_count_in_the_threshold():
    scores, weight = np.array([4.0, 3.0, 2.0, 1.0]), np.array([1.0, 1.0, 2.0, 6.0])
    assert (scores > gr.calibration_threshold(scores, 0.2, weight)).tolist() == [True, True, False, False]
    assert (scores > gr.calibration_threshold(scores, 0.4, weight)).tolist() == [True, True, True, False]


def test_min_gain_never_pays_for_an_expected_loss():
    data = world(400, 2, 4, 0)
    for budget in (0.5, 1.0):
        router = gr.ExpectedGainRouter(budget, min_gain=0.0).fit(data.local, data.labels, data.strong)
        decision = router.route(data.local)
        assert router.threshold_ >= 0
        assert (decision.score[decision.escalate] > 0).all()
        assert router.threshold_for(1.0) == 0.0
    assert gr.ExpectedGainRouter(0.0, min_gain=0.0).fit(data.local, data.labels, data.strong).threshold_ == np.inf


def test_a_number_is_the_threshold_itself():
    data = world(200, 2, 4, 0)
    router = gr.ExpectedGainRouter(threshold=0.05).fit(data.local, data.labels, data.strong)
    assert router.threshold_ == 0.05
    decision = router.route(data.local)
    np.testing.assert_array_equal(decision.escalate, decision.score > 0.05)


def test_threshold_for_another_budget_is_what_a_fit_with_it_gives():
    data = world(300, 2, 4, 0)
    for rule in ("cross-fitted", "calibration", "certified"):
        router = gr.ExpectedGainRouter(0.2, threshold=rule).fit(data.local, data.labels, data.strong)
        other = gr.ExpectedGainRouter(0.4, threshold=rule).fit(data.local, data.labels, data.strong)
        assert router.threshold_for(0.4) == other.threshold_
        assert router.threshold_for(0.2) == router.threshold_


def test_the_interval_of_the_rate_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    low, high = rate_interval(50, 500)
    assert low < 0.1 < high
    hits = 0
    for _ in range(2000):
        rate = 1 - np.sort(rng.random(500))[::-1][50]  # 50 of 500 uniform scores lie above
        hits += low <= rate <= high
    assert 0.93 <= hits / 2000 <= 0.97
    assert rate_interval(0, 100)[0] == 0
    assert rate_interval(100, 100)[1] == 1
