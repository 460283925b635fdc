"""What records say: measures, paired differences, learning to defer with its own Round 1, and their summary."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from synthetic_records import synthetic_record

import gainroute as gr
from gainroute._util.resampling import interval
from gainroute.errors import DataError
from gainroute.experiments import measures, scores
from gainroute.experiments.pages import tables
from gainroute.experiments.pages.text import signed, to_markdown
from gainroute.experiments.study import Study, study_of
from gainroute.experiments.summary import RATES, summarise
from gainroute.routing.types import BoolArray, FloatArray


@pytest.fixture(scope="module")
def study() -> Study:
    return study_of([synthetic_record(seed) for seed in (1, 0)])


def test_measures_obey_the_identity_of_the_paper_and_end_at_both_routes(study: Study) -> None:
    for name in study.scores:
        for regime in study.regimes:
            at = measures.measures_at(study.runs(name, regime), RATES)
            gained = at.rates * (2 * at.precision + at.neutral - 1)
            np.testing.assert_allclose(at.accuracy, at.accuracy[:, :1] + gained, atol=1e-9)
            assert not at.precision[:, 0].any()
            assert not at.neutral[:, 0].any()
    split = study.records[0].noisy[3]
    at = measures.measures_at(study.runs("expected gain", 3), RATES)
    assert at.accuracy[0, 0] == pytest.approx(split.weak_accuracy)
    assert at.accuracy[0, -1] == pytest.approx(split.strong_accuracy)


def test_a_router_is_scored_as_it_would_be_by_hand() -> None:
    record = synthetic_record(3)
    held, test = record.calibration, record.test
    router = gr.ExpectedGainRouter.paper().fit(held.local_posteriors, held.labels, held.strong_prediction)
    score = router.route(test.local_posteriors).score
    found = scores.fit_router(gr.ExpectedGainRouter.paper, record)
    np.testing.assert_allclose(found.score[0], score, atol=1e-12)
    assert found.thresholds["calibration", 0.2] == pytest.approx(router.threshold_for(0.2), abs=1e-12)
    by_hand = gr.evaluation.operating_point(
        score, test.weak_prediction, test.strong_prediction, test.labels, rate=0.2
    ).accuracy
    at = measures.measures_at([measures.routed(found, test, 0)], [0.2])
    assert at.accuracy[0, 0] == pytest.approx(by_hand)


def test_learning_to_defer_starts_from_its_own_weak_prediction(study: Study) -> None:
    outcome, split = study.records[0].test.defer["2"], study.records[0].test
    at = measures.measures_at(study.runs("defer α=2", 0), [0.0, 1.0])
    assert at.accuracy[0, 0] == pytest.approx((outcome.prediction == split.labels).mean())
    assert at.accuracy[0, 1] == pytest.approx(split.strong_accuracy)
    rate, _ = study.runs("defer α=2", 0)[0].deploy(0.0)
    assert rate == pytest.approx(outcome.escalate_canonical.mean())


def test_alpha_is_chosen_on_calibration_data() -> None:
    record = synthetic_record(0)
    held = record.calibration
    perfect = replace(held.defer["3"], prediction=held.labels)
    chosen = replace(record, calibration=replace(held, defer={**held.defer, "3": perfect}))
    assert measures.chosen_alpha(chosen) == "3"
    assert measures.chosen_alpha(synthetic_record(0, alphas=())) is None


class OwnPool(gr.Router):
    def pool(self, local: FloatArray, present: BoolArray | None = None) -> FloatArray:
        return np.asarray(local[0], dtype=np.float64)

    def score(self, round_one: gr.RoundOne) -> FloatArray:
        score: FloatArray = -round_one.pooled.max(axis=1)
        return score


def test_a_router_with_a_pooling_of_its_own_answers_by_it() -> None:
    record = synthetic_record(0)
    found = scores.fit_router(OwnPool, record)
    np.testing.assert_array_equal(found.weak_prediction[0], record.test.local_posteriors[0].argmax(axis=1))


def test_resampled_differences_are_paired_and_centred(study: Study) -> None:
    runs, other = study.runs("expected gain", 0), study.runs("random", 0)
    drawn = measures.resampled_accuracy(runs, [0.2], count=300)
    np.testing.assert_array_equal(drawn, measures.resampled_accuracy(runs, [0.2], count=300))
    apart = drawn - measures.resampled_accuracy(other, [0.2], count=300)
    direct = [measures.measures_at(r, [0.2]).accuracy.mean() for r in (runs, other)]
    assert apart.mean() == pytest.approx(direct[0] - direct[1], abs=0.01)
    assert apart.std() < drawn.std() + measures.resampled_accuracy(other, [0.2], count=300).std()


def test_intervals_cover_what_other_seeds_would_change() -> None:
    """Training runs that differ by chance: the mean over all runs is in the interval of a few, as often as it says."""
    rng, inside = np.random.default_rng(0), 0
    for _ in range(100):
        right = (rng.random((5, 200)) < rng.normal(0.7, 0.05, size=(5, 1))).astype(float)
        runs = [measures.Routed(np.zeros(200), row, row, {}) for row in right]
        low, high = interval(measures.resampled_accuracy(runs, [0.0], count=200)[:, 0])
        inside += low <= 0.7 <= high
        found = measures.over_seeds(right.mean(axis=1))
        assert found["t_low"] < right.mean() < found["t_high"]
    # Five values seldom show their spread whole: a percentile interval of them covers somewhat less than 95 %.
    assert inside >= 80
    assert measures.over_seeds(right[:1].mean(axis=1)) == {}


def test_the_interval_over_seeds_is_students() -> None:
    values = np.array([0.1, 0.3, 0.2, 0.25])
    found = measures.over_seeds(values)
    expected = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    assert (found["t_low"], found["t_high"]) == pytest.approx(expected)


def test_calibration_brings_the_posterior_nearer_to_the_truth() -> None:
    record = synthetic_record(0, samples=2000)
    before, after = (measures.calibration_quality(record, name)[0] for name in ("none", "temperature"))
    assert after.ece < before.ece
    assert after.nll < before.nll


def test_a_summary_is_plain_json_and_says_what_the_tables_need(study: Study) -> None:
    summary = summarise(study, replicates=50)
    assert json.loads(json.dumps(summary)) == summary
    assert summary["seeds"] == [0, 1]
    clean = summary["regimes"]["0"]["routers"]
    assert clean["oracle"]["oracle_share"]["mean"] == pytest.approx(1)
    assert list(clean)[-2:] == ["random", "oracle"]
    for name in ("confidence", "expected gain"):
        own = clean[name]["minus_confidence" if name == "confidence" else "minus_analytical"]
        assert not any(own["mean"] + own["low"] + own["high"])
    assert summary["bytes"][0] == 2 * 10 * 4
    assert summary["bytes"][-1] == 2 * (10 + 64) * 4
    table = tables.accuracy_table(summary, "3")
    assert table.header == ("budget", "0 %", "10 %", "20 %", "40 %", "60 %", "80 %", "100 %")
    assert "±" in table.rows[0][1]
    assert to_markdown(tables.defer_table(summary, "0")).count("| Acc. |") == 5
    assert len(tables.ablation_table(summary, "0").rows) == 4


def test_a_row_of_fewer_seeds_is_compared_on_those_seeds_and_never_marked_best() -> None:
    records = [synthetic_record(0, alphas=("1", "1-crossfit")), synthetic_record(1, alphas=("1",))]
    study = study_of(records)
    name = scores.defer_name("1-crossfit")
    assert study.seeds(name) == [0]
    summary = summarise(study, replicates=20)
    row = summary["regimes"]["0"]["routers"][name]
    seed0 = measures.measures_at(study.runs("confidence", 0)[:1], RATES).accuracy[0]
    np.testing.assert_allclose(np.array(row["accuracy"]["mean"]) - row["minus_confidence"]["mean"], seed0)
    table = tables.accuracy_table(summary, "0")
    assert table.best is not None
    assert not any(table.best[[cells[0] for cells in table.rows].index(name)])


def test_signs_and_zeros_of_differences() -> None:
    assert [signed(v) for v in (0.012, -0.012, 0.0001, -0.0001)] == ["+1.2", "−1.2", "0.0", "0.0"]


def test_records_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(DataError, match="records of one data set"):
        study_of([synthetic_record(0), synthetic_record(1, dataset="other")])
    with pytest.raises(DataError, match="one test part"):
        study_of([synthetic_record(0), synthetic_record(1, samples=200)])
