"""Precomputed answers of a party: posteriors and embeddings by id, in `.npz` or Parquet. No torch, no model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.files import write_npz
from gainroute.errors import DataError, InputError
from gainroute.io.ids import id_texts, rows_by_id
from gainroute.io.tables import ColumnTable, PathLike, read_table
from gainroute.routing.inputs import as_posteriors

__all__ = ["PrecomputedAnswers", "read_columns", "write_columns"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class PrecomputedAnswers:
    """Answers of one model version, found by the text of an id.

    Attributes
    ----------
    rows
        Text of an id → row.
    posteriors, embeddings
        (N, K) and (N, d).
    class_names
        In the order of the posterior's columns; empty if the file does not name them.
    model_hash
        The hash in the file; empty if there is none.
    """

    rows: dict[str, int]
    posteriors: Floats
    embeddings: Floats
    class_names: tuple[str, ...] = ()
    model_hash: str = ""

    def take(self, answers: Floats, ids: Sequence[str]) -> Floats:
        """Rows of `posteriors` or `embeddings` by id; rows of NaN for unknown ids."""
        found = [self.rows.get(text, -1) for text in ids]
        taken = answers[found]
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
    """Write an `.npz` file that a party can serve.

    Parameters
    ----------
    path
        The file.
    ids, posteriors, embeddings
        (N,), (N, K) and (N, d).
    class_names
        In the order of the posterior's columns.
    model_hash
        Identifies the model that computed the answers, so that samples can be added under the same version. Without
        one, the hash of the file identifies it.
    """
    arrays = {
        "ids": np.array(id_texts(ids)),
        "posteriors": np.asarray(posteriors, np.float32),
        "embeddings": np.asarray(embeddings, np.float32),
        "class_names": np.array([str(name) for name in class_names]),
        "model_hash": np.array(model_hash),
    }
    write_npz(path, arrays)


def read_columns(path: PathLike) -> PrecomputedAnswers:
    """Read precomputed answers.

    Parameters
    ----------
    path
        `.npz` as `write_columns` writes it; or Parquet with a column ``id``, a list column ``posterior`` or one column
        ``posterior_<class>`` per class, and a list column ``embedding``. Its metadata may hold ``class_names`` (a JSON
        list) and ``model_hash``.
    """
    table = read_table(path)
    arrays = table.columns if table.format == "npz" else _from_parquet(table)
    absent = [name for name in ("ids", "posteriors", "embeddings") if name not in arrays]
    if absent:
        raise DataError(f"{path} has no {absent[0]}; ids, posteriors and embeddings are needed, one row per sample")
    names = tuple(str(name) for name in arrays.get("class_names", np.array([])).tolist())
    try:
        texts = id_texts(arrays["ids"].tolist())
        posteriors = as_posteriors(arrays["posteriors"], classes=len(names) or None, name="posteriors")
        embeddings = np.asarray(arrays["embeddings"], dtype=np.float32)
    except (InputError, TypeError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    rows = rows_by_id(texts, str(path))
    if embeddings.ndim != 2 or not len(texts) == len(posteriors) == len(embeddings) or not embeddings.shape[1]:
        shapes = f"{len(texts)} ids, posteriors {posteriors.shape}, embeddings {embeddings.shape}"
        raise DataError(f"{path}: {shapes}; (N,), (N, K) and (N, d) are needed")
    if not np.isfinite(embeddings).all():
        raise DataError(f"{path}: embeddings hold NaN, infinity or null; leave such samples out")
    stated = str(arrays.get("model_hash", np.array("")))
    return PrecomputedAnswers(rows, np.asarray(posteriors, np.float32), embeddings, names, stated)


def _from_parquet(table: ColumnTable) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    if "id" in table:
        arrays["ids"] = np.array(table.objects("id"), dtype=object)
    if "embedding" in table:
        arrays["embeddings"] = table.matrix("embedding")[0]
    named = [name for name in table if name.startswith("posterior_")]
    if "posterior" in table:
        arrays["posteriors"] = table.matrix("posterior")[0]
    elif named:
        arrays["posteriors"] = np.column_stack([table.numbers(name) for name in named])
        arrays["class_names"] = np.array([name.removeprefix("posterior_") for name in named])
    if "class_names" in table.metadata:
        arrays["class_names"] = np.array(json.loads(table.metadata["class_names"]))
    if "model_hash" in table.metadata:
        arrays["model_hash"] = np.array(table.metadata["model_hash"])
    return arrays
