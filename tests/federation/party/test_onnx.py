"""Parties that serve ONNX files: what `gainroute export` writes, and models of one's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from made_once import made_once
from typer.testing import CliRunner
from up_helpers import tiny_run

import gainroute.training.export as export_module
from gainroute.cli import app
from gainroute.errors import ArtifactError, DataError, SettingError
from gainroute.federation.party.file_views import FileViews
from gainroute.federation.party.settings import SourceSettings
from gainroute.federation.party.sources import open_source
from gainroute.io.onnx_party import OnnxParty
from gainroute.io.run_folder import OnnxFolder, RunFolder
from gainroute.training.trained_run import TrainedParty


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with a run and what is exported from it, and what the command said."""
    root = tmp_path_factory.mktemp("exported")
    shutil.copytree(made_once(tmp_path_factory, "tiny", tiny_run) / "run", root / "run")
    done = CliRunner().invoke(app, ["export", str(root / "run"), "--out", str(root / "onnx"), "--json"])
    assert done.exit_code == 0, done.output
    return root, json.loads(done.stdout)["parties"]


def test_an_exported_party_answers_as_its_run_within_1e_5(exported):
    root, told = exported
    for name in ("left", "right"):
        ours, theirs = OnnxParty(root / "onnx" / name), TrainedParty(root / "run/parties" / name)
        assert (ours.name, ours.class_names, ours.dimension) == (name, theirs.class_names, theirs.dimension)
        raw = np.random.default_rng(1).normal(size=(600, 4)) * 3
        rows = np.arange(600)
        for method in ("posteriors", "embeddings"):
            new, old = (getattr(party.holding(rows, raw), method)(rows) for party in (ours, theirs))
            np.testing.assert_allclose(new, old, atol=1e-5, rtol=1e-5)
        assert told[name]["samples"] == 600
        assert 0 <= max(told[name]["difference"].values()) <= 1e-5
        assert np.isnan(ours.posteriors(["nobody"])).all()


def test_the_coordinator_sees_the_models_of_the_run_as_long_as_the_files_are_those_verified(exported, tmp_path):
    root, _ = exported
    expected = RunFolder(root / "run").party("left").model_hash()
    (version,) = open_source(SourceSettings(onnx=root / "onnx"), "left").scan().values()
    assert version.model.hash == expected
    changed = shutil.copytree(root / "onnx/left", tmp_path / "left")
    shutil.copy(root / "onnx/right/local.onnx", changed / "local.onnx")
    with pytest.raises(ArtifactError, match="other files than `gainroute export` verified"):
        OnnxFolder(changed).model_hash()
    assert open_source(SourceSettings(onnx=changed), "left").scan() == {}
    (changed / "export.json").unlink()
    assert OnnxFolder(changed).model_hash() != expected, "models of one's own have a hash of their own"


def test_a_party_serves_onnx_files_where_torch_cannot_be_imported(exported):
    root, _ = exported
    code = f"""
import sys
from pathlib import Path
sys.modules["torch"] = None
from gainroute.federation.party.settings import SourceSettings
from gainroute.federation.party.sources import open_source
(version,) = open_source(SourceSettings(onnx=Path({str(root / "onnx")!r})), "left").scan().values()
rows, absent = version.answer(["s1", "nobody", "s2"], posterior=True)
assert rows.shape == (2, 3) and absent.tolist() == [1]
assert version.answer(["s1"], posterior=False)[0].shape == (1, version.model.dimension)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_models_of_ones_own_take_views_as_they_are(exported, tmp_path):
    root, _ = exported
    own = tmp_path / "own"
    own.mkdir()
    for name in ("local.onnx", "encoder.onnx"):
        shutil.copy(root / "onnx/left" / name, own / name)
    x = np.random.default_rng(2).normal(size=(3, 4))
    np.savez(tmp_path / "views.npz", ids=np.array(["a", "b", "c"]), x=x)
    settings = SourceSettings(onnx=own, classes=("ant", "bee", "cat"))
    (version,) = open_source(settings, "left", FileViews(tmp_path / "views.npz")).scan().values()
    rows, absent = version.answer(["b", "z"], posterior=True)
    inputs = OnnxParty(root / "onnx/left")._forward(x[1:2].astype(np.float32), posterior=True)
    np.testing.assert_allclose(rows, inputs, atol=1e-6)
    assert absent.tolist() == [1]
    with pytest.raises(ArtifactError, match=r"3 classes, but 0 names .*source.classes"):
        OnnxParty(own)
    (own / "encoder.onnx").write_bytes(b"no model")
    with pytest.raises(ArtifactError, match="cannot be read by onnxruntime"):
        OnnxParty(own, class_names=("ant", "bee", "cat"))
    with pytest.raises(SettingError, match="exactly one of run, onnx, factory, columns"):
        SourceSettings(onnx=own, run=own)


def test_an_export_that_answers_differently_is_refused_and_nothing_is_left_to_serve(exported, tmp_path, monkeypatch):
    root, _ = exported
    home = shutil.copytree(root / "run/parties/left", tmp_path / "left")
    other = (root / "onnx/right/encoder.onnx").read_bytes(), (root / "onnx/right/local.onnx").read_bytes()
    files = list(other)
    monkeypatch.setattr(export_module, "_to_onnx", lambda model, inputs: files.pop())
    with pytest.raises(ArtifactError, match="answers differ from torch's"):
        export_module.export_party(home, tmp_path / "out")
    assert not OnnxFolder(tmp_path / "out").exists()
    (home / "views.npz").unlink()
    with pytest.raises(DataError, match="which the export is verified on"):
        export_module.export_party(home, tmp_path / "out")
