"""The bound: the oracle caps it, its total is no worse than its routing, and it is shown for its own records only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_records import synthetic_record

from gainroute._util.hashing import hash_contents
from gainroute.experiments.measures import measures_at, oracle_scores, routed
from gainroute.experiments.records import Record, save_record
from research.bound import RATES, bound_of, main, read_bound


@pytest.fixture(scope="module")
def record() -> Record:
    return synthetic_record(0, samples=240, classes=5, alphas=())


@pytest.fixture(scope="module", params=[0, 3])
def found(record: Record, request: pytest.FixtureRequest) -> tuple[int, dict[str, Any]]:
    return request.param, bound_of(record, request.param)


def test_routing_alone_cannot_beat_the_oracle_on_the_same_answers(
    record: Record, found: tuple[int, dict[str, Any]]
) -> None:
    regime, bound = found
    best = measures_at([routed(oracle_scores(record), record.regimes()[regime], regime)], RATES).accuracy[0]
    assert (np.array(bound["routing_only"]) <= best + 1e-12).all()
    assert bound["rates"] == list(RATES)


def test_better_answers_are_taken_only_where_they_are_better(record: Record, found: tuple[int, dict[str, Any]]) -> None:
    _, bound = found
    assert np.mean(bound["total"]) >= np.mean(bound["routing_only"])
    for key in ("routing_only", "total"):
        assert all(0 <= accuracy <= 1 for accuracy in bound[key])


def test_learners_see_a_party_that_knows_when_round_two_helps() -> None:
    """With a signal that any learner finds, the bound is well above chance."""
    record = synthetic_record(1, samples=400, classes=5, counts=(), alphas=())
    bound, split = bound_of(record), record.test
    chance = split.weak_accuracy + np.array(RATES) * (split.strong_accuracy - split.weak_accuracy)
    assert (np.array(bound["routing_only"]) > chance).all()


def test_it_is_estimated_once_a_record_and_shown_for_these_records_only(record: Record, tmp_path: Path) -> None:
    paths = [tmp_path / f"records/{name}/seed0.npz" for name in ("synthetic", "other")]
    for path in paths:
        save_record(record, path)
    out, said = tmp_path / "bound.json", []
    arguments = ["--records", str(tmp_path / "records"), "--out", str(out), "--datasets", "synthetic"]
    for _ in range(2):
        assert main(arguments, said.append) == 0
    assert len(said) == 1
    stamps = {0: hash_contents(paths[0])}
    shown = read_bound(out, "synthetic", stamps)
    kept = json.loads(out.read_bytes())["synthetic"]["0"]["regimes"]
    assert set(shown) == {"0", "3"}
    assert shown["0"]["total"] == pytest.approx(kept["0"]["total"])
    assert read_bound(out, "synthetic", {0: "of another record"}) == {}
    assert read_bound(out, "synthetic", {**stamps, 1: "not estimated"}) == {}
    assert read_bound(out, "other", stamps) == {}
    assert read_bound(tmp_path / "absent.json", "synthetic", stamps) == {}
