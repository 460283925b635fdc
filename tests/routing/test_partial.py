"""Partial escalation: the budget in bytes holds, and the subset chosen is the best net of its price."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from synthetic import world

import gainroute as gr
from gainroute.errors import NotFittedError, SettingError, ShapeError

BYTES = [400.0, 100.0]


def heads(
    labels: np.ndarray, accuracy: dict[tuple[int, ...], float], seed: int = 0
) -> dict[tuple[int, ...], np.ndarray]:
    rng = np.random.default_rng(seed)
    return {s: np.where(rng.random(len(labels)) < a, labels, (labels + 1) % 5) for s, a in accuracy.items()}


@pytest.fixture(scope="module")
def fitted() -> tuple[gr.PartialEscalation, np.ndarray]:
    w = world(n=4000, m=2)
    head = heads(w.labels, {(0,): 0.85, (1,): 0.8, (0, 1): 0.95})
    fit, test = np.arange(1000), np.arange(1000, 4000)
    partial = gr.PartialEscalation(60).fit(w.local[:, fit], w.labels[fit], {s: a[fit] for s, a in head.items()}, BYTES)
    return partial, w.local[:, test]


@pytest.mark.parametrize("budget", [10.0, 60.0, 200.0])
def test_the_budget_in_bytes_holds_on_new_samples(fitted: tuple, budget: float) -> None:
    partial, local = fitted
    decision = partial.route(local, price=partial.price_for(budget))
    assert decision.bytes.mean() == pytest.approx(budget, rel=0.25)


def test_the_subset_is_the_best_net_of_its_price_and_bytes_are_what_is_asked(fitted: tuple) -> None:
    partial, local = fitted
    decision = partial.route(local)
    m, weak = decision.calibrated, decision.weak_prediction
    cost = np.array([sum(BYTES[i] for i in s) for s in decision.subsets])
    for row in range(0, len(weak), 97):
        kept = m[row, weak[row]]
        net = [
            sum(m[row, k] * partial.reliability_[i, k] for k in range(5)) - kept - partial.price_ * cost[i]
            for i in range(len(cost))
        ]
        expected = int(np.argmax(net)) if max(net) > 0 else -1
        assert decision.subset[row] == expected
    assert np.allclose(decision.bytes, np.array(BYTES) @ decision.ask)
    assert np.array_equal(decision.escalate, decision.ask.any(axis=0))


def test_more_budget_is_a_lower_price_and_enough_is_free(fitted: tuple) -> None:
    partial, local = fitted
    prices = [partial.price_for(budget) for budget in (0.0, 10.0, 50.0, 200.0, 1e6)]
    assert all(a >= b for a, b in itertools.pairwise(prices))
    assert prices[-1] == 0.0
    assert not partial.route(local, price=prices[0]).escalate.any()


def test_with_the_whole_set_alone_it_ranks_like_whole_escalation() -> None:
    w = world(n=1500, m=2)
    partial = gr.PartialEscalation(100.0).fit(w.local, w.labels, {(0, 1): w.strong}, BYTES)
    whole = gr.ExpectedGainRouter(0.2).fit(w.local, w.labels, w.strong).route(w.local)
    assert np.allclose(partial.route(w.local).gain[:, 0], whole.score)


def test_a_cheap_party_that_knows_as_much_is_asked_instead() -> None:
    w = world(n=2000, m=2)
    head = heads(w.labels, {(0,): 0.9, (1,): 0.9, (0, 1): 0.9})
    decision = gr.PartialEscalation(20.0).fit(w.local, w.labels, head, BYTES).route(w.local)
    assert decision.ask[1].sum() > 100
    assert decision.ask[0].sum() < 10


@pytest.mark.parametrize(
    ("subsets", "cost", "error", "words"),
    [
        ({}, BYTES, SettingError, "empty"),
        ({(0, 2): None}, BYTES, SettingError, r"subset \(0, 2\)"),
        ({(0, 0): None}, BYTES, SettingError, "distinct"),
        ({(0,): None}, [1.0], ShapeError, "one per party"),
        ({(0,): None}, [1.0, 0.0], ShapeError, "above 0"),
    ],
)
def test_bad_input_is_named(subsets: dict, cost: list[float], error: type[Exception], words: str) -> None:
    w = world(n=50, m=2)
    with pytest.raises(error, match=words):
        gr.PartialEscalation(10).fit(w.local, w.labels, dict.fromkeys(subsets, w.strong), cost)


def test_a_negative_budget_and_an_unfitted_router_are_refused() -> None:
    with pytest.raises(SettingError, match="byte_budget is -1"):
        gr.PartialEscalation(-1)
    with pytest.raises(NotFittedError, match="not fitted"):
        gr.PartialEscalation(1).route(world(n=5).local)
