import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gainroute._util.progress import LineProgress
from gainroute.experiments.config import Config, load_config
from gainroute.experiments.records import Record, load_record
from gainroute.experiments.runner import run, run_cell, summary
from gainroute.routing.two_round import Party
from gainroute.training.trained_run import load_fusion, load_parties


@pytest.fixture(scope="module")
def small() -> Config:
    config = load_config("digits")
    return replace(
        config,
        name="small",
        local=replace(config.local, epochs=1),
        vfl=replace(config.vfl, epochs=1, width=2, latent=8),
        masked=replace(config.masked, epochs=1),
        defer=replace(config.defer, alphas=(1.0,), epochs=2),
        noise=replace(config.noise, other_units=("0..1",), other_seeds=(1,)),
    )


@pytest.fixture(scope="module")
def cell(small: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    folder = tmp_path_factory.mktemp("cell") / "run"
    return run_cell(small, 1, run_dir=folder), folder


def test_a_cell_holds_the_protocol(cell: tuple[Record, Path]) -> None:
    record, _ = cell
    assert (len(record.calibration), len(record.test)) == (252, 539)
    assert record.metadata["train_samples"] == 1006
    assert not set(record.calibration.ids) & set(record.test.ids)
    assert record.metadata["embedding_dimensions"] == [16] * 4
    assert len(record.test.subset_predictions) == 15
    touched = np.isin(record.test.labels, record.noisy_classes[5])
    changed = (record.noisy[5].local_posteriors != record.test.local_posteriors).any(axis=(0, 2))
    assert np.array_equal(changed, touched), "noise falls on its classes and on nothing else"
    louder = record.readings["0..1"][5].local_posteriors
    assert np.array_equal((louder != record.test.local_posteriors).any(axis=(0, 2)), touched)
    assert record.training is not None
    assert record.training.posteriors.shape == (4, 1006, 10)


def test_the_folders_a_cell_leaves_serve_what_it_recorded(cell: tuple[Record, Path]) -> None:
    record, folder = cell
    parties, ids = load_parties(folder), record.test.ids[:20].tolist()
    assert all(isinstance(party, Party) for party in parties)
    assert [party.name for party in parties] == list(record.party_names)
    for index, party in enumerate(parties):
        assert np.allclose(party.posteriors(ids), record.test.local_posteriors[index, :20], atol=1e-5)
    embeddings = [party.embeddings(ids) for party in parties]
    fusion = load_fusion(folder / "server")
    assert np.allclose(fusion(embeddings), record.test.strong_posterior[:20], atol=1e-5)
    embeddings[2] = np.full_like(embeddings[2], np.nan)
    answer = fusion(embeddings, present=[True, True, False, True]).argmax(axis=1)
    assert np.array_equal(answer, record.test.subset_predictions[0, 1, 3][:20])
    unknown = parties[0].posteriors([ids[0], 10**9])
    assert np.isfinite(unknown[0]).all()
    assert np.isnan(unknown[1]).all()


@pytest.mark.slow
def test_a_grid_leaves_the_same_records_again_and_another_seed_is_another_split(
    small: Config, cell: tuple[Record, Path], tmp_path: Path
) -> None:
    records, work, one = tmp_path / "records", tmp_path / "work", cell[0]
    paths = run(small, [1, 4], records_dir=records, work_dir=work)
    again = load_record(work / "small" / "seed1" / "exact.npz")
    assert np.array_equal(again.test.local_posteriors, one.test.local_posteriors)
    assert np.array_equal(again.noisy[5].strong_posterior, one.noisy[5].strong_posterior)
    two = load_record(paths[1])
    assert np.array_equal(one.test.ids, two.test.ids)
    assert not np.array_equal(one.calibration.ids, two.calibration.ids)
    assert one.metadata["split_hash"] != two.metadata["split_hash"]
    assert paths[1] == records / "small" / "seed4.npz"
    assert set(two.metadata["quantisation_shift"]) == set(summary(two)) == {"0", "5"}
    assert again.metadata["seconds"]["vfl"] > 0
    before = [path.stat().st_mtime_ns for path in paths]
    run(small, [1, 4], records_dir=records, work_dir=work)
    assert [path.stat().st_mtime_ns for path in paths] == before, "a record that is there is not run again"


def test_a_config_file_runs_and_says_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        'name = "tiny"\nthreads = 1\n[data]\nsource = "digits"\n[local]\nepochs = 1\n[vfl]\nepochs = 1\nwidth = 2\n'
        "latent = 8\n[masked]\nepochs = 1\n[defer]\nalphas = [1]\n"
    )
    (tmp_path / "tiny.toml").write_text(text)
    config, progress = load_config(tmp_path / "tiny.toml"), LineProgress(sys.stderr)
    run(config, [0], records_dir=tmp_path / "r", work_dir=tmp_path / "w", progress=progress)
    assert "vfl 1/1 loss" in capsys.readouterr().err
    assert (tmp_path / "r" / "tiny" / "seed0.npz").is_file()
