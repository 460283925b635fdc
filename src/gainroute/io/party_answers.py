"""Precomputed answers of a party: posteriors and embeddings by id, in `.npz` or Parquet. No torch, no model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.damage import names_damage
from gainroute._util.files import write_npz
from gainroute.errors import DataError, InputError
from gainroute.io.ids import id_texts, rows_by_id
from gainroute.io.tables import ColumnTable, PathLike, read_table
from gainroute.routing.inputs import as_posteriors

__all__ = ["PrecomputedAnswers", "read_columns", "write_columns"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class PrecomputedAnswers:
    """Answers of one model version, found by the text of an id."""

    rows: dict[str, int]  # text of an id → row
    posteriors: Floats  # (N, K)
    embeddings: Floats  # (N, d)
    class_names: tuple[str, ...] = ()  # in the order of the posterior's columns, if the file names them
    model_hash: str = ""  # if the file has one

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
    """Write an `.npz` file that a party can serve: ids (N,), posteriors (N, K), embeddings (N, d), names of columns.

    `model_hash` identifies the model that computed the answers, so that samples can be added under the same version.
    Without one, the hash of the file identifies it.
    """
    arrays = {
        "ids": np.array(id_texts(ids)),
        "posteriors": np.asarray(posteriors, np.float32),
        "embeddings": np.asarray(embeddings, np.float32),
        "class_names": np.array([str(name) for name in class_names]),
        "model_hash": np.array(model_hash),
    }
    write_npz(path, arrays)


@names_damage()
def read_columns(path: PathLike) -> PrecomputedAnswers:
    """Read precomputed answers: `.npz` as `write_columns` writes it, or Parquet.

    Parquet has a column ``id``, a list column ``posterior`` or one column ``posterior_<class>`` per class, and a list
    column ``embedding``. Its metadata may hold ``class_names`` (a JSON list) and ``model_hash``.
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
    matrices = {"embedding": "embeddings", "posterior": "posteriors"}
    arrays = {name: table.matrix(column)[0] for column, name in matrices.items() if column in table}
    if "id" in table:
        arrays["ids"] = np.array(table.objects("id"), dtype=object)
    named = [name for name in table if name.startswith("posterior_")]
    if named and "posterior" not in table:
        arrays["posteriors"] = np.column_stack([table.numbers(name) for name in named])
        arrays["class_names"] = np.array([name.removeprefix("posterior_") for name in named])
    if "class_names" in table.metadata:
        arrays["class_names"] = np.array(json.loads(table.metadata["class_names"]))
    if "model_hash" in table.metadata:
        arrays["model_hash"] = np.array(table.metadata["model_hash"])
    return arrays
