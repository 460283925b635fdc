"""The study of privacy: attacks find what is there to be found, and a study that was stopped resumes."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from research import attacks, privacy
from research.tapped import form


def gradients(noise: float, epochs: int = 1, samples: int = 400):
    """Gradients that point away from the label, as those of a linear head do."""
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=samples)
    away = rng.normal(size=(epochs, 4, 12))
    return away[:, labels] + noise * rng.normal(size=(epochs, samples, 12)), labels


def test_noise_hides_labels_in_one_epoch_and_not_in_many():
    found = []
    for epochs in (1, 20):
        seen, labels = gradients(3.0, epochs)
        known = attacks.known_samples(labels, 40, np.random.default_rng(1))
        found.append(attacks.recovered(attacks.guess(attacks.blocks(seen), labels, known), labels, known))
    assert found[0] < 0.7
    assert found[1] > 0.95


def test_directions_cluster_by_label_and_lengths_tell_classes_apart():
    seen, labels = gradients(0.2)
    none = np.zeros(0, np.int64)
    assert attacks.recovered(attacks.cluster(attacks.blocks(seen), labels, 4), labels, none) > 0.95
    longer = seen / np.linalg.norm(seen, axis=2, keepdims=True) * (1 + labels[:, None])
    known = attacks.known_samples(labels, 40, np.random.default_rng(1))
    assert attacks.recovered(attacks.guess(attacks.lengths(longer), labels, known), labels, known) > 0.95


def test_gradients_tell_more_than_the_randomised_label_they_were_computed_from():
    rng = np.random.default_rng(2)
    labels = rng.integers(4, size=400)
    given = np.where(rng.random(400) < 0.6, labels, rng.integers(4, size=400))
    posterior = 0.2 + 0.6 * np.eye(4)[labels]  # of a model that reads all views
    seen = (posterior - np.eye(4)[given]) @ rng.normal(size=(5, 4, 12)) + 0.1 * rng.normal(size=(5, 400, 12))
    known = attacks.known_samples(labels, 40, rng)
    evidence = [np.eye(4)[given], attacks.gradient_evidence(seen, given, 4)]
    assert attacks.weigh(evidence[:1], labels, known).tolist() == given.tolist()
    assert (attacks.weigh(evidence, labels, known) == labels).mean() > (given == labels).mean() + 0.2


def test_a_view_tells_the_class_although_labels_are_randomised():
    seen, labels = gradients(1.0)
    rng = np.random.default_rng(2)
    given = np.where(rng.random(len(labels)) < 0.6, labels, rng.integers(4, size=len(labels)))
    found = attacks.view_evidence(seen[0], given, 0.7, 4).argmax(axis=1)
    assert (found == labels).mean() > (given == labels).mean()


def test_decoders_invert_what_can_be_inverted():
    rng = np.random.default_rng(0)
    views = rng.normal(size=(300, 6))
    decoded, mean = attacks.best_decoder(views @ rng.normal(size=(6, 9)), views, np.arange(200), 0)
    assert np.square(decoded[200:] - views[200:]).sum() < 0.05 * np.square(views[200:] - mean).sum()


def test_membership_is_measured_against_models_without_the_sample():
    rng = np.random.default_rng(0)
    inside = rng.random((3, 2000)) < 0.5
    scores = (
        3 * rng.normal(size=2000) + inside + 0.3 * rng.normal(size=(3, 2000))
    )  # samples differ more than membership
    plain, _ = attacks.membership(scores[0], inside[0])
    calibrated, found = attacks.membership(attacks.calibrated_by_shadows(scores[0], scores[1:], inside[1:]), inside[0])
    assert plain < 0.65
    assert calibrated > 0.8
    assert found > 0.1
    assert attacks.true_logit(np.array([[0.75, 0.25]]), np.array([0])) == pytest.approx(np.log(3))


@pytest.mark.slow
def test_a_study_resumes_and_writes_its_page(tmp_path, monkeypatch):
    cases = ("default", "int8", "int8, error feedback", "ε = 3", "labels stay, clipped, noise 2")
    monkeypatch.setattr(privacy, "DECODED", {"default"})
    monkeypatch.setattr(attacks, "best_decoder", lambda codes, views, known, seed: (views, views[known].mean(axis=0)))
    monkeypatch.setattr(attacks, "PARTS", (10,))
    monkeypatch.setattr(attacks, "ROUNDS", (0,))
    monkeypatch.setattr(privacy, "MESSAGES", ())
    small = privacy._digits(None)
    small = privacy._samples("digits", [view.raw[:300] for view in small.views], small.labels[:300])
    monkeypatch.setattr(privacy, "DATA", {"digits": (lambda _: small, cases, 1)})
    formed = []

    def quick(samples, case, seed, **options):
        formed.append(case)
        return form(samples, case, seed, **options, epochs=1, local_epochs=1)

    monkeypatch.setattr(privacy, "form", quick)
    run = partial(
        privacy.main, ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "privacy.json"), "--data", "digits"]
    )
    assert run() == 0
    assert len(formed) == 5
    assert all((tmp_path / f"privacy_{name}.png").stat().st_size > 1000 for name in ("labels", "digits"))
    monkeypatch.setattr(privacy, "figures", lambda _: {})  # drawn once is enough
    (tmp_path / "work" / "digits" / "00-0.json").unlink()
    run()
    assert len(formed) == 6
    found = json.loads((tmp_path / "privacy.json").read_bytes())["digits"]
    assert (
        found["int8"][0]["results"]["bytes_up_per_epoch"] < 0.3 * found["default"][0]["results"]["bytes_up_per_epoch"]
    )
    page = (tmp_path / "privacy.md").read_text()
    assert "labels stay, clipped, noise 2" in page
    assert "error feedback against int8" in page
