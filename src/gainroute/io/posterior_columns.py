"""Posteriors in Parquet tables: which columns belong to which party, who is absent, and joining one file per party."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gainroute.errors import DataError
from gainroute.io.ids import rows_by_id
from gainroute.io.tables import ColumnTable
from gainroute.routing.inputs import SUM_TOLERANCE
from gainroute.routing.types import BoolArray, FloatArray, LabelArray

__all__ = [
    "as_labels", "holds_posteriors", "join", "null_error", "read_known", "read_parties", "read_party_files",
]  # fmt: skip

PREFIX = "posterior"


@dataclass(frozen=True, eq=False)
class _Party:
    name: str
    posterior: FloatArray | None  # None: absent from every sample
    present: BoolArray


# ---- one file, all parties ----------------------------------------------------------------------


def read_parties(
    table: ColumnTable, class_names: LabelArray | None = None, shape: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Find every party's posterior among the columns `posterior…`, as fields of `Outcomes`.

    `shape` is the number of parties and of columns per party, if they are known. How columns are read then depends on
    their names and types only, so that all pieces of a table are read alike.
    """
    lists, numbers = _posterior_columns(table)
    source = table.source
    if lists and numbers:
        raise DataError(
            f"{source}: {lists[0]} is a list column and {numbers[0]} holds single numbers; one form for all parties is "
            "needed"
        )
    if not lists and not numbers:
        raise DataError(
            f"{source} has no column posterior_<party>; it has {', '.join(table.names)}: add one list column per "
            "party, or columns posterior_<party>_<class>"
        )
    if lists:
        return _stack([_from_list(table, c, _bare(c) or "party") for c in lists], source, class_names, shape)
    values = {_bare(c): table.numbers(c) for c in numbers}
    split = _split(values, class_names, shape)
    if split is None:  # one number per party: P(class 1)
        return _stack([_from_number(name or "party", value) for name, value in values.items()], source, class_names)
    parties, classes = split
    found = [_from_classes(table, party or "party", [values[_joined(party, c)] for c in classes]) for party in parties]
    return _stack(found, source, _names(classes, class_names))


def read_known(table: ColumnTable) -> dict[str, Any]:
    """Read the other columns of a table: labels, the strong route's answers, ids, weights."""
    known = [c for c in ("id", "label", "strong_prediction", "weak_prediction", "sample_weight") if c in table]
    fields = {"id": "ids", "label": "labels"}
    found: dict[str, Any] = {fields.get(c, c): _known(table, c, missing=c == "strong_prediction") for c in known}
    if "strong_posterior" in table:
        strong = _from_list(table, "strong_posterior", "strong_posterior")
        if strong.posterior is None or not strong.present.all():
            raise DataError(
                f"{table.source}: strong_posterior is null in some rows; give it for all, or strong_prediction"
            )
        found["strong_posterior"] = strong.posterior
    return found


# ---- one file per party -------------------------------------------------------------------------


def join(tables: Sequence[ColumnTable], on: str) -> tuple[list[ColumnTable], list[int]]:
    """Keep the samples that every table has, in the order of the first, and count those each table loses."""
    places = []
    for table in tables:
        table.require(on, remedy="--on names the column that identifies a sample in every file")
        places.append(rows_by_id(table.objects(on), table.source, on))
    common = [key for key in places[0] if all(key in place for place in places[1:])]
    if not common:
        samples = "; ".join(
            f"{table.source}: {table.type_name(on)}, such as {next(iter(place), None)!r}"
            for table, place in zip(tables, places, strict=True)
        )
        raise DataError(f"no {on} is in every file ({samples}); the ids must be of the same type and spelling")
    joined = [table.take([place[key] for key in common]) for table, place in zip(tables, places, strict=True)]
    return joined, [len(place) - len(common) for place in places]


def read_party_files(tables: Sequence[ColumnTable], on: str, class_names: LabelArray | None = None) -> dict[str, Any]:
    """Read one party per table; the name of the file is the name of the party."""
    parties, classes = [], None
    for table in tables:
        source, name = table.source, Path(table.source).stem
        lists, numbers = _posterior_columns(table, on)
        if len(lists) == 1 and not numbers:
            parties.append(_from_list(table, lists[0], name))
        elif len(numbers) == 1 and not lists:
            parties.append(_from_number(name, table.numbers(numbers[0])))
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
            parties.append(_from_classes(table, name, [table.numbers(f"{PREFIX}_{c}") for c in order]))
        else:
            raise DataError(
                f"{source} has the posterior columns {', '.join(lists + numbers) or 'none'} among "
                f"{', '.join(table)}; a party's file needs one list column posterior, or a column posterior_<class> "
                "for each class, or for two classes one number column"
            )
    sources = ", ".join(table.source for table in tables)
    return _stack(parties, sources, class_names if classes is None else _names(classes, class_names))


# ---- columns ------------------------------------------------------------------------------------


def holds_posteriors(column: str) -> bool:
    """Whether a column is one of posteriors, by its name."""
    return column == PREFIX or column.startswith(f"{PREFIX}_")


