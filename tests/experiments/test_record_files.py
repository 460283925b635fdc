import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gainroute.errors import ArtifactVersionError, NotAnArtifactError, SettingError
from gainroute.experiments import records
from gainroute.experiments.records import (
    DeferAnswers,
    LocalAnswers,
    Record,
    RouteAnswers,
    load_record,
    save_record,
)
from gainroute.experiments.runner import quantisation_shift
from gainroute.routing.types import FloatArray, IntArray
from gainroute.training.route_answers import overlay


def _split(rng: np.random.Generator, labels: IntArray, parties: int, classes: int) -> RouteAnswers:
    count = len(labels)
    local = rng.dirichlet(np.full(classes, 0.3), (parties, count)).astype(np.float32)
    strong = rng.dirichlet(np.full(classes, 0.2), count).astype(np.float32)
    score = rng.uniform(-1, 1, count).astype(np.float32)
    return RouteAnswers(
        np.array([f"s{i}" for i in range(count)]),
        labels,
        local,
        strong,
        local.mean(axis=0, dtype=np.float64).argmax(axis=1),
        strong.argmax(axis=1),
        {(0,): rng.integers(0, classes, count), (0, 1): rng.integers(0, classes, count)},
        {"0.5": DeferAnswers(score, rng.integers(0, classes, count), score > 0)},
    )


def _record(classes: int = 6, count: int = 120) -> Record:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % classes
    test = _split(rng, labels, 2, classes)
    chosen = {1: (2,), 3: (2, 4, 5)}
    touched = _split(rng, labels, 2, classes)
    noisy = {}
    for regime, names in chosen.items():
        rows = np.flatnonzero(np.isin(labels, names))
        noisy[regime] = overlay(test, rows, touched.take(rows))
    class_names = tuple(f"class {k}" for k in range(classes))
    calibration = _split(rng, labels, 2, classes)
    names = class_names, ("top", "side")
    readings = {"0..1": {regime: answers.of_both_routes() for regime, answers in noisy.items()}}
    training = LocalAnswers(labels, _split(rng, labels, 2, classes).local_posteriors)
    return Record("toy", 3, calibration, test, noisy, chosen, *names, {"split_hash": "abc"}, readings, training)


def _log_error(before: FloatArray, after: FloatArray) -> float:
    """The largest error of a log probability, in units of what 16 bits allow."""
    return float((np.abs(after - before) / ((1 + before / 2) / 500 + 0.004)).max())


def test_a_record_comes_back_with_exact_predictions_and_close_posteriors(tmp_path: Path) -> None:
    record, path = _record(), tmp_path / "deep" / "seed3.npz"
    save_record(record, path)
    read = load_record(path)
    assert (read.dataset, read.seed, read.party_names) == ("toy", 3, ("top", "side"))
    assert read.metadata["split_hash"] == "abc"
    assert read.noisy_classes == record.noisy_classes
    pairs = [(record.calibration, read.calibration), *((record.regimes()[r], read.regimes()[r]) for r in (0, 1, 3))]
    for before, after in pairs:
        assert np.array_equal(before.ids, after.ids)
        assert np.array_equal(before.labels, after.labels)
        assert np.array_equal(before.weak_prediction, after.weak_prediction)
        assert np.array_equal(before.strong_prediction, after.strong_prediction)
        logs = (-np.log(split.local_posteriors.astype(np.float64)) for split in (before, after))
        assert _log_error(*logs) < 1
        assert np.allclose(after.strong_posterior.sum(axis=1), 1, atol=1e-5)
        assert all(np.array_equal(v, after.subset_predictions[k]) for k, v in before.subset_predictions.items())
        assert np.allclose(before.defer["0.5"].score, after.defer["0.5"].score, atol=2e-5)
        assert np.array_equal(before.defer["0.5"].prediction, after.defer["0.5"].prediction)
        assert np.array_equal(before.defer["0.5"].escalate_canonical, after.defer["0.5"].escalate_canonical)
    other = read.read_in("0..1").noisy
    assert other.keys() == record.noisy.keys()
    assert np.array_equal(other[3].strong_posterior, read.noisy[3].strong_posterior)
    assert not other[3].defer
    assert read.training is not None
    assert record.training is not None
    assert np.array_equal(read.training.labels, record.training.labels)
    assert np.allclose(read.training.posteriors, record.training.posteriors, atol=0.08)


