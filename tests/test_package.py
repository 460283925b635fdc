"""The package itself: what it exports, what it imports, and the wheel in an empty environment."""

from __future__ import annotations

import copy
import importlib
import json
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gainroute as gr
import public_surface

ROOT = Path(__file__).parent.parent
HEAVY = ["typer", "rich", "torch", "sklearn", "pandas", "matplotlib", "grpc", "fastapi", "ray", "pyarrow", "pydantic"]


def test_everything_exported_exists_and_is_listed_once():
    assert len(set(gr.__all__)) == len(gr.__all__)
    for name in gr.__all__:
        assert hasattr(gr, name), name


# Changes that CHANGELOG.md announces, with the remedy.
INTENDED = {"coordinator setting log.posteriors: default is 'False', was 'True'"}


def test_nothing_of_the_previous_release_is_missing_or_changed():
    """Names, signatures, commands, options, settings and formats; what is new is not listed and does not matter."""
    before = json.loads((ROOT / "tests/public_surface.json").read_text(encoding="utf-8"))
    assert set(public_surface.changes(before, public_surface.surface())) <= INTENDED


@pytest.mark.parametrize(
    ("path", "edit", "said"),
    [
        (["python", "gainroute"], lambda names: names.pop("cascade"), "gainroute.cascade is gone"),
        (
            ["python", "gainroute", "Router", "members"],
            lambda members: members.pop("fit"),
            "gainroute.Router.fit is gone",
        ),
        (
            ["python", "gainroute", "save", "parameters"],
            lambda parameters: parameters.append({"name": "more", "kind": "KEYWORD_ONLY"}),
            "gainroute.save: parameter more is new and required",
        ),
        (
            ["python", "gainroute", "load", "parameters"],
            lambda parameters: parameters.clear(),
            "parameter path is gone",
        ),
        (["commands", "fit"], lambda options: options.pop("--budget"), "gainroute fit --budget is gone"),
        (["commands"], lambda commands: commands.pop("certs issue"), "gainroute certs issue is gone"),
        (
            ["commands", "train", "--budget"],
            lambda option: option.update(required=True),
            "gainroute train --budget is required now",
        ),
        (["settings", "party"], lambda keys: keys.pop("tls.ca"), "party setting tls.ca is gone"),
        (["formats"], lambda formats: formats.update(record=0), "format of record: 0, was 1"),
    ],
)
def test_what_would_break_users_is_noticed(path, edit, said):
    now = public_surface.surface()
    before = copy.deepcopy(now)
    found = now
    for key in path:
        found = found[key]
    edit(found)
    assert any(said in line for line in public_surface.changes(before, now))


def test_every_module_lists_what_it_exports():
    for module in pkgutil.walk_packages(gr.__path__, "gainroute."):
        if module.name == "gainroute.__main__":
            continue
        loaded = importlib.import_module(module.name)
        assert hasattr(loaded, "__all__"), module.name
        for name in loaded.__all__:
            assert hasattr(loaded, name), f"{module.name}.{name}"


def test_importing_the_package_imports_nothing_heavy():
    code = f"import sys, json, gainroute; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == []


def test_the_serving_side_cannot_reach_the_oracle():
    code = (
        "import sys\n"
        "import gainroute.routing.two_round, gainroute.routing.artifacts\n"
        "mods = [n for n in sys.modules['gainroute.routing.two_round'].__dict__]\n"
        "assert 'oracle_score' not in mods\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    for module in (ROOT / "src/gainroute/routing").glob("*.py"):
        assert "gainroute.evaluation" not in module.read_text(), module


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
