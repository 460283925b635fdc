"""The decision log's writer: one thread, group commits, and futures that are done once the data is durable.

Decisions and other writes, such as feedback, take turns: decisions wait for one other write at most, however many are
queued, and other writes for one group of decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gainroute.federation.coordinator.decision_log.engine import LogConnection, LogEngine, Place
from gainroute.federation.coordinator.decision_log.rows import columns_of
from gainroute.federation.coordinator.decision_log.schema import BUSY_SECONDS
from gainroute.federation.coordinator.decision_log.sqlite_engine import SqliteEngine
from gainroute.federation.coordinator.errors import LogFailedError
from gainroute.federation.coordinator.outcome import Outcome
from gainroute.federation.coordinator.settings import LogSettings

__all__ = ["ASKED", "DecisionLog"]

T = TypeVar("T")
Work = Callable[[LogConnection], Any]
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
        self.error = ""  # why the last write failed
        self.unerased = False  # whether a reader kept what deleted rows left behind from being removed
        # Done in the transaction of every group of decisions, by the writer: state that must not fall behind them.
        self.alongside: Callable[[LogConnection], None] | None = None
        self._settings = settings
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._turn = threading.Lock()  # held while the connection is used
        self._asked: deque[tuple[Any, ...]] = deque(maxlen=MAX_ASKED)
        self._engine = _open(settings)
        self._next = self._engine.last_number() // self._engine.stride + 1
        self.shared = settings.sharing > 1  # whether other coordinators may write it, too
        self.adopted = self.slot  # the slot whose state this process has taken over
        self._thread = threading.Thread(target=self._write, name="decision-log", daemon=True)
        self._thread.start()

    @property
    def place(self) -> Place:
        """Where the log is, for those who read it."""
        return self._engine.place

    @property
    def slot(self) -> int:
        """The number of this coordinator among those that share the log; 0 if it is the only one."""
        return self._engine.connection.slot

    # ---- in the event loop ----------------------------------------------------------------------

    def numbers(self, n: int) -> range:
        """Reserve decision numbers for n samples."""
        first = max(self._next, time.time_ns() // 1000)
        self._next = first + n
        stride, slot = self._engine.stride, self.slot
        return range(first * stride + slot, self._next * stride + slot, stride)

    def number_at(self, seconds: float) -> int:
        """The least number of a decision made at that time, in seconds since 1970, or later."""
        return int(seconds * 1e6) * self._engine.stride

    def append(
        self,
        outcome: Outcome,
        numbers: range,
        request_id: str,
        latency: float,
        holder: str | None = None,
        *,
        lone: bool = False,
    ) -> asyncio.Future[None]:
        """Write the decisions of a request by `holder`, with reserved `numbers`; `latency` is in seconds.

        The future is done once they are durable, or fails with `LogFailedError`. `lone` says that no other request is
        in flight: then they are written here, if that need not wait. A thread takes 9 % of a Round-1 answer more.
        """
        now, posteriors = time.time(), self._settings.posteriors

        def insert(connection: LogConnection) -> None:
            self._check_slot(outcome)
            connection.insert(columns_of(outcome, numbers, now, request_id, latency, holder, posteriors=posteriors))

        return self._submit(insert, alone=False, here=lone and self._engine.inline)

    def asked(
        self,
        batch: str,
        round_: int,
        samples: int,
        failed: Collection[str],
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Note what the parties were asked for, and which did not answer; it is written with later decisions.

        `counts` are the samples by party, where parties were asked for different ones.
        """
        text = json.dumps(list(failed)) if failed else ""
        if counts is not None:
            text = json.dumps({"failed": list(failed), "samples": dict(counts)})
        self._asked.append((batch, round_, time.time(), samples, text))

    def flush(self) -> None:
        """Write what was noted even if no decisions follow."""
        self._submit(lambda _: None, alone=False).add_done_callback(lambda done: done.cancelled() or done.exception())

    async def write(self, work: Callable[[LogConnection], T], *, erase: bool = False) -> T:
        """Do `work` in a transaction of its own; returns once it is on disk, or raises `LogFailedError`.

        An exception of `work` itself is passed on, and nothing is written. With `erase`, what deleted rows leave behind
        in the files is removed afterwards.
        """
        result: T = await self._submit(work, alone=True, erase=erase)
        return result

    def close(self) -> None:
        """Write what is queued, and close the database."""
        self._jobs.put(None)
        self._thread.join()
        self._engine.close()

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
                self._engine.begin(wait=0.0)
            except self._engine.failures:  # the writer's thread finds out what it is
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
        engine, waiting = self._engine, len(self._asked)
        asked = [self._asked.popleft() for _ in range(0 if lone and waiting < FEW_ASKED else waiting)]
        try:
            if not engine.active:
                engine.begin(wait=BUSY_SECONDS)
            connection = engine.connection
            results = [job.work(connection) for job in group]
            if self.alongside is not None and group and not group[0].alone:
                self.alongside(connection)
            if asked:
                connection.executemany(ASKED, asked)
            engine.commit()
        except Exception as error:  # noqa: BLE001 (the caller waits for the result, and gets the error)
            engine.rollback()
            self._asked.extendleft(reversed(asked))
            if len(group) > 1 and not isinstance(error, (LogFailedError, *engine.outages)):
                # One job is the cause; the others must not fail with it.
                return [result for job in group for result in self._commit([job])]
            if isinstance(error, (LogFailedError, *engine.failures)):
                why = " ".join(str(error).split())  # PostgreSQL's errors have several lines
                self._failed(why)
                error = LogFailedError(f"the decision log {self.place} cannot be written ({why}); {engine.remedy}")
            return [error] * len(group)
        if self.error:
            log.warning("the decision log can be written again")
        self.error = ""
        if group and group[0].erase:
            self._erase()
        return results

    def _check_slot(self, outcome: Outcome) -> None:
        """Refuse to write decisions that were made with the state of another slot."""
        control = outcome.deployment.control
        if control is not None and control.slot != self.slot:
            raise LogFailedError(
                f"this coordinator lost its slot, and is taking over the state of slot {self.slot}; try again"
            )

    def _erase(self) -> None:
        try:
            self.unerased = not self._engine.erase()
        except self._engine.failures as error:
            self.unerased = True
            log.warning("what deleted decisions left behind could not be removed yet: %s", error)

    def _failed(self, why: str) -> None:
        if not self.error:
            log.error("the decision log cannot be written: %s", why)
        self.error = why


def _open(settings: LogSettings) -> LogEngine:
    if settings.url:
        from gainroute.federation.coordinator.decision_log.postgres_engine import PostgresEngine

        return PostgresEngine(settings)
    return SqliteEngine(settings)


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
