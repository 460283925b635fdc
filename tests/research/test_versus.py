"""Our default against the paper's router: recomputed by hand, routing apart from answers, and the page of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from synthetic_records import synthetic_record

import gainroute as gr
from gainroute.experiments import measures, scores
from gainroute.experiments.records import Record
from gainroute.experiments.scores import ANALYTICAL, ORACLE, OURS, ROUTING_ONLY, RoutingOnlyRouter
from gainroute.experiments.study import Study, study_of
from gainroute.experiments.summary import summarise
from gainroute.routing.types import FloatArray, IntArray
from research import guide
from research.versus import versus_of
from research.versus_page import bound_table, versus_page

SETTINGS: dict[str, Any] = {"pooling": "log-linear", "shrinkage": "empirical-bayes", "blend": "cv"}
COUNT = 60


def builders() -> dict[str, Any]:
    """The routers of a report whose default is another one than the paper's, whatever the default is."""
    compared = scores.compared_routers()
    kept = {name: compared[name] for name in (ANALYTICAL, scores.REFERENCE, "random")}
    return kept | {
        OURS: lambda: gr.ExpectedGainRouter.paper(**SETTINGS),
        ROUTING_ONLY: lambda: RoutingOnlyRouter.paper(**SETTINGS | {"blend": "none"}),
    }


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [synthetic_record(seed, samples=400) for seed in (0, 1)]


@pytest.fixture(scope="module")
def study(records: list[Record]) -> Study:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gainroute.experiments.study.compared_routers", builders)
        patch.setattr("gainroute.experiments.study.ablation_routers", dict)
        return study_of(records)


@pytest.fixture(scope="module")
def versus(study: Study) -> dict[str, Any]:
    return versus_of(study, count=COUNT)


def routed_at(score: FloatArray, weak: IntArray, strong: IntArray, labels: IntArray, rate: float) -> float:
    """Accuracy when the highest scores are escalated: no tie among them, and a whole number of samples."""
    assert len(np.unique(score)) == len(score)
    count = round(rate * len(score))
    chosen = np.argsort(-score)[:count]
    answer = weak.copy()
    answer[chosen] = strong[chosen]
    return float((answer == labels).mean())


def by_hand(record: Record, regime: int) -> dict[str, tuple[FloatArray, IntArray, IntArray]]:
    """Score, weak and strong answers of the three rows, from public calls alone."""
    held, test = record.calibration, record.regimes()[regime]
    mean = test.local_posteriors.mean(axis=0).argmax(axis=1)

    def fitted(router: gr.ExpectedGainRouter, weak: IntArray | None = None) -> gr.ExpectedGainRouter:
        return router.fit(
            held.local_posteriors, held.labels, strong_posterior=held.strong_posterior, weak_prediction=weak
        )

    paper = fitted(gr.ExpectedGainRouter.paper())
    ours = fitted(gr.ExpectedGainRouter.paper(**SETTINGS))
    only = fitted(gr.ExpectedGainRouter.paper(**SETTINGS | {"blend": "none"}), held.local_posteriors.mean(0).argmax(1))
    decision = ours.route(test.local_posteriors)
    return {
        ANALYTICAL: (paper.route(test.local_posteriors).score, mean, test.strong_prediction),
        OURS: (decision.score, decision.weak_prediction, ours.strong_answers(decision, test.strong_posterior)),
        ROUTING_ONLY: (
            only.route(test.local_posteriors, weak_prediction=mean).score,
            mean,
            test.strong_prediction,
        ),
    }


