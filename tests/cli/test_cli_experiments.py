"""The commands that train and report, as a user meets them: tiny data, tiny models, and what they refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from synthetic_records import synthetic_record
from typer.testing import CliRunner

import gainroute as gr
from gainroute.cli import app
from gainroute.errors import MissingExtraError
from gainroute.experiments import checkout, figures, runner
from gainroute.experiments.pages import reports
from gainroute.experiments.records import load_record, save_record
from gainroute.federation.pki.signatures import Trust, create_key, verified
from gainroute.io.run_folder import PartyFolder, ServerFolder

TINY = """
name = "{name}"
threads = 1
[data]
source = "digits"
[local]
epochs = {epochs}
[vfl]
epochs = 1
width = 2
latent = 8
[masked]
epochs = 1
[defer]
alphas = [1]
[noise]
classes = [0, 5]
"""

STRANGER = """
import numpy as np
import gainroute as gr

class Margin(gr.Router):
    def score(self, round_one):
        top = np.sort(round_one.pooled, axis=1)
        return top[:, -2] - top[:, -1]
"""


def call(*args: Any) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def parsed(*args: Any) -> Any:
    done = call(*args, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def refused(*args: Any) -> str:
    """What is said on stderr: one paragraph, exit code 2, nothing on stdout, no traceback."""
    done = call(*args)
    assert done.exit_code == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("gainroute: "), done.stderr
    return str(last)


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_figures` draws in earnest."""
    monkeypatch.setattr(figures, "encode", lambda *_: b"")
    monkeypatch.setattr(reports, "encode", lambda *_: b"<svg/>")


# ---- own views ----------------------------------------------------------------------------------


