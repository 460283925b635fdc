"""Recalibration: what a log can teach, what it cannot, and how two routers are compared on it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic import world

import gainroute as gr
from gainroute.control.budget import BudgetController
from gainroute.control.logged_decisions import LoggedDecisions, checked
from gainroute.control.recalibrate import recalibrate
from gainroute.control.shadow import compare_shadow
from gainroute.errors import GainrouteWarning, InputError, SettingError, ShapeError, TooFewSamplesError

FITTED = world(800, 2, 4)
SETTINGS = {"folds": 4}
OLD = gr.ExpectedGainRouter(0.2, **SETTINGS).fit(FITTED.local, FITTED.labels, FITTED.strong)


def broken(data):
    """The strong route now fails on the classes it was best at."""
    return np.where(data.labels >= 2, (data.labels + 1) % 4, data.labels)


def logged(data, strong=None, *, explore=0.05, chance=None, declared=True, router=OLD, seed=0):
    """What a controller logs of a stream, each decision labelled with its chance."""
    decision = BudgetController(router, 0.2, explore=explore, seed=seed).route(data.local)
    q = np.ones(len(data.labels)) if chance is None else chance
    told = np.random.default_rng(seed + 10_000).random(len(q)) < q  # not what the controller draws
    return LoggedDecisions(
        data.local,
        np.where(told, data.labels, -1),
        np.where(decision.escalate, data.strong if strong is None else strong, -1),
        decision.probability,
        feedback_probability=q if declared and chance is not None else None,
        threshold=decision.thresholds,
    )


def accuracy(router, data, strong, rate=0.2):
    score = router.route(data.local)
    top = np.argsort(-score.score)[: round(rate * len(data.labels))]
    answer = score.weak_prediction.copy()
    answer[top] = strong[top]
    return (answer == data.labels).mean()


# ---- what it learns -----------------------------------------------------------------------------


def test_after_the_strong_route_has_changed_a_refit_wins_back_accuracy_at_the_same_rate():
    log = logged(world(2000, 2, 4, 1), broken(world(2000, 2, 4, 1)))
    new = recalibrate(OLD, log)
    later = world(20_000, 2, 4, 2)
    assert accuracy(new, later, broken(later)) > accuracy(OLD, later, broken(later)) + 0.02
    assert new.reliability_[2:].max() < 0.4 < OLD.reliability_[2:].min()
    assert new.route(later.local).escalate.mean() == pytest.approx(0.2, abs=0.04)


def test_the_old_router_is_left_as_it_is_and_the_new_one_is_of_its_kind():
    before = OLD.threshold_, OLD.reliability_.copy()
    new = recalibrate(OLD, logged(world(1500, 2, 4, 3)))
    assert type(new) is type(OLD)
    assert {k: v for k, v in new.settings().items() if v is not None} == {
        k: v for k, v in OLD.settings().items() if v is not None
    }
    assert OLD.threshold_ == before[0]
    np.testing.assert_array_equal(OLD.reliability_, before[1])


@pytest.mark.parametrize("make", [gr.ConfidenceRouter, gr.CalibratedConfidenceRouter, gr.LearnedGainRouter])
def test_every_kind_of_router_can_be_refitted(make):
    router = make(budget=0.2, folds=2).fit(FITTED.local, FITTED.labels, FITTED.strong)
    new = recalibrate(router, logged(world(1500, 2, 4, 3), router=router))
    assert type(new) is make
    assert 0.03 < new.route(world(2000, 2, 4, 4).local).escalate.mean() < 0.35


def test_out_of_fold_scores_are_carried_over_to_the_scale_of_the_refitted_router():
    log = logged(world(1500, 2, 4, 3))
    new = recalibrate(OLD, log)
    score = new.route(log.local_posteriors).score
    found = new.threshold_scores_.score
    assert score.min() <= found.min()
    assert found.max() <= score.max()


def test_a_refitted_router_can_be_saved_and_loaded(tmp_path):
    new = recalibrate(OLD, logged(world(1500, 2, 4, 3)))
    gr.save(new, tmp_path / "new.safetensors")
    again = gr.load(tmp_path / "new.safetensors")
    stream = world(300, 2, 4, 5).local
    np.testing.assert_array_equal(again.route(stream).escalate, new.route(stream).escalate)


def test_reliability_is_that_of_all_samples_though_only_some_were_escalated():
    """Right where the score is high, wrong elsewhere: the escalated samples alone would say 1."""
    data = world(40_000, 2, 4, 6)
    score = OLD.route(data.local).score
    strong = np.where(score > np.median(score), data.labels, (data.labels + 1) % 4)
    log = logged(data, strong)
    router = gr.ExpectedGainRouter(0.2, threshold="calibration").fit(FITTED.local, FITTED.labels, FITTED.strong)
    new = recalibrate(router, log)
    truth = np.array([(strong == data.labels)[data.labels == k].mean() for k in range(4)])
    np.testing.assert_allclose(new.reliability_, truth, atol=0.08)
    escalated = np.asarray(log.strong_prediction) >= 0
    naive = gr.classwise_reliability(data.labels[escalated], strong[escalated])
    assert (naive > truth + 0.25).all()


def test_labels_that_come_more_often_from_one_route_do_no_harm():
    data = world(8000, 2, 4, 7)
    decision = BudgetController(OLD, 0.2, explore=0.05).route(data.local)
    chance = np.where(decision.escalate, 0.9, 0.2)
    by_route = recalibrate(OLD, logged(data, chance=chance, declared=False))
    everything = recalibrate(OLD, logged(data))
    assert by_route.threshold_ == pytest.approx(everything.threshold_, abs=0.03)
    stream = world(5000, 2, 4, 8)
    assert by_route.route(stream.local).escalate.mean() == pytest.approx(0.2, abs=0.03)


def test_biased_feedback_that_does_not_say_so_harms_and_that_which_does_is_corrected():
    """Labels from complaints: nine of ten right weak answers are never confirmed."""
    data = world(8000, 2, 4, 9)
    chance = np.where(OLD.route(data.local).weak_prediction == data.labels, 0.1, 1.0)
    silent = recalibrate(OLD, logged(data, chance=chance, declared=False))
    spoken = recalibrate(OLD, logged(data, chance=chance))
    later = world(8000, 2, 4, 10)
    rates = [r.route(later.local).escalate.mean() for r in (silent, spoken)]
    assert rates[0] < 0.18  # it takes every answer for doubtful, and sets the threshold too high
    assert rates[1] == pytest.approx(0.2, abs=0.03)
    weak = OLD.route(later.local).weak_prediction
    everything = recalibrate(OLD, logged(data))
    said = [r.route(later.local).calibrated[np.arange(8000), weak].mean() for r in (silent, spoken, everything)]
    assert said[0] < said[2] - 0.15
    assert said[1] == pytest.approx(said[2], abs=0.03)


# ---- what it refuses ----------------------------------------------------------------------------


def test_without_exploration_it_refuses():
    with pytest.raises(InputError, match=r"had no chance of being escalated.*explore=0\.01"):
        recalibrate(OLD, logged(world(2000, 2, 4, 1), explore=0.0))


def test_without_posteriors_it_refuses():
    log = logged(world(300, 2, 4, 1))
    with pytest.raises(InputError, match="no posteriors"):
        recalibrate(OLD, dataclasses.replace(log, local_posteriors=None))


def test_with_too_few_labels_it_says_how_many_it_has_and_needs():
    log = logged(world(2000, 2, 4, 1), chance=np.full(2000, 0.05))
    with pytest.raises(
        TooFewSamplesError, match=r"has \d+ labelled decisions, \d+ of them explored; 200 and 10 are needed"
    ):
        recalibrate(OLD, log)
    with pytest.raises(TooFewSamplesError, match="5,000 and 10"):
        recalibrate(OLD, logged(world(2000, 2, 4, 1)), min_labels=5000)


def test_samples_turned_away_by_the_cap_are_left_out_and_no_reason_to_refuse():
    from gainroute.control.token_bucket import TokenBucket

    data = world(3000, 2, 4, 1)
    capped = BudgetController(OLD, 0.3, explore=0.05, cap=TokenBucket(0.15, 3, per="sample")).route(data.local)
    assert (capped.probability == 0).sum() > 100
    log = LoggedDecisions(
        data.local,
        data.labels,
        np.where(capped.escalate, data.strong, -1),
        capped.probability,
        threshold=capped.thresholds,
    )
    assert recalibrate(OLD, log).n_classes_ == 4
    with pytest.raises(InputError, match="no chance"):
        recalibrate(OLD, dataclasses.replace(log, threshold=None))


def test_answers_that_got_lost_and_samples_that_lack_a_party_are_left_out():
    data = world(2000, 2, 4, 1)
    log = logged(data)
    local = np.asarray(log.local_posteriors).copy()
    local[1, :50] = np.nan
    strong = np.asarray(log.strong_prediction).copy()
    strong[np.flatnonzero(np.asarray(log.probability) == 1)[:20]] = -1
    new = recalibrate(OLD, dataclasses.replace(log, local_posteriors=local, strong_prediction=strong))
    assert len(new.threshold_scores_.score) < 1950


def test_a_log_that_makes_no_sense_is_refused():
    log = logged(world(500, 2, 4, 1))
    with pytest.raises(ShapeError, match="probability has shape"):
        recalibrate(OLD, dataclasses.replace(log, probability=[0.5]))
    with pytest.raises(SettingError, match=r"lie in \[0, 1\]"):
        recalibrate(OLD, dataclasses.replace(log, probability=np.full(500, 2.0)))
    with pytest.raises(SettingError, match="feedback_probability 0"):
        recalibrate(OLD, dataclasses.replace(log, feedback_probability=np.zeros(500)))
    with pytest.raises(TooFewSamplesError, match="none of the 500"):
        recalibrate(OLD, dataclasses.replace(log, local_posteriors=np.full((2, 500, 4), np.nan)))


def test_feedback_without_a_probability_of_its_own_has_the_share_of_its_route():
    log = logged(world(1500, 2, 4, 3), chance=np.full(1500, 0.5), declared=False)
    alone = checked(OLD, log).feedback
    told = np.full(1500, np.nan)
    told[:400] = 0.25
    mixed = checked(OLD, dataclasses.replace(log, feedback_probability=told)).feedback
    assert set(np.round(alone, 12)) != {0.25}
    np.testing.assert_array_equal(mixed[400:], alone[400:])
    assert set(mixed[:400]) == {0.25}


@pytest.mark.parametrize("settings", [{"threshold": "certified"}, {"threshold": "certified-error", "kept_error": 0.6}])
def test_a_certified_threshold_cannot_be_certified_by_a_log(settings):
    router = gr.ExpectedGainRouter(0.2, folds=4, **settings).fit(FITTED.local, FITTED.labels, FITTED.strong)
    log = logged(world(1500, 2, 4, 3), router=router)
    with pytest.warns(
        GainrouteWarning, match=f'cannot certify a budget or an error: .* instead of "{router.threshold}"'
    ):
        new = recalibrate(router, log)
    assert (new.threshold, new.kept_error, new.guarantee_) == ("cross-fitted", None, None)


# ---- the shadow ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shadow_finds_the_better_router_and_says_how_sure_it_is():
    first, live = world(2000, 2, 4, 1), world(16_000, 2, 4, 11)
    new = recalibrate(OLD, logged(first, broken(first)))
    found = compare_shadow(OLD, new, logged(live, broken(live)), rate=0.2)
    truth = accuracy(new, live, broken(live)) - accuracy(OLD, live, broken(live))
    assert found.low < truth < found.high
    assert found.verdict == "better"
    assert found.old == pytest.approx(accuracy(OLD, live, broken(live)), abs=0.03)
    assert "better" in str(found)
    back = compare_shadow(new, OLD, logged(live, broken(live)), rate=0.2)
    assert back.verdict == "worse"


def test_a_router_against_itself_is_undecided():
    found = compare_shadow(OLD, OLD, logged(world(1000, 2, 4, 12)))
    assert (found.difference, found.low, found.high, found.disagreements) == (0, 0, 0, 0)
    assert found.verdict == "undecided"
    assert found.rate == pytest.approx(0.2, abs=0.03)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    first = world(2000, 2, 4, 1)
    new = recalibrate(OLD, logged(first, broken(first)))
    whole = world(100_000, 2, 4, 13)
    truth = accuracy(new, whole, broken(whole)) - accuracy(OLD, whole, broken(whole))
    hits = 0
    for seed in range(20):
        live = world(1000, 2, 4, 1000 + seed)
        found = compare_shadow(OLD, new, logged(live, broken(live), seed=seed), rate=0.2)
        hits += found.low <= truth <= found.high
    assert hits >= 16
