"""The decision log in PostgreSQL, written by any number of coordinators.

Each holds a slot: an advisory lock of the session that writes. The lock ends with the session, however it ends, and a
coordinator that starts takes the first slot that is free.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from itertools import repeat
from typing import Any

import psycopg

from gainroute.errors import DataError, SettingError
from gainroute.federation.audit_chain import START, AuditKey, key_path, read_key
from gainroute.federation.coordinator.decision_log.postgres import PostgresDatabase, Statements
from gainroute.federation.coordinator.decision_log.postgres_schema import (
    MOVED,
    SLOTS,
    day_of,
    drop_days,
    make_days,
    migrate,
)
from gainroute.federation.coordinator.decision_log.store import put_state
from gainroute.federation.coordinator.settings import LogSettings

__all__ = ["PostgresConnection", "PostgresEngine"]

log = logging.getLogger("gainroute.coordinator")

TYPES = {
    "seq": "int8", "sample_id": "text", "request_id": "text", "time": "float8", "local": "bytea", "pooled": "bytea",
    "strong": "bytea", "score": "float8", "threshold": "float8", "probability": "float8", "route": "text",
    "label": "int4", "weak_prediction": "int4", "strong_prediction": "int4", "router": "text", "bytes": "int8",
    "latency": "float8", "explored": "bool", "capped": "bool", "holder": "text", "batch": "text",
}  # fmt: skip
COPY = f"COPY decisions ({', '.join(TYPES)}) FROM STDIN (FORMAT BINARY)"
TURN = "SELECT pg_advisory_xact_lock(hashtext('gainroute turn ' || ? || current_schema()))"
TAKE = "SELECT pg_try_advisory_lock('decisions'::regclass::oid::bigint * 256 + ?)"


class PostgresConnection(Statements):
    """A `LogConnection` to a database."""

    undropped = MOVED

    def __init__(self, raw: psycopg.Connection[Any], key: AuditKey, slot: int) -> None:
        super().__init__(raw)
        self.key, self.slot = key, slot
        self._rows: list[tuple[Any, ...]] = []

    def insert(self, columns: Mapping[str, Any]) -> None:
        """Insert decisions with the commit: columns by name, as `columns_of` makes them."""
        given = [_column(name, columns.get(name)) for name in TYPES]
        self._rows += zip(*(values if isinstance(values, list) else repeat(values) for values in given), strict=False)

    def drop_before(self, seconds: float) -> int:
        """Drop the days that end before that time; returns how many."""
        self.take_turn("retention")
        return drop_days(self, day_of(seconds))

    def take_turn(self, what: str) -> None:
        """Wait until no other coordinator is inside a transaction that took this turn; it ends with the transaction."""
        self.execute(TURN, (what,))

    def flush(self) -> None:
        """Send the decisions that were inserted."""
        rows, self._rows = self._rows, []
        if rows:
            with self.raw.cursor() as cursor, cursor.copy(COPY) as copy:
                copy.set_types([*TYPES.values()])
                for row in rows:
                    copy.write_row(row)

    def forget(self) -> None:
        """Forget the decisions that were inserted."""
        self._rows = []


class PostgresEngine:
    """A `LogEngine` on a database, with one slot of those that its coordinators share."""

    inline = False  # the event loop waits for no other machine
    remedy = "see the database's own log"
    stride = SLOTS
    failures = (psycopg.Error,)
    outages = (psycopg.OperationalError, psycopg.InterfaceError)

    def __init__(self, settings: LogSettings) -> None:
        self.place = PostgresDatabase(settings.url)
        self._slots = settings.coordinators
        key = settings.key or key_path(settings.path.resolve())
        self._key = read_key(key, create=True)
        self._days: set[int] = set()
        try:
            raw = self.place.connect()
            try:
                migrate(raw, str(self.place))
                self._check_key(raw, key)
                self.connection = self._take_slot(raw, None)
                self._compare_shares(raw)
            except BaseException:
                raw.close()
                raise
        except psycopg.Error as error:
            raise DataError(
                f"{self.place}: the decision log cannot be opened ({error}); check log.url, the server and the rights "
                "of its user"
            ) from error

    def _check_key(self, raw: psycopg.Connection[Any], path: Any) -> None:
        """All coordinators chain the audit trail with one key."""
        own = self._key.link(START, "the key of this log")
        raw.execute("INSERT INTO state VALUES ('audit key', %s, 0) ON CONFLICT (name) DO NOTHING", [own])
        if raw.execute("SELECT value FROM state WHERE name = 'audit key'").fetchone() != (own,):
            raise SettingError(
                f"{path}: this is not the key that the audit trail of {self.place} is chained with; copy the key file "
                "of another of its coordinators, or name it in log.key"
            )

    def _compare_shares(self, raw: psycopg.Connection[Any]) -> None:
        """Shares of the cap add up only if all coordinators divide it by the same number."""
        found = raw.execute("SELECT value FROM state WHERE name = 'coordinators'").fetchone()
        if found is not None and int(found[0]) != self._slots:
            log.warning(
                "log.coordinators is %d here, and %s at the coordinator that started last: the cap holds for all "
                "together only if they agree", self._slots, found[0],
            )  # fmt: skip
        put_state(Statements(raw), "coordinators", self._slots)

    def _take_slot(self, raw: psycopg.Connection[Any], wanted: int | None) -> PostgresConnection:
        """Take `wanted`, or else the first slot that is free."""
        order = [*([] if wanted is None else [wanted]), *(slot for slot in range(self._slots) if slot != wanted)]
        connection = PostgresConnection(raw, self._key, 0)
        for slot in order:
            if connection.execute(TAKE, (slot,)).fetchone()[0]:
                connection.slot = slot
                log.info("this coordinator has slot %d of the decision log", slot)
                return connection
        raise psycopg.OperationalError(
            f"{self._slots} coordinators write it already; stop one, or raise log.coordinators for all of them"
        )

    @property
    def active(self) -> bool:
        """Whether a transaction has begun."""
        raw = self.connection.raw
        return not raw.closed and raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def last_number(self) -> int:
        """The greatest decision number."""
        found = self.connection.execute("SELECT seq FROM decisions ORDER BY seq DESC LIMIT 1").fetchone()
        return 0 if found is None else int(found[0])

    def begin(self, wait: float) -> None:  # noqa: ARG002 (the session has its timeouts)
        """Begin a transaction; connects again if needed."""
        try:
            self._begin()
        except (psycopg.OperationalError, psycopg.InterfaceError):
            if not self.connection.raw.closed:
                raise
            raw = self.place.connect()
            try:
                self.connection = self._take_slot(raw, self.connection.slot)
                self._begin()
            except BaseException:
                raw.close()
                raise

    def _begin(self) -> None:
        raw, today = self.connection.raw, day_of(time.time())
        if today not in self._days:
            make_days(raw, (today - 1, today, today + 1))
            self._days |= {today}
        raw.execute("BEGIN")

    def commit(self) -> None:
        """Commit; returns once it is durable."""
        self.connection.flush()
        self.connection.raw.execute("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction; where that is impossible, the connection is closed."""
        self.connection.forget()
        self._days.clear()  # one may be missing
        try:
            if self.active:
                self.connection.raw.execute("ROLLBACK")
        except psycopg.Error:
            self.connection.raw.close()

    def erase(self) -> bool:
        """Nothing: PostgreSQL overwrites deleted rows when it vacuums."""
        return True

    def close(self) -> None:
        """Close the connections, and give up the slot."""
        self.connection.raw.close()
        self.place.close()


def _column(name: str, values: Any) -> Any:
    """Values as PostgreSQL takes them: NULL for a score that is NaN, as SQLite makes it, and text without NUL."""
    if values is None:
        return None
    if name == "score":
        return [None if math.isnan(value) else value for value in values]
    if name in ("explored", "capped"):
        return [bool(value) for value in values] if isinstance(values, list) else bool(values)
    if name == "sample_id":
        return [value.replace("\0", "\ufffd") for value in values]
    return values
