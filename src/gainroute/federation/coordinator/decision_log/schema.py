"""The decision log's tables, by version; an older file is migrated when it is opened.

A released migration is never edited: changes are appended as a new one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gainroute.errors import ArtifactVersionError
from gainroute.federation.audit_chain import AuditKey
from gainroute.federation.coordinator.decision_log.rows import insert_rows

__all__ = [
    "BUSY_SECONDS", "COLUMNS", "JOURNAL_PAGES", "MIGRATIONS", "SqliteConnection", "connect", "decision_id", "erase",
    "migrate", "prepare", "sequence",
]  # fmt: skip

# `seq` is microseconds since 1970, or one more than the last: ordered by time, and unique across restarts.
# Posteriors are float32, little-endian: local (M, K′) with NaN for a party that lacks the sample; pooled, strong (K,).
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE decisions (
        seq INTEGER PRIMARY KEY,
        sample_id TEXT NOT NULL,
        request_id TEXT NOT NULL,
        time REAL NOT NULL,
        local BLOB,
        pooled BLOB,
        strong BLOB,
        score REAL,
        threshold REAL NOT NULL,
        probability REAL NOT NULL,
        route TEXT NOT NULL,
        label INTEGER NOT NULL,
        weak_prediction INTEGER NOT NULL,
        strong_prediction INTEGER,
        router TEXT NOT NULL,
        bytes INTEGER NOT NULL,
        latency REAL NOT NULL
    );
    CREATE INDEX decisions_by_sample ON decisions (sample_id);
    CREATE TABLE feedback (
        seq INTEGER PRIMARY KEY REFERENCES decisions (seq) ON DELETE CASCADE,
        label INTEGER NOT NULL,
        time REAL NOT NULL,
        who TEXT NOT NULL
    );
    CREATE TABLE audit (
        number INTEGER PRIMARY KEY,
        time REAL NOT NULL,
        who TEXT NOT NULL,
        request_id TEXT NOT NULL,
        action TEXT NOT NULL,
        before TEXT NOT NULL,
        after TEXT NOT NULL
    );
    CREATE TABLE state (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL,
        time REAL NOT NULL
    );
    """,
    # `explored` is NULL where there was no exploration. `feedback.probability` is as given with the feedback.
    # `unwatched`: labels that the drift monitor has not read yet, in order; numbers are never reused.
    """
    ALTER TABLE decisions ADD COLUMN explored INTEGER;
    ALTER TABLE decisions ADD COLUMN capped INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE feedback ADD COLUMN probability REAL;
    CREATE TABLE unwatched (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        seq INTEGER NOT NULL REFERENCES decisions (seq) ON DELETE CASCADE
    );
    """,
    # `holder` of the token that asked; NULL for older rows, and where no token was needed.
    """
    ALTER TABLE decisions ADD COLUMN holder TEXT;
    CREATE INDEX decisions_by_holder ON decisions (holder) WHERE holder IS NOT NULL;
    """,
    # `asked`: what the parties were asked for, one row per batch and round; `failed` is a JSON list of the parties that
    # gave no usable answer, empty if there are none; or an object with the number of samples by party beside them.
    # `audit.chain` makes the entries tamper-evident.
    """
    ALTER TABLE decisions ADD COLUMN batch TEXT;
    CREATE TABLE asked (
        number INTEGER PRIMARY KEY,
        batch TEXT NOT NULL,
        round INTEGER NOT NULL,
        time REAL NOT NULL,
        samples INTEGER NOT NULL,
        failed TEXT NOT NULL
    );
    ALTER TABLE audit ADD COLUMN chain TEXT;
    """,
    # `slot` of the coordinator that monitors the label; a file has one coordinator, with slot 0.
    """
    ALTER TABLE unwatched ADD COLUMN slot INTEGER NOT NULL DEFAULT 0;
    """,
)

BUSY_SECONDS = 10.0  # how long a write waits for another process
JOURNAL_PAGES = 4000  # after which SQLite checkpoints the journal

COLUMNS = (
    "seq", "sample_id", "request_id", "time", "local", "pooled", "strong", "score", "threshold", "probability",
    "route", "label", "weak_prediction", "strong_prediction", "router", "bytes", "latency", "explored",
    "capped", "holder", "batch",
)  # fmt: skip


