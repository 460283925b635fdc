"""The decision log's writer: one thread, group commits, and futures that are done once the data is on disk.

Decisions and other writes, such as feedback, take turns: decisions wait for one other write at most, however many are
queued, and other writes for one group of decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from gainroute.errors import DataError, SettingError
from gainroute.federation.audit_chain import key_path, read_key
from gainroute.federation.coordinator.decision_log.rows import columns_of, insert_rows
from gainroute.federation.coordinator.decision_log.schema import BUSY_SECONDS, connect, erase, migrate, prepare
from gainroute.federation.coordinator.errors import LogFailedError
from gainroute.federation.coordinator.outcome import Outcome
from gainroute.federation.coordinator.settings import LogSettings

__all__ = ["ASKED", "DecisionLog"]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]
log = logging.getLogger("gainroute.coordinator")

ASKED = "INSERT INTO asked (batch, round, time, samples, failed) VALUES (?, ?, ?, ?, ?)"
MAX_GROUP = 256
MAX_ASKED = 1 << 16  # rows kept while the log cannot be written
FEW_ASKED = 64  # fewer do not go with a lone request: another page of the file takes 10 µs, and its rows have the batch


@dataclass(frozen=True, eq=False)
class _Job:
    work: Work
    done: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    alone: bool  # in a transaction of its own: it may fail for reasons of its own
    erase: bool = False  # what deleted rows leave behind, once it is committed


class DecisionLog:
    """Writes decisions, feedback, audit trail and state."""

    def __init__(self, settings: LogSettings) -> None:
        self.path = settings.path.resolve()  # of a symbolic link, the file: it has one lock and one journal
        self.error = ""  # why the last write failed
        self.unerased = False  # whether a reader kept what deleted rows left behind from being removed
        # Done in the transaction of every group of decisions, by the writer: state that must not fall behind them.
        self.alongside: Callable[[sqlite3.Connection], None] | None = None
        self._settings = settings
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._turn = threading.Lock()  # held while the connection is used
        self._asked: deque[tuple[Any, ...]] = deque(maxlen=MAX_ASKED)
        self._lock = _lock(self.path)
        try:
            self._key = read_key(key_path(self.path), create=True)
            self._connection = self._open()
            (last,) = self._connection.execute("SELECT max(seq) FROM decisions").fetchone()
        except sqlite3.Error as error:
            self._lock.close()
            raise DataError(f"{self.path}: the decision log cannot be opened ({error}); repair or move it") from error
        except BaseException:
            self._lock.close()
            raise
        self._next = (last or 0) + 1
        self._thread = threading.Thread(target=self._write, name="decision-log", daemon=True)
        self._thread.start()

    def _open(self) -> sqlite3.Connection:
        connection = connect(str(self.path), max_bytes=self._settings.max_bytes)
        self._waits = BUSY_SECONDS  # for another program
        try:
            migrate(connection, str(self.path))
            prepare(connection, str(self.path))
            connection.create_function("audit_link", 2, self._key.link)
            connection.create_function("audit_pseudonym", 1, lambda sample: self._key.pseudonyms([sample]))
        except BaseException:
            connection.close()
            raise
        return connection

    # ---- in the event loop ----------------------------------------------------------------------

    def numbers(self, n: int) -> int:
        """Reserve n consecutive decision numbers and return the first."""
        first = max(self._next, time.time_ns() // 1000)
        self._next = first + n
        return first

    def append(
        self,
        outcome: Outcome,
        first: int,
        request_id: str,
        latency: float,
        holder: str | None = None,
        *,
        lone: bool = False,
    ) -> asyncio.Future[None]:
        """Write the decisions of a request by `holder`, numbered from `first`; `latency` is in seconds.

        The future is done once they are on disk, or fails with `LogFailedError`. `lone` says that no other request is
        in flight: then they are written here, if that need not wait. A thread takes 9 % of a Round-1 answer more.
        """
        now, posteriors = time.time(), self._settings.posteriors

        def insert(connection: sqlite3.Connection) -> None:
            columns = columns_of(outcome, first, now, request_id, latency, holder, posteriors=posteriors)
            insert_rows(connection, columns)

        return self._submit(insert, alone=False, here=lone)

    def asked(self, batch: str, round_: int, samples: int, failed: Collection[str]) -> None:
        """Note what the parties were asked for, and which did not answer; it is written with later decisions."""
        self._asked.append((batch, round_, time.time(), samples, json.dumps(list(failed)) if failed else ""))

    def flush(self) -> None:
        """Write what was noted even if no decisions follow."""
        self._submit(lambda _: None, alone=False).add_done_callback(lambda done: done.cancelled() or done.exception())

    async def write(self, work: Callable[[sqlite3.Connection], T], *, erase: bool = False) -> T:
        """Do `work` in a transaction of its own; returns once it is on disk, or raises `LogFailedError`.

        An exception of `work` itself is passed on, and nothing is written. With `erase`, what deleted rows leave behind
        in the files is removed afterwards.
        """
        result: T = await self._submit(work, alone=True, erase=erase)
        return result

    def close(self) -> None:
        """Write what is queued, and close the file."""
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()
        self._lock.close()

    def _submit(self, work: Work, *, alone: bool, here: bool = False, erase: bool = False) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop, alone, erase)
        if not (here and self._write_here(job)):
            self._jobs.put(job)
        return job.done

    def _write_here(self, job: _Job) -> bool:
        """Write in the event loop; False if that would wait for the writer's thread, or for another program."""
        if not self._jobs.empty() or not self._turn.acquire(blocking=False):
            return False
        try:
            try:
                self._begin(wait=0.0)
            except sqlite3.Error:  # the writer's thread finds out what it is
                return False
            _settle([(job, self._commit([job], lone=True)[0])])
            return True
        finally:
            self._turn.release()

    # ---- in the writer's thread -----------------------------------------------------------------

    def _write(self) -> None:
        decisions, others = deque[_Job](), deque[_Job]()
        closing = False
        while not closing or decisions or others:
            with contextlib.suppress(queue.Empty):
                while True:
                    job = self._jobs.get(block=not (closing or decisions or others))
                    if job is None:
                        closing = True
                    else:
                        (others if job.alone else decisions).append(job)
            first = [decisions.popleft() for _ in range(min(len(decisions), MAX_GROUP))]
            for group in (first, [others.popleft()] if others else []):
                if group:
                    with self._turn:
                        results = self._commit(group)
                    _notify(list(zip(group, results, strict=True)))
        if self._asked:
            with self._turn:
                self._commit([])

    def _commit(self, group: list[_Job], *, lone: bool = False) -> list[Any]:
        """Commit a group; returns one result per job, or the error for its caller."""
        waiting = len(self._asked)
        asked = [self._asked.popleft() for _ in range(0 if lone and waiting < FEW_ASKED else waiting)]
        try:
            if not self._connection.in_transaction:
                self._begin(wait=BUSY_SECONDS)
            results = [job.work(self._connection) for job in group]
            if self.alongside is not None and group and not group[0].alone:
                self.alongside(self._connection)
            if asked:
                self._connection.executemany(ASKED, asked)
            self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 (the caller waits for the result, and gets the error)
            self._undo()
            self._asked.extendleft(reversed(asked))
            if len(group) > 1 and not isinstance(error, sqlite3.OperationalError):
                # One job is the cause; the others must not fail with it.
                return [result for job in group for result in self._commit([job])]
            if isinstance(error, sqlite3.Error):
                self._failed(error)
                error = LogFailedError(
                    f"the decision log {self.path} cannot be written ({error}); free space, or repair it"
                )
            return [error] * len(group)
        if self.error:
            log.warning("the decision log can be written again")
        self.error = ""
        if group and group[0].erase:
            self._erase()
        return results

    def _begin(self, wait: float) -> None:
        """Begin a transaction, and wait at most that many seconds for another program."""
        if wait != self._waits:
            self._connection.execute(f"PRAGMA busy_timeout = {round(1e3 * wait)}")
            self._waits = wait
        self._connection.execute("BEGIN IMMEDIATE")

    def _erase(self) -> None:
        try:
            self.unerased = not erase(self._connection, str(self.path))
        except sqlite3.Error as error:
            self.unerased = True
            log.warning("what deleted decisions left behind could not be removed yet: %s", error)

    def _undo(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            log.exception("the decision log could not roll back; opening it again")
            self._reopen()

    def _reopen(self) -> None:
        self._connection.close()
        try:
            self._connection = self._open()
        except sqlite3.Error as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not self.error:
            log.error("the decision log cannot be written: %s", error)
        self.error = str(error)
        if isinstance(error, sqlite3.ProgrammingError):  # closed: an earlier attempt to reopen it failed
            self._reopen()


def _notify(jobs: list[tuple[_Job, Any]]) -> None:
    """Complete the futures in their event loops, with one wake-up per loop, which is the expensive part."""
    for loop in {job.loop for job, _ in jobs}:
        try:
            loop.call_soon_threadsafe(_settle, [pair for pair in jobs if pair[0].loop is loop])
        except RuntimeError:  # noqa: PERF203 (usually one loop) the loop is closed: nothing waits any more
            log.debug("decisions were written after their requests had ended")


def _settle(jobs: list[tuple[_Job, Any]]) -> None:
    for job, result in jobs:
        if job.done.done():
            continue
        if isinstance(result, Exception):
            job.done.set_exception(result)
        else:
            job.done.set_result(result)


def _lock(path: Path) -> IO[bytes]:
    """Lock the log for this process; the lock ends with the process, however it ends."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_nlink > 1:
            raise SettingError(
                f"{path}: the file has other names (hard links), each with a lock of its own; remove them"
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        file = os.fdopen(os.open(path.with_name(path.name + ".lock"), flags, 0o600), "wb")
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}; log.path must be in a writable folder") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise SettingError(
            f"{path}: another coordinator writes this decision log; stop it, or give each its own log.path"
        ) from None
    return file
