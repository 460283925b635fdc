"""Tables are written as TOML that reads back as the same values."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gainroute._util.settings import settings_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_what_is_written_reads_back():
    table = {
        "name": 'a "quoted" \\ name\n\t\x00\x7f, ë, 𝕏',
        "yes": True,
        "count": 3,
        "rate": 1e-5,
        "none": [],
        "list": ["a", "b"],
        "server": {"port": 0, "deeper": {"key with space": False}},
        "party": [{"name": "lab", "limits": {"rows": 1}}, {"name": "ward"}],
    }
    assert tomllib.loads(settings_text(table)) == table


def test_paths_are_written_as_text():
    assert tomllib.loads(settings_text({"tls": {"ca": Path("certs") / "ca.crt"}})) == {"tls": {"ca": "certs/ca.crt"}}


def test_a_value_without_a_place_in_toml_is_refused():
    with pytest.raises(TypeError, match="None of type NoneType"):
        settings_text({"budget": None})
