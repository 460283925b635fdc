"""The study of labels from service, on synthetic records whose noisy samples lose what the first party knew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_records import synthetic_record

from gainroute.experiments.records import Record, save_record
from research import adaptation as study


def shifted(seed: int) -> Record:
    """Under noise, both parties confuse every class with its neighbour."""
    record = synthetic_record(seed, samples=600)
    regime = max(record.noisy)
    split = record.noisy[regime]
    local = np.roll(split.local_posteriors, 1, axis=2)
    weak = local.mean(axis=0, dtype=np.float64).argmax(axis=1)
    return replace(record, noisy={regime: replace(split, local_posteriors=local, weak_prediction=weak)})


def test_labels_give_back_what_a_shift_has_taken_and_are_judged_on_other_samples() -> None:
    record = shifted(0)
    (regime,) = record.noisy
    found = study.adapt(record, regime)
    right = {name: answers.mean() for name, answers in found.right.items()}
    assert right["adapted 1"] > right["paper"] + 0.2
    assert right["adapted 1"] > right["default"] + 0.2
    assert found.labels[1.0] == pytest.approx(0.8 * len(record.test))
    assert {len(answers) for answers in found.right.values()} == {len(record.test)}


def test_the_page_says_what_share_of_the_bound_is_reached(tmp_path: Path) -> None:
    n = 200
    rng = np.random.default_rng(0)

    def seed() -> study.Adapted:
        draws = rng.random(n)
        right = {
            name: (draws < level).astype(float)
            for name, level in (("paper", 0.6), ("default", 0.6), ("adapted 1", 0.8))
        }
        return study.Adapted(right, {0.25: 40.0, 1.0: 160.0})

    row = study.summarise([seed(), seed(), seed()], "synthetic", 5, bound=0.9)
    low, value, high = (row["adapted 1"][key] for key in ("low", "value", "high"))
    assert low < value < high
    assert abs(value - 0.2) < 0.06
    assert row["default"]["low"] == row["default"]["high"] == 0
    out = tmp_path / "adaptation.json"
    study.write(out, [row, {**row, "dataset": "unbounded", "bound": None}])
    study.write(out, [row])
    assert [kept["dataset"] for kept in json.loads(out.read_text())["rows"]] == ["unbounded", "synthetic"]
    page = out.with_suffix(".md").read_text(encoding="utf-8")
    assert "It is reached with labels for all decisions in 1 of 1 rows" in page
    assert "| synthetic | 5 | 3 |" in page
    assert "| 40 | – | – | 160 |" in page, "too few labels for a refit"


def test_records_are_read_and_measured(tmp_path: Path) -> None:
    (tmp_path / "records/synthetic").mkdir(parents=True)
    save_record(shifted(0), tmp_path / "records/synthetic/seed0.npz")
    out = tmp_path / "adaptation.json"
    assert study.main(["--records-dir", str(tmp_path / "records"), "--datasets", "synthetic", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["accuracy"]["adapted 1"] > row["accuracy"]["paper"], "of a record, only samples of noisy classes differ"
    assert row["bound"] is None
