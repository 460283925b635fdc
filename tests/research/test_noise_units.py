from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic_records import synthetic_record

from gainroute.experiments.study import study_of
from research.noise_units import noise_units_of, noise_units_table


def test_losses_are_those_of_each_reading_and_of_its_regimes() -> None:
    record = synthetic_record(seed=0)
    wrong = {
        regime: replace(split.of_both_routes(), strong_prediction=(split.labels + 1) % len(record.class_names))
        for regime, split in record.noisy.items()
    }
    config = {"noise": {"unit": "0..1"}}
    held = replace(record, readings={"standardised": wrong}, metadata={**record.metadata, "config": config})
    rows = noise_units_of(study_of([held]))["noise_units"]
    assert [(row["unit"], row["own"]) for row in rows][:: len(record.noisy)] == [
        ("standardised", False),
        ("0..1", True),
    ]
    clean = held.test.strong_accuracy
    assert rows[0]["strong"] == pytest.approx([-clean])
    own = [row for row in rows if row["own"]]
    assert [row["weak"][0] for row in own] == pytest.approx(
        [split.weak_accuracy - held.test.weak_accuracy for split in held.noisy.values()]
    )
    table = noise_units_table({"noise_units": rows, "class_count": len(record.class_names)})
    assert table is not None
    assert np.shape(table.rows) == (len(rows), 6)
    assert noise_units_table(noise_units_of(study_of([record]))) is None
