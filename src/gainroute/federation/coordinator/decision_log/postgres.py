"""PostgreSQL as the place of a decision log: connections for writing and for reading. No error shows a password."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gainroute.errors import SettingError

__all__ = ["PREFIX", "PostgresDatabase", "Statements"]

PREFIX = "postgresql+psycopg://"  # as in SQLAlchemy's notation, which parties' settings use
MOST_IDLE = 4  # connections kept for the next reader
# A server that is gone is noticed in about ten seconds, by its client and by itself.
DEFAULTS: dict[str, Any] = {
    "application_name": "gainroute", "connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2,
    "keepalives_count": 3, "tcp_user_timeout": 10_000,
}  # fmt: skip
SESSION = (
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; "
    "SET statement_timeout = '15s'; SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '30s'; "
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)


class Statements:
    """A connection that takes statements as they are written for both engines."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw

    def execute(self, query: str, values: Sequence[Any] = ()) -> Any:
        """Execute a statement; returns a cursor."""
        return self.raw.execute(_translated(query), [_text(value) for value in values])

    def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> Any:
        """Execute a statement once per row."""
        cursor = self.raw.cursor()
        cursor.executemany(_translated(query), [[_text(value) for value in row] for row in rows])
        return cursor


class PostgresDatabase:
    """A database, by its URL. As text it has no password.

    Examples
    --------
    >>> print(PostgresDatabase("postgresql+psycopg://ann:secret@db.example:5433/log?sslmode=verify-full"))
    postgresql://ann@db.example:5433/log
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(PREFIX):
            scheme = url.partition(":")[0][:40]
            raise SettingError(f"log: url begins with {scheme!r}; {PREFIX}user@host/database is needed")
        try:
            given = conninfo_to_dict("postgresql://" + url.removeprefix(PREFIX))
        except psycopg.ProgrammingError:  # its text repeats the URL
            raise SettingError(
                f"log: url cannot be read; {PREFIX}user:password@host:port/database is needed, with special "
                "characters percent-encoded"
            ) from None
        self._conninfo = make_conninfo(**(DEFAULTS | given))
        user, host, port, name = (given.get(key, "") for key in ("user", "host", "port", "dbname"))
        self._shown = f"postgresql://{user and f'{user}@'}{host}{port and f':{port}'}/{name}"
        self._idle: queue.SimpleQueue[psycopg.Connection[Any]] = queue.SimpleQueue()

    def __str__(self) -> str:
        return self._shown

    __repr__ = __str__

    def connect(self) -> psycopg.Connection[Any]:
        """A connection without a transaction, whose commits are durable."""
        connection = psycopg.connect(self._conninfo, autocommit=True)
        try:
            connection.execute(SESSION)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def reading(self) -> Iterator[Statements]:
        """A connection for reading; raises `psycopg.Error`."""
        connection = self._idle_one() or self._reader()
        try:
            yield Statements(connection)
        except psycopg.Error:
            connection.close()
            raise
        except BaseException:
            self._keep(connection)
            raise
        self._keep(connection)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        while (connection := self._idle_one()) is not None:
            connection.close()

    def _reader(self) -> psycopg.Connection[Any]:
        connection = self.connect()
        connection.execute("SET default_transaction_read_only = on")
        connection.row_factory = _rows
        return connection

    def _idle_one(self) -> psycopg.Connection[Any] | None:
        """A connection that still works."""
        while True:
            try:
                connection = self._idle.get_nowait()
            except queue.Empty:
                return None
            try:
                connection.execute("SELECT 1")
            except psycopg.Error:
                connection.close()
            else:
                return connection

    def _keep(self, connection: psycopg.Connection[Any]) -> None:
        if self._idle.qsize() < MOST_IDLE and not connection.closed:
            self._idle.put(connection)
        else:
            connection.close()


@lru_cache(maxsize=256)
def _translated(query: str) -> Any:
    return query.replace("%", "%%").replace("?", "%s")


def _text(value: Any) -> Any:
    """A value as it is; PostgreSQL has no text with NUL."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value


class _Row(tuple[Any, ...]):
    """A row by position or by name, as `sqlite3.Row`."""

    __slots__ = ()
    names: dict[str, int]

    def keys(self) -> Iterable[str]:
        return self.names

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.names[key] if isinstance(key, str) else key)


def _rows(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], _Row]:
    names = {column.name: position for position, column in enumerate(cursor.description or ())}
    return type("_NamedRow", (_Row,), {"names": names, "__slots__": ()})
