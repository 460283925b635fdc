"""Where a party finds its own views by sample id: .npz, Parquet, or a database. A view never leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gainroute._util.files import file_state
from gainroute.errors import DataError, MissingExtraError
from gainroute.federation.party.settings import ViewSettings
from gainroute.io.ids import id_texts, rows_by_id
from gainroute.io.preprocess import Raw
from gainroute.io.views import read_view

__all__ = ["FileViews", "FoundViews", "SqlViews", "ViewStore", "open_views"]

PARAMETERS = 500  # ids a query: every database takes that many


@dataclass(frozen=True)
class FoundViews:
    """Views of the samples that are there.

    Attributes
    ----------
    positions
        (F,) where they stand among the ids asked for, ascending.
    raw
        (F, …) array, or columns of a table, in the same order.
    """

    positions: npt.NDArray[np.int64]
    raw: Raw


class ViewStore(Protocol):
    """Finds views by sample id."""

    def fetch(self, ids: Sequence[str]) -> FoundViews:
        """Views of those ids that are there. An id is matched by its text."""
        ...

    def close(self) -> None:
        """Let go of what is held."""
        ...


def open_views(settings: ViewSettings) -> ViewStore | None:
    """The store that settings name; None where they name none."""
    if settings.path is not None:
        return FileViews(settings.path, settings.id_column)
    if settings.url:
        return SqlViews(settings.url, settings.table, settings.id_column, settings.columns)
    return None


class FileViews:
    """Views in a file, held in memory; a changed file is read again.

    Parameters
    ----------
    path
        .npz with `ids` and `x`, or Parquet with an id column.
    id_column
        Of Parquet.
    """

    def __init__(self, path: Path, id_column: str = "id") -> None:
        self._path, self._id_column = path, id_column
        self._state = file_state(path)
        self._rows, self._raw = self._read()

    def _read(self) -> tuple[dict[str, int], Raw]:
        view = read_view(self._path, id_column=self._id_column)
        if view.ids is None:
            raise DataError(f"{self._path} has no ids: add an array 'ids', one a sample")
        return rows_by_id(id_texts(view.ids.tolist()), str(self._path)), view.raw

    def fetch(self, ids: Sequence[str]) -> FoundViews:
        """Views of those ids that are there."""
        state = file_state(self._path)
        if state != self._state and None not in state:
            self._rows, self._raw = self._read()
            self._state = state
        found = [(position, self._rows[text]) for position, text in enumerate(ids) if text in self._rows]
        positions, rows = np.array(found, dtype=np.int64).reshape(-1, 2).T
        raw = self._raw
        taken = raw[rows] if isinstance(raw, np.ndarray) else {name: values[rows] for name, values in raw.items()}
        return FoundViews(positions, taken)

    def close(self) -> None:
        """Nothing to let go of."""


class SqlViews:
    """Views in a table of a database.

    Parameters
    ----------
    url
        As SQLAlchemy writes it.
    table
        Its name; ``schema.table`` is allowed.
    id_column
        Text or whole numbers, unique.
    columns
        That make up the view; all but the id where none are named.
    """

    def __init__(self, url: str, table: str, id_column: str = "id", columns: Sequence[str] = ()) -> None:
        try:
            import sqlalchemy as sa
        except ImportError:
            raise MissingExtraError("reading views from a database", "serve") from None
        try:
            self._engine = sa.create_engine(url, pool_pre_ping=True)
        except (sa.exc.SQLAlchemyError, ImportError) as error:
            raise _unusable(error) from None
        try:
            self._prepare(table, id_column, columns)
        except (sa.exc.SQLAlchemyError, DataError) as error:
            self._engine.dispose()
            raise error if isinstance(error, DataError) else _unusable(error) from None

    def _prepare(self, table: str, id_column: str, columns: Sequence[str]) -> None:
        import sqlalchemy as sa

        schema, _, bare = table.rpartition(".")
        try:
            found = sa.Table(bare, sa.MetaData(), autoload_with=self._engine, schema=schema or None)
        except sa.exc.NoSuchTableError:
            raise DataError(f"the database has no table {table!r}: check views.table") from None
        names = [column.name for column in found.columns]
        wanted = list(columns) or [name for name in names if name != id_column]
        absent = [name for name in (id_column, *wanted) if name not in names]
        if absent or not wanted:
            told = repr(absent[0]) if absent else "beside the id"
            raise DataError(f"table {table!r} has no column {told}; it has {', '.join(names)}")
        self._id = found.columns[id_column]
        self._whole = isinstance(self._id.type, sa.Integer)
        if not self._whole and not isinstance(self._id.type, sa.String):
            raise DataError(f"column {id_column!r} is of type {self._id.type}; ids are text or whole numbers")
        self._names = wanted
        self._select = sa.select(self._id, *(found.columns[name] for name in wanted))

    def fetch(self, ids: Sequence[str]) -> FoundViews:
        """Views of those ids that are there."""
        keys = {text: key for text in ids if (key := self._key(text)) is not None}
        rows: dict[str, Any] = {}
        asked = list(keys.values())
        with self._engine.connect() as connection:
            for start in range(0, len(asked), PARAMETERS):
                query = self._select.where(self._id.in_(asked[start : start + PARAMETERS]))
                rows |= {str(row[0]): row[1:] for row in connection.execute(query)}
        positions = [position for position, text in enumerate(ids) if text in rows]
        taken = [rows[ids[position]] for position in positions]
        columns = {name: _column([row[i] for row in taken]) for i, name in enumerate(self._names)}
        return FoundViews(np.array(positions, dtype=np.int64), columns)

    def _key(self, text: str) -> Any:
        if not self._whole:
            return None if "\0" in text else text  # no database holds a NUL in a text
        digits = text.removeprefix("-")
        whole = digits.isascii() and digits.isdigit() and len(digits) < 19 and str(int(text)) == text
        return int(text) if whole else None

    def close(self) -> None:
        """Let go of the connections."""
        self._engine.dispose()


def _unusable(error: Exception) -> DataError:
    told = type(error).__name__  # its text may hold the password
    return DataError(f"the database of views cannot be used ({told}): check views.url, driver and rights")


def _column(values: list[Any]) -> npt.NDArray[Any]:
    from decimal import Decimal

    plain = [float(value) if isinstance(value, Decimal) else value for value in values]
    if any(value is None or isinstance(value, str) for value in plain) or not plain:
        return np.array([*plain, None], dtype=object)[:-1]
    return np.array(plain)
