"""Anybody's own views: read from ``.npz`` or Parquet files and aligned by id, never by guess."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError, MissingExtraError
from gainroute.io.preprocess import Raw
from gainroute.routing.types import LabelArray

__all__ = ["PartyView", "SampleLabels", "align", "read_labels", "read_view"]


@dataclass(frozen=True)
class PartyView:
    """One party's view as it was read.

    Attributes
    ----------
    name
        Of the party: the file's name without its ending.
    ids
        (N,) or None where the file has none.
    raw
        An array (N, …), or columns of a table.
    """

    name: str
    ids: LabelArray | None
    raw: Raw

    def __len__(self) -> int:
        return len(self.raw) if isinstance(self.raw, np.ndarray) else len(next(iter(self.raw.values())))

    def take(self, rows: npt.NDArray[Any]) -> PartyView:
        """The samples of `rows`, in that order."""
        raw = self.raw[rows] if isinstance(self.raw, np.ndarray) else {k: v[rows] for k, v in self.raw.items()}
        return PartyView(self.name, None if self.ids is None else self.ids[rows], raw)


@dataclass(frozen=True)
class SampleLabels:
    """Labels as they were read: any values, and ids or None."""

    labels: LabelArray
    ids: LabelArray | None


def _npz(path: Path, key: str) -> dict[str, npt.NDArray[Any]]:
    try:
        # numpy leaves a file it cannot read open: it is opened, and closed, here.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name in (key, "ids")}
            found = ", ".join(file.files)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise DataError(f"{path} is not a plain .npz file ({error}): write it with numpy.savez, no objects") from error
    if key not in arrays:
        raise DataError(f"{path} holds {found or 'nothing'}: it has to hold {key!r}, and may hold 'ids'")
    return arrays


def _parquet(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Reading Parquet", "parquet") from error
    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file ({error}): write it again") from error
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        kind = column.type
        if pa.types.is_dictionary(kind):
            column, kind = column.cast(kind.value_type), kind.value_type
        if pa.types.is_temporal(kind):
            column = column.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
        elif pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise DataError(f"{path}: column {name!r} is of type {kind}: numbers, texts, booleans and times are read")
        # Through Python objects: a gap stays None, and a whole number with gaps is not made a float.
        columns[name] = (
            np.array([*column.to_pylist(), None], dtype=object)[:-1]
            if column.null_count
            else np.asarray(column.to_numpy(zero_copy_only=False))
        )
    return columns


def _existing(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{file} is not there: name a .npz or .parquet file")
    if file.suffix not in (".npz", ".parquet"):
        raise DataError(f"{file} ends in {file.suffix!r}: a view is a .npz or a .parquet file")
    return file


def read_view(path: str | os.PathLike[str], *, id_column: str = "id", label_column: str = "label") -> PartyView:
    """Read one party's view.

    Parameters
    ----------
    path
        ``.npz`` with ``x`` (N, …) and optional ``ids``, or Parquet with a column of ids.
    id_column, label_column
        Of Parquet: which columns are the id and the label; neither ever becomes a feature.
    """
    file = _existing(path)
    if file.suffix == ".npz":
        arrays = _npz(file, "x")
        x, ids = arrays["x"], arrays.get("ids")
        if x.ndim < 2 or len(x) == 0:
            raise DataError(f"{file}: x has shape {x.shape}: it has to be (N, …) with at least one sample")
        if x.dtype.kind not in "fiub":
            raise DataError(f"{file}: x is of type {x.dtype}: it has to be numbers")
        return PartyView(file.stem, _checked_ids(ids, len(x), file), x)
    columns = _parquet(file)
    if id_column not in columns:
        raise DataError(f"{file} has no column {id_column!r} to align by: it has {', '.join(columns)}; see id_column")
    ids = columns.pop(id_column)
    columns.pop(label_column, None)
    if not columns or len(ids) == 0:
        raise DataError(f"{file} has no features beside id and label, or no rows")
    return PartyView(file.stem, _checked_ids(ids, len(ids), file), columns)


def read_labels(path: str | os.PathLike[str], *, id_column: str = "id", label_column: str = "label") -> SampleLabels:
    """Read labels: ``.npz`` with ``labels`` and optional ``ids``, or Parquet with an id and a label column."""
    file = _existing(path)
    if file.suffix == ".npz":
        arrays = _npz(file, "labels")
        labels = arrays["labels"]
        if labels.ndim != 1:
            raise DataError(f"{file}: labels has shape {labels.shape}: it has to be (N,)")
        return SampleLabels(labels, _checked_ids(arrays.get("ids"), len(labels), file))
    columns = _parquet(file)
    for name in (id_column, label_column):
        if name not in columns:
            raise DataError(f"{file} has no column {name!r}: it has {', '.join(columns)}")
    if any(value is None for value in columns[label_column]):
        raise DataError(f"{file}: column {label_column!r} has gaps: leave unlabelled samples out")
    return SampleLabels(columns[label_column], _checked_ids(columns[id_column], len(columns[id_column]), file))


def _checked_ids(ids: LabelArray | None, count: int, file: Path) -> LabelArray | None:
    if ids is None:
        return None
    if ids.ndim != 1 or len(ids) != count:
        raise DataError(f"{file}: ids have shape {ids.shape} for {count} samples: one id a sample")
    if ids.dtype.kind == "O":
        if any(value is None for value in ids):
            raise DataError(f"{file}: an id is missing: every sample needs one")
        ids = np.array([str(v) for v in ids]) if not all(isinstance(v, int) for v in ids) else ids.astype(np.int64)
    names, counts = np.unique(ids, return_counts=True)
    if len(names) < len(ids):
        raise DataError(f"{file}: id {names[counts > 1][0]!r} appears {counts.max()} times: ids have to be different")
    return ids


def align(
    views: Sequence[PartyView], labels: SampleLabels | None
) -> tuple[LabelArray, list[PartyView], LabelArray | None]:
    """Put every view, and the labels, in the order of the first of them that has ids; report what does not align.

    Returns
    -------
    ids, views, labels
        Aligned by row. Without any ids samples are numbered 0 … N − 1 and the lengths must agree.
    """
    named: list[tuple[str, LabelArray | None, int]] = [(f"view {v.name!r}", v.ids, len(v)) for v in views]
    if labels is not None:
        named.append(("the labels", labels.ids, len(labels.labels)))
    without = [name for name, ids, _ in named if ids is None]
    if len(without) == len(named):
        sizes = {name: size for name, _, size in named}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise DataError(f"without ids all must hold the same samples in the same order, but: {told}; add ids")
        return np.arange(named[0][2]), list(views), None if labels is None else labels.labels
    if without:
        raise DataError(f"{without[0]} has no ids while others have: give ids to all or to none")
    reference = named[-1][1] if labels is not None else named[0][1]
    assert reference is not None  # noqa: S101 (for the type checker)
    problems = []
    for name, ids, _ in named:
        assert ids is not None  # noqa: S101 (for the type checker)
        lacking, extra = np.setdiff1d(reference, ids), np.setdiff1d(ids, reference)
        if len(lacking):
            problems.append(f"{name} lacks {len(lacking)} (such as {lacking[0]!r})")
        if len(extra):
            problems.append(f"{name} has {len(extra)} unknown to the others (such as {extra[0]!r})")
    if problems:
        raise DataError(f"ids do not align: {'; '.join(problems)}. Keep the samples that all parties have")
    ordered = []
    for view in views:
        assert view.ids is not None  # noqa: S101 (for the type checker)
        ordered.append(view.take(_order(view.ids, reference)))
    values = None
    if labels is not None:
        assert labels.ids is not None  # noqa: S101 (for the type checker)
        values = labels.labels[_order(labels.ids, reference)]
    return reference, ordered, values


def _order(ids: LabelArray, reference: LabelArray) -> npt.NDArray[np.int64]:
    where = {value: row for row, value in enumerate(ids.tolist())}
    return np.array([where[value] for value in reference.tolist()], dtype=np.int64)
