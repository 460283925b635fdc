"""The study of kept answers: the population is the truth, and what was measured is not measured again."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gainroute as gr
from research import kept_error


def population(n: int = 900) -> kept_error.Population:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=n)
    local, strong = (rng.dirichlet([1, 1, 1], size=(m, n)) + 0.4 * np.eye(3)[labels] for m in (2, 1))
    posteriors = local / local.sum(2, keepdims=True), strong[0] / strong[0].sum(1, keepdims=True)
    return kept_error.Population("synthetic", posteriors[0], labels, posteriors[1])


def test_the_truth_is_that_of_the_population():
    truth = kept_error.Truth(np.array([0.1, 0.2, 0.2, 0.3]), np.array([True, True, False, False]))
    assert [truth.rate(t) for t in (0.0, 0.1, 0.2, np.inf)] == [1, 0.75, 0.25, 0]
    assert [truth.error(t) for t in (0.0, 0.1, 0.2, np.inf)] == [0, 0, pytest.approx(1 / 3), 0.5]
    assert [truth.least_rate(alpha) for alpha in (0.1, 0.34, 0.5)] == [0.75, 0.25, 0]
    assert kept_error.Truth(np.zeros(2), np.zeros(2, bool)).least_rate(0.5) == 1


def test_promises_are_broken_in_at_most_the_stated_share_of_runs():
    found = kept_error.measure(population(), lambda: gr.ConfidenceRouter(threshold="calibration"), 600, 3, 30)
    assert max(found["broken"] + found["both_broken"]) <= 0.05 * 90 + 3 * np.sqrt(90 * 0.05 * 0.95)
    assert found["certified"][2] > 60
    assert found["least_rate"][2] < found["rate"][2] < found["bonferroni_rate"][2]


def test_a_second_run_finds_every_cell(monkeypatch, tmp_path):
    monkeypatch.setattr(kept_error, "_populations", lambda folder: [population()])
    monkeypatch.setattr(kept_error, "ROUTERS", {"confidence": lambda: gr.ConfidenceRouter(threshold="calibration")})
    for name, value in (("SIZES", (400, 2000)), ("FITS", 2), ("DRAWS", 3)):
        monkeypatch.setattr(kept_error, name, value)
    out = tmp_path / "kept_error.json"
    command = ["--out", str(out), "--work", str(tmp_path / "cells")]
    assert kept_error.main(command) == 0
    first = out.read_bytes()
    monkeypatch.setattr(kept_error, "measure", None)
    assert kept_error.main(command) == 0
    assert out.read_bytes() == first
    rows = json.loads(first)["rows"]
    assert [(row["size"], row["runs"], len(row["kept_error"])) for row in rows] == [(400, 6, 3)]
    page = out.with_suffix(".md").read_text(encoding="utf-8")
    assert f"of {18} runs" in page
    assert page.count("| synthetic | confidence | 400 |") == 3
