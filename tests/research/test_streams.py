"""Replayed streams: the committed records show what the controller, the monitor and recalibration promise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gainroute.experiments.records import load_record
from research import replay
from research.recalibration import recalibration_study

RECORDS = Path(__file__).parents[2] / "records"


@pytest.fixture(scope="module", params=["digits", "modelnet40"])
def replayed(request):
    record = load_record(RECORDS / request.param / "seed0.npz")
    return record, replay.fit(record, 0.2, threshold="calibration")


def test_when_the_mix_of_classes_turns_the_controller_keeps_the_budget_and_the_fixed_threshold_does_not(replayed):
    record, router = replayed
    hard = replay.hard_classes(router, record.calibration)
    found = replay.hold_budget(router, replay.turning_stream(record.test, hard, 12_000), 0.2)
    assert found.fixed_after - found.fixed_before > 0.05
    assert found.worst <= 0.02
    assert found.rate == pytest.approx(0.2, abs=0.004)
    assert found.accuracy >= found.matched - 0.005


def test_noise_from_midway_is_followed_too(replayed):
    record, router = replayed
    found = replay.hold_budget(router, replay.noisy_stream(record, max(record.noisy), 8000), 0.2, explore=0.01)
    assert found.worst <= 0.02


def test_a_strong_route_spoiled_until_it_is_the_worse_one_is_found_out_and_protected_from(replayed):
    record, router = replayed
    found = replay.harm_study(router, record.test, feedback=1.0, length=6000)
    assert not found.early
    assert 0 < found.delay < 3000
    assert 20 < found.delay_answers < 600
    assert found.unprotected < found.weak
    assert found.protected > found.unprotected + 0.01
    assert "the strong route was right on" in found.evidence


def test_without_spoiling_there_is_no_alarm(replayed):
    record, router = replayed
    found = replay.harm_study(router, record.test, share=0.0, feedback=1.0, length=6000)
    assert found.delay == -1
    assert found.protected == found.unprotected > found.weak


def test_recalibration_wins_back_accuracy_at_the_same_rate_with_an_interval():
    records = [load_record(RECORDS / "digits" / f"seed{seed}.npz") for seed in (0, 1)]
    study = recalibration_study(records, "spoiled")
    difference, low, high = study.difference
    assert 0 < low < difference < high
    assert len(study.old) == sum(len(r.test) for r in records)
    assert len(study.shadow) == 10


def test_a_threshold_matched_afterwards_agrees_with_counting():
    record = load_record(RECORDS / "digits" / "seed0.npz")
    score = np.random.default_rng(0).random(len(record.test))
    top = np.argsort(-score)[:100]
    answer = record.test.weak_prediction.copy()
    answer[top] = record.test.strong_prediction[top]
    assert replay.accuracy_at(record.test, score, 100 / len(score)) == pytest.approx(
        (answer == record.test.labels).mean()
    )
