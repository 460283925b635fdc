"""The package itself: what it exports and what it imports."""

from __future__ import annotations

import copy
import importlib
import json
import pkgutil
import subprocess
import sys
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
INTENDED = {
    "coordinator setting log.posteriors: default is 'False', was 'True'",
    "gainroute.ExpectedGainRouter: default of pooling is 'taught', was 'log-linear'",
}


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
        (["formats"], lambda formats: formats.update(record=0), "format of record: 0, was 2"),
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