def decision_id(seq: int) -> str:
    """The public name of a decision.

    Examples
    --------
    >>> decision_id(255), sequence("00000000000000ff"), sequence("ff")
    ('00000000000000ff', 255, None)
    """
    return f"{seq:016x}"


def sequence(name: str) -> int | None:
    """The number of a decision by its name; None if it is not a valid name."""
    try:
        seq = int(name, 16)
    except ValueError:
        return None
    return seq if 0 <= seq < 2**63 and decision_id(seq) == name else None


class SqliteConnection(sqlite3.Connection):
    """A `LogConnection` to a file."""

    key: AuditKey
    slot = 0
    undropped = 2**63 - 1

    def insert(self, columns: Mapping[str, Any]) -> None:
        """Insert decisions: columns by name, as `columns_of` makes them; a missing column is NULL."""
        insert_rows(self, columns)

    def drop_before(self, seconds: float) -> int:  # noqa: ARG002 (a file has no days)
        """Drop nothing."""
        return 0

    def take_turn(self, what: str) -> None:
        """Do nothing: a file has one writer."""


def connect(path: str, *, max_bytes: int = 0) -> SqliteConnection:
    """Open a log for writing: WAL, commits synced to disk, deleted data overwritten, readable by its owner only."""
    _make_private(path)
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS, factory=SqliteConnection
    )
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON",
                       f"wal_autocheckpoint={JOURNAL_PAGES}"):  # fmt: skip
            connection.execute(f"PRAGMA {pragma}")
        if max_bytes:
            (page,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count={max(1, max_bytes // page)}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _make_private(path: str) -> None:
    """Create the file for its owner only; SQLite gives its journal the same mode.

    Earlier versions left the mode to the umask: a file that everyone can read is closed; what a group may do stays.
    """
    with suppress(OSError):  # SQLite reports what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for file in (path, f"{path}-wal", f"{path}-shm"):
        with suppress(OSError):
            if os.stat(file).st_mode & 0o007:  # noqa: PTH116
                os.chmod(file, 0o600)  # noqa: PTH101


def erase(connection: sqlite3.Connection, path: str) -> bool:
    """Remove what deleted rows left behind; returns False if a reader prevents it.

    SQLite overwrites deleted rows, but pages of an index keep copies when they are split, and the journal keeps the
    pages as they were. Takes about a second per million decisions, in which nothing else is written.
    """
    connection.execute("REINDEX decisions_by_sample")
    (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    prepare(connection, path)
    return not busy


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Give the journal its full size now, in zeros, which SQLite reads as its end.

    A commit then overwrites existing blocks. A file that grows makes the disk write its length too, which takes about
    as long again.
    """
    page, version = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_size", "user_version"))
    with suppress(sqlite3.Error, OSError):  # only speed depends on it
        connection.execute(f"PRAGMA user_version={version}")  # a write, which creates the journal
        with Path(f"{path}-wal").open("r+b", buffering=0) as journal:
            size = journal.seek(0, os.SEEK_END)
            wanted = max(JOURNAL_PAGES * (page + 24) + 32 - size, 0)
            written = 0
            try:
                written = journal.write(bytes(wanted)) or 0
                os.fsync(journal.fileno())
            finally:
                if written < wanted:  # a disk that is nearly full: what room there is belongs to the decisions
                    journal.truncate(size)


def migrate(connection: sqlite3.Connection, path: str, migrations: Sequence[str] = MIGRATIONS) -> int:
    """Migrate a log, each step in a transaction; returns the number of steps."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(migrations):
        raise ArtifactVersionError(
            f"{path}: the decision log has schema version {version}, this gainroute writes {len(migrations)}; upgrade "
            "gainroute, or name another file"
        )
    for number in range(version, len(migrations)):
        try:
            connection.executescript(f"BEGIN IMMEDIATE;{migrations[number]};PRAGMA user_version={number + 1};COMMIT;")
        except sqlite3.Error:  # noqa: PERF203 (a step or two per file)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return len(migrations) - version
