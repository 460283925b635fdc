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


PARTS = """
from dataclasses import dataclass
import numpy as np
import gainroute as gr

@dataclass(frozen=True, eq=False)
class Score:
    offset: float
    def __call__(self, round_one):
        top = np.sort(round_one.pooled, axis=1)
        return self.offset + top[:, -2] - top[:, -1]

class Margin(gr.Router):
    fitted_types = (Score,)
    def __init__(self, budget=0.2, *, offset=0.0, **settings):
        super().__init__(budget, **settings)
        self.offset = offset
    def fit_score(self, calibration):
        return Score(self.offset)

@dataclass(frozen=True, eq=False)
class Scaled:
    factor: np.ndarray
    def __call__(self, posteriors):
        scaled = posteriors * self.factor
        return scaled / scaled.sum(axis=1, keepdims=True)

class Calibrator:
    fitted_types = (Scaled,)
    def fit(self, pooled, labels, weight):
        return Scaled(1 + np.arange(pooled.shape[1]))

@dataclass(frozen=True, eq=False)
class First:
    def __call__(self, local, present=None):
        return local[0].astype(np.float64)

class Pool:
    fitted_types = (First,)
    def fit(self, local, labels, weight):
        return First()
"""


def install_parts(folder: Path) -> Path:
    """Install a package that offers the router their-margin, their-calibrator and their-pool."""
    offered = {
        "gainroute.routers": {"their-margin": "their_parts:Margin"},
        "gainroute.calibrators": {"their-calibrator": "their_parts:Calibrator"},
        "gainroute.pools": {"their-pool": "their_parts:Pool"},
    }
    return install(folder, "their_parts", PARTS, offered)
