"""Views in a database table, by SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError, MissingExtraError
from gainroute.federation.party.settings import ViewSettings
from gainroute.federation.party.views import FoundViews

__all__ = ["DatabaseViews", "open_database_views"]

PARAMETERS = 500  # ids per query: every database accepts that many


class DatabaseViews:
    """Views in a database table.

    Parameters
    ----------
    url
        In SQLAlchemy's notation.
    table
        Name of the table; ``schema.table`` is allowed.
    id_column
        Column of unique ids, text or whole numbers.
    columns
        Columns that make up the view; by default all but the id.
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
            what = repr(absent[0]) if absent else "besides the id"
            raise DataError(f"table {table!r} has no column {what}; it has {', '.join(names)}")
        self._id = found.columns[id_column]
        self._whole = isinstance(self._id.type, sa.Integer)
        if not self._whole and not isinstance(self._id.type, sa.String):
            raise DataError(f"column {id_column!r} is of type {self._id.type}; ids are text or whole numbers")
        self._names = wanted
        self._select = sa.select(self._id, *(found.columns[name] for name in wanted))

    def fetch(self, ids: Sequence[str]) -> FoundViews:
        """Return the views of those ids that exist."""
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
            return None if "\0" in text else text  # no database stores NUL in text
        digits = text.removeprefix("-")
        whole = digits.isascii() and digits.isdigit() and len(digits) < 19 and str(int(text)) == text
        return int(text) if whole else None

    def close(self) -> None:
        """Close the database connections."""
        self._engine.dispose()


def _unusable(error: Exception) -> DataError:
    kind = type(error).__name__  # the text of the error may contain the password
    return DataError(f"the database of views cannot be used ({kind}): check views.url, the driver and permissions")


def _column(values: list[Any]) -> npt.NDArray[Any]:
    from decimal import Decimal

    plain = [float(value) if isinstance(value, Decimal) else value for value in values]
    if any(value is None or isinstance(value, str) for value in plain) or not plain:
        return np.array([*plain, None], dtype=object)[:-1]
    return np.array(plain)


def open_database_views(settings: ViewSettings) -> DatabaseViews:
    """Open `table` of the database at `url`."""
    return DatabaseViews(settings.url, settings.table, settings.id_column, settings.columns)
