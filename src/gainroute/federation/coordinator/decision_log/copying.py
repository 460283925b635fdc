"""Copying a decision log between an SQLite file and PostgreSQL: to move it, and to read it with other tools."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from gainroute.errors import DataError
from gainroute.federation.audit_chain import key_path, read_key
from gainroute.federation.audit_trail import verify
from gainroute.federation.coordinator.decision_log.engine import LogConnection, LogEngine, ReadConnection
from gainroute.federation.coordinator.decision_log.postgres_engine import PostgresEngine
from gainroute.federation.coordinator.decision_log.schema import COLUMNS, MIGRATIONS, connect, migrate
from gainroute.federation.coordinator.decision_log.store import reading
from gainroute.federation.coordinator.settings import LogSettings

__all__ = ["copy_from_file", "copy_to_file"]

TABLES = {  # in the order of their references
    "decisions": COLUMNS,
    "feedback": ("seq", "label", "time", "who", "probability"),
    "unwatched": ("number", "seq", "slot"),
    "audit": ("number", "time", "who", "request_id", "action", "before", "after", "chain"),
    "state": ("name", "value", "time"),
    "asked": ("number", "batch", "round", "time", "samples", "failed"),
}
CHUNK = 5000


def copy_from_file(file: Path, settings: LogSettings) -> int:
    """Copy a file into the empty database of `settings`; returns the number of decisions, which keep their ids.

    All or nothing. The key of the file's audit trail must be that of `settings`.
    """
    if not file.is_file():
        raise DataError(f"{file}: no such decision log; name the file that [log] path has been so far")
    trail = verify([file], read_key(settings.key or key_path(settings.path.resolve()), create=True))
    if trail.problem:
        raise DataError(f"{trail.problem}; name the key of this file in log.key, by default {key_path(file)}")
    engine = PostgresEngine(settings)
    try:
        with reading(file) as source:
            (version,) = source.execute("PRAGMA user_version").fetchone()
            if version != len(MIGRATIONS):
                raise DataError(
                    f"{file}: it has schema version {version}, {len(MIGRATIONS)} is needed; start the coordinator of "
                    "this version once with the file, and stop it"
                )
            if engine.last_number() or engine.connection.execute("SELECT 1 FROM audit LIMIT 1").fetchone():
                raise DataError(f"{engine.place}: it has decisions or audit entries; name an empty database")
            return _fill(engine, source)
    finally:
        engine.close()


def _fill(engine: LogEngine, source: ReadConnection) -> int:
    engine.begin(wait=0.0)
    try:
        connection = engine.connection
        connection.execute("SET LOCAL statement_timeout = 0")
        copied = 0
        for rows in _chunks(source, "decisions"):
            columns = {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}
            connection.insert(columns)
            connection.flush()  # type: ignore[attr-defined]
            copied += len(rows)
        for table in [*TABLES][1:]:
            for rows in _chunks(source, table):
                _insert(connection, table, rows, " ON CONFLICT DO NOTHING")
        for table in ("unwatched", "asked"):
            last = f"(SELECT coalesce(max(number), 0) + 1 FROM {table})"  # noqa: S608 (our own texts)
            connection.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'number'), {last}, false)")
        engine.commit()
    except BaseException:
        engine.rollback()
        raise
    return copied


def copy_to_file(settings: LogSettings, file: Path) -> int:
    """Copy the database of `settings` into a new file; returns the number of decisions. Others may be writing it."""
    from gainroute.federation.coordinator.decision_log.postgres import PostgresDatabase

    if file.exists():
        raise DataError(f"{file} exists; name a new file")
    copied = 0
    place = PostgresDatabase(settings.url)
    try:
        with closing(connect(str(file))) as target, reading(place) as source:
            migrate(target, str(file))
            source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")  # one moment of all tables
            target.execute("BEGIN")
            for table in TABLES:
                for rows in _chunks(source, table):
                    _insert(target, table, rows, "")
                    copied += len(rows) if table == "decisions" else 0
            source.execute("COMMIT")
            target.execute("COMMIT")
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    finally:
        place.close()
    return copied


def _chunks(source: ReadConnection, table: str) -> Iterator[list[Any]]:
    """Rows of a table in the order of its key."""
    columns = TABLES[table]
    key, last = columns[0], None
    while True:
        after = "" if last is None else f"WHERE {key} > ?"
        query = f"SELECT {', '.join(columns)} FROM {table} {after} ORDER BY {key} LIMIT {CHUNK}"  # noqa: S608
        rows = source.execute(query, () if last is None else (last,)).fetchall()
        if not rows:
            return
        last = rows[-1][0]
        yield [tuple(row) for row in rows]


def _insert(connection: LogConnection | sqlite3.Connection, table: str, rows: list[Any], more: str) -> None:
    columns = TABLES[table]
    marks = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}){more}", rows)  # noqa: S608
