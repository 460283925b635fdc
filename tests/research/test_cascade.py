"""The comparison of cascades: its parts compute what docs/cascade.md says."""

from __future__ import annotations

import numpy as np
import pytest

from research import cascade


def answers(seed: int = 0, n: int = 900) -> cascade.Answers:
    """A small model that prefers class 0, and a big one that is nearly always right."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    logits = rng.normal(size=(n, 3)) + 1.5 * np.eye(3)[labels] + [1.5, 0.0, 0.0]
    small = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    big = 0.04 + 0.88 * np.eye(3)[np.where(rng.random(n) < 0.95, labels, rng.integers(3, size=n))]
    return cascade.Answers(small, big, labels, 500)


def test_routers_meet_at_both_ends_and_the_pool_repairs_a_preference():
    given = answers()
    found = cascade.compare(given)
    own, confidence = found["own answers"], found["confidence"]
    assert own.shape == (2 + len(cascade.RATES),)
    small = (given.small[500:].argmax(axis=1) == given.labels[500:]).mean()
    assert own[0] == confidence[0] == found["calibrated confidence"][0] == pytest.approx(small)
    assert own[-1] == confidence[-1]
    assert found["default"][0] > own[0] + 0.03
    assert 0.05 < found["changed"][0] < 0.5


def test_the_interval_allows_for_the_overlap_of_splits():
    differences = np.array([0.01, 0.03, 0.02, 0.0, 0.04])
    mean, low, high = cascade.corrected_interval(differences)
    assert mean == pytest.approx(0.02)
    half = 2.776445 * differences.std(ddof=1) * np.sqrt(1 / 5 + 0.5)  # t with four degrees of freedom
    assert (low, high) == pytest.approx((mean - half, mean + half))


def test_tables_are_printed_with_a_row_per_comparison(monkeypatch, capsys):
    monkeypatch.setattr(cascade, "cascades", lambda records, tables: [("two splits", [answers(0), answers(1)])])
    assert cascade.main([]) == 0
    gains, pools = capsys.readouterr().out.strip().split("\n\n")
    assert len(gains.splitlines()) == 2 + 3
    assert "default − confidence" in gains
    assert len(pools.splitlines()) == 2 + 1


def test_words_in_a_table_become_numbers(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,age,work,rich\n1,30,private,no\n2,40,none,yes\n", encoding="utf-8")
    x, y = cascade._table(path, "rich", "yes", ["id"])
    np.testing.assert_array_equal(x, [[30, 1], [40, 0]])
    np.testing.assert_array_equal(y, [0, 1])
