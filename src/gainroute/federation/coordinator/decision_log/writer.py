"""The decision log's writer: one thread, commits that carry whatever has gathered, futures that mean "on disk".

A request that is alone is committed where it stands, in the event loop's thread: handing it to the writer and back
takes longer than a fast disk does, and there is nobody to share a commit with. The loop stands still meanwhile; that is
why commits are measured, and a disk that was slow of late is always left to the writer.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from gainroute.errors import DataError, SettingError
from gainroute.federation.coordinator.decision_log.rows import Entry, columns_of, insert_rows
from gainroute.federation.coordinator.decision_log.schema import BUSY_SECONDS, connect, migrate, prepare
from gainroute.federation.coordinator.errors import LogFailedError
from gainroute.federation.coordinator.settings import LogSettings

__all__ = ["DecisionLog"]

T = TypeVar("T")
log = logging.getLogger("gainroute.coordinator")

MAX_GROUP = 256
RETRY_SECONDS = 0.01  # between two looks whether another program has finished writing
FAST_SECONDS = 0.002  # what a commit may take, of late, for the event loop to wait for it
MEMORY = 0.2  # weight of the last commit in "of late": after a hang of a second, some thirty fast ones are needed


@dataclass(frozen=True, eq=False)
class _Job:
    work: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    alone: bool  # in a transaction of its own: it may refuse for reasons of its own


class DecisionLog:
    """Writes decisions, feedback, audit and state.

    Parameters
    ----------
    settings
        Where, and what is kept.

    Attributes
    ----------
    error
        Why the last write failed; empty when it did not.
    alongside
        Work done in the transaction of every group of decisions, in whichever thread commits it: state that must not
        fall behind them.
    """

    def __init__(self, settings: LogSettings) -> None:
        self.path = settings.path
        self.error = ""
        self.alongside: Callable[[sqlite3.Connection], None] | None = None
        self._settings = settings
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._committing = threading.Lock()  # who holds it has the connection
        self._seconds = 0.0  # of a commit, a moving average
        self._lock = _lock(settings.path)
        try:
            self._connection = self._open()
            (last,) = self._connection.execute("SELECT max(seq) FROM decisions").fetchone()
        except sqlite3.Error as error:
            self._lock.close()
            raise DataError(f"{self.path}: the decision log cannot be opened ({error}); mend or move it") from error
        except BaseException:
            self._lock.close()
            raise
        self._next = (last or 0) + 1
        self._thread = threading.Thread(target=self._write, name="decision-log", daemon=True)
        self._thread.start()

    def _open(self) -> sqlite3.Connection:
        connection = connect(str(self.path), max_bytes=self._settings.max_bytes)
        try:
            migrate(connection, str(self.path))
            prepare(connection, str(self.path))
            connection.execute("PRAGMA busy_timeout=0")  # from here on `_begin` waits, where there is time to
        except BaseException:
            connection.close()
            raise
        return connection

    def numbers(self, n: int) -> int:
        """Take n consecutive decision numbers, and return the first."""
        first = max(self._next, time.time_ns() // 1000)
        self._next = first + n
        return first

    def append(self, entry: Entry, *, may_wait: bool = False) -> asyncio.Future[None]:
        """Write the decisions of a request; done once they are on disk.

        Parameters
        ----------
        entry
            What is written.
        may_wait
            Whether the caller's thread may wait for the disk, because nobody else is being answered. It does where the
            writer has nothing to do and commits were fast of late; the future is done on return then.

        Raises
        ------
        LogFailedError
            They are not.
        """
        keep = self._settings.posteriors

        def insert(connection: sqlite3.Connection) -> None:
            insert_rows(connection, columns_of(entry, keep))

        return self._submit(insert, alone=False, may_wait=may_wait)

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in a transaction of its own; returns once it is on disk.

        Raises
        ------
        LogFailedError
            It could not be written. What `work` itself raises comes through, and nothing is written.
        """
        result: T = await self._submit(work, alone=True)
        return result

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()
        self._lock.close()

    # ---- in the caller's thread -----------------------------------------------------------------

    def _submit(
        self, work: Callable[[sqlite3.Connection], Any], *, alone: bool, may_wait: bool = False
    ) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop, alone)
        if not (may_wait and self._commit_here(job)):
            self._jobs.put(job)
        return job.done

    def _commit_here(self, job: _Job) -> bool:
        """Commit without the writer, unless that could take long: False then, and nothing was done."""
        if self.error or self._seconds > FAST_SECONDS or not self._jobs.empty():
            return False
        if not self._committing.acquire(blocking=False):
            return False
        try:
            try:
                self._begin()
            except sqlite3.Error:  # another program writes: the writer can wait for it, the loop cannot
                return False
            results = self._attempt([job])
        finally:
            self._committing.release()
        _settle([(job, results[0])])
        return True

    # ---- in the writer's thread -----------------------------------------------------------------

    def _write(self) -> None:
        ahead: _Job | None = None
        while True:
            job = ahead or self._jobs.get()
            ahead = None
            if job is None:
                return
            group = [job]
            last = False
            while not job.alone and len(group) < MAX_GROUP:
                try:
                    more = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                    break
                if more.alone:
                    ahead = more
                    break
                group.append(more)
            self._commit(group)
            if last:
                return

    def _commit(self, group: list[_Job]) -> None:
        with self._committing:
            results = self._attempt(group)
        _tell(list(zip(group, results, strict=True)))

    # ---- with the connection in hand ------------------------------------------------------------

    def _attempt(self, group: list[_Job]) -> list[Any]:
        """Commit; a result a job, or the error that its caller is to see."""
        began = time.perf_counter()
        try:
            if not self._connection.in_transaction:
                self._begin(BUSY_SECONDS)
            results = [job.work(self._connection) for job in group]
            if self.alongside is not None and not group[0].alone:
                self.alongside(self._connection)
            self._connection.execute("COMMIT")
            self._recovered()
        except Exception as error:  # noqa: BLE001 (whatever it is, somebody waits for it and has to be told)
            self._undo()
            if len(group) > 1 and not isinstance(error, sqlite3.OperationalError):
                # One of them is to blame; the others must not pay for it.
                return [result for job in group for result in self._attempt([job])]
            if isinstance(error, sqlite3.Error):
                self._failed(error)
                error = LogFailedError(
                    f"the decision log {self.path} cannot be written ({error}); make room, or mend it"
                )
            return [error] * len(group)
        finally:
            self._seconds += MEMORY * (time.perf_counter() - began - self._seconds)
        return results

    def _begin(self, patience: float = 0.0) -> None:
        """Begin a transaction; where another program is in one, wait for it so many seconds."""
        until = time.monotonic() + patience
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:  # noqa: PERF203 (once, as a rule)
                if "locked" not in str(error) or time.monotonic() >= until:
                    raise
                time.sleep(RETRY_SECONDS)
            else:
                return

    def _undo(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            log.exception("the decision log could not roll back; it is opened anew")
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
        if isinstance(error, sqlite3.ProgrammingError):  # closed: a former attempt to reopen it has failed
            self._reopen()

    def _recovered(self) -> None:
        if self.error:
            log.warning("the decision log can be written again")
        self.error = ""


def _settle(jobs: list[tuple[_Job, Any]]) -> None:
    """Tell those who wait, in their loop."""
    for job, result in jobs:
        if job.done.done():
            continue
        if isinstance(result, Exception):
            job.done.set_exception(result)
        else:
            job.done.set_result(result)


def _tell(jobs: list[tuple[_Job, Any]]) -> None:
    """Tell those who wait, from another thread, in one call a loop: waking it up is what costs."""
    for loop in {job.loop for job, _ in jobs}:
        try:
            loop.call_soon_threadsafe(_settle, [pair for pair in jobs if pair[0].loop is loop])
        except RuntimeError:  # noqa: PERF203 (one loop, as a rule) the loop has ended: nobody waits
            log.debug("decisions were written after their requests had gone")


def _lock(path: Path) -> IO[bytes]:
    """Hold the log for this process alone; the lock goes with the process, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(path.name + ".lock").open("wb")
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror}; log.path must lie in a folder that can be written") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise SettingError(
            f"{path}: another coordinator writes this decision log; stop it, or give each its own log.path"
        ) from None
    return file
