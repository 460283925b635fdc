"""The drift monitor: quiet while nothing changes, and clear when something does."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import world

import gainroute as gr
from gainroute.control.budget import BudgetController
from gainroute.control.change_test import BETS, ChangeTest, bet
from gainroute.control.drift import DriftMonitor
from gainroute.errors import SettingError, ShapeError

FITTED = world(1500, 2, 4)
ROUTER = gr.ExpectedGainRouter(0.2).fit(FITTED.local, FITTED.labels, FITTED.strong)


def live(data, monitor, controller=None, strong=None):
    """Route a stream, and tell the monitor the truth about all of it."""
    decision = (controller or ROUTER).route(data.local)
    monitor.observe(decision)
    answers = data.strong if strong is None else strong
    monitor.feedback(decision, data.labels, np.where(decision.escalate, answers, -1))
    return decision


def wrong(data):
    return (data.labels + 1) % 4


# ---- the sequential test ------------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "won"), [(0.2, 0.2), (0.02, 0.02), (0.5, 0.5), (0.1, 0.3)])
def test_without_drift_at_most_one_run_in_a_hundred_alarms_within_ten_thousand_answers(lost, won):
    """By Ville's inequality at most 1 % of the runs are expected to; 400 runs, and room for chance."""
    rng = np.random.default_rng(int(1000 * lost))
    money, alarmed = np.zeros((400, len(BETS))), np.zeros(400, dtype=bool)
    for _ in range(10_000):
        u = rng.random(400)
        gain = np.where(u < lost, -1.0, np.where(u < lost + won, 1.0, 0.0))
        money = bet(money, gain, np.array(BETS))
        alarmed |= money.mean(axis=1) / 10_000 >= 100
    assert alarmed.mean() <= 0.01 + 0.01


@settings(max_examples=30, deadline=None)
@given(p=st.floats(0.05, 1), q=st.floats(0, 0.95))
def test_no_bet_on_a_fair_or_better_gain_is_expected_to_win(p, q):
    """One coin more a value is all that may be expected: what the bound on false alarms rests on."""
    plus, minus = p / 2 + p * (1 - q) / 2, p - (p / 2 + p * (1 - q) / 2)
    assert plus >= minus - 1e-12
    before = np.array([3.0] * len(BETS))
    values = {1.0: plus, -1.0: minus, 0.0: 1 - p}
    after = sum(chance * bet(before, np.array(x), np.array(BETS)) for x, chance in values.items())
    assert (after <= before + 1 + 1e-12).all()


def test_a_long_good_history_hardly_delays_the_alarm():
    delays = []
    for history in (0, 20_000):
        test = ChangeTest(10_000, 0.01)
        test.update(np.ones(history))
        rng = np.random.default_rng(0)
        while not test.alarm and test.values < history + 2000:
            test.update(np.where(rng.random(1) < 0.65, -1.0, 1.0))
        delays.append(test.values - history)
    assert delays[1] <= delays[0] + 5
    assert delays[1] < 800


def test_the_tallies_start_where_the_change_was():
    test = ChangeTest(1000, 0.01, tallies=1)
    test.update(np.ones(500), np.ones((500, 1)))
    test.update(-np.ones(40), np.ones((40, 1)))
    assert test.alarm
    assert test.since_change()[0] == 40


def test_values_outside_the_range_are_refused():
    with pytest.raises(ShapeError, match="beyond"):
        ChangeTest(10, 0.01).update(np.array([1.5]))
    with pytest.raises(SettingError, match="false_alarm is 0"):
        ChangeTest(10, 0)


# ---- scores -------------------------------------------------------------------------------------


def test_scores_like_those_of_calibration_raise_no_alarm_and_others_do():
    quiet = 0
    for seed in range(20):
        monitor = DriftMonitor(ROUTER)
        monitor.observe(ROUTER.route(world(1000, 2, 4, 100 + seed).local))
        quiet += not monitor.scores.drifted
    assert quiet >= 19
    monitor = DriftMonitor(ROUTER)
    flat = 0.6 * world(1000, 2, 4, 7).local + 0.1
    decision = ROUTER.route(flat)
    monitor.observe(decision)
    report = monitor.report()
    assert report.scores.drifted
    assert report.scores.fixed_rate == decision.escalate.mean()
    assert report.scores.stability_index > 0.25
    assert "distance" in report.alarms["scores"]


