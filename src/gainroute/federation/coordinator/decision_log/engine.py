"""What the decision log needs of a database. There are two engines: an SQLite file, and PostgreSQL.

SQL is written once, for both, with ``?`` for values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gainroute.federation.audit_chain import AuditKey

if TYPE_CHECKING:
    from gainroute.federation.coordinator.decision_log.postgres import PostgresDatabase

__all__ = ["LogConnection", "LogEngine", "Place", "ReadConnection"]

Place: TypeAlias = "Path | PostgresDatabase"  # of a log: its file, or its database


class ReadConnection(Protocol):
    """A connection for reading; its rows are accessed by position or by name."""

    def execute(self, query: str, values: Sequence[Any] = ..., /) -> Any:
        """Execute a statement; returns a cursor."""
        ...


class LogConnection(Protocol):
    """A connection inside the writer's transaction; its rows are tuples."""

    key: AuditKey  # of the audit trail
    slot: int  # of this coordinator among those that share the log; 0 if it is the only one
    undropped: int  # decisions with a smaller number are deleted one by one, and not by `drop_before`

    def execute(self, query: str, values: Sequence[Any] = ..., /) -> Any:
        """Execute a statement; returns a cursor."""
        ...

    def executemany(self, query: str, rows: Iterable[Any], /) -> Any:
        """Execute a statement once per row."""
        ...

    def insert(self, columns: Mapping[str, Any]) -> None:
        """Insert decisions: columns by name, as `columns_of` makes them; a missing column is NULL."""
        ...

    def drop_before(self, seconds: float) -> int:
        """Drop the days that end before that time, in seconds since 1970, if there are such; returns how many."""
        ...

    def take_turn(self, what: str) -> None:
        """Wait until no other coordinator is inside a transaction that took this turn; it ends with the transaction."""
        ...


class LogEngine(Protocol):
    """The database of a decision log, open for writing. Used by one thread at a time."""

    inline: bool  # whether a lone request may be written in the event loop
    remedy: str  # what to do about a failure
    stride: int  # decision numbers are microseconds × stride + slot

    @property
    def place(self) -> Place:
        """Where the log is."""
        ...

    @property
    def connection(self) -> LogConnection:
        """The connection in use."""
        ...

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """Errors of the database."""
        ...

    @property
    def outages(self) -> tuple[type[Exception], ...]:
        """Those of them that no single row can be the cause of."""
        ...

    @property
    def active(self) -> bool:
        """Whether a transaction has begun."""
        ...

    def last_number(self) -> int:
        """The greatest decision number."""
        ...

    def begin(self, wait: float) -> None:
        """Begin a transaction, and wait at most that many seconds for another program; connects again if needed."""
        ...

    def commit(self) -> None:
        """Commit; returns once it is durable."""
        ...

    def rollback(self) -> None:
        """Undo the transaction; where that is impossible, the connection is closed."""
        ...

    def erase(self) -> bool:
        """Remove what deleted rows left behind; False if a reader prevents it."""
        ...

    def close(self) -> None:
        """Close the connection, and give up what is held."""
        ...
