"""Turn user input into checked arrays, with errors that name the value, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from gainroute._util.arrays import from_tensors, shown
from gainroute.errors import PosteriorError, SettingError, ShapeError
from gainroute.routing.types import ArrayLike, BoolArray, FloatArray, LabelArray

__all__ = [
    "SUM_TOLERANCE",
    "as_local_posteriors",
    "as_posteriors",
    "as_present",
    "as_utility",
    "as_weights",
    "check_folds",
    "check_fraction",
    "check_positive",
    "check_posteriors",
    "in_class_order",
    "one_of",
    "ones",
]

SUM_TOLERANCE = 1e-3
BFLOAT16_TOLERANCE = 0.02

Choice = TypeVar("Choice", bound=str)


def _as_floats(values: ArrayLike, name: str) -> FloatArray:
    try:
        array = np.asarray(from_tensors(values))
    except ValueError as error:
        raise ShapeError(
            f"{name} is ragged ({error}); every party needs the same samples and classes: pass (M, N, K), "
            "a list of M arrays (N, K), or one array (N, K)"
        ) from None
    if array.dtype == object or array.dtype.kind in "USOmM":
        raise PosteriorError(f"{name} has dtype {array.dtype}; posteriors are numbers: convert to a float array")
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    if _is_bfloat16(values):
        # Eight bits of precision: a softmax sums to one only within half a per cent or so.
        sums = array.sum(axis=-1, keepdims=True)
        array = np.where(np.abs(sums - 1) <= BFLOAT16_TOLERANCE, array / sums, array)
    return array


def _is_bfloat16(values: Any) -> bool:
    first = values[0] if isinstance(values, (list, tuple)) and values else values
    # A numpy dtype is none, and its name takes longer to write than a sample takes to score.
    return not isinstance(first, np.ndarray) and str(getattr(first, "dtype", "")) == "torch.bfloat16"


def as_local_posteriors(
    values: Any,
    *,
    parties: int | None = None,
    classes: int | None = None,
    class_names: LabelArray | None = None,
    name: str = "local_posteriors",
) -> FloatArray:
    """Bring posteriors to (M, N, K): shapes are checked here, values by `check_posteriors`.

    The columns of tables are matched to `class_names`.
    """
    array = _as_floats(in_class_order(values, class_names, name), name)
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3:
        raise ShapeError(
            f"{name} has shape {array.shape}; allowed are (M, N, K), a list of M arrays (N, K), or (N, K) for one party"
        )
    m, n, k = array.shape
    if n == 0 or m == 0:
        raise ShapeError(f"{name} is empty (shape {array.shape}); at least one party and one sample are needed")
    if k < 2:
        raise ShapeError(f"{name} has {k} class(es); at least two are needed: for K = 2 pass both columns (1 − p, p)")
    if parties is not None and m != parties:
        raise ShapeError(
            f"{name} comes from {m} part(ies), the router was fitted with {parties}; pass all {parties} (mark "
            "absent ones in present=), or fit anew"
        )
    if classes is not None and k != classes:
        raise ShapeError(f"{name} has {k} classes, {classes} were expected; the columns must be those of the fit")
    return array


def as_posteriors(
    values: ArrayLike,
    *,
    classes: int | None = None,
    class_names: LabelArray | None = None,
    name: str = "posteriors",
) -> FloatArray:
    """Check one (N, K) array of posteriors, shape and values; the columns of a table are matched to `class_names`."""
    array = _as_floats(in_class_order(values, class_names, name), name)
    if array.ndim != 2:
        raise ShapeError(f"{name} has shape {array.shape}; (N, K) is needed")
    checked = as_local_posteriors(array, classes=classes, name=name)
    check_posteriors(checked, name=name)
    return array


def check_posteriors(
    local: FloatArray, present: BoolArray | None = None, name: str = "local_posteriors", first_row: int = 0
) -> None:
    """Refuse NaN, negative entries and rows that do not sum to one; rows of absent parties are not checked.

    `first_row` is the number of the first row in messages, where these are rows of a longer table.
    """
    if present is not None and not present.all():
        local = np.where(present[..., None], local, np.float64(1 / local.shape[2]))
    # A matrix product sums rows faster than a reduction over a short axis, and carries NaN along.
    rows = local.reshape(-1, local.shape[2])  # of two dimensions: a product of three takes a third longer
    sums = rows @ ones(local.shape[2], local.dtype if local.dtype.itemsize > 2 else np.dtype(np.float32))
    # Direct reductions: a service checks one row at a time, where each call counts. Comparisons with NaN are false.
    low, high = 1 - SUM_TOLERANCE, 1 + SUM_TOLERANCE
    if (
        np.minimum.reduce(local, axis=None) >= 0
        and np.minimum.reduce(sums, axis=None) >= low
        and np.maximum.reduce(sums, axis=None) <= high
    ):
        return
    bad = ~((rows >= 0).all(axis=1) & (sums >= low) & (sums <= high))
    party, row = divmod(int(np.flatnonzero(bad)[0]), local.shape[1])
    place = f"row {first_row + row}"
    where = f"{name}: party {party}, {place}" if len(local) > 1 else f"{name}: {place}"
    values, total = local[party, row], float(sums[party * local.shape[1] + row])
    if np.isnan(values).any():
        raise PosteriorError(f"{where} has NaN; drop the row, or mark the party absent in present=")
    if (values < 0).any():
        raise PosteriorError(
            f"{where} has a negative entry ({float(values.min()):.4g}); posteriors are ≥ 0: did you pass logits? "
            "Apply a softmax first"
        )
    raise PosteriorError(
        f"{where} sums to {total:.6g}; posteriors sum to 1 within {SUM_TOLERANCE}: divide by the row sum if "
        "that is intended"
    )


@lru_cache(maxsize=64)
def ones(length: int, dtype: np.dtype[Any] = np.dtype(np.float64)) -> FloatArray:  # noqa: B008 (immutable)
    """A vector of ones, made once; a product with it sums rows."""
    return np.ones(length, dtype=dtype)


def as_present(present: ArrayLike | None, shape: tuple[int, int]) -> BoolArray | None:
    """Check a mask of parties by samples; all present is None."""
    if present is None:
        return None
    mask = np.asarray(from_tensors(present))
    if mask.ndim == 1 and shape[0] == 1:
        mask = mask[None]
    if mask.shape != shape:
        raise ShapeError(f"present has shape {mask.shape}; (M, N) = {shape} is needed, True where a party answered")
    if mask.dtype != np.bool_:
        raise ShapeError(f"present has dtype {mask.dtype}; bool is needed, True where a party answered")
    return None if mask.all() else mask


def as_weights(values: ArrayLike | None, length: int) -> FloatArray:
    """Check sample weights, (N,); ones without them."""
    if values is None:
        return np.ones(length)
    weights = np.asarray(from_tensors(values), dtype=np.float64)
    if weights.shape != (length,):
        raise ShapeError(f"sample_weight has shape {weights.shape}; ({length},) is needed")
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
        raise SettingError("sample_weight must be finite, ≥ 0 and not all zero; drop or repair the samples concerned")
    return weights


def as_utility(utility: ArrayLike | None, classes: int) -> FloatArray | None:
    """Check a (K, K) utility: rows truth, columns answer."""
    if utility is None:
        return None
    matrix = np.asarray(from_tensors(utility), dtype=np.float64)
    if matrix.shape != (classes, classes):
        raise ShapeError(
            f"utility has shape {matrix.shape}; ({classes}, {classes}) is needed: rows truth, columns answer"
        )
    if not np.isfinite(matrix).all():
        raise SettingError("utility has entries that are not finite; every pair of truth and answer needs a value")
    return matrix


def check_fraction(value: float, name: str, remedy: str) -> float:
    """Refuse a value that is not a number in [0, 1]."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or not 0 <= value <= 1:
        raise SettingError(f"{name} is {shown(value)}; it lies in [0, 1]: {remedy}")
    return float(value)


