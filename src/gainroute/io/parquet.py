"""Posteriors in Parquet tables: which columns are whose, who is absent, and joining one file a party."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gainroute.errors import DataError, MissingExtraError
from gainroute.routing.inputs import SUM_TOLERANCE
from gainroute.routing.types import BoolArray, FloatArray, LabelArray

__all__ = [
    "PartyPosteriors",
    "join",
    "read_ids",
    "read_known",
    "read_parties",
    "read_party_files",
    "read_table",
    "to_parquet",
]

PREFIX = "posterior"


@dataclass(frozen=True, eq=False)
class PartyPosteriors:
    """Local posteriors (M, N, K), who answered (M, N), and the names of parties and classes."""

    local: FloatArray
    present: BoolArray
    party_names: tuple[str, ...]
    class_names: LabelArray | None


@dataclass(frozen=True, eq=False)
class _Party:
    name: str
    posterior: FloatArray | None  # None: absent from every sample
    present: BoolArray


def read_table(path: str | os.PathLike[str]) -> Any:
    """Read a Parquet file into memory."""
    try:
        import pyarrow.parquet as pq
        from pyarrow import ArrowException
    except ImportError:
        raise MissingExtraError("reading Parquet", "parquet") from None
    try:
        return pq.ParquetFile(path).read()
    except (ArrowException, ValueError) as error:
        if "lists to be of size" in str(error):  # pyarrow before 26, on null in a column of fixed-size lists
            raise DataError(
                f"{path}: this pyarrow cannot read null in a column of fixed-size lists ({error}); upgrade to "
                "pyarrow ≥ 26, or write a plain list column"
            ) from error
        raise DataError(f"{path} is not a Parquet file, or truncated ({error}); write it again") from error


def to_parquet(columns: dict[str, Any]) -> bytes:
    """Write arrays as one Parquet table: (N, K) as list columns, a single number in every row."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("writing Parquet", "parquet") from None
    n = max(len(v) for v in columns.values() if np.ndim(v))
    table = {}
    for name, value in columns.items():
        array = np.asarray(value)
        if array.ndim == 2:
            table[name] = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])
        else:
            table[name] = pa.array((np.full(n, value) if array.ndim == 0 else array).tolist())
    out = io.BytesIO()
    pq.write_table(pa.table(table), out)
    return out.getvalue()


# ---- one file, all parties ----------------------------------------------------------------------


def read_parties(table: Any, source: str, class_names: LabelArray | None = None) -> PartyPosteriors:
    """Find every party's posterior among the columns `posterior…`."""
    lists, numbers = _posterior_columns(table, source)
    if lists and numbers:
        raise DataError(
            f"{source}: {lists[0]} is a list column and {numbers[0]} holds single numbers; one form for all parties is "
            "needed"
        )
    if not lists and not numbers:
        raise DataError(
            f"{source} has no column posterior_<party>; it has {', '.join(table.column_names)}: add one list column a "
            "party, or columns posterior_<party>_<class>"
        )
    if lists:
        return _stack([_from_list(table, c, _bare(c) or "party", source) for c in lists], source, class_names)
    values = {_bare(c): _numbers(table, c) for c in numbers}
    split = _split(values, class_names)
    if split is None:  # one number a party: P(class 1)
        return _stack([_from_number(name or "party", value) for name, value in values.items()], source, class_names)
    parties, classes = split
    found = [_from_classes(party or "party", [values[_joined(party, c)] for c in classes], source) for party in parties]
    return _stack(found, source, _names(classes, class_names))


def read_known(table: Any, source: str) -> dict[str, Any]:
    """Read what else a table tells: labels, the strong route's answers, ids, weights."""
    found: dict[str, Any] = {}
    for column, field in (
        ("id", "ids"),
        ("label", "labels"),
        ("strong_prediction", "strong_prediction"),
        ("weak_prediction", "weak_prediction"),
        ("sample_weight", "sample_weight"),
    ):
        if column in table.column_names:
            found[field] = _known(table, column, source, missing=column == "strong_prediction")
    if "strong_posterior" in table.column_names:
        strong = _from_list(table, "strong_posterior", "strong_posterior", source)
        if strong.posterior is None or not strong.present.all():
            raise DataError(f"{source}: strong_posterior is null in some rows; give it for all, or strong_prediction")
        found["strong_posterior"] = strong.posterior
    return found


def read_ids(table: Any, on: str) -> LabelArray:
    """Read the column that identifies samples."""
    return _array(table[on].to_pylist())


# ---- one file a party ---------------------------------------------------------------------------