def test_a_window_is_judged_when_it_is_full_however_it_came():
    stream = world(2500, 2, 4, 3).local
    whole, parts = DriftMonitor(ROUTER), DriftMonitor(ROUTER)
    whole.observe(ROUTER.route(stream))
    parts.observe(ROUTER.route(stream[:, :900]))
    assert parts.scores is None
    parts.observe(ROUTER.route(stream[:, 900:]))
    assert parts.scores == whole.scores
    assert whole.scores.distance < whole.scores.limit


def test_the_distance_is_kolmogorov_and_smirnovs():
    from scipy.stats import ks_2samp

    monitor = DriftMonitor(ROUTER, window=300)
    decision = ROUTER.route(0.8 * world(300, 2, 4, 5).local + 0.05)
    monitor.observe(decision)
    assert monitor.scores.distance == pytest.approx(ks_2samp(ROUTER.threshold_scores_.score, decision.score).statistic)


# ---- feedback -----------------------------------------------------------------------------------


def test_while_collaboration_helps_it_says_so_and_demands_nothing():
    monitor = DriftMonitor(ROUTER)
    live(world(5000, 2, 4, 11), monitor)
    report = monitor.report()
    assert not report.collaboration.harmful
    assert report.collaboration.e_value < 1
    assert "no evidence" in str(report.collaboration)
    assert monitor.recommended_min_gain is None
    assert abs(report.confidence_gap) < 0.05
    assert not report.alarms


def test_when_the_strong_route_has_become_the_worse_one_it_says_so_with_the_evidence():
    monitor = DriftMonitor(ROUTER)
    live(world(5000, 2, 4, 12), monitor)
    later = world(2000, 2, 4, 13)
    decision = live(later, monitor, strong=wrong(later))
    found = monitor.collaboration
    assert found.harmful
    assert found.answers == pytest.approx(decision.escalate.sum(), abs=5)
    assert found.strong_right <= 5
    weak_right = (decision.weak_prediction == later.labels)[decision.escalate].sum()
    assert found.weak_right == pytest.approx(weak_right, abs=5)
    said = monitor.report().alarms["collaboration"]
    assert f"of {found.answers:,} escalated and labelled answers" in said
    assert "≥ 100" in said


def test_it_protects_the_controller_and_lets_go_after_a_reset():
    monitor, controller = DriftMonitor(ROUTER), BudgetController(ROUTER, explore=0.02)
    bad = world(4000, 2, 4, 14)
    live(bad, monitor, controller, strong=wrong(bad))
    demanded = monitor.protect(controller)
    assert demanded > ROUTER.threshold_
    assert controller.protection == demanded == pytest.approx(monitor.recommended_min_gain)
    after = controller.route(bad.local)
    assert (after.score[after.escalate & ~after.explored] > demanded).all()
    assert after.escalate.mean() < 0.05
    monitor.reset()
    assert monitor.protect(controller) is None
    assert controller.route(bad.local).escalate.mean() == pytest.approx(0.2, abs=0.02)


def test_where_the_score_is_no_gain_protection_stops_all_but_exploration():
    router = gr.ConfidenceRouter(0.2).fit(FITTED.local, FITTED.labels, FITTED.strong)
    monitor = DriftMonitor(router)
    bad = world(3000, 2, 4, 15)
    decision = router.route(bad.local)
    monitor.feedback(decision, bad.labels, np.where(decision.escalate, wrong(bad), -1))
    assert monitor.recommended_min_gain == math.inf


def test_explored_answers_are_no_evidence_against_collaboration():
    """They are where the score says that nothing is to be gained: that they do not gain is no news."""
    monitor = DriftMonitor(ROUTER)
    decision = BudgetController(ROUTER, 0.2, explore=0.2).route(world(4000, 2, 4, 16).local)
    assert decision.explored.sum() > 500
    data = world(4000, 2, 4, 16)
    only = np.where(decision.explored, wrong(data), -1)
    monitor.feedback(decision, data.labels, only)
    assert monitor.collaboration.answers == 0


def test_a_weak_route_that_fails_shows_in_the_calibration():
    monitor = DriftMonitor(ROUTER)
    data = world(3000, 2, 4, 17)
    decision = ROUTER.route(data.local)
    labels = np.where(np.random.default_rng(0).random(3000) < 0.5, wrong(data), data.labels)
    monitor.feedback(decision, labels, np.full(3000, -1))
    report = monitor.report()
    assert report.confidence_gap < -0.1
    assert report.calibration_error > 0.1
    assert "less often" in report.alarms["calibration"]


