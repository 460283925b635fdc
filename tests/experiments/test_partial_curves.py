"""Accuracy for bytes when only some parties are asked: from Round 1 alone to everything, and never off the routes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic_records import synthetic_record

import gainroute as gr
from gainroute.experiments.pages.tables import bytes_table
from gainroute.experiments.partial_curves import (
    PARTIAL,
    POINTS,
    partial_builder,
    partial_curves,
    partial_summary,
)
from gainroute.experiments.records import Record, RouteAnswers
from gainroute.experiments.study import study_of
from gainroute.experiments.summary import RATES, summarise


def with_subsets(record: Record, right: float) -> Record:
    """Each party alone answers as well as `right` says."""
    rng = np.random.default_rng(record.seed)

    def answered(split: RouteAnswers) -> RouteAnswers:
        def alone() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            wrong = (split.labels + 1) % len(record.class_names)
            return np.where(rng.random(len(split)) < right, split.labels, wrong)

        return replace(split, subset_predictions={(0,): alone(), (1,): alone()})

    return replace(
        record,
        calibration=answered(record.calibration),
        test=answered(record.test),
        noisy={count: answered(split) for count, split in record.noisy.items()},
    )


def paper() -> gr.ExpectedGainRouter:
    return gr.ExpectedGainRouter.paper(folds=2)


@pytest.mark.parametrize("right", [0.0, 0.9])
def test_a_curve_runs_from_no_escalation_to_all_of_it(right: float) -> None:
    record = with_subsets(synthetic_record(0), right)
    curves = partial_curves(record, paper)
    assert set(curves) == {0, 3}
    for regime, curve in curves.items():
        split = record.regimes()[regime]
        assert len(curve) == POINTS
        assert curve[0] == pytest.approx(split.weak_accuracy)
        assert curve[-1] == pytest.approx(split.strong_accuracy)


def test_with_subsets_that_are_never_right_it_is_whole_escalation() -> None:
    """Then no subset is worth a byte, and the curve is that of the paper's score at the same share of the bytes."""
    record = with_subsets(synthetic_record(1, samples=600), 0.0)
    held, test = record.calibration, record.test
    router = gr.ExpectedGainRouter.paper().fit(held.local_posteriors, held.labels, held.strong_prediction)
    score = router.route(test.local_posteriors).score
    whole = gr.evaluation.tradeoff_curve(score, test.weak_prediction, test.strong_prediction, test.labels)
    found = partial_curves(record, paper)[0]
    rates = np.linspace(0, 1, POINTS)
    # Prices are a grid: between two of them the curve is interpolated.
    worth = score.max() > 0
    assert worth
    at = rates <= float((score > 0).mean())
    assert at.sum() > 20
    expected = np.interp(rates, whole.escalation_rate, whole.accuracy)
    np.testing.assert_allclose(found[at], expected[at], atol=0.01)


def test_parties_that_know_alone_what_all_know_together_save_bytes() -> None:
    record = with_subsets(synthetic_record(2, samples=600), 0.95)
    partial, whole = partial_curves(record, paper)[0], partial_curves(with_subsets(record, 0.0), paper)[0]
    assert partial[20:60].mean() > whole[20:60].mean() + 0.03


def test_our_default_is_swept_without_what_a_curve_does_not_need() -> None:
    default, used = gr.ExpectedGainRouter().settings(), partial_builder().settings()
    changed = {key for key, value in default.items() if used[key] is not value and used[key] != value}
    assert changed <= {"threshold", "folds", "blend"}


def test_every_deployable_router_stands_in_the_table_beside_partial_escalation() -> None:
    records = [with_subsets(synthetic_record(seed, alphas=("1",)), 0.9) for seed in (0, 1)]
    summary = summarise(study_of(records), replicates=20)
    curves = {record.seed: partial_curves(record, paper) for record in records}
    summary["partial"] = partial_summary(curves, summary["rates"])
    for regime in (0, 3):
        table = bytes_table(summary, str(regime))
        names = [row[0] for row in table.rows]
        assert names[-1] == PARTIAL
        assert {"expected gain", "our default", "confidence", "learned gain", "defer α=1"} <= set(names)
        assert not {"oracle", "random"} & set(names)
        assert [cell.partition(" ")[0] for cell in table.header[1:]] == ["131", "182", "285", "387", "490"]
        mean = np.mean([curves[seed][regime][20] for seed in (0, 1)])
        assert summary["partial"][str(regime)]["accuracy"]["mean"][RATES.index(0.2)] == pytest.approx(mean)
        assert table.rows[-1][2].startswith(f"{100 * mean:.1f}")
