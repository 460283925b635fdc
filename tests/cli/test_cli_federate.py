"""`gainroute federate` where nothing is left to do, and what it refuses; the system tests have it do everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gainroute._util.progress import Progress
from gainroute.cli import app
from gainroute.federation.formation.federate import Formation
from gainroute.federation.formation.plan import load_federation_settings
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import Identity

SETTINGS = """
name = "trial"
out = "out"
[tls]
ca = "hub/ca.crt"
certificate = "hub/hub.crt"
key = "hub/hub.key"
[[party]]
name = "lab"
address = "127.0.0.1:1"
[[party]]
name = "ward"
address = "127.0.0.1:2"
[labels]
holder = "ward"
access = "private"
epsilon = 2.0
"""
DONE: dict[str, Any] = {
    "align": {"overlaps": {"lab": 187, "lab ∩ ward": 180}},
    "split": {"train": 101},
    "local": {},
    "strong": {},
    "deploy": {},
    "calibrate": {"test_samples": 54, "strong_accuracy": 0.875},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The settings of a federation whose first version is complete."""
    Authority.create(tmp_path / "ca").issue(Identity("coordinator", "hub"), tmp_path / "hub")
    path = tmp_path / "federation.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    formation = Formation(load_federation_settings(path), "v1", Progress())
    formation._state["done"] = DONE
    formation._claim()
    formation._tell()
    return path


def federate(config: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["federate", str(config), *words])


def test_status_shows_stages_parties_and_overlaps(config: Path) -> None:
    shown = federate(config, "--status")
    assert shown.exit_code == 0, shown.output
    for words in ("calibrate", "samples per second", "lab ∩ ward", "180"):
        assert words in shown.stdout
    assert json.loads(federate(config, "--status", "--json").stdout)["stages"] == dict.fromkeys(DONE, "done")


def test_a_complete_version_is_told_and_not_formed_again(config: Path) -> None:
    told = json.loads(federate(config, "--json").stdout)
    assert (told["version"], told["strong_accuracy"], told["overlaps"]["lab"]) == ("v1", 0.875, 187)
    shown = federate(config)
    assert shown.exit_code == 0, shown.output
    assert "87.5%" in shown.stdout
    assert str(config.parent / "out/v1/coordinator.toml") in shown.stdout.replace("\n", "")


def test_what_cannot_be_meant_is_refused(config: Path) -> None:
    def refused(*words: str, change: tuple[str, str] = ("", "")) -> str:
        config.write_text(SETTINGS.replace(*change), encoding="utf-8")
        done = federate(config, *words)
        assert done.exit_code == 2, done.output
        return " ".join(done.stderr.split())

    assert "give one of the two" in refused("--again", "--recalibrate")
    assert "leave it out to train one" in refused("--recalibrate", change=('"out"', '"empty"'))
    assert "start the next version with --again" in refused(change=("epsilon = 2.0", "epsilon = 3.0"))
    assert "it must be one of lab, ward" in refused(change=('holder = "ward"', 'holder = "clinic"'))