def check_positive(value: float, name: str) -> float:
    """Refuse a value that is not a positive finite number."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or not 0 < value < np.inf:
        raise SettingError(f'{name} is {shown(value)}; it is a number > 0, or "cv" to choose it by cross-validation')
    return float(value)


def check_folds(folds: int, usual: int) -> int:
    """Refuse a number of folds that is not an integer of 2 or more."""
    if not isinstance(folds, (int, np.integer)) or folds < 2:
        raise SettingError(f"folds is {shown(folds)}; an integer of 2 or more is needed ({usual} is a good choice)")
    return int(folds)


def one_of(value: Choice, name: str, allowed: Sequence[str]) -> Choice:
    """Refuse a setting that is not one of the allowed names."""
    if value not in allowed:
        raise SettingError(f"{name} is {shown(value)}; allowed are {', '.join(map(repr, allowed))}")
    return value


# ---- tables ---------------------------------------------------------------------------------------


def in_class_order(values: Any, classes: LabelArray | None, name: str) -> Any:
    """Return a table (pandas, polars, pyarrow), or each of a list, as (N, K), its columns in the order of the classes.

    What is no table is returned as it is. Columns are matched to the classes by name. Without classes, columns named
    0 … K−1 are sorted by number, and tables of several parties are brought into the order of the first. Columns that
    are only numbered (pandas' 0, 1, …, polars' column_0, …) have no names, and keep their order. One column more than
    there are classes (the wish to defer) goes last.
    """
    if isinstance(values, np.ndarray):
        return values
    tables = values if isinstance(values, (list, tuple)) else [values]
    if not any(_column_names(table) for table in tables):
        return values
    wanted = None if classes is None else [str(label) for label in classes.tolist()]
    ordered = []
    for table in tables:
        columns = _column_names(table)
        if columns is None:
            ordered.append(table)
            continue
        order = _order(columns, wanted, name)
        ordered.append(np.asarray(table)[:, order])
        if wanted is None:
            wanted = [columns[i] for i in order]
    return ordered if isinstance(values, (list, tuple)) else ordered[0]


def _column_names(table: Any) -> list[str] | None:
    """Names of the columns of a table; None for anything else."""
    names = getattr(table, "column_names", None)  # pyarrow: its `columns` are the data
    if names is None and hasattr(table, "to_numpy"):
        names = getattr(table, "columns", None)
    return None if names is None else [str(column) for column in names]


def _order(columns: list[str], wanted: list[str] | None, name: str) -> list[int]:
    place = {column: i for i, column in enumerate(columns)}
    numbers = [str(i) for i in range(len(columns))]
    unnamed = columns in (numbers, [f"column_{i}" for i in range(len(columns))])
    if wanted is None:
        return [place[c] for c in numbers] if set(numbers) == set(columns) else list(range(len(columns)))
    if set(wanted) <= set(columns) and len(columns) <= len(wanted) + 1:
        rest = [i for i, column in enumerate(columns) if column not in wanted]
        return [*(place[c] for c in wanted), *rest]
    if unnamed:
        return list(range(len(columns)))
    raise ShapeError(
        f"{name} has the columns {', '.join(columns[:8])}{', …' if len(columns) > 8 else ''}, the classes are "
        f"{', '.join(wanted[:8])}{', …' if len(wanted) > 8 else ''}; name one column after each class, or pass a plain "
        "array with the columns in the order of classes="
    )
