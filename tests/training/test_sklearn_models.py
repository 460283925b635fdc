"""scikit-learn estimators as local models and as the fusion head: the same answers, saved without code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from typer.testing import CliRunner

import gainroute as gr
from gainroute.cli import app
from gainroute.errors import ArtifactError, DataError, MissingExtraError, SettingError
from gainroute.experiments.pages import reports
from gainroute.experiments.pages.headline import yardstick
from gainroute.io.onnx_party import OnnxParty
from gainroute.routing.calibrate import softmax
from gainroute.training.export import export_party
from gainroute.training.models.build import load_model, save_model
from gainroute.training.run import train_run
from gainroute.training.settings import default_route_settings
from gainroute.training.sklearn_models import describe_estimator, fit_estimator, make_estimator
from gainroute.training.trained_run import TrainedParty, load_fusion, load_parties
from gainroute.training.training_view import forward_all

AFFINE = [
    LogisticRegression(),
    LinearDiscriminantAnalysis(),
    make_pipeline(StandardScaler(), LogisticRegression(C=0.1)),
    RidgeClassifier(),
    LinearSVC(),
]
OTHERS = [RandomForestClassifier(5), GaussianNB(), make_pipeline(StandardScaler(), GaussianNB())]
EPOCHS = default_route_settings(100, epochs=1, local_epochs=1)


def samples(count: int = 240, classes: int = 3, shape: tuple[int, ...] = (6,), seed: int = 0):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    x = rng.normal(size=(count, int(np.prod(shape)))) + 1.5 * np.eye(classes, int(np.prod(shape)))[labels]
    return x.reshape(count, *shape).astype(np.float32), labels


def fitted(estimator, classes: int = 3, shape: tuple[int, ...] = (6,)):
    (x, y), (held_out, _), (new, _) = (samples(n, classes, shape, seed) for seed, n in enumerate((240, 60, 90)))
    spec, model = fit_estimator(estimator, x, y, held_out, classes=classes, seed=1, name="local front")
    return spec, model, x.reshape(len(x), -1).astype(float), y, new


def posteriors(model, x):
    return forward_all(model, x, "cpu").softmax(dim=1).numpy()


def expected(estimator, x, y, new):
    if "random_state" in estimator.get_params():
        estimator = clone(estimator).set_params(random_state=1)
    trained, rows = clone(estimator).fit(x, y), new.reshape(len(new), -1).astype(float)
    if hasattr(trained, "predict_proba"):
        return trained.predict_proba(rows)
    values = trained.decision_function(rows)
    return softmax(np.stack([np.zeros(len(rows)), values], axis=1) if values.ndim == 1 else values)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("estimator", AFFINE, ids=describe_estimator)
def test_an_affine_decision_becomes_a_linear_layer_with_the_same_posteriors(estimator, classes):
    spec, model, x, y, new = fitted(estimator, classes)
    assert (spec.kind, spec.options["widths"]) == ("local-mlp", [])
    np.testing.assert_allclose(posteriors(model, new), expected(estimator, x, y, new), atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("estimator", OTHERS, ids=describe_estimator)
def test_everything_else_is_saved_as_onnx_with_the_same_posteriors(estimator, classes, tmp_path):
    spec, model, x, y, new = fitted(estimator, classes)
    assert spec.kind == "onnx"
    save_model(model, spec, tmp_path / "local.safetensors")
    loaded = load_model(tmp_path / "local.safetensors")
    np.testing.assert_allclose(posteriors(loaded, new), expected(estimator, x, y, new), atol=1e-5)


@pytest.mark.parametrize("estimator", [LogisticRegression(), GaussianNB()], ids=describe_estimator)
def test_the_values_of_an_image_are_read_in_a_row(estimator):
    _, model, x, y, new = fitted(estimator, shape=(1, 2, 3))
    np.testing.assert_allclose(posteriors(model, new), expected(estimator, x, y, new), atol=1e-5)


def test_an_onnx_party_reads_the_values_of_an_image_in_a_row(tmp_path):
    _, model, x, y, new = fitted(GaussianNB(), shape=(1, 2, 3))
    for name in ("local.onnx", "encoder.onnx"):
        (tmp_path / name).write_bytes(model.content)
    party = OnnxParty(tmp_path, "front", class_names=("ant", "bee", "cat")).holding(np.arange(90), new)
    answers = party.posteriors(np.arange(90))
    np.testing.assert_allclose(answers, expected(GaussianNB(), x, y, new), atol=1e-5)


def test_a_model_that_answers_otherwise_than_its_estimator_is_refused():
    rng = np.random.default_rng(0)
    grid = rng.integers(0, 3, size=(300, 2)).astype(np.float32)  # equal distances, which are broken by chance
    labels = rng.integers(0, 2, size=300)
    with pytest.raises(ArtifactError, match=r"KNeighborsClassifier after conversion to ONNX differ by up to 0\.\d"):
        fit_estimator(KNeighborsClassifier(), grid, labels, grid, classes=2, seed=0, name="local front")


def test_what_cannot_be_converted_is_refused_with_the_reason():
    class Own(GaussianNB):
        pass

    with pytest.raises(ArtifactError, match=r"local front: skl2onnx cannot convert Own \(.*Own"):
        fitted(Own())
    with pytest.raises(ArtifactError, match="SVC has no predict_proba, and its decision function is not affine"):
        fitted(SVC())


def test_without_skl2onnx_linear_estimators_work_and_others_name_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    assert fitted(LogisticRegression())[0].kind == "local-mlp"
    with pytest.raises(MissingExtraError, match=r"GaussianNB, .* with skl2onnx needs .*gainroute\[skl2onnx\]"):
        fitted(GaussianNB())


@pytest.mark.parametrize(
    "spec",
    [
        "sklearn.linear_model:LogisticRegression(C=0.5)",
        "sklearn:linear_model.LogisticRegression(C=0.5)",
        f"{__name__}:make",
    ],
)
def test_an_estimator_is_named_by_its_module(spec):
    assert describe_estimator(make_estimator(spec, "local")) == "LogisticRegression(C=0.5)"


def make():
    return LogisticRegression(C=0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("LogisticRegression", "write it as package.module:attribute"),
        ("sklearn.linear_model:Logistic", "has no Logistic; check the spelling"),
        ("sklearn.linear_model:LogisticRegression(D=1)", "cannot be called .*D.*write arguments as literals"),
        ("sklearn.linear_model:LogisticRegression(C=open('x'))", "cannot be called .*write arguments as literals"),
        ("sklearn.linear_model:LogisticRegression(C=1", "cannot be called .*write arguments as literals"),
        ("sklearn.linear_model:LinearRegression", "gives a LinearRegression; a scikit-learn classifier"),
        (LinearRegression(), "gives a LinearRegression; a scikit-learn classifier"),
        (LogisticRegression, "a scikit-learn classifier"),
        (3, "gives a int; a scikit-learn classifier"),
    ],
)
def test_what_is_no_classifier_is_refused(given, said):
    with pytest.raises(SettingError, match=f"local is .*{said}"):
        make_estimator(given, "local")


def files(root: Path, seed: int = 0) -> tuple[list[Path], Path]:
    """Two views of features."""
    root.mkdir(exist_ok=True)
    first, labels = samples(240, 3, (4,), seed)
    second, _ = samples(240, 3, (5,), seed + 100)
    for name, x in (("front", first), ("card", second)):
        np.savez(root / f"{name}.npz", x=x)
    np.savez(root / "y.npz", labels=np.array(["ant", "bee", "cat"])[labels])
    return [root / "front.npz", root / "card.npz"], root / "y.npz"


@pytest.mark.parametrize(
    ("local", "fused"),
    [
        (LogisticRegression(), LogisticRegression()),
        pytest.param(GaussianNB(), RandomForestClassifier(5), marks=pytest.mark.slow),
    ],
)
def test_a_run_of_estimators_is_served_opened_and_exported_like_any_other(local, fused, tmp_path):
    views, labels = files(tmp_path / "old")
    out = tmp_path / "run"
    trained = train_run(views, labels, out, settings=EPOCHS, local=local, fused=fused)
    assert {file.suffix for file in out.rglob("*") if file.is_file()} <= {".safetensors", ".json", ".npz", ""}
    assert trained.metadata["estimators"] == {"local": repr(local), "fused": repr(fused)}
    parties, fusion = load_parties(out), load_fusion(out / "server")
    truth = dict(zip(range(240), np.load(labels)["labels"], strict=True))
    held = {*trained.calibration.ids.tolist(), *trained.test.ids.tolist()}
    rows = np.array([row for row in range(240) if row not in held])
    for index, party in enumerate(parties):  # the estimator, fitted again by hand
        inputs = party.inputs.reshape(240, -1).astype(float)
        again = clone(local).fit(inputs[rows], [truth[row] for row in rows])
        expected = again.predict_proba(inputs[trained.test.ids])
        np.testing.assert_allclose(trained.test.local_posteriors[index], expected, atol=1e-5)
    embedded = np.concatenate([party.embeddings(list(range(240))) for party in parties], axis=1)
    if isinstance(fused, LogisticRegression):
        head = clone(fused).fit(embedded[rows].astype(float), [truth[row] for row in rows])
        strong = head.predict_proba(embedded[trained.test.ids].astype(float))
        np.testing.assert_allclose(trained.test.strong_posterior, strong, atol=1e-5)
    some = [party.embeddings([0, 1]) for party in parties]
    assert fusion(some, [True, False]).shape == (2, 3), "the masked head answers for subsets"

    fresh, _ = files(tmp_path / "new", seed=1)
    answered = gr.open_run(out).predict([np.load(path)["x"] for path in fresh])
    assert (answered.prediction == np.load(labels)["labels"]).mean() > 0.6, "a third would be chance"
    if isinstance(local, GaussianNB):  # linear layers are exported like those of a network
        export_party(out / "parties/card", tmp_path / "onnx")
        exported, ids = OnnxParty(tmp_path / "onnx"), list(range(240))
        np.testing.assert_allclose(exported.posteriors(ids), parties[1].posteriors(ids), atol=1e-5)


def test_a_run_of_estimators_is_resumed_and_another_one_is_refused(tmp_path):
    views, labels = files(tmp_path / "old")
    first, again = (
        train_run(views, labels, tmp_path / "run", settings=EPOCHS, local=RandomForestClassifier(3)) for _ in range(2)
    )
    np.testing.assert_array_equal(first.test.local_posteriors, again.test.local_posteriors)
    with pytest.raises(DataError, match="holds another run"):
        train_run(views, labels, tmp_path / "run", settings=EPOCHS, local=RandomForestClassifier(4))
    with pytest.raises(SettingError, match="local_epochs is 3, but the local models are estimators"):
        train_run(views, labels, tmp_path / "other", local_epochs=3, local=GaussianNB())


def test_the_command_takes_estimators_and_reports_them(tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "encode", lambda *_: b"<svg/>")  # `test_figures` draws in earnest
    views, labels = files(tmp_path / "old")
    arguments = ["train", "--views", *views, "--labels", labels, "--epochs", 1, "--json"]
    chosen = ["--local", "sklearn.linear_model:LogisticRegression(C=0.5)", "--fused", "sklearn.naive_bayes:GaussianNB"]
    done = CliRunner().invoke(app, [str(a) for a in [*arguments, *chosen, "--out", tmp_path / "run"]])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert results["estimators"] == {"local": "LogisticRegression(C=0.5)", "fused": "GaussianNB()"}
    assert "LogisticRegression(C=0.5)" in (tmp_path / "run" / "report.html").read_text()
    assert TrainedParty(tmp_path / "run/parties/front").posteriors([0]).shape == (1, 3)
    refused = CliRunner().invoke(app, [str(a) for a in [*arguments, "--local", "ridge", "--out", tmp_path / "no"]])
    assert (refused.exit_code, "local is 'ridge'; write it as" in refused.output) == (2, True)


def test_the_report_does_not_ask_for_more_epochs_of_an_estimator():
    results = {"yardstick": {"local_models": 0.6, "logistic_regression": 0.75}, "test_samples": 1000}
    assert "--local-epochs" in yardstick(results)
    assert "choose another estimator (--local)" in yardstick({**results, "estimators": {"local": "GaussianNB()"}})
