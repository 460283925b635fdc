"""A budget that holds: what the controller promises, against streams that mean well and streams that do not."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import world

import gainroute as gr
from gainroute.control.budget import BudgetController
from gainroute.control.score_scale import CalibrationScale
from gainroute.control.token_bucket import TokenBucket
from gainroute.errors import SettingError

FITTED = world(400, 2, 4)
ROUTER = gr.ExpectedGainRouter(0.2).fit(FITTED.local, FITTED.labels, FITTED.strong)
TEMPLATE = ROUTER.route(FITTED.local[:, :1])
QUICK = settings(max_examples=40, deadline=None)


@functools.cache
def repeated(n):
    """The decision of one sample, `n` times."""
    fields = [name for name, value in vars(TEMPLATE).items() if isinstance(value, np.ndarray)]
    return dataclasses.replace(
        TEMPLATE, **{name: np.repeat(getattr(TEMPLATE, name), n, axis=1 if name == "local" else 0) for name in fields}
    )


def scored(scores):
    """A decision of the router with these scores; nothing else of it matters to the controller."""
    return dataclasses.replace(repeated(len(scores)), score=np.asarray(scores, dtype=float))


def worst_window(escalated, budget, n):
    sums = np.convolve(np.asarray(escalated, dtype=float), np.ones(n), "valid")
    return np.abs(sums / n - budget).max()


# ---- the bound ----------------------------------------------------------------------------------


@QUICK
@given(
    scores=st.lists(
        st.one_of(st.floats(-1, 1), st.sampled_from([-1e9, 1e9, math.inf, -math.inf])), min_size=1, max_size=300
    ),
    budget=st.floats(0.01, 0.99),
    step=st.floats(0.001, 1.0),
    explore=st.floats(0, 0.01),
)
def test_the_rate_keeps_the_bound_whatever_the_scores(scores, budget, step, explore):
    controller = BudgetController(ROUTER, budget, step=step, explore=explore)
    escalated = controller.decide(scored(scores)).escalate
    for n in {1, len(scores) // 2, len(scores)} - {0}:
        assert worst_window(escalated, budget, n) <= controller.bound(n) + 1e-9


@pytest.mark.parametrize("budget", [0.05, 0.7])
@pytest.mark.parametrize("spite", ["just above", "just below", "alternating", "long and hard, long and easy"])
def test_an_adversary_who_sees_the_threshold_cannot_break_the_bound(budget, spite):
    controller = BudgetController(ROUTER, budget)
    escalated = []
    for t in range(3000):
        above = {"just above": True, "just below": False, "alternating": t % 2 == 0}.get(spite, (t // 600) % 2 == 0)
        far = 10.0 if spite.startswith("long") else 1e-9
        tau = controller.threshold if math.isfinite(controller.threshold) else 0.0
        escalated.append(controller.decide(scored([tau + far if above else tau - far])).escalate[0])
    for n in (500, 2000, 3000):
        assert worst_window(escalated, budget, n) <= controller.bound(n) + 1e-9
    assert 0 < np.mean(escalated) < 1  # the adversary had something to fight


def test_the_default_step_promises_two_points_over_two_thousand_samples():
    assert BudgetController(ROUTER, 0.2).bound(2000) <= 0.02 + 1e-12
    assert "within 2.0 points" in BudgetController(ROUTER, 0.2).describe()
    assert "|rate − B| ≤ 40.0/n" in repr(BudgetController(ROUTER, 0.2))


@pytest.mark.parametrize(("budget", "rate"), [(0.0, 0.0), (1.0, 1.0)])
def test_budgets_of_nothing_and_everything_are_kept_exactly(budget, rate):
    controller = BudgetController(ROUTER, budget)
    assert controller.route(world(500, 2, 4, 1).local).escalate.mean() == rate
    assert controller.bound(1) == 0


# ---- how it follows -----------------------------------------------------------------------------


def test_it_starts_at_the_routers_threshold():
    controller = BudgetController(ROUTER)
    assert controller.threshold == pytest.approx(ROUTER.threshold_, abs=1e-12)
    first = controller.route(FITTED.local[:, :1])
    assert first.escalate[0] == ROUTER.route(FITTED.local[:, :1]).escalate[0]


def test_when_the_scores_drift_the_rate_holds_and_the_best_samples_are_chosen():
    harder = 0.5 * world(20_000, 2, 4, 5).local + 0.5 / 4
    fixed = ROUTER.route(harder)
    assert fixed.escalate.mean() > 0.3
    controller = BudgetController(ROUTER, 0.2)
    found = controller.route(harder)
    assert worst_window(found.escalate[2000:], 0.2, 2000) < 0.02
    cut = np.quantile(fixed.score, 1 - found.escalate.mean())
    both = (found.escalate & (fixed.score > cut)).sum()
    assert both / found.escalate.sum() > 0.75  # a threshold chosen afterwards would have taken most of them too
    assert controller.rate == found.escalate.mean()


@QUICK
@given(
    seed=st.integers(0, 100),
    cuts=st.lists(st.integers(1, 399), max_size=6, unique=True),
    explore=st.sampled_from([0, 0.1]),
)
def test_how_a_stream_is_cut_into_batches_changes_nothing(seed, cuts, explore):
    stream = world(400, 2, 4, seed).local
    cap = {"cap": TokenBucket(0.15, 3, per="sample")}
    whole = BudgetController(ROUTER, explore=explore, **cap).route(stream)
    controller = BudgetController(ROUTER, explore=explore, cap=TokenBucket(0.15, 3, per="sample"))
    parts = [controller.route(part) for part in np.split(stream, sorted(cuts), axis=1)]
    for name in ("escalate", "probability", "explored", "capped", "thresholds"):
        np.testing.assert_array_equal(np.concatenate([getattr(p, name) for p in parts]), getattr(whole, name))


def test_it_stands_where_a_router_stands():
    new = world(50, 2, 4, 9)
    controller = BudgetController(ROUTER)
    decision = controller.route(new.local)
    answer = controller.answer(decision, new.strong[decision.escalate])
    np.testing.assert_array_equal(answer.prediction[decision.escalate], new.strong[decision.escalate])
    predict = gr.cascade(lambda x: x, lambda x: x, BudgetController(_one_party()))
    assert 0.1 < predict(new.local[0]).escalated.mean() < 0.3


def test_ties_share_the_budget_in_turn():
    """A router of one single score splits a batch, but samples one by one all or none; the controller takes a fifth."""
    flat = np.tile([[0.5, 0.3, 0.2]], (300, 1))
    router = gr.ConfidenceRouter(0.2).fit(flat, np.arange(300) % 3, np.arange(300) % 3)
    assert router.route(flat).escalate.mean() == pytest.approx(0.2, abs=0.01)
    assert len({bool(router.route(flat[i : i + 1]).escalate[0]) for i in range(20)}) == 1
    stream = np.tile(flat, (10, 1))
    assert BudgetController(router).route(stream).escalate.mean() == pytest.approx(0.2, abs=0.015)


def test_samples_that_lack_a_party_are_neither_escalated_nor_counted():
    new = world(400, 2, 4, 2).local
    present = np.ones((2, 400), dtype=bool)
    present[1, ::2] = False
    controller = BudgetController(ROUTER, explore=0.1)
    found = controller.route(new, present=present)
    assert not found.escalate[::2].any()
    assert not found.probability[::2].any()
    assert controller.samples == 200
    alone = BudgetController(ROUTER).route(new[:, 1::2])
    np.testing.assert_array_equal(BudgetController(ROUTER).route(new, present=present).escalate[1::2], alone.escalate)


@QUICK
@given(
    scores=st.lists(st.floats(-2, 2), min_size=2, max_size=50), at=st.lists(st.floats(-3, 3), min_size=2, max_size=50)
)
def test_the_scale_keeps_the_order_and_can_be_read_backwards(scores, at):
    behind = dataclasses.replace(ROUTER.threshold_scores_, score=np.array(scores), weight=np.ones(len(scores)))
    scale = CalibrationScale.of(behind)
    levels = scale(np.sort(at))
    assert (np.diff(levels) >= 0).all()
    assert ((levels >= 0) & (levels <= 1)).all()
    inside = (levels > 1e-6) & (levels < 1 - 1e-6)
    np.testing.assert_allclose(scale(scale.inverse(levels[inside])), levels[inside], atol=1e-9)


# ---- exploration --------------------------------------------------------------------------------


def test_exploration_is_marked_paid_for_out_of_the_budget_and_as_likely_as_it_says():
    stream = world(40_000, 2, 4, 3)
    controller = BudgetController(ROUTER, 0.2, explore=0.02)
    found = controller.route(stream.local)
    assert found.escalate.mean() == pytest.approx(0.2, abs=0.001)
    below = found.score <= found.thresholds
    assert found.explored[below].mean() == pytest.approx(0.02, abs=0.003)
    np.testing.assert_array_equal(found.explored, found.escalate & below)
    assert set(np.unique(found.probability)) == {0.02, 1.0}
    assert (found.escalate[found.probability == 1]).all()
    # What the probabilities are for: the mean over all samples from those escalated alone.
    right = (stream.strong == stream.labels).astype(float)
    estimate = np.sum(right * found.escalate / found.probability) / len(right)
    assert estimate == pytest.approx(right.mean(), abs=0.06)


def test_more_exploration_than_budget_is_refused():
    with pytest.raises(SettingError, match=r"explore is 0\.3 and the budget 0\.2"):
        BudgetController(ROUTER, 0.2, explore=0.3)


# ---- the cap ------------------------------------------------------------------------------------


@QUICK
@given(
    gaps=st.lists(st.floats(0, 3), min_size=1, max_size=30),
    rate=st.floats(0.1, 5),
    burst=st.integers(1, 20),
    unit=st.sampled_from(["samples", "bytes"]),
)
def test_the_cap_is_never_exceeded_over_any_stretch_of_time(gaps, rate, burst, unit):
    size = 1 if unit == "samples" else 512
    now = [0.0]
    kind = {"unit": unit} if unit == "samples" else {"unit": unit, "size": size}
    cap = TokenBucket(rate * size, burst * size, clock=lambda: now[0], **kind)
    controller = BudgetController(ROUTER, 0.5, cap=cap, explore=0.1)
    times, spent = [], []
    for i, gap in enumerate(gaps):
        now[0] += gap
        decision = controller.route(world(20, 2, 4, i).local)
        assert not (decision.escalate & (decision.probability == 0)).any()
        assert np.isinf(decision.thresholds[decision.capped]).all()
        times.append(now[0])
        spent.append(size * int(decision.escalate.sum()))
    for i in range(len(times)):
        for j in range(i, len(times)):
            assert sum(spent[i : j + 1]) <= burst * size + rate * size * (times[j] - times[i]) + 1e-6


def test_a_cap_below_the_budget_lowers_the_rate_and_not_the_choice():
    stream = world(10_000, 2, 4, 4)
    controller = BudgetController(ROUTER, 0.4, cap=TokenBucket(0.1, 5, per="sample"))
    found = controller.route(stream.local)
    assert found.escalate.mean() == pytest.approx(0.1, abs=0.002)
    assert found.capped.sum() == controller.capped > 2000
    free = BudgetController(ROUTER, 0.4).route(stream.local)
    assert free.escalate[found.escalate].all()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"rate": 0, "burst": 1}, "rate is 0"),
        ({"rate": 1, "burst": 10, "unit": "bytes"}, "size is the bytes of one escalated"),
        ({"rate": 1, "burst": 10, "unit": "bytes", "size": 20}, "raise burst"),
        ({"rate": 1, "burst": 1, "unit": "packets"}, "allowed are 'samples', 'bytes'"),
        ({"rate": 1, "burst": 1, "per": "week"}, "allowed are 'second', 'sample'"),
    ],
)
def test_a_cap_that_makes_no_sense_is_refused(arguments, says):
    with pytest.raises(SettingError, match=says):
        TokenBucket(**arguments)


# ---- min_gain -----------------------------------------------------------------------------------


def test_no_gain_below_min_gain_is_paid_for_and_lifting_it_brings_no_flood():
    stream = world(8000, 2, 4, 6).local
    controller = BudgetController(ROUTER, 0.6, min_gain=0.45)
    found = controller.route(stream)
    assert (found.score[found.escalate] > 0.45).all()
    np.testing.assert_array_equal(found.escalate, (found.score > 0.45) & (found.score > found.thresholds))
    assert found.escalate.mean() < 0.55
    controller.min_gain = None
    after = controller.route(stream).escalate
    for n in (50, 200, 1000):
        sums = np.convolve(after, np.ones(n), "valid") / n
        assert sums.max() - 0.6 <= controller.bound(n)


def test_protection_leaves_exploration_alone():
    controller = BudgetController(ROUTER, 0.2, explore=0.05)
    controller.protection = math.inf
    found = controller.route(world(4000, 2, 4, 7).local)
    np.testing.assert_array_equal(found.escalate, found.explored)
    assert found.escalate.mean() == pytest.approx(0.05, abs=0.012)
    assert (found.probability == 0.05).all()
    assert controller.threshold == math.inf


# ---- state --------------------------------------------------------------------------------------


@QUICK
@given(seed=st.integers(0, 1000), at=st.integers(1, 399))
def test_after_a_restart_it_decides_as_if_nothing_had_happened(seed, at):
    def make():
        return BudgetController(ROUTER, explore=0.05, cap=TokenBucket(0.18, 4, per="sample"), seed=seed)

    stream = world(400, 2, 4, seed).local
    going_on, killed = make(), make()
    killed.route(stream[:, :at])
    killed.protection = going_on.protection = 0.1
    saved = json.loads(json.dumps(killed.state()))
    resumed = make()
    resumed.restore(saved)
    going_on.route(stream[:, :at])
    one, two = going_on.route(stream[:, at:]), resumed.route(stream[:, at:])
    for name in ("escalate", "probability", "explored", "capped", "thresholds"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert resumed.state() == going_on.state()


@pytest.mark.parametrize("change", [{"budget": 0.3}, {"step": 0.01}, {"explore": 0.01}, {"seed": 1}])
def test_a_state_of_other_settings_is_refused(change):
    with pytest.raises(SettingError, match="saved with " + next(iter(change))):
        BudgetController(ROUTER, **change).restore(BudgetController(ROUTER).state())


def test_a_state_of_another_router_or_version_is_refused():
    state = BudgetController(ROUTER).state()
    with pytest.raises(SettingError, match="saved with router"):
        BudgetController(_one_party()).restore(state)
    with pytest.raises(SettingError, match="version 2"):
        BudgetController(ROUTER).restore({**state, "version": 2})
    endless = BudgetController(ROUTER, 1.0)
    endless.restore(json.loads(json.dumps(BudgetController(ROUTER, 1.0).state())))
    assert endless.threshold == -math.inf


def test_a_cap_of_another_kind_is_not_restored():
    state = BudgetController(ROUTER, cap=TokenBucket(1, 1)).state()
    with pytest.raises(SettingError, match="samples per second"):
        BudgetController(ROUTER, cap=TokenBucket(1, 1, per="sample")).restore(state)


@pytest.mark.parametrize(
    "wrong", [{"drawn": None}, {"protection": "much"}, {"cap": {"unit": "bytes", "per": "second"}}]
)
def test_a_state_that_cannot_be_read_changes_nothing(wrong):
    controller = BudgetController(ROUTER, cap=TokenBucket(1, 1))
    fresh = controller.state()
    with pytest.raises((SettingError, TypeError, ValueError)):
        controller.restore(fresh | {"level": 0.123, "samples": 9, **wrong})
    assert controller.state() == fresh


@pytest.mark.parametrize("step", [0, -1, 2, "fast"])
def test_a_step_that_makes_no_sense_is_refused(step):
    with pytest.raises(SettingError, match="step is"):
        BudgetController(ROUTER, step=step)


def _one_party():
    return gr.ExpectedGainRouter(0.2).fit(FITTED.local[0], FITTED.labels, FITTED.strong)
