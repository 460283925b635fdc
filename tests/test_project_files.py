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
