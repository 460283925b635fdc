"""Files around the code agree with pyproject.toml."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from gainroute import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirement: str) -> str:
    return normal(re.match(r"[\w.-]+", requirement)[0])


def test_the_lock_pins_every_direct_dependency_with_hashes():
    pins = {normal(name): rest for name, rest in re.findall(r"(?m)^([\w.-]+)==((?:.*\\\n)*.*)$", LOCK)}
    direct = {named(r) for group in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()] for r in group
              if "python_version < '3.11'" not in r}  # fmt: skip
    assert direct - {"gainroute"} <= set(pins)
    assert all("--hash=sha256:" in rest for rest in pins.values())


def test_the_lock_names_no_index():
    assert not re.search(r"https?://|file:|--(extra-)?index|--find-links", LOCK)


def test_the_citation_names_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_bill_of_materials_lists_the_lock():
    from sbom import bill

    made = bill(LOCK, __version__)
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    held = {component["name"]: component for component in made["components"]}
    pins = {normal(name): version for name, version in re.findall(r"(?m)^([\w.-]+)(?:\[.*\])?==([^\s;\\]+)", LOCK)}
    assert {name: component["version"] for name, component in held.items()} == pins
    assert all(component["externalReferences"][0]["hashes"] for component in held.values())
    needs = {entry["ref"]: entry["dependsOn"] for entry in made["dependencies"]}
    assert held["numpy"]["bom-ref"] in needs[made["metadata"]["component"]["bom-ref"]]
    assert held["aiosignal"]["bom-ref"] in needs[held["aiohttp"]["bom-ref"]]
    assert made == bill(LOCK, __version__), "the same lock gives the same bill"


def test_dependencies_that_cannot_be_audited_are_reported_as_not_audited(tmp_path, capsys):
    from audit_dependencies import audit

    assert audit(str(tmp_path / "missing")) == 3
    assert "NOT audited" in capsys.readouterr().err
    program = tmp_path / "pip-audit"
    bug = '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}]}'
    for answer, code in ((bug, 1), (bug.replace('{"id": "CVE-1", "fix_versions": ["2"]}', ""), 0), ("no network", 3)):
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        program.chmod(0o700)
        assert audit(str(program)) == code
