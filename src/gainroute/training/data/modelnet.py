"""ModelNet40, two parties: a top view and a diagonal view of each object, rendered from ``points.npz``.

The file (``modelnet40/points.npz`` under the data folder) holds ``points_train`` and ``points_test`` float32
(N, P, 3) with z up, ``y_train`` and ``y_test``, ``names_train`` and ``names_test``, and ``classes``; it comes
from the official OFF meshes through `gainroute.training.data.meshes.build_points`, or from any other source of the
official 9,843 and 2,468 models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError
from gainroute.io.tables import read_table
from gainroute.training.data.dataset import Dataset, Part, required_folder
from gainroute.training.data.render import CAMERAS, Resplat, centred, render
from gainroute.training.data.settings import DataSettings

__all__ = ["load_modelnet40", "read_points"]

_KEYS = ("points_train", "points_test", "y_train", "y_test", "names_train", "names_test", "classes")


def read_points(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read and check ``points.npz``."""
    if not path.is_file():
        raise DataError(
            f"{path} does not exist: make it from the official OFF meshes with `gainroute data modelnet40 DIR`, "
            "or name another folder with --data-dir"
        )
    table = read_table(path, only=_KEYS)
    table.require(*_KEYS, remedy=f"it has to hold {', '.join(_KEYS)}: make it again")
    arrays = {key: table.array(key) for key in _KEYS}
    for part in ("train", "test"):
        points, labels, names = (arrays[f"{key}_{part}"] for key in ("points", "y", "names"))
        if points.ndim != 3 or points.shape[2] != 3:
            raise DataError(f"{path}: points_{part} has shape {points.shape}: it has to be (N, P, 3)")
        if not len(points) == len(labels) == len(names):
            raise DataError(
                f"{path}: {len(points)} clouds, {len(labels)} labels and {len(names)} names of {part}: make it again"
            )
        if not np.isfinite(points).all():
            raise DataError(f"{path}: points_{part} holds NaN or infinite coordinates: make it again")
        if len(labels) and int(labels.max()) >= len(arrays["classes"]):
            raise DataError(f"{path}: label {labels.max()} in y_{part}, but {len(arrays['classes'])} classes")
    return arrays


def load_modelnet40(settings: DataSettings, data_dir: Path | None) -> Dataset:
    """Render both views of every object of ``modelnet40/points.npz``, a file in `data_dir`."""
    arrays = read_points(required_folder("modelnet40", data_dir) / "modelnet40" / "points.npz")
    cameras = tuple(CAMERAS.values())

    def part(name: str) -> tuple[Part, npt.NDArray[np.float32]]:
        points = centred(arrays[f"points_{name}"].astype(np.float32))
        views = tuple(render(points, camera, settings.image_size, settings.splat) for camera in cameras)
        return Part(arrays[f"names_{name}"], arrays[f"y_{name}"].astype(np.int64), views), points

    train, points = part("train")
    test, _ = part("test")
    augment = Resplat(points, cameras, settings.image_size, settings.splat, settings.augment)
    classes = tuple(str(name) for name in arrays["classes"])
    return Dataset("modelnet40", train, test, classes, tuple(CAMERAS), augment)