def join(tables: Sequence[Any], sources: Sequence[str], on: str) -> tuple[list[Any], list[int]]:
    """Keep the samples that every table has, in the order of the first, and count those each table loses."""
    places = []
    for table, source in zip(tables, sources, strict=True):
        if on not in table.column_names:
            raise DataError(
                f"{source} has no column {on!r} to join on; it has {', '.join(table.column_names)}: name the column "
                "that identifies a sample in every file"
            )
        ids = table[on].to_pylist()
        place = {key: i for i, key in enumerate(ids)}
        if None in place:
            raise DataError(f"{source}: {on} is null in {ids.count(None)} row(s); every sample needs an id")
        if len(place) != len(ids):
            twice = next(key for i, key in enumerate(ids) if place[key] != i)
            raise DataError(
                f"{source}: {on} {twice!r} occurs more than once ({len(ids) - len(place)} rows repeat an id); every id "
                "may occur once: drop or merge the rows"
            )
        places.append(place)
    common = [key for key in places[0] if all(key in place for place in places[1:])]
    if not common:
        samples = "; ".join(
            f"{source}: {table[on].type}, such as {next(iter(place), None)!r}"
            for source, table, place in zip(sources, tables, places, strict=True)
        )
        raise DataError(f"no {on} is in every file ({samples}); the ids must be of the same type and spelling")
    joined = [table.take([place[key] for key in common]) for table, place in zip(tables, places, strict=True)]
    return joined, [len(place) - len(common) for place in places]


def read_party_files(
    tables: Sequence[Any], sources: Sequence[str], on: str, class_names: LabelArray | None = None
) -> PartyPosteriors:
    """Read one party a table, whose name is that of its file."""
    parties, classes = [], None
    for table, source in zip(tables, sources, strict=True):
        name = Path(source).stem
        lists, numbers = _posterior_columns(table, source, on)
        if len(lists) == 1 and not numbers:
            parties.append(_from_list(table, lists[0], name, source))
        elif len(numbers) == 1 and not lists:
            parties.append(_from_number(name, _numbers(table, numbers[0])))
        elif len(numbers) > 1 and not lists:
            own = [_bare(c) for c in numbers]
            order = _order(own, class_names) if classes is None else classes
            if order is None or sorted(order) != sorted(own):
                expected = order if order is not None else [str(c) for c in np.asarray(class_names).tolist()]
                raise DataError(
                    f"{source} has the classes {', '.join(own)}, {', '.join(expected)} were expected; every party "
                    "needs a column posterior_<class> for each class"
                )
            classes = order
            parties.append(_from_classes(name, [_numbers(table, f"{PREFIX}_{c}") for c in order], source))
        else:
            raise DataError(
                f"{source} has the posterior columns {', '.join(lists + numbers) or 'none'} among "
                f"{', '.join(table.column_names)}; a party's file needs one list column posterior, or a column "
                "posterior_<class> for each class, or for two classes one number column"
            )
    return _stack(parties, ", ".join(sources), class_names if classes is None else _names(classes, class_names))


# ---- columns ------------------------------------------------------------------------------------


def _posterior_columns(table: Any, source: str, on: str | None = None) -> tuple[list[str], list[str]]:
    """Names of the list columns and of the number columns that hold posteriors."""
    import pyarrow.types as kinds

    named = [c for c in table.column_names if c == PREFIX or c.startswith(f"{PREFIX}_")]
    if not named and on is not None:  # a party's file with an id and one more column needs no prefix
        named = [c for c in table.column_names if c != on][: len(table.column_names) if table.num_columns == 2 else 0]
    lists, numbers = [], []
    for column in named:
        kind = table.schema.field(column).type
        if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
            lists.append(column)
        elif kinds.is_floating(kind) or kinds.is_integer(kind) or kinds.is_decimal(kind) or kinds.is_null(kind):
            numbers.append(column)
        else:
            raise DataError(f"{source}: {column} is of type {kind}; posteriors are numbers, or lists of numbers")
    return lists, numbers


def _bare(column: str) -> str:
    return column[len(PREFIX) + 1 :] if column.startswith(f"{PREFIX}_") else ("" if column == PREFIX else column)


def _joined(party: str, name: str) -> str:
    return f"{party}_{name}" if party else name


def _split(values: dict[str, FloatArray], class_names: LabelArray | None) -> tuple[list[str], list[str]] | None:
    """Read number columns `<party>_<class>` apart; None where each is a party of its own (P(class 1)).

    Either name may hold underscores, so every way of splitting is tried, the last underscore first; it must give
    every party the same two or more classes. Classes numbered from 0 are taken at their word; names only where they
    sum to one, because `bank_a` and `bank_b` may well be two parties.
    """
    first = next(iter(values))
    cuts = [i for i, letter in enumerate(first) if letter == "_"][::-1]
    for party, rest in [*((first[:i], first[i + 1 :]) for i in cuts), ("", first)]:
        classes = [c[len(party) + 1 :] for c in values if c.startswith(f"{party}_")] if party else list(values)
        parties = [c[: -len(rest) - 1] for c in values if c.endswith(f"_{rest}")] if party else [""]
        product = {_joined(p, c) for p in parties for c in classes}
        if len(classes) < 2 or len(parties) * len(classes) != len(values) or product != set(values):
            continue
        order = _order(classes, class_names)
        if order is None:
            continue
        certain = party and order == [str(i) for i in range(len(order))]
        if certain or class_names is not None or _sum_to_one(values, parties, order):
            return parties, order
    return None


