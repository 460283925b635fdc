"""How far a run of `gainroute federate` is: written by the run, read by the command line and by the dashboard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gainroute.errors import DataError
from gainroute.io.run_folder import read_json

__all__ = ["STAGES", "newest_version", "read_status", "status_file"]

STAGES = ("align", "split", "local", "strong", "deploy", "calibrate")


def newest_version(out: Path) -> int:
    """The number of the newest version in a federation's folder; 0 if there is none."""
    return max((int(path.name[1:]) for path in out.glob("v*") if re.fullmatch(r"v[0-9]{1,9}", path.name)), default=0)


def status_file(folder: Path) -> Path:
    """Where the run in a version's folder writes its status."""
    return folder / "work" / "status.json"


def read_status(folder: Path) -> dict[str, Any]:
    """The status of the run in a version's folder, as it was last written."""
    path = status_file(folder)
    if not path.is_file():
        raise DataError(f"{folder} holds no run of `gainroute federate`; it writes {path.name} when it starts")
    return read_json(path)