def test_every_difference_is_what_one_computes_by_hand(records: list[Record], versus: dict[str, Any]) -> None:
    for row in versus["versus_paper"]:
        regime, rate = row["noise_classes"], row["rate"]
        apart: dict[str, list[float]] = {OURS: [], ROUTING_ONLY: []}
        for record in records:
            labels = record.regimes()[regime].labels
            at = {name: routed_at(*parts, labels, rate) for name, parts in by_hand(record, regime).items()}
            for name, values in apart.items():
                values.append(at[name] - at[ANALYTICAL])
        assert list(row["by_seed"].values()) == pytest.approx(apart[OURS], abs=1e-12)
        assert row["difference"] == pytest.approx(np.mean(apart[OURS]), abs=1e-12)
        assert list(row["routing_only"]["by_seed"].values()) == pytest.approx(apart[ROUTING_ONLY], abs=1e-12)
    found = [(row["dataset"], row["noise_classes"], row["rate"]) for row in versus["versus_paper"]]
    assert found == [("synthetic", regime, rate) for regime in (0, 3) for rate in (0.1, 0.2, 0.4)]
    assert any(abs(row["difference"]) > 0.005 for row in versus["versus_paper"]), "the two routers must differ here"


def test_the_interval_resamples_seeds_and_ids_for_all_routers_together(
    records: list[Record], versus: dict[str, Any]
) -> None:
    """The same draws of seeds and ids by hand, each resample routed as a data set of its own."""
    rows = [by_hand(record, 0) for record in records]
    n = len(records[0].test)
    rng, drawn = np.random.default_rng(0), []
    seeds = np.random.default_rng([0, len(records)]).multinomial(1, [0.5, 0.5], size=COUNT).argmax(axis=1)
    for seed in seeds:
        ids = rng.integers(n, size=n)
        apart = []
        for record, parts in zip(records, rows, strict=True):
            order = np.argsort(record.test.ids)[ids]
            accuracy = {}
            for name in (ANALYTICAL, OURS):
                score, weak, strong = parts[name]
                curve = gr.evaluation.tradeoff_curve(
                    score[order], weak[order], strong[order], record.test.labels[order]
                )
                accuracy[name] = np.interp(0.2, curve.escalation_rate, curve.accuracy)
            apart.append(accuracy[OURS] - accuracy[ANALYTICAL])
        drawn.append(apart[seed])
    row = next(r for r in versus["versus_paper"] if r["noise_classes"] == 0 and r["rate"] == 0.2)
    low, high = np.percentile(drawn, [2.5, 97.5])
    assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-9)


def test_routing_only_keeps_the_papers_answers_and_total_does_not(study: Study) -> None:
    for regime in study.regimes:
        for record in study.records:
            split = record.regimes()[regime]
            found = study.scores[ROUTING_ONLY][record.seed]
            np.testing.assert_array_equal(found.weak_prediction[regime], split.weak_prediction)
            assert not found.strong_prediction
            own = study.scores[OURS][record.seed]
            assert (own.weak_prediction[regime] != split.weak_prediction).any()
        ends = [
            measures.measures_at(study.runs(name, regime), [0.0, 1.0]).accuracy for name in (ANALYTICAL, ROUTING_ONLY)
        ]
        np.testing.assert_array_equal(*ends)
    assert any(found.strong_prediction for found in study.scores[OURS].values()), "a blend that earns its place"


def test_the_oracles_gain_is_measured_on_the_papers_routes(study: Study, versus: dict[str, Any]) -> None:
    for row in versus["oracle_gain"]:
        areas: dict[str, list[float]] = {"paper": [], "ours": [], "oracle": []}
        for i, record in enumerate(study.records):
            split = record.regimes()[row["noise_classes"]]
            chord = (split.weak_accuracy + split.strong_accuracy) / 2
            for word, name in (("paper", ANALYTICAL), ("ours", OURS), ("oracle", ORACLE)):
                curve = study.runs(name, row["noise_classes"])[i].curve
                areas[word].append(float(np.trapezoid(curve.accuracy, curve.escalation_rate)) - chord)
        for word in ("paper", "ours"):
            assert row[word]["share"] == pytest.approx(sum(areas[word]) / sum(areas["oracle"]))
            assert row[word]["low"] < row[word]["share"] < row[word]["high"]
        assert row["multiple"]["value"] == pytest.approx(sum(areas["ours"]) / sum(areas["paper"]))
        assert row["a_third_more"] == (row["multiple"]["value"] >= 4 / 3)


