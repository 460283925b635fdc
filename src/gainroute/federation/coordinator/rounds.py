"""The two rounds over remote parties: ask in parallel, then take the library's own steps.

The routing itself is `gainroute.routing.two_round`. This module adds what a network adds: parties that are late or
absent. What parties send is checked where it is decoded, in `gainroute.federation.transport`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt

from gainroute.control.budget import ControlledDecision
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.errors import PartyMissingError
from gainroute.federation.coordinator.masked import MaskedPool, new_nonce
from gainroute.federation.coordinator.outcome import ROUND1, ROUND2, UNKNOWN, Outcome, degraded, routed_without
from gainroute.federation.coordinator.parties import PartyLink, PartyLinks
from gainroute.federation.tracing import watched
from gainroute.federation.transport.base import (
    PartyAgreementError,
    PartyError,
    PartyRefusedError,
    PartyUnavailableError,
    Reply,
)
from gainroute.federation.transport.masked import MaskingConnection
from gainroute.routing.absent import thresholds_of
from gainroute.routing.offers import priced, spent_by
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.two_round import round_one, round_two, whom_to_ask
from gainroute.routing.types import BoolArray, Decision, FloatArray, IntArray

__all__ = ["Replies", "answer_first", "answer_second", "ask_first", "ask_second", "decide", "keep_first"]

Float32 = npt.NDArray[np.float32]
Call = Callable[[PartyLink], Awaitable[Reply]]


@dataclass(frozen=True, eq=False)
class Replies:
    """What the parties sent in a round, by party: values, errors, payload bytes; and the time it took."""

    values: Mapping[str, Float32]
    failed: Mapping[str, PartyError]
    payload: Mapping[str, int]
    seconds: float
    roster: tuple[str, ...] = ()  # who was asked for a masked sum
    # Which of the escalated samples each party was asked for, (E,) by party, in Round 2.
    asked: Mapping[str, BoolArray] = field(default_factory=dict)


# ---- asking -----------------------------------------------------------------------------------------


async def ask_first(
    parties: PartyLinks, deployment: Deployment, ids: Sequence[str], request_id: str, seconds: float
) -> Replies:
    """Ask every party that fits the deployment for posteriors, or for its part of a masked sum."""
    if deployment.masked is not None:
        return await _ask_masked(parties, deployment, deployment.masked, ids, request_id, seconds)
    shape = (len(ids), deployment.columns)

    def call(link: PartyLink) -> Awaitable[Reply]:
        return link.ask(1, deployment, ids, request_id)

    return await _ask(1, parties, deployment, call, ids[0], dict.fromkeys(deployment.parties, shape), seconds)


async def _ask_masked(
    parties: PartyLinks,
    deployment: Deployment,
    pool: MaskedPool,
    ids: Sequence[str],
    request_id: str,
    seconds: float,
) -> Replies:
    """Ask a roster for a masked sum: everyone, or those whose last answer or health check was good."""
    links = parties.links
    absent: dict[str, PartyError] = {
        name: PartyUnavailableError(name, links[name].error or "no handshake yet")
        for name in deployment.parties
        if deployment.hash not in links[name].dimensions
        or links[name].circuits[1].state != "closed"
        or (pool.smaller_roster and links[name].state != "ok")
    }
    roster = pool.roster(absent)
    if not roster:
        return Replies({}, absent, {}, 0.0)
    plan, nonce = pool.plan(roster), new_nonce()

    def call(link: PartyLink) -> Awaitable[Reply]:
        connection = cast("MaskingConnection", link.connection)  # the handshake checked it
        model = deployment.model(link.name)
        return connection.masked(ids, model=model, plan=plan, nonce=nonce, request_id=request_id)

    shape = (len(ids), deployment.columns)
    replies = await _ask(1, parties, deployment, call, ids[0], dict.fromkeys(roster, shape), seconds)
    return replace(replies, failed={**absent, **replies.failed}, roster=roster)


async def ask_second(
    parties: PartyLinks,
    deployment: Deployment,
    ids: Sequence[str],
    request_id: str,
    seconds: float,
    ask: BoolArray | None = None,
) -> Replies:
    """Ask for the embeddings of the escalated samples: every party for all of them, or as `ask` says, (M, E).

    A sample is not asked for at all while one of its parties is known to be missing: it could not be fused. The values
    have a row for every sample, NaN where the party was not asked, or lacks it.
    """
    links, identity, n = parties.links, deployment.hash, len(ids)
    wanted = np.ones((len(deployment.parties), n), dtype=bool) if ask is None else ask
    missing = [parties.missing(name, deployment, 2) is not None for name in deployment.parties]
    rows = dict(zip(deployment.parties, wanted & ~wanted[missing].any(axis=0), strict=True))
    mine = {name: [ids[i] for i in np.flatnonzero(chosen).tolist()] for name, chosen in rows.items()}
    wide = {name: links[name].dimensions.get(identity, 0) for name in deployment.parties}
    shapes = {
        name: (len(mine[name]), wide[name])
        for i, name in enumerate(deployment.parties)
        if mine[name] or (missing[i] and wanted[i].any())
    }

    def call(link: PartyLink) -> Awaitable[Reply]:
        return link.ask(2, deployment, mine[link.name], request_id)

    replies = await _ask(2, parties, deployment, call, ids[0], shapes, seconds)
    asked = {name: chosen for name, chosen in rows.items() if chosen.any()}
    if all(len(values) == n for values in replies.values.values()):
        return replace(replies, asked=asked)
    whole = {}
    for name, values in replies.values.items():
        whole[name] = np.full((n, wide[name]), np.nan, np.float32)
        whole[name][rows[name]] = values
    return replace(replies, values=whole, asked=asked)


async def _ask(
    number: int,
    parties: PartyLinks,
    deployment: Deployment,
    call: Call,
    sample: str,
    shapes: Mapping[str, tuple[int, int]],
    seconds: float,
) -> Replies:
    began = time.perf_counter()
    values: dict[str, Float32] = {}
    failed: dict[str, PartyError] = {}
    payload: dict[str, int] = {}
    asked: list[PartyLink] = []
    for name in shapes:
        error = parties.missing(name, deployment, number)
        if error is not None:
            failed[name] = error
        else:
            asked.append(parties.links[name])
    calls = {
        link.name: watched(f"round {number}", partial(call, link), party=link.name, samples=shapes[link.name][0])
        for link in asked
    }
    if calls:
        try:
            await asyncio.wait(calls.values(), timeout=seconds)
        except asyncio.CancelledError:
            for future in calls.values():
                future.cancel()
            raise
    for name, future in calls.items():
        link = parties.links[name]
        circuit = link.circuits[number]
        if future.done():
            circuit.answered()
        else:
            circuit.late(sample)
        try:
            reply = _result(name, future, shapes[name], seconds)
        except PartyError as error:
            failed[name] = error
            if not isinstance(error, PartyAgreementError):
                link.failed(error)
        else:
            values[name], payload[name] = reply.values, reply.payload_bytes
            if deployment.hash in link.dimensions:  # else it has described itself differently since it was asked
                link.set_state("ok")
    return Replies(values, failed, payload, time.perf_counter() - began)


def _result(name: str, future: asyncio.Future[Reply], shape: tuple[int, int], seconds: float) -> Reply:
    if not future.done():
        future.cancel()
        raise PartyUnavailableError(name, f"did not answer within {seconds:g} s")
    try:
        reply = future.result()
    except PartyError:
        raise
    except Exception as error:  # a bug in a transport must neither fail the batch nor go unnoticed
        raise PartyRefusedError(name, f"its connection failed: {error!r}") from error
    if reply.values.shape != shape:
        raise PartyRefusedError(name, f"sent an array of shape {reply.values.shape}; {shape} is needed")
    return reply


# ---- Round 1 ----------------------------------------------------------------------------------------


def decide(deployment: Deployment, replies: Replies, n: int, *, pool: bool) -> Decision:
    """Route a batch of n samples; `pool` says whether those present may be pooled when a party is absent.

    Must be called in the order in which batches are answered: a budget controller counts every sample.
    """
    absent = replies.failed
    if deployment.masked is not None:
        lost = [str(absent[name]) for name in replies.roster or deployment.parties if name in absent]
        if lost:
            raise PartyMissingError("; ".join(lost))
        decision = deployment.masked.decide(replies.roster, deployment.router, replies.values)
        return decision if deployment.control is None else deployment.control.decide(decision)
    if absent and (not pool or len(absent) == len(deployment.parties)):
        raise PartyMissingError("; ".join(str(absent[name]) for name in deployment.parties if name in absent))
    missing = np.full((n, deployment.columns), np.nan, np.float32) if absent else None
    local = np.array([replies.values.get(name, missing) for name in deployment.parties], np.float32)
    decision = round_one(deployment.router, local, checked=True)
    if deployment.control is not None:
        return deployment.control.decide(decision)
    if deployment.partial:
        router = cast("ExpectedGainRouter", deployment.router)
        return priced(router, decision, router.threshold_)
    return decision


def answer_first(
    deployment: Deployment, batch: str, ids: Sequence[str], replies: Replies, decision: Decision
) -> Outcome:
    """Answer every sample by Round 1; `answer_second` replaces the answers of escalated samples."""
    n = len(ids)
    route = [ROUND1] * n
    probabilities, local = decision.pooled.astype(np.float32), decision.local
    if deployment.masked is not None:
        route, local = deployment.masked.routes(replies.roster, replies.values, n), local[:0]
        probabilities = np.nan_to_num(probabilities)
    elif decision.incomplete.any() or decision.subset is not None:
        probabilities = np.nan_to_num(probabilities)  # a sample that no party has
        names = deployment.parties
        lacks = np.isnan(decision.local[:, :, 0])
        absent = [f"absent:{name}" for name in names if name in replies.failed]
        for row in np.flatnonzero(lacks.any(axis=0)).tolist():
            lacking = [name for i, name in enumerate(names) if lacks[i, row] and name not in replies.failed]
            reasons = *absent, *([f"missing:{','.join(lacking)}"] if lacking else [])
            # While a party is absent, nothing proves that no party has the sample: only the label says −1 then.
            if len(lacking) == len(names):
                route[row] = UNKNOWN
            else:
                route[row] = degraded(*reasons) if decision.incomplete[row] else routed_without(ROUND1, *reasons)
    weak = deployment.encode(decision.weak_prediction)
    control = deployment.control
    held = decision if isinstance(decision, ControlledDecision) else None
    explores = control is not None and control.controller.explore > 0
    return Outcome(
        deployment=deployment, batch=batch, ids=ids, label=weak, probabilities=probabilities,
        escalated=np.zeros(n, dtype=bool), wanted=decision.escalate, score=decision.score, route=route, weak=weak,
        strong=np.full(n, -1, dtype=np.int64), local=local, pooled=decision.pooled, strong_posterior=None,
        bytes=np.full(n, sum(replies.payload.values()) / n),
        threshold=_thresholds(deployment, decision),
        probability=decision.escalate.astype(np.float64) if held is None else held.probability,
        explored=held.explored if held is not None and explores else None,
        capped=None if held is None else held.capped,
        spent=None if decision.ask is None else spent_by(deployment.router, decision),
    )  # fmt: skip


def _thresholds(deployment: Deployment, decision: Decision) -> float | FloatArray:
    if isinstance(decision, ControlledDecision):
        return decision.thresholds
    return decision.threshold if deployment.partial else thresholds_of(deployment.router, decision)


# ---- Round 2 ----------------------------------------------------------------------------------------


def answer_second(outcome: Outcome, decision: Decision, replies: Replies) -> Outcome:
    """Fuse the embeddings and combine the answers of both routes.

    Where a party failed, or lost a sample between the rounds, the Round-1 answer stands and is marked. `replies` is
    empty where strong answers are precomputed.
    """
    deployment = outcome.deployment
    rows, ask = np.flatnonzero(decision.escalate), whom_to_ask(decision)
    lookup = deployment.fusion.lookup
    if lookup is not None:
        values, ask = [lookup([outcome.ids[i] for i in rows.tolist()])], None
    else:
        # A party without values was not asked, or failed; its width matters only to a fusion of all parties.
        nothing = np.full((len(rows), 0), np.nan, np.float32)
        values = [replies.values.get(name, nothing) for name in deployment.parties]
    blank = np.array([np.isnan(v[:, 0]) if v.shape[1] else np.ones(len(v), dtype=bool) for v in values])
    lacking = blank if ask is None else blank & ask
    usable = ~lacking.any(axis=0)
    if not usable.any():
        return _kept(outcome, rows, lacking, replies)
    reduced = decision
    if not usable.all():
        escalate = decision.escalate.copy()
        escalate[rows[~usable]] = False
        reduced = replace(decision, escalate=escalate)
        values, ask = [v[usable] for v in values], None if ask is None else ask[:, usable]
    try:
        given = round_two(deployment.router, reduced, values, deployment.fusion.fuse, ask)
    except Exception as error:  # noqa: BLE001 (a fusion is user code; the samples keep their Round-1 answer)
        return keep_first(outcome, rows, f"round2:fusion:{type(error).__name__}", replies)
    outcome = _kept(outcome, rows, lacking, replies)
    route, names = list(outcome.route), deployment.parties
    for row in np.flatnonzero(reduced.escalate).tolist():
        _, _, why = route[row].partition(":")  # why it lacks parties, if it does
        reasons = [why] if why else []
        if decision.ask is not None and not (decision.ask[:, row] | np.isnan(decision.local[:, row, 0])).all():
            asked = ",".join(name for name, is_asked in zip(names, decision.ask[:, row], strict=True) if is_asked)
            reasons.append(f"asked:{asked}")
        if not given.escalated[row]:
            route[row] = degraded("round2:no_answer")
        else:
            route[row] = routed_without(ROUND2, *reasons) if reasons else ROUND2
    label = deployment.encode(given.prediction)
    probabilities = np.nan_to_num(given.probabilities.astype(np.float32))
    return replace(
        outcome, label=label, probabilities=probabilities, escalated=given.escalated, route=route,
        strong=np.where(given.escalated, label, -1), strong_posterior=probabilities,
    )  # fmt: skip


def _kept(outcome: Outcome, rows: IntArray, lacking: BoolArray, replies: Replies) -> Outcome:
    """Mark the samples that lack an embedding, and add the payload of all that were asked for."""
    deployment = outcome.deployment
    route = list(outcome.route)
    for i in np.flatnonzero(lacking.any(axis=0)).tolist():
        if deployment.fusion.lookup is not None:
            route[rows[i]] = degraded("round2:no_answer")
            continue
        names = [name for name, lacks in zip(deployment.parties, lacking[:, i], strict=True) if lacks]
        failed = {name: replies.failed[name] for name in names if name in replies.failed}
        route[rows[i]] = degraded(_reason(deployment, failed) if failed else f"round2:{names[0]}:missing")
    return replace(outcome, route=route, bytes=outcome.bytes + _payload(outcome, rows, replies))


def _reason(deployment: Deployment, failed: Mapping[str, PartyError]) -> str:
    """`round2:late:a,b`, or `round2:refused:a` where asking again will not help."""
    refused = [name for name in deployment.parties if isinstance(failed.get(name), PartyRefusedError)]
    names = refused or [name for name in deployment.parties if name in failed]
    return f"round2:{'refused' if refused else 'late'}:{','.join(names)}"


def keep_first(outcome: Outcome, rows: IntArray, reason: str, replies: Replies) -> Outcome:
    """Keep the Round-1 answers of `rows`, marked with the reason."""
    route = list(outcome.route)
    for row in rows.tolist():
        route[row] = degraded(reason)
    return replace(outcome, route=route, bytes=outcome.bytes + _payload(outcome, rows, replies))


def _payload(outcome: Outcome, rows: IntArray, replies: Replies) -> FloatArray:
    """Round-2 payload per sample."""
    size, each = np.zeros(len(outcome)), np.zeros(len(rows))
    for name, sent in replies.payload.items():
        each[replies.asked[name]] += sent / replies.asked[name].sum()
    size[rows] = each
    return size
