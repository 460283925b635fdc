"""What each budget buys: against the library's own curves, by hand, and by simulation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gainroute as gr
from gainroute import evaluation
from gainroute._util.resampling import escalated_share, gains_at, resamples
from gainroute.errors import LabelError, MissingExtraError, SettingError, ShapeError
from gainroute.evaluation.plan import BUDGETS, Plan, plan_budgets
from gainroute.evaluation.plan_figure import draw_plan


def draw(n: int, k: int = 3, seed: int = 0, levels: int = 0) -> tuple[Any, Any, Any, Any]:
    """Scores (tied, if `levels` is set), weak and strong predictions, labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n)
    weak = np.where(rng.random(n) < 0.6, labels, rng.integers(k, size=n))
    strong = np.where(rng.random(n) < 0.9, labels, rng.integers(-1, k, size=n))
    score = (weak != labels) * 0.3 + rng.normal(size=n) * 0.3
    if levels:
        score = np.round(score * levels) / levels
    return score, weak, strong, labels


@settings(max_examples=40, deadline=None)
@given(n=st.integers(12, 80), seed=st.integers(0, 999), levels=st.sampled_from([0, 2, 5]), utility=st.booleans())
def test_points_agree_with_the_trade_off_curve_ties_included(n: int, seed: int, levels: int, utility: bool) -> None:
    score, weak, strong, labels = draw(n, seed=seed, levels=levels)
    u = np.random.default_rng(seed).normal(size=(3, 3)) if utility else None
    plan = plan_budgets(score, weak, strong, labels, 3, utility=u)
    for point in plan.points:
        known = evaluation.operating_point(score, weak, strong, labels, rate=point.rate, utility=u)
        assert point.value == pytest.approx(known.utility, abs=1e-9)
        assert point.accuracy == pytest.approx(known.accuracy, abs=1e-9)
    assert [point.rate for point in plan.points] == list(BUDGETS)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999))
def test_a_weight_of_two_is_the_sample_twice(seed: int) -> None:
    score, weak, strong, labels = draw(30, seed=seed, levels=4)
    weight = np.random.default_rng(seed).integers(1, 4, size=30)
    twice = np.repeat(np.arange(30), weight)
    once = plan_budgets(score, weak, strong, labels, 3, sample_weight=weight)
    same = plan_budgets(score[twice], weak[twice], strong[twice], labels[twice], 3)
    for a, b in zip(once.points, same.points, strict=True):
        assert a.value == pytest.approx(b.value)
        np.testing.assert_allclose(a.recall, b.recall)


def test_recall_is_the_share_of_each_class_answered_right() -> None:
    plan = plan_budgets([3, 2, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1], [1, 0, 1, 1], 3, budgets=[0, 0.25, 1])
    np.testing.assert_allclose(
        [p.recall for p in plan.points], [[1, 2 / 3, np.nan], [1, 1, np.nan], [1, 2 / 3, np.nan]]
    )


def test_the_knee_is_the_smallest_rate_within_half_a_point_of_the_best() -> None:
    score, weak, strong, labels = draw(2000, seed=3)
    plan = plan_budgets(score, weak, strong, labels, 3)
    curve = evaluation.tradeoff_curve(score, weak, strong, labels)
    near = curve.escalation_rate[curve.accuracy >= curve.accuracy.max() - 0.005 - 1e-12]
    assert plan.knee is not None
    assert near[0] - 1 / 2000 <= plan.knee.rate <= near[0]
    assert plan.knee.value == pytest.approx(curve.accuracy.max() - 0.005, abs=1 / 2000)


def test_the_gain_ends_where_the_score_is_no_longer_positive() -> None:
    score, weak, strong, labels = draw(500)
    assert plan_budgets(score, weak, strong, labels, 3).gain_ends is None
    plan = plan_budgets(score, weak, strong, labels, 3, score_is_gain=True)
    assert plan.gain_ends is not None
    assert plan.gain_ends.rate == pytest.approx((score > 0).mean())


def test_the_target_is_the_smallest_rate_that_reaches_it_also_beside_a_utility() -> None:
    score, weak, strong, labels = draw(1000)
    curve = evaluation.tradeoff_curve(score, weak, strong, labels)
    for utility in (None, 5 * np.eye(3)):
        plan = plan_budgets(score, weak, strong, labels, 3, target_accuracy=0.8, utility=utility)
        assert plan.target is not None
        assert plan.target.accuracy == pytest.approx(0.8)
        first = curve.escalation_rate[curve.accuracy >= 0.8][0]
        assert first - 1e-3 <= plan.target.rate <= first
    assert plan_budgets(score, weak, strong, labels, 3, target_accuracy=1.0).target is None