def _posterior_columns(table: ColumnTable, on: str | None = None) -> tuple[list[str], list[str]]:
    """Names of the list columns and of the number columns that hold posteriors."""
    named = [c for c in table if holds_posteriors(c)]
    if not named and on is not None and len(table.columns) == 2:
        named = [c for c in table if c != on]  # a party's file with an id and one more column needs no prefix
    lists = [c for c in named if table.is_list(c)]
    numbers = [c for c in named if table.is_number(c)]
    for column in named:
        if column not in lists and column not in numbers:
            raise DataError(
                f"{table.source}: {column} is of type {table.type_name(column)}; posteriors are numbers, or lists of "
                "numbers"
            )
    return lists, numbers


def _bare(column: str) -> str:
    return column[len(PREFIX) + 1 :] if column.startswith(f"{PREFIX}_") else ("" if column == PREFIX else column)


def _joined(party: str, name: str) -> str:
    return f"{party}_{name}" if party else name


def _split(
    values: dict[str, FloatArray], class_names: LabelArray | None, shape: tuple[int, int] | None = None
) -> tuple[list[str], list[str]] | None:
    """Read number columns `<party>_<class>` apart; None if each is a party of its own (P(class 1)).

    Either name may hold underscores, so every way of splitting is tried, the last underscore first; it must give
    every party the same two or more classes. Where their numbers are known, they decide. Else classes numbered from 0
    are always accepted, and names only where they sum to one, because `bank_a` and `bank_b` may well be two parties.
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
        if order is None or shape not in (None, (len(parties), len(order))):
            continue
        certain = party and order == [str(i) for i in range(len(order))]
        if certain or shape is not None or class_names is not None or _sum_to_one(values, parties, order):
            return parties, order
    return None


def _order(classes: list[str], class_names: LabelArray | None) -> list[str] | None:
    """Order class columns: as named, else by number, else as in the file; None if the names differ."""
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
    """Whether most rows sum to one; the others are then reported as errors."""
    for party in parties:
        total = np.sum([values[_joined(party, c)] for c in classes], axis=0)
        known = total[~np.isnan(total)]
        if len(known) and np.mean(np.abs(known - 1) <= SUM_TOLERANCE) < 0.5:
            return False
    return True


def _from_list(table: ColumnTable, column: str, name: str) -> _Party:
    posterior, there = table.matrix(column)
    if not there.any():
        return _Party(name, None, there)
    posterior[~there] = 1 / max(posterior.shape[1], 1)
    return _Party(name, posterior, there)


def _from_number(name: str, p: FloatArray) -> _Party:
    there = ~np.isnan(p)
    filled = np.where(there, p, 0.5)
    return _Party(name, np.stack([1 - filled, filled], axis=1), there)


def _from_classes(table: ColumnTable, name: str, columns: list[FloatArray]) -> _Party:
    posterior = np.stack(columns, axis=1)
    blank = np.isnan(posterior)
    there = np.asarray(~blank.all(axis=1))
    if (blank.any(axis=1) & there).any():
        row = table.first_row + int(np.flatnonzero(blank.any(axis=1) & there)[0])
        raise DataError(
            f"{table.source}: row {row} of {name} is null for some classes only; give all of them, or none where "
            "the party is absent"
        )
    posterior[~there] = 1 / posterior.shape[1]
    return _Party(name, posterior, there)


def _stack(
    parties: list[_Party], source: str, class_names: LabelArray | None, shape: tuple[int, int] | None = None
) -> dict[str, Any]:
    sizes = {p.name: p.posterior.shape[1] for p in parties if p.posterior is not None}
    if not sizes and shape is None:
        raise DataError(f"{source}: no party answered any sample; at least one posterior is needed")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {k}" for name, k in sizes.items())
        raise DataError(f"{source}: the parties differ in the number of classes ({listed}); all need the same")
    k = next(iter(sizes.values()), shape[1] if shape else 0)
    blank = np.full((len(parties[0].present), k), 1 / k)
    local = np.stack([blank if p.posterior is None else p.posterior for p in parties])
    present = np.stack([p.present for p in parties])
    names = tuple(p.name for p in parties)
    return {"local_posteriors": local, "present": present, "party_names": names, "class_names": class_names}


def _known(table: ColumnTable, column: str, *, missing: bool) -> LabelArray:
    values = table.objects(column)
    if None in values and not missing:
        raise null_error(table, column, values.count(None), values.index(None))
    if None in values and not any(isinstance(v, str) for v in values):
        values = [-1 if v is None else v for v in values]
    return as_labels(values)


def null_error(table: ColumnTable, column: str, count: int, first: int) -> DataError:
    """The error for a column that must not be null, with the number of such rows and the first of them."""
    return DataError(
        f"{table.source}: {column} is null in {count} row(s), the first is row {table.first_row + first}; fill them "
        "in, or drop the rows"
    )


def as_labels(values: list[Any]) -> LabelArray:
    """Labels or ids as an array: dates and other objects become text, because objects could not be stored."""
    if None in values:
        return np.array(values, dtype=object)
    array = np.array(values)
    return array.astype(str) if array.dtype.kind not in "iufbUS" else array