def test_reliability_is_estimated_without_the_bias_of_what_was_escalated():
    """A strong route that is right where the score is high, and wrong elsewhere: only weights tell."""
    monitor = DriftMonitor(ROUTER, memory=10**9)
    data = world(25_000, 2, 4, 18)
    decision = BudgetController(ROUTER, 0.2, explore=0.05).route(data.local)
    strong = np.where(decision.score > np.median(decision.score), data.labels, wrong(data))
    monitor.feedback(decision, data.labels, np.where(decision.escalate, strong, -1))
    report = monitor.report()
    truth = np.array([(strong == data.labels)[data.labels == k].mean() for k in range(4)])
    np.testing.assert_allclose(report.reliability, truth, atol=0.1)
    assert ((report.reliability_low < truth) & (truth < report.reliability_high)).all()
    assert set(report.changed_classes) == {0, 1, 2, 3}
    assert (report.reliability_labels < decision.escalate.sum() / 4).all()


def test_feedback_that_carries_its_probability_is_weighted_by_it():
    rng = np.random.default_rng(0)
    data = world(8000, 2, 4, 19)
    decision = ROUTER.route(data.local)
    chance = np.where(decision.weak_prediction == data.labels, 0.2, 0.8)
    told = rng.random(8000) < chance
    part = dataclasses.replace(decision, incomplete=~told)
    silent, spoken = DriftMonitor(ROUTER), DriftMonitor(ROUTER)
    nothing = np.full(8000, -1)
    silent.feedback(part, data.labels, nothing)
    spoken.feedback(part, data.labels, nothing, probability=chance)
    assert silent.report().confidence_gap < -0.2
    assert abs(spoken.report().confidence_gap) < 0.05
    with pytest.raises(SettingError, match=r"feedback probability is 0\.01"):
        spoken.feedback(part, data.labels, nothing, probability=np.full(8000, 0.01))


def test_a_utility_decides_what_helping_means():
    """Right more often, and yet worse: the strong route errs where it is dear."""
    utility = np.eye(4)
    utility[0] = [1, -9, -9, -9]
    router = gr.ExpectedGainRouter(0.2, utility=utility).fit(FITTED.local, FITTED.labels, FITTED.strong)
    data = world(6000, 2, 4, 20)
    decision = router.route(data.local)
    strong = np.where(data.labels == 0, 1, data.labels)
    assert (strong == data.labels).mean() > (decision.weak_prediction == data.labels).mean()
    plain, valued = DriftMonitor(ROUTER), DriftMonitor(router)
    for monitor in (plain, valued):
        monitor.feedback(decision, data.labels, strong)
    assert not plain.collaboration.harmful
    assert valued.collaboration.harmful


# ---- state --------------------------------------------------------------------------------------


def test_after_a_restart_it_says_the_same():
    monitor = DriftMonitor(ROUTER)
    first, later = world(1700, 2, 4, 21), world(1500, 2, 4, 22)
    live(first, monitor)
    resumed = DriftMonitor(ROUTER)
    resumed.restore(json.loads(json.dumps(monitor.state())))
    for one in (monitor, resumed):
        live(later, one, strong=wrong(later))
    assert resumed.state() == monitor.state()
    assert resumed.report().alarms == monitor.report().alarms != {}


def test_a_state_of_another_router_is_refused():
    other = gr.ExpectedGainRouter(0.2).fit(FITTED.local[:, :500], FITTED.labels[:500], FITTED.strong[:500])
    with pytest.raises(SettingError, match="same router"):
        DriftMonitor(other).restore(DriftMonitor(ROUTER).state())


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(SettingError, match="window is 20"):
        DriftMonitor(ROUTER, window=20, horizon=10)


def test_scores_alone_are_watched_as_decisions_are_and_nan_is_left_out():
    stream = ROUTER.route(world(2300, 2, 4, 5).local)
    whole, bare = DriftMonitor(ROUTER), DriftMonitor(ROUTER)
    whole.observe(stream)
    score, escalated = np.insert(stream.score, 7, np.nan), np.insert(stream.escalate, 7, True)
    for part in (slice(0, 5), slice(5, 1600), slice(1600, None)):
        bare.observe_scores(score[part], escalated[part])
    assert bare.scores == whole.scores
    assert bare.state() == whole.state()


def test_without_the_calibrated_posterior_only_calibration_is_not_judged():
    data = world(1500, 2, 4, 6)
    decision = ROUTER.route(data.local)
    unknown = dataclasses.replace(decision, calibrated=np.full_like(decision.calibrated, np.nan))
    monitor = DriftMonitor(ROUTER)
    monitor.feedback(unknown, data.labels, np.where(decision.escalate, wrong(data), -1))
    report = monitor.report()
    assert math.isnan(report.calibration_error)
    assert report.labels == 1500
    assert "collaboration" in report.alarms
