"""The paper's claims against records: numbers, verdicts by rule, and the page, from synthetic records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from synthetic_records import synthetic_record

from gainroute.experiments.records import Record
from gainroute.experiments.scores import ANALYTICAL
from gainroute.experiments.study import study_of
from gainroute.experiments.summary import summarise
from research import claims
from research.claims import HELD, NOT_DECIDED, NOT_HELD, Measured, claims_of, findings_of
from research.claims_page import paper_page


def judged(records: list[Record]) -> tuple[dict[str, Any], dict[str, Any]]:
    study = study_of(records)
    return summarise(study, replicates=100), claims_of(study, count=100)


@pytest.fixture(scope="module")
def modelnet() -> tuple[dict[str, Any], dict[str, Any]]:
    alphas = ("0.5", "1", "2", "3", "1-crossfit")
    made = [synthetic_record(seed, dataset="modelnet40", counts=(3, 5), samples=400, alphas=alphas) for seed in (0, 1)]
    return judged(made)


def test_every_claim_of_the_paper_is_judged_under_its_regimes(modelnet: Any) -> None:
    found = findings_of(*modelnet)
    by_claim: dict[str, list[str]] = {}
    for finding in found:
        assert finding.verdict in (HELD, NOT_HELD, NOT_DECIDED)
        by_claim.setdefault(finding.claim, []).append(finding.regime)
    assert len(by_claim) == 10
    assert by_claim["peak at a rate of 40–60 %"] == ["clean", "noise on 3 of 10 classes"]
    assert all(len(regimes) == 3 for claim, regimes in by_claim.items() if "at a rate" not in claim)
    verdicts = {(finding.claim, finding.regime): finding.verdict for finding in found}
    assert verdicts["VFL stronger than the local route", "clean"] == HELD


def test_the_numbers_are_those_of_the_curves(modelnet: Any) -> None:
    summary, extra = modelnet
    routers = summary["regimes"]["0"]["routers"]
    peak, worth = extra["regimes"]["0"]["peak"], extra["regimes"]["0"]["worth"]
    accuracy = routers[ANALYTICAL]["accuracy"]["mean"]
    assert peak["accuracy"] >= max(accuracy) - 1e-12
    assert peak["above"] == pytest.approx(peak["accuracy"] - max(accuracy[0], accuracy[-1]))
    assert peak["low"] <= peak["above"] <= peak["high"]
    assert worth["mean"] == pytest.approx(routers["oracle"]["precision"]["mean"][-1])
    assert worth["low"] < worth["mean"] < worth["high"]
    ahead, seeds = extra["regimes"]["0"]["ahead"]["confidence"]["0.2"]
    assert 0 <= ahead <= seeds == 2


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.2, HELD), (-0.2, -0.1, NOT_HELD), (-0.1, 0.1, NOT_DECIDED), (0, 1, NOT_DECIDED)],
)
def test_a_difference_is_judged_by_its_whole_interval(low: float, high: float, verdict: str) -> None:
    assert claims.above_zero(Measured((low + high) / 2, low, high)) == verdict
    wide = Measured((low + high) / 2, low, high, -1.5, 1.5)
    assert claims.above_zero(wide) == NOT_DECIDED, "seeds that differ as much decide nothing"
    assert (-wide).bounds == (-1.5, 1.5)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.4, 0.6, HELD), (0.45, 0.5, HELD), (0.7, 0.9, NOT_HELD), (0.1, 0.3, NOT_HELD), (0.5, 0.7, NOT_DECIDED)],
)
def test_a_place_is_judged_by_its_whole_interval(low: float, high: float, verdict: str) -> None:
    assert claims.within(low, high, (0.4, 0.6)) == verdict


def test_a_claim_of_parts_fails_with_one_and_holds_with_all() -> None:
    assert claims.all_of([HELD, HELD]) == HELD
    assert claims.all_of([HELD, NOT_DECIDED]) == NOT_DECIDED
    assert claims.all_of([HELD, NOT_DECIDED, NOT_HELD]) == NOT_HELD


def test_routes_that_are_level_hold_nothing() -> None:
    record = synthetic_record(0, dataset="modelnet40", counts=())
    parts = [replace(part, strong_prediction=part.weak_prediction) for part in (record.calibration, record.test)]
    found = findings_of(*judged([replace(record, calibration=parts[0], test=parts[1])]))
    verdicts = {finding.claim: finding.verdict for finding in found}
    assert verdicts["VFL stronger than the local route"] == NOT_DECIDED  # an interval of width zero, at zero
    assert verdicts["peak above both endpoints"] == NOT_HELD
    assert verdicts["oracle saturates at 20–25 %"] == NOT_HELD


def test_the_interval_of_a_peak_holds_for_all_rates_at_once() -> None:
    """Pure chance over 21 rates must not pass for a peak: a pointwise interval would let it."""
    rng = np.random.default_rng(0)
    passed = 0
    for _ in range(100):
        noise = 0.01 * rng.normal(size=21)
        noise[[0, -1]] = 0
        drawn = 0.7 + noise + 0.01 * rng.normal(size=(300, 21)) * (noise != 0)
        passed += claims._peak((0.7 + noise)[None], drawn)["low"] > 0
    assert passed <= 10


def test_the_page_names_the_papers_figures_ours_and_the_rules(modelnet: Any) -> None:
    page = paper_page({"modelnet40": modelnet[0]}, {"modelnet40": modelnet[1]})
    assert page is not None
    for words in (
        "65.2",
        "54.4",
        "| clean | 67 |",
        "cross-fitted",
        "2 seeds",
        "Every verdict follows",
        "No record of CIFAR-10",
    ):
        assert words in page
    assert page.count("| clean |") >= 9
    header, *rows = [line for line in page.splitlines() if line.startswith("|")]
    assert all(row.count("|") >= 3 for row in (header, *rows))


def test_without_the_papers_datasets_there_is_no_page() -> None:
    other = {"source": "digits", "regimes": {}}
    assert paper_page({"digits": {}}, {"digits": other}) is None
    assert paper_page({"modelnet40": {}}, {"modelnet40": other}) is None, "another dataset under its name"
