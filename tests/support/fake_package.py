"""A package of somebody else's, installed in a folder: one module, and the entry points that offer its parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, source: str, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """Write module `name` and its metadata as an installer would; put the folder on `sys.path` to have it installed.

    `entry_points` is {group: {name: "module:attribute"}}.
    """
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in offered.items())
        for group, offered in entry_points.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    return folder