def write_views(root: Path, count: int = 120, seed: int = 0) -> tuple[list[Path], Path]:
    """Images, and a table with categories and gaps, each telling something of the class."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    ids = np.array([f"id{i}" for i in range(count)])
    np.savez(root / "front.npz", x=rng.normal(size=(count, 8, 8)) + 0.5 * y[:, None, None], ids=ids)
    colour = [None if i % 11 == 0 else ["red", "green", "blue"][k if i % 3 else 0] for i, k in enumerate(y)]
    size = [None if i % 7 == 0 else float(v) for i, v in enumerate(rng.normal(size=count) + y)]
    table = pa.table({"key": ids, "colour": colour, "size": size, "kind": y})
    parquet.write_table(table.take(rng.permutation(count)), root / "card.parquet")
    np.savez(root / "y.npz", labels=np.array(["ant", "bee", "cat"])[y], ids=ids)
    return [root / "front.npz", root / "card.parquet"], root / "y.npz"


COLUMNS = ("--id-column", "key", "--label-column", "kind")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    base = tmp_path_factory.mktemp("own")
    views, labels = write_views(base / "old")
    create_key(base / "signer.key")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reports, "encode", lambda *_: b"<svg/>")
        results = parsed(
            "train", "--views", *views, "--labels", labels, "--out", base / "run", *COLUMNS, "--budget", "0.25",
            "--codec", "int8", "--epochs", 2, "--local-epochs", 2, "--kind", "card=mlp",
            "--sign-key", base / "signer.key",
        )  # fmt: skip
    return base, results


def test_train_signs_what_it_writes(trained: tuple[Path, dict[str, Any]]) -> None:
    base, _ = trained
    trust = Trust([base / "signer.pub"])
    for part in ("", "parties/front", "parties/card", "server", "server/router.safetensors"):
        with verified(base / "run" / part, trust) as copy:
            assert copy.exists()


def test_train_leaves_a_folder_that_serves_a_report_and_numbers(trained: tuple[Path, dict[str, Any]]) -> None:
    base, results = trained
    run = base / "run"
    assert results["parties"] == ["front", "card"]
    assert (results["calibration_samples"], results["test_samples"]) == (17, 36)
    assert 0.25 in results["rates"]
    assert results["headline"]["budget"] == results["deployed"]["budget"] == 0.25
    assert results["bytes"][0] == 2 * 3 * 4
    assert results["bytes"][-1] == 2 * 3 * 4 + sum(4 + d for d in results["embedding_dimensions"])
    page = (run / "report.html").read_text(encoding="utf-8")
    kept = (run / "results.json").read_text(encoding="utf-8")
    assert "front, card" in page
    assert str(base) not in page + kept
    router = gr.load(run / "server/router.safetensors")
    assert router.provenance_.codec == "int8"
    assert router.provenance_.models == {
        "front": PartyFolder(run / "parties/front").model_hash(),
        "card": PartyFolder(run / "parties/card").model_hash(),
        "server": ServerFolder(run / "server").model_hash(),
    }
    assert router.classes is not None
    assert router.classes.tolist() == ["ant", "bee", "cat"]
    assert load_record(run / "record.npz").class_names == ("ant", "bee", "cat")


def test_evaluate_applies_it_to_new_data(trained: tuple[Path, dict[str, Any]]) -> None:
    base, _ = trained
    views, labels = write_views(base / "new", 60, seed=1)
    args = ("evaluate", base / "run", "--views", *views[::-1], "--labels", labels, *COLUMNS)
    results = parsed(*args)
    assert results["samples"] == 60
    assert results["codec"] == "int8"
    first, *_, last = results["budgets"]
    assert first["accuracy"] == pytest.approx(results["weak"])
    assert last["accuracy"] == pytest.approx(results["strong"])
    assert (first["rate_given"], last["rate_given"]) == (0, 1)
    assert 0 <= results["deployed"]["rate"] <= 1
    for row in results["budgets"]:
        assert 0 <= row["confidence"] <= 1
        assert 0 <= row["calibrated_confidence"] <= 1
    assert last["confidence"] == pytest.approx(last["calibrated_confidence"])  # both escalate everything
    done = call(*args)
    assert done.exit_code == 0
    for words in (
        "weak route",
        "routed, as deployed for 25 %",
        "strong route",
        "by calibrated confidence",
        "rate its threshold gave",
    ):
        assert words in done.stdout


def test_a_run_whose_models_were_exchanged_is_refused(trained: tuple[Path, dict[str, Any]]) -> None:
    base, _ = trained
    views, labels = write_views(base / "new", 60, seed=1)
    path = base / "run/parties/front/party.json"
    kept = path.read_bytes()
    path.write_bytes(kept + b"\n")
    try:
        said = refused("evaluate", base / "run", "--views", *views, "--labels", labels, *COLUMNS)
    finally:
        path.write_bytes(kept)
    assert "other models of front" in said


def test_own_data_that_cannot_be_used_are_refused(tmp_path: Path, trained: tuple[Path, dict[str, Any]]) -> None:
    base, _ = trained
    views, labels = write_views(tmp_path)
    out = ("--labels", labels, "--out", tmp_path / "run", *COLUMNS)
    with np.load(labels) as file:
        short = {name: file[name][:-2] for name in file.files}
    np.savez(tmp_path / "short.npz", **short)
    wrong = ("--labels", tmp_path / "short.npz", "--out", tmp_path / "run", *COLUMNS)
    assert "ids do not align: view 'front' has 2 unknown" in refused("train", "--views", *views, *wrong)
    assert "PARTY=cnn" in refused("train", "--views", *views, *out, "--kind", "card=lstm")
    assert "'back', but the views are front, card" in refused("train", "--views", *views, *out, "--kind", "back=mlp")
    assert "codec is 'zip'" in refused("train", "--views", *views, *out, "--codec", "zip")
    assert "budget" in refused("train", "--views", *views, *out, "--budget", "2")
    assert "no such file" in refused("train", "--views", tmp_path / "none.npz", views[0], *out)
    assert "has no column 'id'" in refused("train", "--views", *views, "--labels", labels, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert "is not a run" in refused("evaluate", tmp_path, "--views", *views, "--labels", labels)
    assert "trained on front, card" in refused(
        "evaluate", base / "run", "--views", views[0], "--labels", labels, *COLUMNS
    )


# ---- reproduce and report -----------------------------------------------------------------------


@pytest.mark.slow
def test_reproduce_trains_what_is_missing_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "tiny.toml"
    config.write_text(TINY.format(name="tiny", epochs=1), encoding="utf-8")
    folders = ("--work-dir", tmp_path / "w", "--records-dir", tmp_path / "r", "--out", tmp_path / "o",
               "--cache-dir", tmp_path / "c")  # fmt: skip
    made = parsed("reproduce", config, "--seeds", 1, *folders)
    assert set(made["accuracy"]["1"]) == {"0", "5"}
    assert "# Results: tiny" in (tmp_path / "o/tiny.md").read_text(encoding="utf-8")
    assert not (tmp_path / "o/against_the_paper.md").exists()

    monkeypatch.setattr(runner, "run_cell", lambda *_, **__: pytest.fail("trained again"))
    done = call("reproduce", config, "--seeds", 1, *folders)
    assert done.exit_code == 0, done.stderr
    assert "tiny, clean" in done.stdout
    assert done.stdout.strip().endswith(str(tmp_path / "o/README.md"))

    config.write_text(TINY.format(name="tiny", epochs=2), encoding="utf-8")
    assert "was made with local.epochs = 1, the config has 2" in refused("reproduce", config, "--seeds", 1, *folders)


def test_what_cannot_be_reproduced_is_refused(tmp_path: Path) -> None:
    folders = ("--work-dir", tmp_path / "w", "--records-dir", tmp_path / "r", "--out", tmp_path / "o")
    assert "neither a file nor one of adult" in refused("reproduce", "imagenet", *folders)
    assert "--data-dir" in refused("reproduce", "modelnet40", *folders)
    assert "gainroute data modelnet40" in refused("reproduce", "modelnet40", "--data-dir", tmp_path, *folders)
    assert "--download" in refused("reproduce", "cifar10", "--data-dir", tmp_path, *folders)
    assert "digits has no download" in refused("reproduce", "digits", "--download", *folders)
    assert "name it with --data-dir" in refused("reproduce", "cifar100", "--download", *folders)
    config = tmp_path / "odd.toml"
    config.write_text(TINY.format(name="odd", epochs=1).replace("width = 2", "widht = 2"), encoding="utf-8")
    assert "unknown key 'widht'; the keys here are" in refused("reproduce", config, *folders)
    assert not (tmp_path / "r").exists()


def test_without_torch_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_torch(*_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(runner, "run_cell", no_torch)
    said = refused("reproduce", "digits", "--seeds", 7, "--records-dir", tmp_path, "--work-dir", tmp_path)
    assert said == f"gainroute: {MissingExtraError('training', 'all')}"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("reported")
    save_record(synthetic_record(0, dataset="modelnet40", classes=4, samples=80), base / "records/modelnet40/seed0.npz")
    (base / "strange_margin.py").write_text(STRANGER, encoding="utf-8")
    return base


@pytest.mark.slow
def test_report_adds_an_external_router_to_every_table(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(records)
    made = parsed("report", "--router", "strange_margin:Margin", "--cache-dir", "cache", "--out", "o")
    routers = made["datasets"]["modelnet40"]["regimes"]["0"]["routers"]
    assert set(routers["Margin"]["minus_confidence"]) == {"mean", "low", "high"}
    compared = [(row["dataset"], row["noise_classes"], row["rate"]) for row in made["versus_paper"]]
    assert compared == [("modelnet40", regime, rate) for regime in (0, 3) for rate in (0.1, 0.2, 0.4)]
    assert all(row["low"] <= row["high"] for row in made["versus_paper"])
    page = (records / "o/modelnet40.md").read_text(encoding="utf-8")
    assert "| Margin |" in page
    assert "which of its claims held" in (records / "o/README.md").read_text(encoding="utf-8")
    assert "Which claims held" in (records / "o/against_the_paper.md").read_text(encoding="utf-8")
    assert "has no Mergin" in refused("report", "--router", "strange_margin:Mergin", "--out", "o")


def test_report_writes_into_its_folders_only(records: Path, tmp_path: Path) -> None:
    """Also where a page of the same name as one of its own lies beside --out."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/which_router.md").write_text("by hand", encoding="utf-8")
    shutil.copytree(records / "records", tmp_path / "records")
    before = contents(tmp_path)
    folders = ("--records-dir", tmp_path / "records", "--out", tmp_path / "docs/results", "--cache-dir", tmp_path / "c")
    parsed("report", *folders)
    after = contents(tmp_path)
    assert (tmp_path / "docs/results/which_router.md") in after
    inside = (tmp_path / "docs/results", tmp_path / "c")
    assert {
        path: text for path, text in after.items() if not any(folder in path.parents for folder in inside)
    } == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_installed_package_leaves_the_comparison_out_and_says_so(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout, "__file__", str(records / "site-packages/gainroute/experiments/checkout.py"))
    monkeypatch.chdir(records)
    made = parsed("report", "--cache-dir", "cache", "--out", "installed")
    assert made["versus_paper"] == []
    assert made["warnings"] == [checkout.NEEDS_CHECKOUT]
    assert not (records / "installed/versus_paper.md").exists()
    assert "versus_paper" not in (records / "installed/modelnet40.md").read_text(encoding="utf-8")


