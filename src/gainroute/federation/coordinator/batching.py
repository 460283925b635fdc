"""Concurrent requests, gathered in batches and answered in two rounds.

A batch consists of whole requests and is answered by one `Deployment`: no request mixes routers, thresholds or model
versions. A request without escalated samples is answered after Round 1, whatever the rest of its batch waits for.
Holders of tokens take turns: the backlog of one does not delay another.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.errors import (
    BusyError,
    CoordinatorError,
    DrainingError,
    TooLargeError,
    UnavailableError,
)
from gainroute.federation.coordinator.fair_queue import FairGate, FairQueue
from gainroute.federation.coordinator.holder_quotas import HolderQuotas
from gainroute.federation.coordinator.metrics import Metrics
from gainroute.federation.coordinator.operator import Operator
from gainroute.federation.coordinator.outcome import Outcome, degraded
from gainroute.federation.coordinator.parties import PartyLinks
from gainroute.federation.coordinator.rounds import (
    Replies,
    answer_first,
    answer_second,
    ask_first,
    ask_second,
    decide,
    keep_first,
)
from gainroute.federation.coordinator.settings import BatchingSettings, RoundSettings
from gainroute.federation.tracing import OpenSpan, current, note, span
from gainroute.federation.tracing import batch as traced_batch
from gainroute.routing.two_round import whom_to_ask
from gainroute.routing.types import Decision

__all__ = ["Batcher"]

log = logging.getLogger("gainroute.coordinator")

NAMED_REQUESTS = 32
QUOTA = "quota:escalations"


@dataclass(eq=False)
class _Pending:
    """A request that waits for its answer; `start` is its first row in the batch."""

    ids: Sequence[str]
    request_id: str
    holder: str | None
    answer: asyncio.Future[Outcome]
    start: int = 0
    trace: OpenSpan | None = field(default_factory=current)
    since: float = field(default_factory=time.perf_counter)

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + len(self.ids))


class Batcher:
    """Gathers requests, asks the parties, routes, and answers. A new deployment does not affect batches in flight."""

    def __init__(
        self,
        parties: PartyLinks,
        operator: Operator,
        batching: BatchingSettings,
        rounds: RoundSettings,
        quotas: HolderQuotas,
        metrics: Metrics,
        log: DecisionLog,
    ) -> None:
        self.draining = False
        self.in_flight = 0  # samples admitted and not yet answered
        self._parties, self._operator, self._metrics, self._log = parties, operator, metrics, log
        run = secrets.token_hex(6)
        self._batch_ids = (f"{run}-{number}" for number in itertools.count(1))
        self._batching, self._rounds, self._quotas = batching, rounds, quotas
        self._admitted: Counter[str | None] = Counter()  # samples in flight by holder
        self._queue: FairQueue[_Pending] = FairQueue()
        self._running = 0  # batches in Round 1
        self._second = FairGate(batching.slots)
        self._timer: asyncio.Handle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        # One thread: a fusion need not be thread-safe, and torch starts threads of its own.
        self._fusing = ThreadPoolExecutor(1, thread_name_prefix="fusion")

    def admit(self, n: int, holder: str | None = None) -> None:
        """Reserve room for n samples of a holder, or refuse them; `release` must follow."""
        if self.draining:
            raise DrainingError("the coordinator is stopping; ask another one, or try again in a moment")
        if n > self._batching.max_batch:
            raise TooLargeError(
                f"{n} ids in one request; {self._batching.max_batch} are allowed: split the request, several are "
                "answered at once"
            )
        own = self._admitted.get(holder, 0)
        share = self._batching.max_queued // (len(self._admitted) + (not own))
        if own and own + n > share:
            raise BusyError(f"{own} samples wait for answers and {n} more would exceed {share}; try again in a moment")
        self._admitted[holder] = own + n
        self.in_flight += n
        self._idle.clear()

    def release(self, n: int, holder: str | None = None) -> None:
        """Free the room of n samples of a holder."""
        self.in_flight -= n
        self._admitted[holder] -= n
        if not self._admitted[holder]:
            del self._admitted[holder]
        if not self.in_flight:
            self._idle.set()

    async def answer(self, ids: Sequence[str], request_id: str, holder: str | None = None) -> Outcome:
        """Answer samples that were admitted."""
        pending = _Pending(ids, request_id, holder, asyncio.get_running_loop().create_future())
        self._queue.put(holder, pending, len(ids))
        if self.in_flight == len(ids):  # no other request to batch with
            self._start_batches()
        else:
            self._start_soon(self._batching.max_wait_ms / 1e3 if self._running else 0.0)
        return await pending.answer

    async def drain(self, seconds: float) -> bool:
        """Admit no more samples and wait for those in flight; False if that took too long."""
        self.draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Cancel what is still in flight."""
        for task in self._tasks:
            task.cancel()
        self._fusing.shutdown(wait=False, cancel_futures=True)

    # ---- batches --------------------------------------------------------------------------------

    def _start_soon(self, wait: float) -> None:
        """Start batches after `wait` seconds, at the earliest once all requests of this loop iteration are queued."""
        loop = asyncio.get_running_loop()
        if self._queue.cost >= self._batching.max_batch:
            wait = 0.0
            self._stop_timer()
        if self._timer is None:
            self._timer = loop.call_later(wait, self._start_batches) if wait else loop.call_soon(self._start_batches)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_batches(self) -> None:
        self._stop_timer()
        while self._queue.cost and self._running < self._batching.slots:
            batch: list[_Pending] = []
            n = 0
            while (pending := self._queue.take(self._batching.max_batch - n)) is not None:
                if not pending.answer.done():  # a client that disconnected needs no answer
                    pending.start = n
                    n += len(pending.ids)
                    batch.append(pending)
            if batch:
                self._running += 1
                task = asyncio.ensure_future(self._run_traced(batch, self._operator.deployment))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _run_traced(self, batch: list[_Pending], deployment: Deployment) -> None:
        with traced_batch(pending.trace for pending in batch):
            await self._run(batch, deployment)

    async def _run(self, batch: list[_Pending], deployment: Deployment) -> None:
        ids = batch[0].ids if len(batch) == 1 else [i for pending in batch for i in pending.ids]
        batch_id = next(self._batch_ids)
        request_ids = f"{batch_id},{_joined(batch)}"
        self._metrics.batch(len(ids))
        note(batch=batch_id, samples=len(ids))
        began = time.perf_counter()
        try:
            try:
                failed: Collection[str] = deployment.parties  # without an answer, until one arrives
                try:
                    replies = await ask_first(self._parties, deployment, ids, request_ids, self._rounds.one_seconds)
                    failed = replies.failed
                finally:
                    self._log.asked(batch_id, 1, len(ids), failed)
                self._metrics.round(1, replies)
                pool = self._rounds.on_missing_party == "pool"
                with span("routing"):
                    decision = decide(deployment, replies, len(ids), pool=pool)
                    outcome = answer_first(deployment, batch_id, ids, replies, decision)
                if self._quotas.limits_escalations:
                    decision, outcome = self._within_quota(batch, decision, outcome)
            finally:
                self._running -= 1
                self._start_batches()
            escalated: list[_Pending] = []
            for pending in batch:
                if outcome.wanted[pending.rows].any():
                    escalated.append(pending)
                else:
                    _hand_out(pending, outcome)
            if escalated:
                costs = Counter[str | None]()
                for pending in escalated:
                    costs[pending.holder] += int(outcome.wanted[pending.rows].sum())
                outcome = await self._round_two(outcome, decision, request_ids, costs)
                for pending in escalated:
                    _hand_out(pending, outcome)
            waited = sum(began - pending.since for pending in batch)
            self._metrics.executed(len(ids), time.perf_counter() - began, len(batch), waited)
        except Exception as error:  # noqa: BLE001 (clients wait for the answer, and get an error)
            self._fail(batch, error)
        except asyncio.CancelledError:
            self._fail(batch, DrainingError("the coordinator stopped before the answer was ready; ask again"))
            raise

    def _within_quota(
        self, batch: Sequence[_Pending], decision: Decision, outcome: Outcome
    ) -> tuple[Decision, Outcome]:
        """Keep the Round-1 answers of samples for which their holder has no escalations left; the best scores go on."""
        refused: list[int] = []
        for pending in batch:
            wanted = pending.start + np.flatnonzero(outcome.wanted[pending.rows])
            granted = self._quotas.escalations(pending.holder, len(wanted)) if len(wanted) else 0
            refused += wanted[np.argsort(-outcome.score[wanted], kind="stable")][granted:].tolist()
        if not refused:
            return decision, outcome
        escalate = decision.escalate.copy()
        escalate[refused] = False
        route = list(outcome.route)
        for row in refused:
            _, _, reasons = route[row].partition(":")  # why it lacks parties, if it does
            route[row] = degraded(*filter(None, [reasons, QUOTA]))
        return replace(decision, escalate=escalate), replace(outcome, wanted=escalate, route=route)

    async def _round_two(
        self, outcome: Outcome, decision: Decision, request_ids: str, costs: Mapping[str | None, float]
    ) -> Outcome:
        rows = np.flatnonzero(decision.escalate)
        replies = Replies({}, {}, {}, 0.0)
        left = self._rounds.two_seconds
        async with self._second.turn(costs):
            if outcome.deployment.fusion.wants_embeddings:
                ids = [outcome.ids[i] for i in rows.tolist()]
                names, ask = outcome.deployment.parties, whom_to_ask(decision)
                counts = None if ask is None else dict(zip(names, ask.sum(axis=1).tolist(), strict=True))
                failed: Collection[str] = names
                try:
                    replies = await ask_second(self._parties, outcome.deployment, ids, request_ids, left, ask)
                    # While one is missing, the others are not asked for its samples: they have no record of it.
                    failed = [name for name in names if name not in replies.values]
                    if counts is not None:
                        counts = {name: int(rows.sum()) for name, rows in replies.asked.items()}
                finally:
                    self._log.asked(outcome.batch, 2, len(ids), failed, counts)
                self._metrics.round(2, replies)
                left = max(left - replies.seconds, 0.001)
                if not replies.values:  # there is nothing to fuse
                    return answer_second(outcome, decision, replies)
            loop = asyncio.get_running_loop()
            fused = loop.run_in_executor(self._fusing, answer_second, outcome, decision, replies)
            try:
                with span("fusion"):
                    return await asyncio.wait_for(fused, left)
            except asyncio.TimeoutError:
                return keep_first(outcome, rows, "round2:late:fusion", replies)

    def _fail(self, batch: list[_Pending], error: Exception) -> None:
        if not isinstance(error, CoordinatorError):
            log.error("a batch failed", exc_info=error, extra={"request_id": _joined(batch)})
            error = UnavailableError(f"the batch failed ({type(error).__name__}); see the coordinator's log")
        for pending in batch:
            if not pending.answer.done():
                pending.answer.set_exception(error)
        self._log.flush()  # no decision follows, with which the log would write what was asked


def _hand_out(pending: _Pending, outcome: Outcome) -> None:
    if not pending.answer.done():
        whole = len(pending.ids) == len(outcome)
        pending.answer.set_result(outcome if whole else outcome.part(pending.rows))


def _joined(requests: Sequence[_Pending]) -> str:
    names = [pending.request_id for pending in requests[:NAMED_REQUESTS]]
    more = len(requests) - len(names)
    return ",".join(names) + (f",+{more}" if more else "")
