"""Tables that are split by columns: reading CSV files, and the view of each organisation as a structured array."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError

__all__ = ["Holder", "class_numbers", "first_file", "read_csv"]

Table = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Holder:
    """A party, and the columns that it holds.

    Attributes
    ----------
    name
        Of the party.
    numbers
        Columns that are used as they are.
    amounts
        Sums of money: sign(x) · log(1 + |x|), because few of them are very large.
    categories
        Columns whose values have no order; numbers are codes there.
    """

    name: str
    numbers: tuple[str, ...] = ()
    amounts: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.numbers, *self.amounts, *self.categories)

    def view(self, table: Table) -> npt.NDArray[Any]:
        """The party's columns of a table of texts, as a structured array (N,) with one field per column."""
        made: dict[str, npt.NDArray[Any]] = {name: table[name] for name in self.categories}
        made |= {name: _as_numbers(name, table[name]) for name in (*self.numbers, *self.amounts)}
        for name in self.amounts:
            made[name] = np.sign(made[name]) * np.log1p(np.abs(made[name]))
        view = np.empty(len(table[self.columns[0]]), dtype=[(name, made[name].dtype) for name in self.columns])
        for name in self.columns:
            view[name] = made[name]
        return view


def _as_numbers(name: str, texts: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    try:
        return texts.astype(np.float64)
    except ValueError as error:
        raise DataError(f"column {name!r} holds something that is no number ({error}): check the file") from None


def first_file(folder: Path, *names: str, remedy: str) -> Path:
    """The first of these files that the folder holds; raises DataError if it holds none."""
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise DataError(f"{folder} holds none of {', '.join(names)}: {remedy}")
    return found


def read_csv(path: Path, names: Sequence[str] | None = None, *, header: str | None = None) -> dict[str, Any]:
    """Columns of a CSV file by name, as arrays of texts without blanks around them.

    Parameters
    ----------
    path
        The file. Empty lines and lines that begin with "|" are left out.
    names
        Of the columns, if the file has no header.
    header
        The first cell of the header, if lines come before it.
    """
    with path.open(encoding="utf-8", newline="") as file:
        lines = [[cell.strip() for cell in line] for line in csv.reader(file) if line and not line[0].startswith("|")]
    if names is None:
        starts = (i for i, line in enumerate(lines) if header is None or line[0] == header)
        first = next(starts, None)
        if first is None:
            raise DataError(f"{path} has no header that begins with {header or 'a name'}: export the table again")
        names, lines = lines[first], lines[first + 1 :]
    if not lines:
        raise DataError(f"{path} holds no row: fetch the file again")
    short = next((i for i, line in enumerate(lines) if len(line) != len(names)), None)
    if short is not None:
        raise DataError(
            f"{path}: row {short} has {len(lines[short])} cells, but there are {len(names)} columns: fetch it again"
        )
    return dict(zip(names, np.array(lines).T, strict=True))


def class_numbers(texts: npt.NDArray[Any], classes: Sequence[str], path: Path) -> npt.NDArray[np.int64]:
    """Labels as 0 … K − 1 from their texts."""
    strange = sorted(set(texts.tolist()) - set(classes))
    if strange:
        raise DataError(f"{path} has the label {strange[0]!r}: allowed are {', '.join(classes)}")
    return np.array([classes.index(text) for text in texts.tolist()], dtype=np.int64)