def test_the_papers_row_is_the_papers_router_whatever_the_default_is() -> None:
    paper = scores.compared_routers()[ANALYTICAL]()
    assert paper.settings() == gr.ExpectedGainRouter.paper(threshold="cross-fitted").settings()
    assert scores.compared_routers()[OURS]().settings() == gr.ExpectedGainRouter().settings()
    only, default = scores.compared_routers()[ROUTING_ONLY]().settings(), gr.ExpectedGainRouter().settings()
    changed = {key for key, value in default.items() if only[key] is not value and only[key] != value}
    assert changed <= {"threshold", "blend"}


@pytest.fixture(scope="module")
def summary(study: Study, versus: dict[str, Any]) -> dict[str, Any]:
    return summarise(study, replicates=COUNT) | versus | {"bound": {}, "partial": {}}


def test_the_page_says_whether_the_aim_was_reached_and_shows_every_seed(summary: dict[str, Any]) -> None:
    assert json.loads(json.dumps(summary)) == summary
    page = versus_page({"synthetic": summary})
    assert "| synthetic, clean |" in page
    assert "difference, seeds 0, 1" in page
    assert "No bound is stated" in page
    row = summary["versus_paper"][1]
    aims = next(line for line in page.splitlines() if line.startswith("| synthetic, clean |"))
    assert aims.split(" | ")[2] == ("yes" if row["difference"] >= 0.02 else "no")
    stated = {"rates": [0.1, 0.2, 0.4], "routing_only": [0.5, 0.6, 0.7], "total": [0.6, 0.7, 0.9]}
    bound = bound_table(summary | {"bound": {"0": stated}})
    assert len(bound.rows) == 3
    assert bound.rows[0][-1] == f"{100 * (0.6 - summary['versus_paper'][0]['accuracy']['paper']):+.1f}".replace(
        "-", "−"
    )


# ---- which router for which data ----------------------------------------------------------------


def told(routers: dict[str, Any]) -> dict[str, Any]:
    """A summary of one regime with given intervals at 20 %."""
    base = {"seeds": [0], "minus_weak": (0.01, 0.03), "minus_ours": (-0.02, -0.01), "minus_strong": (-0.05, -0.04)}
    found = {}
    for name, changes in {OURS: {"minus_ours": (0.0, 0.0)}, scores.REFERENCE: {}, **routers}.items():
        stated = {**base, **changes}
        found[name] = {
            key: value if key == "seeds" else {"mean": [sum(value) / 2], "low": [value[0]], "high": [value[1]]}
            for key, value in stated.items()
        }
    return {"rates": [0.2], "seeds": [0], "regimes": {"0": {"routers": found}}}


def test_ours_is_advised_unless_another_is_ahead_by_its_whole_interval() -> None:
    assert guide.advice(told({}), "0")[0] == OURS
    assert guide.advice(told({"learned gain": {"minus_ours": (-0.001, 0.05)}}), "0")[0] == OURS
    chosen, why = guide.advice(told({"learned gain": {"minus_ours": (0.01, 0.03)}}), "0")
    assert (chosen, "over our default" in why) == ("learned gain", True)
    assert guide.advice(told({ORACLE: {"minus_ours": (0.1, 0.2)}}), "0")[0] == OURS, "no router can be the oracle"


def test_none_is_advised_where_escalating_has_not_been_shown_to_pay() -> None:
    assert guide.advice(told({OURS: {"minus_weak": (-0.01, 0.02)}}), "0")[0] == "none"
    level = told({scores.REFERENCE: {"minus_ours": (-0.01, 0.01)}})
    assert "fits nothing" in guide.advice(level, "0")[1]


def test_the_guide_has_a_row_per_regime_and_a_figure_per_data_set(summary: dict[str, Any]) -> None:
    page = guide.guide_page({"synthetic": summary})
    assert page.count("\n| synthetic, ") == 2
    every = guide.winners_table({"synthetic": summary})
    assert [name.partition(", ")[0] for name in every.header[1:]] == ["synthetic"] * 2
    shown = {row[0] for row in every.rows}
    assert {"our default", "expected gain", "confidence"} <= shown
    assert shown.isdisjoint({"oracle", "random"})
    assert every.best is not None
    assert all(any(row[column] for row in every.best) for column in (1, 2))
    assert "](synthetic/which.png)" in page
