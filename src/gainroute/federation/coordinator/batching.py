"""Requests in flight, put together in batches and answered in two rounds.

A batch is whole requests and one `Version`: no request is answered by two routers, thresholds or model versions. A
request none of whose samples is escalated is answered after Round 1, whatever the rest of its batch waits for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from gainroute.federation.coordinator.deployment import Version
from gainroute.federation.coordinator.errors import (
    BusyError,
    CoordinatorError,
    DrainingError,
    TooLargeError,
    UnavailableError,
)
from gainroute.federation.coordinator.outcome import Outcome
from gainroute.federation.coordinator.parties import Parties
from gainroute.federation.coordinator.rounds import (
    Asked,
    FirstRound,
    answer_first,
    answer_second,
    ask_first,
    ask_second,
    decide,
    keep_first,
)
from gainroute.federation.coordinator.settings import BatchingSettings, RoundSettings

__all__ = ["Engine", "Observer"]

T = TypeVar("T")
log = logging.getLogger("gainroute.coordinator")

# Below this many values routing takes well under a millisecond, and a thread would cost more than it frees.
INLINE_VALUES = 8192
NAMED_REQUESTS = 32


class Observer:
    """Is told what happens; the base does nothing with it."""

    def batch(self, samples: int) -> None:
        """Note that a batch has set off."""

    def round(self, number: int, asked: Asked) -> None:
        """Note that the parties were asked."""


@dataclass(eq=False)
class _Request:
    ids: Sequence[str]
    request_id: str
    answer: asyncio.Future[Outcome]
    began: float = field(default_factory=time.perf_counter)


class Engine:
    """Coalesces, asks, routes, answers.

    Parameters
    ----------
    parties
        Who is asked.
    version
        What answers; replaced by assignment, which batches under way do not notice.
    batching, rounds
        Settings.
    observer
        Metrics and statistics.
    """

    def __init__(
        self,
        parties: Parties,
        version: Version,
        batching: BatchingSettings,
        rounds: RoundSettings,
        observer: Observer | None = None,
    ) -> None:
        self.parties, self.version = parties, version
        self._batching, self._rounds = batching, rounds
        self._observer = observer or Observer()
        self._queue: deque[_Request] = deque()
        self._queued = 0  # samples that wait for a slot
        self._running = 0  # batches in Round 1
        self._second = asyncio.Semaphore(batching.slots)
        self._pumping: asyncio.Handle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.taken = 0  # samples taken on and not yet answered
        # One thread: a fusion is not asked to be thread-safe, and torch brings its own.
        self._fusing = ThreadPoolExecutor(1, thread_name_prefix="fusion")

    def take_on(self, n: int) -> None:
        """Take on samples, or refuse; `let_go` must follow."""
        if self._draining:
            raise DrainingError("the coordinator is stopping; ask another, or again in a moment")
        if n > self._batching.max_batch:
            raise TooLargeError(
                f"{n} ids in one request; {self._batching.max_batch} are allowed: split the request, several are "
                "answered at once"
            )
        if self.taken + n > self._batching.max_queued:
            raise BusyError(
                f"{self.taken} samples wait for answers and {n} more would exceed {self._batching.max_queued}; ask "
                "again in a moment"
            )
        self.taken += n
        self._idle.clear()

    def let_go(self, n: int) -> None:
        """Samples taken on are answered, or given up."""
        self.taken -= n
        if not self.taken:
            self._idle.set()

    async def answer(self, ids: Sequence[str], request_id: str) -> Outcome:
        """Answer samples that were taken on."""
        loop = asyncio.get_running_loop()
        request = _Request(ids, request_id, loop.create_future())
        if self.taken == len(ids):  # alone: nobody to wait for, nobody to go with
            await self._run_here(request)
            return request.answer.result()
        self._queue.append(request)
        self._queued += len(ids)
        self._pump_soon(self._batching.max_wait_ms / 1e3 if self._running else 0.0)
        return await request.answer

    async def drain(self, seconds: float) -> bool:
        """Take nothing more on, and wait until what was taken is answered; False if that took too long."""
        self._draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    @property
    def draining(self) -> bool:
        """Whether it takes nothing more on."""
        return self._draining

    def close(self) -> None:
        """Give up what is still under way."""
        for task in self._tasks:
            task.cancel()
        self._fusing.shutdown(wait=False, cancel_futures=True)

    # ---- batches --------------------------------------------------------------------------------

    def _pump_soon(self, wait: float = 0.0) -> None:
        """Form batches in a while, or at the end of this turn of the loop: what arrived together goes together."""
        if self._queued >= self._batching.max_batch:
            wait = 0.0
            if self._pumping is not None:
                self._pumping.cancel()
                self._pumping = None
        if self._pumping is None:
            loop = asyncio.get_running_loop()
            self._pumping = loop.call_later(wait, self._pump) if wait else loop.call_soon(self._pump)

    def _pump(self) -> None:
        if self._pumping is not None:  # a batch that has come back does not wait for the clock
            self._pumping.cancel()
            self._pumping = None
        while self._queue and self._running < self._batching.slots:
            batch = [self._queue.popleft()]
            n = len(batch[0].ids)
            while self._queue and n + len(self._queue[0].ids) <= self._batching.max_batch:
                batch.append(self._queue.popleft())
                n += len(batch[-1].ids)
            self._queued -= n
            self._running += 1
            task = asyncio.ensure_future(self._run(batch, self.version))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_here(self, request: _Request) -> None:
        """Answer a request in its own task."""
        self._running += 1
        try:
            await self._run([request], self.version)
        except asyncio.CancelledError:
            request.answer.exception()  # whoever would be told has gone
            raise

    async def _run(self, batch: list[_Request], version: Version) -> None:
        waiting = [r for r in batch if not r.answer.done()]  # a client that has gone is not waited for
        slot = True
        try:
            if waiting:
                ids = [i for r in waiting for i in r.ids]
                name = _joined(waiting)
                self._observer.batch(len(ids))
                asked, first = await self._round_one(version, ids, name)
                outcome = answer_first(version, ids, asked, first)
                self._running -= 1
                slot = False
                self._pump()
                rest = _hand_out(waiting, outcome, only_settled=True)
                if rest:
                    _hand_out(rest, await self._round_two(outcome, first, name), offsets=_offsets(waiting))
        except Exception as error:  # noqa: BLE001 (whatever it is, clients wait for it and have to be told)
            self._fail(waiting, error)
        except asyncio.CancelledError:
            self._fail(waiting, DrainingError("the coordinator stopped before the answer was there; ask again"))
            raise
        finally:
            if slot:
                self._running -= 1
                self._pump()

    def _fail(self, requests: list[_Request], error: Exception) -> None:
        if not isinstance(error, CoordinatorError):
            log.error("a batch failed", exc_info=error, extra={"request_id": _joined(requests)})
            error = UnavailableError(f"the batch failed ({type(error).__name__}); the coordinator's log tells more")
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(error)

    # ---- the rounds -----------------------------------------------------------------------------

    async def _round_one(self, version: Version, ids: list[str], name: str) -> tuple[Asked, FirstRound]:
        asked = await ask_first(self.parties, version, ids, name, self._rounds.one_seconds)
        self._observer.round(1, asked)
        n, pool = len(ids), self._rounds.on_missing_party == "pool"
        if len(version.parties) * n * version.columns <= INLINE_VALUES:
            first = decide(version, asked, n, pool=pool)
        else:
            first = await asyncio.to_thread(decide, version, asked, n, pool=pool)
        if version.control is not None:  # here, in the loop: one batch after the other, in the order they are answered
            first = replace(first, decision=version.control.decide(first.decision))
        for party, error in first.absent.items():
            if party not in asked.failed:
                self.parties.links[party].failed(error)
        return asked, first

    async def _round_two(self, outcome: Outcome, first: FirstRound, name: str) -> Outcome:
        version, decision = outcome.version, first.decision
        asked: Asked | None = None
        async with self._second:
            if version.fusion.wants_embeddings:
                wanted = [outcome.ids[i] for i in np.flatnonzero(decision.escalate).tolist()]
                asked = await ask_second(self.parties, version, wanted, name, self._rounds.two_seconds)
                self._observer.round(2, asked)
                if asked.failed:  # nothing to fuse, and no time left to wait for a thread that would say so
                    return answer_second(outcome, decision, asked)
            left = self._rounds.two_seconds - (0.0 if asked is None else asked.seconds)
            try:
                fused = self._in_fusion(lambda: answer_second(outcome, decision, asked))
                return await asyncio.wait_for(fused, max(left, 0.001))
            except asyncio.TimeoutError:
                return keep_first(outcome, np.flatnonzero(decision.escalate).tolist(), "round2:late:fusion", asked)

    async def _in_fusion(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._fusing, work)


def _joined(requests: Sequence[_Request]) -> str:
    names = [r.request_id for r in requests[:NAMED_REQUESTS]]
    more = len(requests) - len(names)
    return ",".join(names) + (f",+{more}" if more else "")


def _offsets(requests: Sequence[_Request]) -> dict[_Request, int]:
    at, found = 0, {}
    for request in requests:
        found[request] = at
        at += len(request.ids)
    return found


def _hand_out(
    requests: list[_Request],
    outcome: Outcome,
    *,
    only_settled: bool = False,
    offsets: dict[_Request, int] | None = None,
) -> list[_Request]:
    """Give every request its part; with `only_settled`, those with an escalated sample are returned instead."""
    starts: dict[Any, int] = _offsets(requests) if offsets is None else offsets
    left: list[_Request] = []
    alone = len(starts) == 1
    for request in requests:
        rows = slice(starts[request], starts[request] + len(request.ids))
        if only_settled and outcome.wanted[rows].any():
            left.append(request)
        elif not request.answer.done():
            request.answer.set_result(outcome if alone else outcome.part(rows))
    return left
