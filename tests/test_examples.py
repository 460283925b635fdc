"""Every example runs as it stands, and says what its text says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
FEDERATION = "13_a_federation_that_forms.py"


def run(name: str, *options: object) -> str:
    command = [sys.executable, "-W", "error", EXAMPLES / name, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.py") if p.name != FEDERATION))
def test_the_example_runs(name):
    assert run(name).strip()


def test_a_federation_forms_and_answers(tmp_path):
    lines = run(FEDERATION, "--quick", "--no-serve", "--port", 0, "--out", tmp_path / "out").splitlines()
    assert lines[1] == "ids: north-west 288, north-east 288"
    assert re.search(r"all parties 2\d\d$", lines[2])
    assert re.search(r"weak route [\d.]+%, strong route [\d.]+%, routed [\d.]+%", lines[3])
    assert re.match(r"north-east: sent [\d.]+ MB", lines[5])
    assert Path(lines[6].removeprefix("report: ")).is_file()
    assert re.match(r"scan-\d+ is a \d ", lines[7])
    assert lines[-1] == "all processes have ended"


def test_with_rare_fraud_accuracy_and_recall_disagree():
    by_accuracy, by_cost, by_argmax, by_posterior = run("03_rare_fraud.py").splitlines()[1:]

    def percent(pattern: str, line: str) -> float:
        return float(re.search(pattern, line)[1])

    assert percent(r"([\d.]+)% escalated", by_accuracy) < 1
    assert percent(r"fraud found +([\d.]+)%", by_accuracy) < 10
    assert percent(r"fraud found +([\d.]+)%", by_cost) > 30
    assert percent(r"cost per payment ([\d.]+)", by_posterior) < percent(r"cost per payment ([\d.]+)", by_argmax) - 0.1