def _order(classes: list[str], class_names: LabelArray | None) -> list[str] | None:
    """Bring class columns into order: as named, else by number, else as in the file; None where names differ."""
    if class_names is not None:
        wanted = [str(c) for c in class_names.tolist()]
        return wanted if sorted(wanted) == sorted(classes) else None
    numbered = [str(i) for i in range(len(classes))]
    return numbered if sorted(numbered) == sorted(classes) else classes


def _names(classes: list[str], class_names: LabelArray | None) -> LabelArray | None:
    if class_names is not None:
        return class_names
    return None if classes == [str(i) for i in range(len(classes))] else np.array(classes)


def _sum_to_one(values: dict[str, FloatArray], parties: list[str], classes: list[str]) -> bool:
    """Whether most rows sum to one; those that do not are then reported as such."""
    for party in parties:
        total = np.sum([values[_joined(party, c)] for c in classes], axis=0)
        known = total[~np.isnan(total)]
        if len(known) and np.mean(np.abs(known - 1) <= SUM_TOLERANCE) < 0.5:
            return False
    return True


def _numbers(table: Any, column: str) -> FloatArray:
    values: FloatArray = np.asarray(table[column].to_numpy(), dtype=np.float64)
    return values  # null has become NaN


def _from_list(table: Any, column: str, name: str, source: str) -> _Party:
    import pyarrow.compute as pc

    array = table[column].combine_chunks()
    if hasattr(array, "chunks"):  # an old pyarrow returns a chunked array of one chunk
        array = array.chunk(0)
    there = array.is_valid().to_numpy(zero_copy_only=False)
    kept = array.drop_null()
    if not len(kept):
        return _Party(name, None, there)
    lengths = np.unique(pc.list_value_length(kept).to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise DataError(
            f"{source}: the lists of {column} have {', '.join(map(str, lengths[:5]))} entries; all need one a class"
        )
    values = kept.flatten().to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "fiu":
        raise DataError(f"{source}: {column} holds lists of {kept.type.value_type}; posteriors are lists of numbers")
    k = int(lengths[0])
    posterior = np.full((len(there), k), 1 / max(k, 1), dtype=values.dtype if values.dtype.kind == "f" else np.float64)
    posterior[there] = values.reshape(-1, k)
    return _Party(name, posterior, there)


def _from_number(name: str, p: FloatArray) -> _Party:
    there = ~np.isnan(p)
    filled = np.where(there, p, 0.5)
    return _Party(name, np.stack([1 - filled, filled], axis=1), there)


def _from_classes(name: str, columns: list[FloatArray], source: str) -> _Party:
    posterior = np.stack(columns, axis=1)
    blank = np.isnan(posterior)
    there = np.asarray(~blank.all(axis=1))
    if (blank.any(axis=1) & there).any():
        row = int(np.flatnonzero(blank.any(axis=1) & there)[0])
        raise DataError(
            f"{source}: row {row} of {name} is null for some classes only; give all of them, or none where the party "
            "is absent"
        )
    posterior[~there] = 1 / posterior.shape[1]
    return _Party(name, posterior, there)


def _stack(parties: list[_Party], source: str, class_names: LabelArray | None) -> PartyPosteriors:
    sizes = {p.name: p.posterior.shape[1] for p in parties if p.posterior is not None}
    if not sizes:
        raise DataError(f"{source}: no party answered any sample; at least one posterior is needed")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {k}" for name, k in sizes.items())
        raise DataError(f"{source}: the parties differ in the number of classes ({listed}); all need the same")
    k = next(iter(sizes.values()))
    blank = np.full((len(parties[0].present), k), 1 / k)
    local = np.stack([blank if p.posterior is None else p.posterior for p in parties])
    present = np.stack([p.present for p in parties])
    return PartyPosteriors(local, present, tuple(p.name for p in parties), class_names)


def _known(table: Any, column: str, source: str, *, missing: bool) -> LabelArray:
    values = table[column].to_pylist()
    if None in values and not missing:
        raise DataError(f"{source}: {column} is null in {values.count(None)} row(s); fill them in, or drop the rows")
    if None in values and not any(isinstance(v, str) for v in values):
        values = [-1 if v is None else v for v in values]
    return _array(values)


def _array(values: list[Any]) -> LabelArray:
    if None in values:
        return np.array(values, dtype=object)
    array = np.array(values)
    # Ids such as dates or UUIDs become text: an array of objects could not be stored.
    return array.astype(str) if array.dtype.kind not in "iufbUS" else array
