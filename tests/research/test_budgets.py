"""The study of budgets: what sampling alone gives, and the page."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gainroute as gr
from research import budgets


def held(name: str = "digits, large views", n: int = 500) -> budgets.Held:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=n)
    local, strong = (rng.dirichlet([1, 1, 1], size=(m, n)) + 0.7 * np.eye(3)[labels] for m in (2, 1))
    return budgets.Held(name, local / local.sum(2, keepdims=True), labels, strong[0] / strong[0].sum(1, keepdims=True))


@pytest.mark.parametrize("budget", [0.05, 0.6])
def test_what_sampling_alone_gives_holds_for_draws_from_a_finite_pool(budget):
    """A score that needs no fit, in a pool of 120 samples that calibration and new samples exhaust."""
    pool, rates, rng = np.arange(120.0), [], np.random.default_rng(0)
    for _ in range(20_000):
        rng.shuffle(pool)
        rates.append((pool[40:] > gr.calibration_threshold(pool[:40], budget)).mean())
    spread, outside = budgets.sampling(40, 80, budget)
    assert np.std(rates) == pytest.approx(spread, rel=0.02)
    assert np.mean(np.abs(np.array(rates) - budget) > 3 * spread) == pytest.approx(outside, abs=0.002)
    mean = np.mean(rates)  # not B, but (⌊40·B⌋ + 1)/41
    assert spread == pytest.approx(np.sqrt(mean * (1 - mean) * (1 / 40 + 1 / 80)), rel=0.03)


def test_seeds_are_enough_for_the_mean_to_be_judged():
    for size, new in ((200, 200), (500, 5000), (2000, 5000)):
        error = budgets.sampling(size, new, 0.5)[0] / np.sqrt(budgets.seeds_for(size, new))
        assert 4 * error <= 0.02


def test_the_page_counts_what_lies_beyond_three_standard_deviations(monkeypatch, tmp_path):
    monkeypatch.setattr(budgets, "_data_sets", lambda data, records: [held()])
    monkeypatch.setattr(budgets, "seeds_for", lambda size, new: 2)
    monkeypatch.setattr(budgets, "SIZES", (200,))
    monkeypatch.setattr(budgets, "OTHER_ROUTERS", {"confidence": gr.ConfidenceRouter})
    out = tmp_path / "budgets.json"
    command = ["--out", str(out), "--cells", str(tmp_path / "cells")]
    assert budgets.main(command) == 0
    first = out.read_bytes()
    monkeypatch.setattr(budgets, "rates_of", None)  # a second run finds every cell
    assert budgets.main(command) == 0
    assert out.read_bytes() == first
    found = json.loads(out.read_text(encoding="utf-8"))
    rates, spread = np.array(found["rows"][0]["rates"]), np.array(found["rows"][0]["spread"])
    assert rates.shape == (2, len(budgets.BUDGETS))
    beyond = (np.abs(rates - budgets.BUDGETS) > 3 * spread).sum(axis=0)
    assert found["rows"][0]["beyond"] == beyond.tolist()
    page = out.with_suffix(".md").read_text(encoding="utf-8")
    assert f"{beyond.sum()} of 12 rates" in page
    assert "| digits, large views | 3 | 200 | 300 | 2 |" in page
    assert "| confidence | votes alone | 2 |" in page
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
