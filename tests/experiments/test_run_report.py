"""The report of a run, on synthetic answers in place of training."""

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_records import synthetic_record

import gainroute as gr
from gainroute.experiments import run_report
from gainroute.experiments.pages import reports
from gainroute.experiments.pages.headline import sentence
from gainroute.experiments.records import load_record
from gainroute.io.run_folder import RunFolder
from gainroute.training.run import TrainedRun


def test_a_report_is_made_of_the_answers_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "encode", lambda *_: b"<svg/>")  # `test_figures` draws in earnest
    record = synthetic_record(0, samples=100)
    held = record.calibration
    router = gr.ExpectedGainRouter(0.3, classes=record.class_names)
    names = np.array(record.class_names)
    router.fit(held.local_posteriors, names[held.labels], strong_posterior=held.strong_posterior)
    metadata = {"embedding_dimensions": [16, 16], "seconds": {"local": 1.0, "vfl": 2.0}}
    answers = held, record.test, record.training
    names_of = record.class_names, record.party_names
    trained = TrainedRun(RunFolder(tmp_path), router, "int8", *answers, *names_of, 0, metadata, 5.0)
    results = run_report.report_run(trained)
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["headline"] == results["headline"]
    assert kept["deployed"]["budget"] == 0.3
    assert (kept["codec"], kept["seconds"]["training"]) == ("int8", 3.0)
    assert kept["seconds"]["all"] >= 5
    assert kept["bytes"][-1] == 2 * (4 * len(names) + 16 + 4)
    page = (tmp_path / "report.html").read_text()
    assert "</html>" in page
    assert page.count("<figure") == page.count("<div class=scroll tabindex=0><picture>") > 0  # wide on a phone
    assert "bounds the routers that give these answers" in page
    assert np.array_equal(load_record(tmp_path / "record.npz").test.strong_prediction, record.test.strong_prediction)


def test_a_run_is_judged_by_the_answers_its_router_gives_on_both_routes() -> None:
    record = synthetic_record(0, alphas=())
    held, test = record.calibration, record.test
    names = np.array([f"class {name}" for name in record.class_names])
    router = gr.ExpectedGainRouter.paper(pooling="log-linear", blend="cv", classes=names.tolist())
    router.fit(held.local_posteriors, names[held.labels], strong_posterior=held.strong_posterior)
    assert router.blends_
    run = run_report._routed_by(router, test)
    decision = router.route(test.local_posteriors)
    np.testing.assert_array_equal(run.weak_right, decision.weak_prediction == names[test.labels])
    strong = router.strong_answers(decision, test.strong_posterior)
    np.testing.assert_array_equal(run.strong_right, strong == names[test.labels])
    assert run.weak_right.mean() != test.weak_accuracy


def test_a_gain_of_a_handful_of_samples_is_not_called_worth_it() -> None:
    headline = {"budget": 0.2, "share_of_gain": 0.5, "share_of_bytes": 0.3, "gained_samples": 6, "test_samples": 600}
    assert sentence(headline).startswith("Always escalating gets 6 of 600 test samples more right than never: too few")
    assert sentence({**headline, "gained_samples": 60}).startswith("Escalating 20 % of the samples gives 50 % of what")
