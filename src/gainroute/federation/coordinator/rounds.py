"""The two rounds over remote parties: ask in parallel, check what comes back, and take the library's own steps.

The routing itself is `gainroute.routing.two_round`: `round_one` and `round_two`. This module adds what a network adds:
parties that are late, absent, or answer nonsense.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.control.budget import ControlledDecision
from gainroute.errors import PosteriorError, ShapeError
from gainroute.federation.coordinator.deployment import Version
from gainroute.federation.coordinator.errors import PartyMissingError
from gainroute.federation.coordinator.outcome import ROUND1, ROUND2, UNKNOWN, Controlled, Outcome, degraded
from gainroute.federation.coordinator.parties import Link, Parties
from gainroute.federation.transport.base import PartyError, PartyRefusedError, PartyUnavailableError, Reply
from gainroute.routing.inputs import check_posteriors
from gainroute.routing.two_round import round_one, round_two
from gainroute.routing.types import Decision, FloatArray

__all__ = ["Asked", "FirstRound", "answer_first", "answer_second", "ask_first", "ask_second", "decide", "keep_first"]

Float32 = npt.NDArray[np.float32]
Call = Callable[[Link], Awaitable[Reply]]


@dataclass(frozen=True, eq=False)
class Asked:
    """What the parties sent in a round, by name; who failed, and why; payload bytes; seconds."""

    values: Mapping[str, Float32]
    failed: Mapping[str, PartyError]
    payload: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, eq=False)
class FirstRound:
    """What Round 1 ends with: the decision, what was sent (M, N, K′), and who was absent altogether."""

    decision: Decision
    local: Float32
    absent: Mapping[str, PartyError]


# ---- asking -----------------------------------------------------------------------------------------


async def ask_first(parties: Parties, version: Version, ids: Sequence[str], request_id: str, seconds: float) -> Asked:
    """Ask every party that fits for posteriors."""
    shape = (len(ids), version.columns)

    def call(link: Link) -> Awaitable[Reply]:
        return link.connection.posteriors(ids, model=version.model(link.name), request_id=request_id)

    return await _ask(parties, version, call, dict.fromkeys(version.parties, shape), seconds)


async def ask_second(parties: Parties, version: Version, ids: Sequence[str], request_id: str, seconds: float) -> Asked:
    """Ask every party for the embeddings of the escalated samples."""
    shapes = {name: (len(ids), parties.links[name].dimensions.get(version.hash, 0)) for name in version.parties}

    def call(link: Link) -> Awaitable[Reply]:
        model = version.model(link.name)
        return link.connection.embeddings(ids, model=model, codec=version.codec, request_id=request_id)

    return await _ask(parties, version, call, shapes, seconds)


async def _ask(
    parties: Parties, version: Version, call: Call, shapes: Mapping[str, tuple[int, int]], seconds: float
) -> Asked:
    began = time.perf_counter()
    values: dict[str, Float32] = {}
    failed: dict[str, PartyError] = {}
    payload: dict[str, int] = {}
    tasks: dict[asyncio.Future[Reply], Link] = {}
    for name in version.parties:
        link = parties.links[name]
        if version.hash in link.dimensions:
            tasks[asyncio.ensure_future(call(link))] = link  # a future is taken as it is
        else:
            failed[name] = PartyUnavailableError(name, link.error or "no handshake yet")
    done: set[asyncio.Future[Reply]] = set()
    late: set[asyncio.Future[Reply]] = set()
    if tasks:
        try:
            done, late = await asyncio.wait(tasks, timeout=seconds)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
    for task in late:
        task.cancel()
        name = tasks[task].name
        failed[name] = PartyUnavailableError(name, f"did not answer within {seconds:g} s")
    for task in done:
        link = tasks[task]
        try:
            reply = task.result()
            values[link.name] = _checked(link.name, reply, shapes[link.name])
            payload[link.name] = reply.payload_bytes
        except PartyError as error:
            failed[link.name] = error
        except Exception as error:  # noqa: BLE001 (a transport's bug must not take the batch down, nor pass unseen)
            failed[link.name] = PartyRefusedError(link.name, f"its connection failed: {error!r}")
    for name, link in ((task_link.name, task_link) for task_link in tasks.values()):
        if name not in failed:
            link.is_now("ok")
        else:
            link.failed(failed[name])
    return Asked(values, failed, payload, time.perf_counter() - began)


def _checked(name: str, reply: Reply, shape: tuple[int, int]) -> Float32:
    values = np.asarray(reply.values)
    if values.shape != shape or values.dtype.kind != "f":
        raise PartyRefusedError(name, f"sent {values.dtype} of shape {values.shape}; float of shape {shape} is needed")
    return values


# ---- Round 1 ----------------------------------------------------------------------------------------


def decide(version: Version, asked: Asked, n: int, *, pool: bool) -> FirstRound:
    """Route a batch by what came back.

    Parameters
    ----------
    version, asked
        What decides, and on what.
    n
        Samples in the batch.
    pool
        Whether those present may be pooled where a party is absent.
    """
    absent = dict(asked.failed)
    while True:
        _check_policy(version, absent, pool)
        nothing = np.full((n, version.columns), np.nan, np.float32) if absent else None
        local = np.array([nothing if p in absent else asked.values[p] for p in version.parties], np.float32)
        try:
            return FirstRound(round_one(version.router, local), local, absent)
        except (PosteriorError, ShapeError):
            nonsense = _nonsense(version, asked, absent)
            if not nonsense:
                raise
            absent |= nonsense


def _check_policy(version: Version, absent: Mapping[str, PartyError], pool: bool) -> None:
    if absent and (not pool or len(absent) == len(version.parties)):
        raise PartyMissingError("; ".join(str(absent[name]) for name in version.parties if name in absent))


def _nonsense(version: Version, asked: Asked, absent: Mapping[str, PartyError]) -> dict[str, PartyError]:
    """Find the parties whose numbers are no posteriors: looked for only once something is known to be wrong."""
    found: dict[str, PartyError] = {}
    for name in version.parties:
        if name in absent:
            continue
        values = asked.values[name]
        blank = np.isnan(values)
        lacking = np.asarray(blank.all(axis=1))
        if (blank.any(axis=1) != lacking).any():
            mixed = "a row mixes NaN with numbers; a sample it lacks is a whole row of NaN"
            found[name] = PartyRefusedError(name, mixed)
            continue
        try:
            check_posteriors(values[None].astype(np.float64), ~lacking[None], name="its answer")
        except PosteriorError as error:
            found[name] = PartyRefusedError(name, str(error))
    return found


def answer_first(version: Version, ids: Sequence[str], asked: Asked, first: FirstRound) -> Outcome:
    """Answer every sample by Round 1; `answer_second` replaces those that were escalated."""
    decision = first.decision
    n = len(ids)
    route = [ROUND1] * n
    probabilities = decision.pooled.astype(np.float32)
    if decision.incomplete.any():
        probabilities = np.nan_to_num(probabilities)  # a sample nobody has
        present = ~np.isnan(first.local[:, :, 0])
        names = version.parties
        everywhere = [f"absent:{name}" for name in names if name in first.absent]
        for row in np.flatnonzero(decision.incomplete).tolist():
            lacking = [name for i, name in enumerate(names) if not present[i, row] and name not in first.absent]
            # While a party is absent nobody can say that no party has the sample: only the label says −1 then.
            if len(lacking) == len(names):
                route[row] = UNKNOWN
            else:
                route[row] = degraded(*everywhere, *([f"missing:{','.join(lacking)}"] if lacking else []))
    weak = version.encode(decision.weak_prediction)
    payload = sum(total for name, total in asked.payload.items() if name not in first.absent)
    return Outcome(
        version=version, ids=ids, label=weak, probabilities=probabilities,
        escalated=np.zeros(n, dtype=bool), wanted=decision.escalate, score=decision.score, route=route, weak=weak,
        strong=np.full(n, -1, dtype=np.int64), local=first.local, pooled=decision.pooled, strong_posterior=None,
        bytes=np.full(n, payload / n), controlled=_controlled(version, decision),
    )  # fmt: skip


def _controlled(version: Version, decision: Decision) -> Controlled | None:
    if not isinstance(decision, ControlledDecision):
        return None
    explores = version.control is not None and version.control.controller.explore > 0
    return Controlled(decision.thresholds, decision.probability, decision.explored, decision.capped, explores)


# ---- Round 2 ----------------------------------------------------------------------------------------


def answer_second(outcome: Outcome, decision: Decision, asked: Asked | None) -> Outcome:
    """Fuse what came back and put both routes' answers together.

    A party that failed, or lost a sample between the rounds, leaves Round 1's answer standing, marked.

    Parameters
    ----------
    outcome
        Of Round 1.
    decision
        What Round 1 decided.
    asked
        The embeddings of the escalated samples; None where strong answers were computed beforehand.
    """
    version = outcome.version
    rows = np.flatnonzero(decision.escalate)
    if asked is not None and asked.failed:
        return keep_first(outcome, rows.tolist(), _why(version, asked.failed), asked)
    values, usable, why = _strong_input(version, outcome, rows, asked)
    reduced = decision
    if not usable.all():
        escalate = decision.escalate.copy()
        escalate[rows[~usable]] = False
        reduced = replace(decision, escalate=escalate)
        values = [v[usable] for v in values]
    fuse = version.fusion.fuse
    try:
        given = round_two(version.router, reduced, values, fuse if fuse is not None else (lambda found: found[0]))
    except Exception as error:  # noqa: BLE001 (a fusion is anybody's code; the samples keep their Round-1 answer)
        return keep_first(outcome, rows.tolist(), f"round2:fusion:{type(error).__name__}", asked)
    route = list(outcome.route)
    for row in rows[~usable].tolist():
        route[row] = degraded(why[row])
    for row in np.flatnonzero(reduced.escalate).tolist():
        route[row] = ROUND2 if given.escalated[row] else degraded("round2:no_answer")
    label = version.encode(given.prediction)
    probabilities = np.nan_to_num(given.probabilities.astype(np.float32))
    return replace(
        outcome, label=label, probabilities=probabilities, escalated=given.escalated, route=route,
        strong=np.where(given.escalated, label, -1), strong_posterior=probabilities,
        bytes=outcome.bytes + _shares(outcome, rows.tolist(), asked),
    )  # fmt: skip


def _strong_input(
    version: Version, outcome: Outcome, rows: npt.NDArray[Any], asked: Asked | None
) -> tuple[list[Float32], npt.NDArray[np.bool_], dict[int, str]]:
    """What the strong route works on, which of the escalated rows have it, and why others have not."""
    if asked is None:
        lookup = version.fusion.lookup
        ids = [outcome.ids[i] for i in rows.tolist()]
        values = [lookup(ids)] if lookup is not None else []
        usable = np.asarray(~np.isnan(values[0]).any(axis=1))
        return values, usable, dict.fromkeys(rows.tolist(), "round2:no_answer")
    values = [asked.values[name] for name in version.parties]
    usable = np.ones(len(rows), dtype=bool)
    why: dict[int, str] = {}
    for name, embedding in zip(version.parties, values, strict=True):
        if np.isfinite(embedding).all():
            continue
        bad = np.asarray(~np.isfinite(embedding).all(axis=1))
        lost = np.asarray(np.isnan(embedding).all(axis=1))
        for i in np.flatnonzero(bad).tolist():
            why.setdefault(int(rows[i]), f"round2:{name}:{'missing' if lost[i] else 'not_finite'}")
        usable &= ~bad
    return values, usable, why


def _why(version: Version, failed: Mapping[str, PartyError]) -> str:
    """`round2:late:a,b`, or `round2:refused:a` where asking again will not help."""
    refused = [name for name in version.parties if isinstance(failed.get(name), PartyRefusedError)]
    names = refused or [name for name in version.parties if name in failed]
    return f"round2:{'refused' if refused else 'late'}:{','.join(names)}"


def keep_first(outcome: Outcome, rows: list[int], reason: str, asked: Asked | None) -> Outcome:
    """Let the Round-1 answers of `rows` stand, marked."""
    route = list(outcome.route)
    for row in rows:
        route[row] = degraded(reason)
    return replace(outcome, route=route, bytes=outcome.bytes + _shares(outcome, rows, asked))


def _shares(outcome: Outcome, rows: list[int], asked: Asked | None) -> FloatArray:
    size = np.zeros(len(outcome))
    if asked is not None:
        size[rows] = sum(asked.payload.values()) / max(len(rows), 1)
    return size
