"""Every example runs as it stands, and says what its text says; `make test-system` runs those that take long."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LONG = {"06_sklearn_parties.py", "09_data_set_of_your_own.py", "12_onnx_party.py", "13_a_federation_that_forms.py"}
FRAUD = "03_rare_fraud.py"


def run(name: str) -> str:
    command = [sys.executable, "-W", "error", EXAMPLES / name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", sorted({path.name for path in EXAMPLES.glob("*.py")} - {*LONG, FRAUD}))
def test_the_example_runs(name):
    assert run(name).strip()


def test_with_rare_fraud_accuracy_and_recall_disagree():
    by_accuracy, by_cost, by_argmax, by_posterior = run(FRAUD).splitlines()[1:]

    def percent(pattern: str, line: str) -> float:
        return float(re.search(pattern, line)[1])

    assert percent(r"([\d.]+)% escalated", by_accuracy) < 1
    assert percent(r"fraud found +([\d.]+)%", by_accuracy) < 10
    assert percent(r"fraud found +([\d.]+)%", by_cost) > 30
    assert percent(r"cost per payment ([\d.]+)", by_posterior) < percent(r"cost per payment ([\d.]+)", by_argmax) - 0.1
