"""Anybody's own views made ready: aligned, split, preprocessed by the training part alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError, LabelError, SettingError
from gainroute.io.preprocess import apply_preprocess, fit_preprocess
from gainroute.io.views import align, read_labels, read_view
from gainroute.routing.types import IntArray, LabelArray
from gainroute.training.data.dataset import Part
from gainroute.training.data.splits import content_hash, split_hash, stratified_split
from gainroute.training.prepare import Prepared
from gainroute.training.routes import TrainingData
from gainroute.training.training_view import TrainingView

__all__ = ["OwnData", "encode_labels", "prepare_own"]

Paths = Sequence["str | os.PathLike[str]"]

# One sample of each class for training, one for calibration, one for the test.
_FEWEST = 3


@dataclass(frozen=True)
class OwnData:
    """Own views made ready, and all of them preprocessed for the folders of their parties."""

    prepared: Prepared
    class_names: tuple[str, ...]
    ids: LabelArray
    views: tuple[npt.NDArray[np.float32], ...]


def encode_labels(labels: LabelArray, class_names: Sequence[str]) -> IntArray:
    """Labels as 0 … K − 1 by the names they have as text."""
    where = {name: index for index, name in enumerate(class_names)}
    unknown = sorted({str(value) for value in labels.tolist()} - set(where))
    if unknown:
        raise LabelError(f"label {unknown[0]!r} was not in training: the classes are {', '.join(class_names)}")
    return np.array([where[str(value)] for value in labels.tolist()], dtype=np.int64)


def prepare_own(
    views: Paths,
    labels: str | os.PathLike[str],
    *,
    seed: int,
    test: float,
    calibration: float,
    id_column: str = "id",
    label_column: str = "label",
    kinds: Mapping[str, str] | None = None,
) -> OwnData:
    """Read, align, split and preprocess.

    Parameters
    ----------
    views, labels
        Files, as `gainroute.io.views` reads them; the stem of a view's file names its party.
    seed
        Of both splits.
    test
        Share of all samples held out for the test.
    calibration
        Share of the rest held out for calibration.
    id_column, label_column
        Of Parquet files.
    kinds
        For a party's name ``"images"`` or ``"features"``, where its shape shall not decide.
    """
    read = [read_view(path, id_column=id_column, label_column=label_column) for path in views]
    names = [view.name for view in read]
    if len(names) < 2 or len(set(names)) < len(names):
        raise DataError(f"views {', '.join(names) or '(none)'}: at least two, of different names, are needed")
    strange = sorted(set(kinds or {}) - set(names))
    if strange:
        raise SettingError(f"a kind is given for {strange[0]!r}, but the views are {', '.join(names)}")
    found = read_labels(labels, id_column=id_column, label_column=label_column)
    ids, aligned, values = align(read, found)
    assert values is not None, "labels were given"  # noqa: S101 (for the type checker)
    unique, counts = np.unique(values, return_counts=True)
    if len(unique) < 2 or counts.min() < _FEWEST:
        told = ", ".join(f"{name} {count}" for name, count in zip(unique[:5], counts[:5], strict=True))
        raise DataError(f"classes by size: {told}…: at least 2 classes of {_FEWEST} samples each are needed")
    class_names = tuple(str(name) for name in unique.tolist())
    codes = encode_labels(values, class_names)
    rest, held_out = stratified_split(codes, test, seed)
    first, second = stratified_split(codes[rest], calibration, seed)
    train, held = rest[first], rest[second]
    fitted = tuple(fit_preprocess(view.take(train).raw, (kinds or {}).get(view.name, "auto")) for view in aligned)
    inputs = tuple(apply_preprocess(p, view.raw) for p, view in zip(fitted, aligned, strict=True))
    whole = Part(ids, codes, inputs)
    fingerprint = split_hash(*((ids[rows], codes[rows]) for rows in (train, held, held_out)))
    views_ready = tuple(TrainingView(x[train], train) for x in inputs)
    told = f"{fingerprint}/{content_hash([view.clean for view in views_ready])}"
    data = TrainingData(views_ready, codes[train], len(class_names), tuple(names), told)
    prepared = Prepared(data, ids[train], whole.take(held), whole.take(held_out), fitted, fingerprint)
    return OwnData(prepared, class_names, ids, inputs)