def test_report_needs_no_torch_and_says_what_is_wrong(records: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv[0] = 'gainroute'\n"
        "from gainroute.experiments import figures; figures.encode = lambda *_: b''\n"
        "from gainroute.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "report", "--out", "quiet", "--cache-dir", "cache"]
    done = subprocess.run(command, cwd=records, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "modelnet40, clean" in done.stdout
    assert "holds no record" in refused("report", "--records-dir", records / "none", "--out", records / "o")
    assert "module:Class" in refused("report", "--records-dir", records / "records", "--router", "Margin")
    assert "cannot be imported" in refused(
        "report", "--records-dir", records / "records", "--router", "no_such_module:Margin"
    )


# ---- data ---------------------------------------------------------------------------------------


def test_meshes_become_points(tmp_path: Path) -> None:
    body = "OFF4 4 0\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 1 2\n3 0 1 3\n3 0 2 3\n3 1 2 3\n"
    for part in ("train", "test"):
        folder = tmp_path / "tree/cone" / part
        folder.mkdir(parents=True)
        (folder / f"cone_{part}.off").write_text(body, encoding="ascii")
    made = parsed(
        "data", "modelnet40", tmp_path / "tree", "--out", tmp_path / "data", "--image-size", 4, "--workers", 1
    )
    assert made["points_a_mesh"] == 64
    with np.load(tmp_path / "data/modelnet40/points.npz") as file:
        assert file["points_train"].shape == (1, 64, 3)
    assert "holds no <class>/train" in refused("data", "modelnet40", tmp_path, "--out", tmp_path / "data")
    assert "1 or more" in refused("data", "modelnet40", tmp_path, "--out", tmp_path, "--image-size", 0)


def test_cifar_that_is_not_there_is_said(tmp_path: Path) -> None:
    for name in ("cifar10", "cifar100"):
        assert "--download" in refused("data", name, "--data-dir", tmp_path)
