"""An author edits code and rebuilds the pages of a report: what rests on that code is computed anew."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic_records import synthetic_record

from gainroute.experiments.records import save_record

ROOT = Path(__file__).parents[2]


class Copy:
    """A copy of the repository's code, with records and a cache that outlive edits of the code."""

    def __init__(self, base: Path) -> None:
        self.base = base
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src/gainroute", base / "src/gainroute", ignore=ignored)
        shutil.copytree(ROOT / "research", base / "research", ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", base)
        save_record(synthetic_record(0, samples=60, classes=3, alphas=()), base / "records/synthetic/seed0.npz")

    def report(self) -> dict[str, Any]:
        code = (
            "import sys; sys.argv[0] = 'gainroute'; sys.path.insert(0, 'src')\n"
            "from gainroute.experiments import figures, report\n"
            "def no_figures(*_): return {}\n"
            "no_figures.__module__ = figures.__name__  # whose code is part of the key\n"
            "report.draw_figures = no_figures\n"
            "from gainroute.cli import main; main()"
        )
        command = [sys.executable, "-c", code, "report", "--out", "out", "--cache-dir", "cache", "--json"]
        done = subprocess.run(command, cwd=self.base, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["datasets"]["synthetic"]
        return found

    def entries(self) -> set[str]:
        return {path.name for path in (self.base / "cache").iterdir()}

    def append(self, file: str, code: str) -> None:
        with (self.base / file).open("a", encoding="utf-8") as opened:
            opened.write(code)


def wrapped(name: str, change: str) -> str:
    """Code that changes what a function of the module returns."""
    return f"\n_{name}_before = {name}\ndef {name}(*args, **more):\n    return _{name}_before(*args, **more){change}\n"


def test_an_edited_metric_score_or_study_changes_the_published_number(tmp_path: Path) -> None:
    """With a warm cache."""
    copy = Copy(tmp_path)
    first = copy.report()

    copy.append("src/gainroute/evaluation/metrics.py", wrapped("expected_calibration_error", " + 0.25"))
    second = copy.report()
    for regime, found in second["regimes"].items():
        before = first["regimes"][regime]["calibration"]["none"]["ece"]["mean"]
        assert found["calibration"]["none"]["ece"]["mean"] == pytest.approx(before + 0.25)

    copy.append("src/gainroute/routing/decide.py", wrapped("calibration_threshold", " + 1e9"))
    third = copy.report()
    deployed = third["regimes"]["0"]["routers"]["confidence"]["deployed"]
    assert {point["rate"]["mean"] for point in deployed} == {0.0}

    made = copy.entries()
    copy.append("research/versus.py", wrapped("_over", " * 0 + 7"))
    fourth = copy.report()
    assert len(made) > 10
    assert len(copy.entries() - made) == 2, "the comparison and the figures alone are made anew"
    assert fourth["oracle_gain"][0]["paper"]["share"] == 7
    assert fourth["regimes"] == third["regimes"]
