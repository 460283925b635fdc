"""Every example runs as it stands; `make test-system` runs those that take long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
LONG = {
    "03_rare_fraud.py",
    "06_sklearn_parties.py",
    "09_data_set_of_your_own.py",
    "12_onnx_party.py",
    "13_a_federation_that_forms.py",
}
SLOW = {"04_cascade.py", "05_two_rounds.py"}


def _example(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name


@pytest.mark.parametrize("name", [_example(n) for n in sorted({path.name for path in EXAMPLES.glob("*.py")} - LONG)])
def test_the_example_runs(name):
    command = [sys.executable, "-W", "error", EXAMPLES / name]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
