"""Precomputed answers: posteriors and embeddings by id, from .npz or Parquet. No torch, no model."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.files import write_bytes
from gainroute.errors import DataError, InputError, MissingExtraError
from gainroute.io.ids import id_texts
from gainroute.routing.inputs import as_posteriors

__all__ = ["Columns", "read_columns", "write_columns"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Columns:
    """Answers of one model version, found by the text of an id.

    Attributes
    ----------
    rows
        Text of an id → row.
    posteriors, embeddings
        (N, K) and (N, d).
    class_names
        In the order of the posterior's columns; empty where the file does not say.
    model_hash
        As the file says; empty where it does not.
    """

    rows: dict[str, int]
    posteriors: Floats
    embeddings: Floats
    class_names: tuple[str, ...] = ()
    model_hash: str = ""

    def take(self, table: Floats, ids: Sequence[str]) -> Floats:
        """Rows of a table by id; NaN where there is none."""
        found = [self.rows.get(text, -1) for text in ids]
        taken = table[found]
        if -1 in found:
            taken[np.array(found) < 0] = np.nan
        return taken


def write_columns(
    path: str | os.PathLike[str],
    ids: Sequence[Any],
    posteriors: npt.ArrayLike,
    embeddings: npt.ArrayLike,
    class_names: Sequence[str],
    model_hash: str = "",
) -> None:
    """Write a .npz file that a party can serve.

    Parameters
    ----------
    path
        Of the file.
    ids, posteriors, embeddings
        (N,), (N, K) and (N, d).
    class_names
        In the order of the posterior's columns.
    model_hash
        Names the model that computed them, so that new samples may be added under the same version. Without one,
        the file's own hash names it.
    """
    out = io.BytesIO()
    np.savez(
        out,
        ids=np.array(id_texts(ids)),
        posteriors=np.asarray(posteriors, np.float32),
        embeddings=np.asarray(embeddings, np.float32),
        class_names=np.array([str(name) for name in class_names]),
        model_hash=np.array(model_hash),
    )
    write_bytes(path, out.getvalue())


def read_columns(path: Path) -> Columns:
    """Read precomputed answers.

    Parameters
    ----------
    path
        .npz as `write_columns` makes it; or Parquet with a column ``id``, a list column ``posterior`` or a column
        ``posterior_<class>`` each, and a list column ``embedding``. Its metadata may hold ``class_names`` (a JSON
        list) and ``model_hash``.
    """
    arrays = _npz(path) if path.suffix == ".npz" else _parquet(path)
    absent = [name for name in ("ids", "posteriors", "embeddings") if name not in arrays]
    if absent:
        raise DataError(f"{path} holds no {absent[0]}; ids, posteriors and embeddings are needed, one row a sample")
    names = tuple(str(name) for name in arrays.get("class_names", np.array([])).tolist())
    try:
        texts = id_texts(arrays["ids"].tolist())
        posteriors = as_posteriors(arrays["posteriors"], classes=len(names) or None, name="posteriors")
        embeddings = np.asarray(arrays["embeddings"], dtype=np.float32)
    except (InputError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    rows = {text: row for row, text in enumerate(texts)}
    if len(rows) < len(texts):
        raise DataError(f"{path}: {len(texts) - len(rows)} ids appear more than once; ids have to be different")
    if embeddings.ndim != 2 or not len(texts) == len(posteriors) == len(embeddings) or not embeddings.shape[1]:
        shapes = f"{len(texts)} ids, posteriors {posteriors.shape}, embeddings {embeddings.shape}"
        raise DataError(f"{path}: {shapes}; (N,), (N, K) and (N, d) are needed")
    if not np.isfinite(embeddings).all():
        raise DataError(f"{path}: embeddings hold NaN or infinity; leave such samples out")
    stated = str(arrays.get("model_hash", np.array("")))
    return Columns(rows, np.asarray(posteriors, np.float32), embeddings, names, stated)


def _npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise DataError(f"{path} is not a plain .npz file ({error}): write it with write_columns") from error


def _parquet(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("reading Parquet", "parquet") from None
    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file ({error}): write it again") from error
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    arrays: dict[str, npt.NDArray[Any]] = {}
    if "id" in table.column_names:
        arrays["ids"] = np.array(table.column("id").to_pylist(), dtype=object)
    if "embedding" in table.column_names:
        arrays["embeddings"] = _matrix(table.column("embedding"), "embedding", path)
    if "posterior" in table.column_names:
        arrays["posteriors"] = _matrix(table.column("posterior"), "posterior", path)
    else:
        named = [name for name in table.column_names if name.startswith("posterior_")]
        if named:
            arrays["posteriors"] = np.column_stack([table.column(name).to_numpy() for name in named])
            arrays["class_names"] = np.array([name.removeprefix("posterior_") for name in named])
    if "class_names" in metadata:
        arrays["class_names"] = np.array(json.loads(metadata["class_names"]))
    if "model_hash" in metadata:
        arrays["model_hash"] = np.array(metadata["model_hash"])
    return arrays


def _matrix(column: Any, name: str, path: Path) -> npt.NDArray[Any]:
    import pyarrow as pa

    chunk = column.combine_chunks()
    if not (
        pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type) or pa.types.is_fixed_size_list(chunk.type)
    ):
        raise DataError(f"{path}: column {name!r} is of type {chunk.type}; a list of numbers a row is needed")
    values = chunk.flatten().to_numpy(zero_copy_only=False)
    if chunk.null_count or not len(chunk) or len(values) % len(chunk):
        raise DataError(f"{path}: column {name!r} has gaps or lists of different lengths; one list a row is needed")
    return np.asarray(values).reshape(len(chunk), -1)