def test_a_noisy_regime_stores_only_what_the_noise_touched(tmp_path: Path) -> None:
    record = _record()
    save_record(record, tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz") as file:
        assert len(file["touched.labels"]) == np.isin(record.test.labels, (2, 4, 5)).sum()
    untouched = ~np.isin(record.test.labels, (2,))
    read = load_record(tmp_path / "all.npz")
    assert np.array_equal(read.noisy[1].strong_posterior[untouched], read.test.strong_posterior[untouched])
    assert not np.array_equal(read.noisy[1].strong_posterior, read.test.strong_posterior)


@pytest.mark.parametrize(("classes", "bits", "limit"), [(6, 16, 2.5), (99, 16, 2.5), (100, 8, 1.3)])
def test_a_posterior_takes_16_bits_or_8_where_there_are_100_classes_of_many_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int, bits: int, limit: float
) -> None:
    record = _record(classes, 400)
    save_record(record, tmp_path / "r.npz")
    with np.load(tmp_path / "r.npz") as file:
        assert file["test.local"].nbytes == record.test.local_posteriors.size * 2, "few samples"
    monkeypatch.setattr(records, "_MANY_SAMPLES", 400)
    save_record(record, tmp_path / "r.npz")
    with np.load(tmp_path / "r.npz") as file:
        assert file["test.local"].nbytes == record.test.local_posteriors.size * bits // 8
    stored = (tmp_path / "r.npz").stat().st_size
    values = 3 * classes * (400 + 400 + np.isin(record.test.labels, (2, 4, 5)).sum())
    assert stored < limit * values + 20_000


def test_32_bits_keep_everything_and_other_widths_are_refused(tmp_path: Path) -> None:
    record = _record()
    save_record(record, tmp_path / "exact.npz", bits=32)
    exact = load_record(tmp_path / "exact.npz")
    assert np.array_equal(exact.test.local_posteriors, record.test.local_posteriors)
    assert set(quantisation_shift(record, exact).values()) == {0.0}
    with pytest.raises(SettingError, match="bits is 12"):
        save_record(record, tmp_path / "r.npz", bits=12)


def test_the_shift_of_accuracy_is_measured_by_regime(tmp_path: Path) -> None:
    record = _record()
    save_record(record, tmp_path / "r.npz")
    shift = quantisation_shift(record, load_record(tmp_path / "r.npz"))
    assert set(shift) == {0, 1, 3}
    assert max(shift.values()) < 1.0
    turned = replace(record, test=replace(record.test, local_posteriors=record.test.local_posteriors[:, ::-1]))
    assert quantisation_shift(record, turned)[0] > 0


def test_a_foreign_a_damaged_and_a_newer_file_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.npz"
    with pytest.raises(NotAnArtifactError, match="does not exist"):
        load_record(path)
    np.savez(path, x=np.zeros(2))
    with pytest.raises(NotAnArtifactError, match="not a record"):
        load_record(path)
    save_record(_record(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(NotAnArtifactError, match="damaged"):
        load_record(path)
    monkeypatch.setattr(records, "FORMAT", 99)
    save_record(_record(), path)
    monkeypatch.undo()
    with pytest.raises(ArtifactVersionError, match="record format 99"):
        load_record(path)


def test_records_and_configs_are_read_without_torch() -> None:
    code = (
        "import sys; import gainroute.experiments.records, gainroute.experiments.config, gainroute.training.data;"
        "import gainroute.experiments.runner; sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
