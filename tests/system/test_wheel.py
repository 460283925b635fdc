"""The wheel: what it holds, and that it works in an empty environment."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_works_in_an_empty_environment(tmp_path, monkeypatch):
    """Build it, install it with nothing but its dependencies, and fit and apply a router."""
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it would make pip see the checkout as installed
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT],
        check=True, capture_output=True, cwd=tmp_path,
    )  # fmt: skip
    wheel = next(tmp_path.glob("gainroute-*.whl"))
    packages = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in packages if not name.endswith(".dist-info")} == {"gainroute"}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True)
    python = tmp_path / "empty/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, wheel], check=True, capture_output=True)
    code = """
import importlib.util as u
import numpy as np, gainroute as gr
assert u.find_spec("torch") is None and u.find_spec("sklearn") is None and u.find_spec("matplotlib") is None
rng = np.random.default_rng(0)
labels = rng.integers(3, size=300)
local = rng.dirichlet(np.ones(3), size=(2, 300)) + np.eye(3)[labels]
local /= local.sum(axis=2, keepdims=True)
router = gr.ExpectedGainRouter(budget=0.2).fit(local, labels, labels)
gr.save(router, "router.safetensors")
decision = gr.load("router.safetensors").route(local)
np.savez("data.npz", local_posteriors=local, labels=labels, strong_prediction=labels)
print(float(decision.escalate.mean()))
"""
    out = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert 0.1 < float(out.stdout) < 0.3
    command = [
        tmp_path / "empty/bin/gainroute",
        "fit",
        "data.npz",
        "--out",
        "r.safetensors",
        "--budget",
        "0.2",
        "--json",
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert json.loads(out.stdout)
    code = "import gainroute, pathlib; print((pathlib.Path(gainroute.__file__).parent / 'py.typed').exists())"
    typed = subprocess.run([python, "-c", code],
                           check=True, capture_output=True, text=True, cwd=tmp_path)  # fmt: skip
    assert typed.stdout.strip() == "True"
