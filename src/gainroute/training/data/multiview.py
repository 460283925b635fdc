"""Real views of the same objects, as feature vectors: Columbia Consumer Video and one-hundred plant leaves.

``ccv.npz`` and ``leaves100.npz`` hold ``view0``, ``view1``, ``view2`` (N, d) and ``labels`` (N,). The leaves are also
read from the text files that UCI distributes, in the folder ``100 leaves plant species``. There is no official split
of either: a fixed stratified 30 % is the test part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError
from gainroute.io.tables import read_table
from gainroute.routing.types import IntArray
from gainroute.training.data.columns import first_file
from gainroute.training.data.dataset import Dataset, Part, required_folder
from gainroute.training.data.settings import DataSettings
from gainroute.training.data.splits import fixed_test_split

__all__ = ["load_ccv", "load_leaves100"]

Views = tuple[npt.NDArray[np.float32], ...]
LEAF_PARTIES = ("margin", "shape", "texture")
_LEAF_FILES = tuple(f"100 leaves plant species/data_{word}_64.txt" for word in ("Mar", "Sha", "Tex"))
_KEYS = ("view0", "view1", "view2", "labels")


def load_ccv(_settings: DataSettings, data_dir: Path | None) -> Dataset:
    """Load Columbia Consumer Video: three modalities; each video has one of 20 classes."""
    path = first_file(required_folder("ccv", data_dir), "ccv.npz", remedy="its keys have to be " + ", ".join(_KEYS))
    views, labels = _read_views(path)
    names = tuple(str(name) for name in range(int(labels.max()) + 1))
    return _dataset("ccv", views, labels, names, ("view0", "view1", "view2"))


def load_leaves100(_settings: DataSettings, data_dir: Path | None) -> Dataset:
    """Load one-hundred plant leaves: margin, shape and texture of a leaf; 100 species of 16 leaves.

    One leaf is left out. UCI's file of textures lacks it, and ``leaves100.npz`` has the mean texture of its species in
    its place, which would tell the label.
    """
    folder = required_folder("leaves100", data_dir)
    remedy = "fetch UCI's one-hundred plant species leaves, or name another folder with --data-dir"
    path = first_file(folder, "leaves100.npz", _LEAF_FILES[0], remedy=remedy)
    if path.suffix == ".txt":
        tables = [_read_leaves(first_file(folder, file, remedy=remedy)) for file in _LEAF_FILES]
        return _dataset("leaves100", *_aligned(tables), LEAF_PARTIES)
    views, labels = _read_views(path)
    names = tuple(str(name) for name in range(int(labels.max()) + 1))
    others = views[2][1:][labels[1:] == labels[0]]
    if len(others) and np.allclose(views[2][0], others.mean(axis=0, dtype=np.float64), rtol=0, atol=1e-6):
        views, labels = tuple(view[1:] for view in views), labels[1:]
    return _dataset("leaves100", views, labels, names, LEAF_PARTIES)


def _read_views(path: Path) -> tuple[Views, IntArray]:
    table = read_table(path, only=_KEYS)
    table.require(*_KEYS, remedy="make it again")
    views, labels = tuple(table.array(key) for key in _KEYS[:3]), table.array("labels").ravel()
    for key, view in zip(_KEYS, views, strict=False):
        if view.ndim != 2 or len(view) != len(labels) or view.dtype.kind != "f" or not np.isfinite(view).all():
            raise DataError(
                f"{path}: {key} has shape {view.shape} and type {view.dtype}, beside {len(labels)} labels: finite "
                "numbers (N, d) are needed, one row per label"
            )
    return tuple(view.astype(np.float32) for view in views), labels.astype(np.int64)


def _read_leaves(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Rows of one text file by species: a name, then the features."""
    found: dict[str, list[Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        species, *features = line.split(",")
        if features:
            found.setdefault(species.strip(), []).append(features)
    try:
        return {species: np.array(rows, dtype=np.float32) for species, rows in found.items()}
    except ValueError as error:
        raise DataError(f"{path}: a row is no name with numbers ({error}): fetch the file again") from None


def _aligned(tables: list[dict[str, npt.NDArray[np.float32]]]) -> tuple[Views, IntArray, tuple[str, ...]]:
    """The same leaves of every view. Where a file lacks a leaf, it is the first of its species."""
    names = tuple(sorted(set(tables[0]).intersection(*tables[1:])))
    if not names:
        raise DataError(f"{', '.join(_LEAF_FILES)} have no species in common: fetch them again")
    counts = [min(len(table[name]) for table in tables) for name in names]
    views = tuple(
        np.concatenate([table[name][-count:] for name, count in zip(names, counts, strict=True)]) for table in tables
    )
    return views, np.repeat(np.arange(len(names)), counts).astype(np.int64), names


def _dataset(name: str, views: Views, labels: IntArray, classes: tuple[str, ...], parties: tuple[str, ...]) -> Dataset:
    whole = Part(np.arange(len(labels)), labels, views)
    first, second = fixed_test_split(labels)
    return Dataset(name, whole.take(first), whole.take(second), classes, parties)
