"""From a data set, or from files of views, to the parts that train, calibrate and test: split, then preprocessed.

Preprocessing is fitted on the training part alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.arrays import shown
from gainroute.errors import DataError, LabelError, SettingError
from gainroute.io.preprocess import (
    ImagePreprocess,
    Preprocess,
    apply_preprocess,
    fit_preprocess,
    fit_standardiser,
)
from gainroute.io.views import PartyView, align, read_labels, read_view
from gainroute.routing.types import IntArray, LabelArray
from gainroute.training.data.dataset import Augment, Dataset, Part
from gainroute.training.data.splits import content_hash, split_hash, stratified_split
from gainroute.training.routes import TrainingData
from gainroute.training.training_view import TrainingView

__all__ = [
    "Prepared", "encode_labels", "given_labels", "prepare_dataset", "prepare_views", "read_aligned", "split_rows",
]  # fmt: skip

Paths = Sequence["str | os.PathLike[str]"]

# One sample per class for training, one for calibration, one for the test.
_FEWEST = 3


@dataclass(frozen=True)
class Prepared:
    """The three parts, with every view preprocessed.

    Attributes
    ----------
    train
        What both routes train on.
    calibration, test
        The other two parts.
    preprocess
        One per party: from a view as it was given to a model's input.
    class_names
        In the order of the labels.
    integer_labels
        Whether the labels were given as integers; the names are their texts.
    split_hash
        Identifies which samples are in which part.
    whole
        All samples, if the parties of a run can answer for them; None if only for calibration and test samples.
    """

    train: TrainingData
    calibration: Part
    test: Part
    preprocess: tuple[Preprocess, ...]
    class_names: tuple[str, ...]
    split_hash: str
    whole: Part | None = None
    integer_labels: bool = False


@dataclass(frozen=True)
class _Altered:
    augment: Augment
    party: int
    preprocess: Preprocess

    def __call__(self, rows: IntArray, rng: np.random.Generator) -> npt.NDArray[np.float32]:
        return apply_preprocess(self.preprocess, self.augment(self.party, rows, rng))


def prepare_dataset(dataset: Dataset, calibration: float, seed: int, settings: str = "") -> Prepared:
    """Hold out a share of the official training part for calibration, stratified; preprocess by the rest.

    Images are standardised per channel and feature vectors per feature; tables are encoded as by `gainroute train`.

    Parameters
    ----------
    dataset
        The data set.
    calibration
        The share held out.
    seed
        Of the split.
    settings
        Anything else the training data depend on, such as augmentation; checkpoints are told apart by it.
    """
    first, second = stratified_split(dataset.train.labels, calibration, seed)
    train, held = dataset.train.take(first), dataset.train.take(second)
    fitted = tuple(_fitted(view) for view in train.views)

    def ready(part: Part) -> Part:
        views = tuple(apply_preprocess(step, view) for step, view in zip(fitted, part.views, strict=True))
        return Part(part.ids, part.labels, views)

    split = split_hash(*((part.ids, part.labels) for part in (train, held, dataset.test)))
    views = tuple(
        TrainingView(
            apply_preprocess(step, view),
            first,
            None if dataset.augment is None else _Altered(dataset.augment, party, step),
        )
        for party, (step, view) in enumerate(zip(fitted, train.views, strict=True))
    )
    fingerprint = f"{split}/{content_hash([view.clean for view in views])}/{settings}"
    data = TrainingData(views, train.labels, dataset.classes, dataset.party_names, fingerprint)
    names = dataset.class_names
    numbered = names == tuple(map(str, range(len(names))))
    return Prepared(data, ready(held), ready(dataset.test), fitted, names, split, integer_labels=numbered)


def _fitted(view: npt.NDArray[Any]) -> Preprocess:
    if view.dtype.names is not None:
        return fit_preprocess(view)
    return ImagePreprocess(fit_standardiser(view), "NCHW"[: view.ndim])


def encode_labels(labels: LabelArray, class_names: Sequence[str]) -> IntArray:
    """Labels as 0 … K − 1, by their text."""
    codes = {name: index for index, name in enumerate(class_names)}
    unknown = sorted({str(value) for value in labels.tolist()} - set(codes))
    if unknown:
        raise LabelError(f"label {shown(unknown[0])} was not in training: the classes are {', '.join(class_names)}")
    return np.array([codes[str(value)] for value in labels.tolist()], dtype=np.int64)


def given_labels(class_names: Sequence[str], *, integers: bool) -> list[int] | list[str]:
    """The labels as they were given, from their texts."""
    return [int(name) for name in class_names] if integers else list(class_names)


def read_aligned(
    views: Paths, labels: str | os.PathLike[str], *, id_column: str = "id", label_column: str = "label"
) -> tuple[LabelArray, list[PartyView], LabelArray]:
    """Read views and labels from files, as `gainroute.io.views` does: ids, views and labels, aligned by row."""
    read = [read_view(path, id_column=id_column, label_column=label_column) for path in views]
    ids, aligned, values = align(read, read_labels(labels, id_column=id_column, label_column=label_column))
    return ids, aligned, np.asarray(values)


def split_rows(
    labels: LabelArray, test: float, calibration: float, seed: int
) -> tuple[tuple[str, ...], IntArray, list[IntArray]]:
    """Class names, labels as 0 … K − 1, and the rows that train, calibrate and test, stratified by class."""
    unique, counts = np.unique(labels, return_counts=True)
    if len(unique) < 2 or counts.min() < _FEWEST:
        found = ", ".join(f"{name} {count}" for name, count in zip(unique[:5], counts[:5], strict=True))
        raise DataError(f"classes by size: {found}…: at least 2 classes of {_FEWEST} samples each are needed")
    class_names = tuple(str(name) for name in unique.tolist())
    codes = encode_labels(labels, class_names)
    rest, held_out = stratified_split(codes, test, seed)
    first, second = stratified_split(codes[rest], calibration, seed)
    return class_names, codes, [rest[first], rest[second], held_out]


def prepare_views(
    views: Paths,
    labels: str | os.PathLike[str],
    *,
    seed: int,
    test: float,
    calibration: float,
    id_column: str = "id",
    label_column: str = "label",
    kinds: Mapping[str, str] | None = None,
) -> Prepared:
    """Read, align, split and preprocess files of views.

    Parameters
    ----------
    views, labels
        Files, as `gainroute.io.views` reads them; the name of a view's file without its suffix is the party's name.
    seed
        Of both splits.
    test
        Share of all samples held out for the test.
    calibration
        Share of the rest held out for calibration.
    id_column, label_column
        Of Parquet files.
    kinds
        ``"images"`` or ``"features"`` by party name, to override what the shape of its view implies.
    """
    ids, aligned, values = read_aligned(views, labels, id_column=id_column, label_column=label_column)
    names, kinds = tuple(view.name for view in aligned), kinds or {}
    if len(set(names)) < max(2, len(names)):
        raise DataError(f"views {', '.join(names) or '(none)'}: at least two, of different names, are needed")
    strange = sorted(set(kinds) - set(names))
    if strange:
        raise SettingError(f"a kind is given for {strange[0]!r}, but the views are {', '.join(names)}")
    class_names, codes, (train, held, held_out) = split_rows(values, test, calibration, seed)
    fitted = tuple(fit_preprocess(view.take(train).raw, kinds.get(view.name, "auto")) for view in aligned)
    whole = Part(ids, codes, tuple(apply_preprocess(p, view.raw) for p, view in zip(fitted, aligned, strict=True)))
    split = split_hash(*((ids[rows], codes[rows]) for rows in (train, held, held_out)))
    ready = tuple(TrainingView(x[train], train) for x in whole.views)
    fingerprint = f"{split}/{content_hash([view.clean for view in ready])}"
    data = TrainingData(ready, codes[train], len(class_names), names, fingerprint)
    integers = values.dtype.kind in "iu"
    return Prepared(data, whole.take(held), whole.take(held_out), fitted, class_names, split, whole, integers)