def test_the_threshold_in_use_is_evaluated_at_the_rate_it_gives() -> None:
    score, weak, strong, labels = draw(400)
    plan = plan_budgets(score, weak, strong, labels, 3, threshold=0.25)
    known = evaluation.operating_point(score, weak, strong, labels, threshold=0.25)
    assert plan.deployed is not None
    assert (plan.deployed.rate, plan.deployed.accuracy) == pytest.approx((known.escalation_rate, known.accuracy))


def test_one_class_above_nine_tenths_is_warned_of_and_nothing_marked() -> None:
    score, weak, strong, labels = draw(400)
    labels[:380] = 2
    with pytest.warns(gr.GainrouteWarning, match="90 % of the samples are of class 2"):
        plan = plan_budgets(score, weak, strong, labels, 3, score_is_gain=True)
    assert (plan.skewed, plan.knee, plan.gain_ends) == (True, None, None)
    with_utility = plan_budgets(score, weak, strong, labels, 3, utility=np.eye(3))
    assert with_utility.knee is not None
    assert not with_utility.skewed


def test_the_interval_covers_as_often_as_it_says() -> None:
    truth = evaluation.operating_point(*draw(200_000, seed=999), rate=0.2).accuracy
    hits = 0
    for seed in range(40):
        point = plan_budgets(*draw(250, seed=seed), 3, budgets=[0.2]).points[0]
        hits += point.low <= truth <= point.high
    assert 33 <= hits <= 40  # 95 % of 40 is 38; fewer than 33 happens once in 1,000


def test_the_same_seed_gives_the_same_plan() -> None:
    a, b = (plan_budgets(*draw(100), 3, seed=5) for _ in range(2))
    np.testing.assert_array_equal(a.band_low, b.band_low)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 40), seed=st.integers(0, 99), levels=st.sampled_from([0, 2]))
def test_shares_escalated_add_up_to_the_rate(n: int, seed: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    score, _, _, _ = draw(n, seed=seed, levels=levels)
    weight = rng.integers(0, 3, size=n).astype(float) + (np.arange(n) == 0)
    gain, rates = rng.normal(size=n), np.array([0.0, 0.3, 1.0])
    share = escalated_share(score, weight, rates)
    np.testing.assert_allclose(share @ weight / weight.sum(), rates, atol=1e-12)
    np.testing.assert_allclose(share @ (weight * gain), gains_at(score, gain, weight[None], rates)[0], atol=1e-9)


def test_resamples_have_the_size_of_the_sample() -> None:
    blocks = list(resamples(7, 25, np.random.default_rng(0)))
    assert sum(len(b) for b in blocks) == 25
    assert {float(b) for block in blocks for b in block.sum(axis=1)} == {7.0}


def test_bad_input_is_named() -> None:
    score, weak, strong, labels = draw(20)
    with pytest.raises(SettingError, match=r"budgets is 20; it lies in \[0, 1\]"):
        plan_budgets(score, weak, strong, labels, 3, budgets=[20])
    with pytest.raises(SettingError, match="budgets is empty"):
        plan_budgets(score, weak, strong, labels, 3, budgets=[])
    with pytest.raises(SettingError, match="target_accuracy is 95"):
        plan_budgets(score, weak, strong, labels, 3, target_accuracy=95)
    with pytest.raises(ShapeError, match="score has shape"):
        plan_budgets(score[:5], weak, strong, labels, 3)
    with pytest.raises(LabelError, match="labels"):
        plan_budgets(score, weak, strong, labels + 1, 3)
    with pytest.raises(ShapeError, match="utility has shape"):
        plan_budgets(score, weak, strong, labels, 3, utility=np.eye(2))


# ---- the picture --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_budgets(*draw(200), 3, score_is_gain=True, threshold=0.2, target_accuracy=0.7)


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_picture_is_drawn_in_the_format_of_its_suffix(
    tmp_path: Path, plan: Plan, suffix: str, magic: bytes
) -> None:
    draw_plan(plan, tmp_path / f"p.{suffix}")
    assert (tmp_path / f"p.{suffix}").read_bytes().startswith(magic)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_picture_of_a_utility_without_marks(tmp_path: Path) -> None:
    with_utility = plan_budgets(*draw(50), 3, utility=2 * np.eye(3))
    draw_plan(with_utility, tmp_path / "p.png", "A title")
    assert (tmp_path / "p.png").stat().st_size > 5000


def test_bad_pictures_are_refused(tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"ends in '.gif'"):
        draw_plan(plan, tmp_path / "p.gif")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"gainroute\[plots\]"):
        draw_plan(plan, tmp_path / "p.png")
