"""Saved routers: nothing lost, nothing run, and the same answers in every later version."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from damage import damaged
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from synthetic import world

import gainroute as gr
from gainroute.errors import ArtifactError, ArtifactVersionError, NotAnArtifactError

DATA, NEW = world(300, 3, 4, 0), world(100, 3, 4, 1)
OUTPUTS = np.random.default_rng(0).dirichlet(np.ones(5), size=(3, 300))
COMMITTED = Path(__file__).parent / "artifacts"
NAMES = ["ant", "bee", "cat", "dog"]

ROUTERS = {
    "default": gr.ExpectedGainRouter(0.3),
    "paper": gr.ExpectedGainRouter.paper(0.3),
    "certified": gr.ExpectedGainRouter(0.3, threshold="certified"),
    "certified error": gr.ExpectedGainRouter(threshold="certified-error", kept_error=0.4),
    "certified both": gr.ExpectedGainRouter(0.9, threshold="certified-both", kept_error=0.4),
    "temperature": gr.ExpectedGainRouter(0.3, calibration="temperature"),
    "none": gr.ExpectedGainRouter(0.3, calibration="none"),
    "utility": gr.ExpectedGainRouter(0.3, utility=np.random.default_rng(0).normal(size=(4, 4))),
    "zero": gr.ExpectedGainRouter(0.0),
    "one": gr.ExpectedGainRouter(1.0),
    "fixed": gr.ExpectedGainRouter(threshold=0.01, min_gain=0.0),
    "infinite": gr.ExpectedGainRouter(threshold=-np.inf),
    "cv": gr.ExpectedGainRouter(lam="cv"),
    "confidence": gr.ConfidenceRouter(0.3),
    "agreement": gr.AgreementRouter(0.3),
    "conformal": gr.ConformalRouter(0.3, level=0.2),
    "quality": gr.QualityRouter(0.3),
    "two-stage defer": gr.TwoStageDeferRouter(0.3, threshold="calibration"),
    "calibrated confidence": gr.CalibratedConfidenceRouter(0.3),
    "learned": gr.LearnedGainRouter(0.3, threshold="calibration"),
    "random": gr.RandomRouter(0.3, seed=4),
}


def same_decision(one, two):
    for name in ("escalate", "score", "weak_prediction", "pooled", "calibrated", "incomplete"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("name", ROUTERS)
def test_a_loaded_router_answers_the_same(name, tmp_path):
    router = ROUTERS[name].fit(DATA.local, DATA.labels, DATA.strong)
    gr.save(router, tmp_path / "router.safetensors")
    loaded = gr.load(tmp_path / "router.safetensors")
    assert type(loaded) is type(router)
    assert repr(loaded) == repr(router)
    same_decision(loaded.route(NEW.local), router.route(NEW.local))
    decision = router.route(NEW.local)
    strong = NEW.strong[decision.escalate]
    np.testing.assert_array_equal(
        loaded.answer(decision, strong).probabilities, router.answer(decision, strong).probabilities
    )
    for budget in (0.0, 0.13, 0.5, 1.0):
        assert loaded.threshold_for(budget) == router.threshold_for(budget)
    np.testing.assert_array_equal(loaded.threshold_scores_.weak_right, router.threshold_scores_.weak_right)
    assert loaded.expected_rate_ == router.expected_rate_
    assert loaded.guarantee_ == router.guarantee_


def test_defer_own_labels_and_own_weak_answers_survive(tmp_path):
    path = tmp_path / "router.safetensors"
    defer = gr.DeferRouter(0.3).fit(OUTPUTS, DATA.labels, DATA.strong)
    gr.save(defer, path)
    same_decision(gr.load(path).route(OUTPUTS), defer.route(OUTPUTS))

    names = np.array(NAMES)
    named = gr.ExpectedGainRouter(0.3, classes=names).fit(DATA.local, names[DATA.labels], names[DATA.strong])
    gr.save(named, path)
    same_decision(gr.load(path).route(NEW.local), named.route(NEW.local))

    own = gr.ExpectedGainRouter(0.3).fit(DATA.local, DATA.labels, DATA.strong, weak_prediction=DATA.labels)
    gr.save(own, path)
    with pytest.raises(gr.errors.InputError, match="fitted with weak_prediction"):
        gr.load(path).route(NEW.local)


def test_the_file_holds_what_later_parts_need(tmp_path):
    path = tmp_path / "router.safetensors"
    router = gr.ExpectedGainRouter(0.2, classes=NAMES).fit(
        DATA.local, np.array(NAMES)[DATA.labels], np.array(NAMES)[DATA.strong]
    )
    made_with = gr.Provenance({"north": "ab12", "server": "cd34"}, "float16")
    gr.save(router, path, provenance=made_with)
    tensors = load_file(path)
    assert tensors["confusion"].shape == (4, 4)
    for name in ("score", "weak_right", "strong_right", "weight"):
        assert len(tensors[f"threshold_scores.{name}"]) == 300
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    assert header["format"] == "gainroute.router"
    assert header["version"] == "2"
    metadata = json.loads(header["metadata"])
    assert metadata["settings"]["classes"] == NAMES
    assert metadata["models"] == {"north": "ab12", "server": "cd34"}
    assert metadata["codec"] == "float16"
    assert gr.load(path).provenance_ == made_with
    assert json.loads(json.dumps(metadata)) == metadata  # plain JSON, no NaN or infinity
    gr.save(gr.ExpectedGainRouter(0.2).fit(DATA.local, DATA.labels, DATA.strong), path)
    assert gr.load(path).provenance_ == gr.Provenance()


def test_files_that_are_no_artifacts(tmp_path):
    path = tmp_path / "router.safetensors"
    with pytest.raises(NotAnArtifactError, match="no such file"):
        gr.load(path)
    path.write_bytes(b"")
    with pytest.raises(NotAnArtifactError, match="not a safetensors file"):
        gr.load(path)
    path.write_text("hello, this is not an artifact at all")
    with pytest.raises(NotAnArtifactError, match="not a safetensors file"):
        gr.load(path)
    save_file({"x": np.zeros(2)}, path)
    with pytest.raises(NotAnArtifactError, match=r"format None, 'gainroute.router' is needed"):
        gr.load(path)
    with pytest.raises(NotAnArtifactError, match="no such file"):
        gr.load(tmp_path)


def test_truncated_and_damaged_artifacts(tmp_path):
    path = tmp_path / "router.safetensors"
    gr.save(gr.ExpectedGainRouter(0.2).fit(DATA.local, DATA.labels, DATA.strong), path)
    whole = path.read_bytes()
    for size in (1, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(NotAnArtifactError, match="truncated"):
            gr.load(path)
    path.write_bytes(whole)
    tensors = load_file(path)
    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    save_file(tensors, path, metadata={**header, "version": "3"})
    with pytest.raises(ArtifactVersionError, match="format version '3', this gainroute reads up to 2; upgrade"):
        gr.load(path)
    part = {"guarantee.threshold": np.array(0.1), "guarantee.budget": np.array(0.2)}
    save_file(tensors | part, path, metadata=header)
    with pytest.raises(NotAnArtifactError, match="damaged"):
        gr.load(path)
    del tensors["confusion"]
    save_file(tensors, path, metadata=header)
    with pytest.raises(NotAnArtifactError, match=r"damaged.*confusion"):
        gr.load(path)
    unknown = header["metadata"].replace("ExpectedGainRouter", "os.system")
    save_file(load_file(path), path, metadata={**header, "metadata": unknown})
    with pytest.raises(ArtifactError, match=r"router is 'os.system'; allowed are .*: install the package"):
        gr.load(path)


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "router.safetensors"
    router = gr.ExpectedGainRouter(0.2).fit(DATA.local, DATA.labels, DATA.strong)
    gr.save(router, path)
    before = path.read_bytes()

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        gr.save(router, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["router.safetensors"]


@pytest.mark.parametrize("name", ["expected_gain", "paper", "defer"])
def test_artifacts_of_earlier_versions_answer_as_they_did(name):
    """Written by version 0.1.0 with tests/artifacts/make.py and never changed since."""
    router = gr.load(COMMITTED / f"{name}-0.1.0.safetensors")
    expected = load_file(COMMITTED / f"{name}-0.1.0.expected.safetensors")
    assert router.tied_share_ == 0
    assert router.guarantee_ is None
    decision = router.route(expected["local_posteriors"])
    np.testing.assert_allclose(decision.score, expected["score"], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(decision.escalate, expected["escalate"])
    np.testing.assert_array_equal(decision.weak_prediction, expected["weak_prediction"])
    np.testing.assert_allclose(decision.calibrated, expected["calibrated"], rtol=0, atol=1e-12)
    np.testing.assert_array_equal([router.threshold_for(b) for b in (0.0, 0.1, 0.4, 1.0)], expected["thresholds"])


@pytest.mark.parametrize("name", ["defer-0.1.0", "expected_gain-0.1.0", "paper-0.1.0"])
def test_a_damaged_file_is_loaded_or_refused_with_our_error(tmp_path_factory, name):
    """A file that still loads routes: whatever does not fit together is found when it is loaded."""
    content = (COMMITTED / f"{name}.safetensors").read_bytes()
    path = tmp_path_factory.mktemp("damaged") / "router.safetensors"
    refused = 0

    @settings(max_examples=300, deadline=None, database=None)
    @given(seed=st.integers(0, 2**32))
    def check(seed):
        nonlocal refused
        path.write_bytes(damaged(content, "metadata", seed))
        try:
            router = gr.load(path)
        except ArtifactError:
            refused += 1
            return
        k = router.n_classes_ + router.extra_columns
        weak = router.classes[:1] if router.classes is not None else [0]
        own = {"weak_prediction": np.repeat(weak, 3)} if router.own_weak_prediction_ else {}
        router.route(np.full((router.n_parties_, 3, k), 1 / k), checked=True, **own)

    check()
    assert refused > 100
