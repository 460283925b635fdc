"""The examples that train, fit on many samples, or start processes of their own, say what their text says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *options: object) -> list[str]:
    command = [sys.executable, "-W", "error", EXAMPLES / name, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_with_rare_fraud_accuracy_and_recall_disagree():
    by_accuracy, by_cost, by_argmax, by_posterior = run("03_rare_fraud.py")[1:]

    def percent(pattern: str, line: str) -> float:
        return float(re.search(pattern, line)[1])

    assert percent(r"([\d.]+)% escalated", by_accuracy) < 1
    assert percent(r"fraud found +([\d.]+)%", by_accuracy) < 10
    assert percent(r"fraud found +([\d.]+)%", by_cost) > 30
    assert percent(r"cost per payment ([\d.]+)", by_posterior) < percent(r"cost per payment ([\d.]+)", by_argmax) - 0.1


def test_scikit_learn_models_are_served_by_three_processes():
    *described, routed, ended = run("06_sklearn_parties.py")
    assert described == [f"{name}: 10 classes, models ['stripes-1']" for name in ("left", "middle", "right")]
    assert re.fullmatch(r"accuracy [\d.]+% with [\d.]+% escalated", routed)
    assert ended == "parties ended with [0, 0, 0]"


def test_a_data_set_of_ones_own_is_trained_and_the_strong_route_is_better():
    (line,) = run("09_data_set_of_your_own.py")
    weak, strong = map(float, re.fullmatch(r"weak route ([\d.]+)%, strong route ([\d.]+)%", line).groups())
    assert weak < strong


def test_exported_parties_agree_with_torch_and_answer_without_it():
    calibrated, left, right, answered, served = run("12_onnx_party.py")
    for line in (left, right):
        assert line.endswith("agree with torch within 1e-5 on 1,797 samples")
    assert answered.startswith("party left, without torch, answers")
    assert served.split()[-1] == calibrated.split()[-1], "the model that the router was calibrated with"


def test_a_federation_forms_and_answers(tmp_path):
    lines = run("13_a_federation_that_forms.py", "--quick", "--no-serve", "--port", 0, "--out", tmp_path / "out")
    assert lines[1] == "ids: north-west 288, north-east 288"
    assert re.search(r"all parties 2\d\d$", lines[2])
    assert re.search(r"weak route [\d.]+%, strong route [\d.]+%, routed [\d.]+%", lines[3])
    assert re.match(r"north-east: sent [\d.]+ MB", lines[5])
    assert Path(lines[6].removeprefix("report: ")).is_file()
    assert re.match(r"scan-\d+ is a \d ", lines[7])
    assert lines[-1] == "all processes have ended"
