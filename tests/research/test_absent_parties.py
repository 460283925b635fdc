"""The study of absent parties: matched rates and bytes, on a synthetic record."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_records import synthetic_record

import gainroute as gr
from gainroute.experiments.records import save_record
from research import absent_parties as study


def with_subsets(record):
    """Masked heads that are right more often than the weak route, and less often than all parties."""
    for split in (record.calibration, record.test):
        rng = np.random.default_rng(len(split))
        for subset in ((0,), (1,)):
            right = rng.random(len(split)) < 0.9
            split.subset_predictions[subset] = np.where(right, split.labels, (split.labels + 1) % 10)
    return record


@pytest.fixture(scope="module")
def records():
    return [
        with_subsets(synthetic_record(seed, counts=(), metadata={"embedding_dimensions": [8, 24]})) for seed in (0, 1)
    ]


def quickly_fitted(record):
    held = record.calibration
    router = gr.ExpectedGainRouter(lam=1.0, threshold="calibration", blend="none", folds=2)
    return router.fit(held.local_posteriors, held.labels, held.strong_prediction)


@pytest.fixture(scope="module")
def router(records):
    return quickly_fitted(records[0])


def test_what_is_routed_without_a_party_is_compared_with_the_mean_of_the_others(records, router):
    absent = study.measure_absent(records[0], router)
    test = records[0].test
    first = absent[records[0].party_names[0]]
    assert first.pooled_right.mean() == pytest.approx((test.local_posteriors[1].argmax(axis=1) == test.labels).mean())
    assert first.routed.strong_right.mean() == pytest.approx((test.subset_predictions[1,] == test.labels).mean())


def test_bytes_rise_as_the_price_falls_and_the_oracle_needs_fewest(records, router, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "fitted", quickly_fitted)
    found = study.measure_bytes(records[0], router)
    assert (np.diff(found.cost.mean(axis=1)) >= -1e-12).all()
    assert set(np.unique(found.cost)) <= {0.0, 0.25, 0.75, 1.0}
    folder = tmp_path / "records" / "synthetic"
    folder.mkdir(parents=True)
    for record in records:
        save_record(record, folder / f"seed{record.seed}.npz")
    out = tmp_path / "absent.json"
    assert study.main(["--records-dir", str(folder.parent), "--datasets", "synthetic", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["mean_difference"]["low"] > 0
    assert row["bound"] < row["bytes_for_the_same"]["value"]
    assert row["bytes_for_the_same"]["low"] <= row["bytes_for_the_same"]["value"] <= row["bytes_for_the_same"]["high"]
    assert "| synthetic | 2 |" in out.with_suffix(".md").read_text(encoding="utf-8")
