"""The demo on a synthetic record in place of training: files, page, printed table, a second run without training."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from synthetic_records import synthetic_record

from gainroute.errors import MissingExtraError
from gainroute.experiments import demo, runner
from gainroute.experiments.demo import print_demo, run_demo
from gainroute.experiments.pages import reports
from gainroute.experiments.records import Record
from gainroute.io.run_folder import RunFolder
from gainroute.training import run as training_run


def replace_training(patch: pytest.MonkeyPatch) -> list[int]:
    """Have the demo take synthetic records; the seeds that it asks for are noted."""
    seeds: list[int] = []

    def run_cell(config: Any, seed: int, **_: Any) -> Record:
        seeds.append(seed)
        metadata = {"config": config.as_dict(), "seconds": {"local": 1.0, "vfl": 2.0}}
        return synthetic_record(seed, dataset="digits", samples=100, metadata=metadata)

    def calibrate_run(folder: Path, *_: Any, **__: Any) -> None:
        RunFolder(folder).server.path.mkdir(parents=True, exist_ok=True)
        RunFolder(folder).server.router.touch()

    patch.setattr(runner, "run_cell", run_cell)
    patch.setattr(training_run, "calibrate_run", calibrate_run)
    return seeds


def replace_drawing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(demo, "encode", lambda *_: b"")
    patch.setattr(reports, "encode", lambda *_: b"")


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return replace_training(monkeypatch)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_drawing(monkeypatch)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        replace_training(patch)
        replace_drawing(patch)
        return run_demo(tmp_path_factory.mktemp("demo"), progress=False)


class StoppedError(Exception):
    pass


def test_a_run_leaves_report_picture_and_numbers(
    tmp_path: Path, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "encode", lambda _, kind: kind.encode())  # `test_figures` draws in earnest
    results = run_demo(tmp_path / "demo", progress=False)
    kept = json.loads((tmp_path / "demo/results.json").read_text(encoding="utf-8"))
    assert kept["headline"] == results["headline"]
    assert str(tmp_path) not in json.dumps(kept)
    assert (tmp_path / "demo/tradeoff.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "demo/report.html").read_text(encoding="utf-8")
    assert page.count(f"data:image/svg+xml;base64,{base64.b64encode(b'svg').decode()}") == 10
    assert not re.search(r"<script|<link|(src|href|srcset)=\"(?!data:)", page)
    assert "prefers-color-scheme: dark" in page

    replace_drawing(monkeypatch)
    again = run_demo(tmp_path / "demo", progress=False)
    assert trained == [0]  # what was trained is not trained again
    assert again["regimes"] == results["regimes"]

    def stop(*_: Any) -> None:
        raise StoppedError

    monkeypatch.setattr(demo, "study_of", stop)  # what comes after training has been seen
    with pytest.raises(StoppedError):
        run_demo(tmp_path / "demo", seed=1, progress=False)
    assert trained == [0, 1]

    RunFolder(tmp_path / "demo/run").server.router.unlink()
    with pytest.raises(StoppedError):
        run_demo(tmp_path / "demo", seed=1, progress=False)
    assert trained == [0, 1, 1]  # a folder that cannot serve is made again


@pytest.mark.parametrize("width", [80, 100])
def test_what_is_printed_fits_the_terminal_and_a_long_path_stays_whole(results: dict[str, Any], width: int) -> None:
    folder = Path("/a/very/long/path") / ("x" * width) / "demo"
    out = io.StringIO()
    print_demo(results | {"folder": str(folder)}, Console(file=out, width=width))
    said = out.getvalue()
    lines = said.splitlines()
    assert lines[-1].strip() == str(folder / "report.html")
    assert max(map(len, lines[:-2])) <= width
    for word in ("expected gain", "defer α=2", "oracle", "100 %", "bytes per sample"):
        assert word in said
    assert re.search(r"gives \d+ % of what always escalating gains, for \d+ % of the bytes", " ".join(said.split()))


@pytest.mark.usefixtures("undrawn")
def test_progress_goes_to_stderr_and_nothing_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_demo(tmp_path, progress=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert "routing and drawing" in said.err


@pytest.mark.usefixtures("undrawn")
def test_a_strong_route_that_adds_nothing_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def level(config: Any, seed: int, **_: Any) -> Record:
        record = synthetic_record(seed, samples=100, metadata={"config": config.as_dict()})
        parts = [
            replace(s, strong_prediction=s.weak_prediction, strong_posterior=np.full_like(s.strong_posterior, 1 / 10))
            for s in (record.calibration, record.test)
        ]
        return replace(record, calibration=parts[0], test=parts[1])

    monkeypatch.setattr(runner, "run_cell", level)
    results = run_demo(tmp_path, progress=False)
    assert results["headline"]["share_of_gain"] is None
    out = io.StringIO()
    print_demo(results, Console(file=out, width=100))
    assert "adds nothing" in out.getvalue()


def test_without_torch_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_torch(*_: Any, **__: Any) -> Record:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(runner, "run_cell", no_torch)
    with pytest.raises(MissingExtraError, match=r"gainroute\[all\]"):
        run_demo(tmp_path, progress=False)


def test_importing_the_demo_imports_no_torch() -> None:
    code = "import sys, gainroute.experiments.demo; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
