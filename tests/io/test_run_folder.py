"""Run folders: a description cannot lead out of the folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gainroute.errors import NotAnArtifactError
from gainroute.io.run_folder import RunFolder


@pytest.mark.parametrize("name", ["../other", "/etc", "..", "", "a\0b", "\ud800"])
def test_a_party_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path)
    run.description.write_text(json.dumps({"party_names": ["a", name], "class_names": [0, 1]}))
    with pytest.raises(NotAnArtifactError, match=r"run\.json is damaged.*cannot be the name of a folder"):
        _ = run.party_names
