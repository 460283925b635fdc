"""The data of the dashboard as JSON: status, curve, history, decisions, and the explanation of one."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, cast

import numpy as np
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from gainroute.federation.coordinator.api.bodies.dashboard import (
    Curve,
    Decisions,
    Explanation,
    History,
    Rates,
)
from gainroute.federation.coordinator.api.bodies.status import Status
from gainroute.federation.coordinator.api.curve import curve_points, expected_at, recommend
from gainroute.federation.coordinator.api.http import json_response
from gainroute.federation.coordinator.api.openapi import error_responses
from gainroute.federation.coordinator.budget_control import STATE, control_status, control_together
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.decision_log.store import get_state, latest, one, posterior, summarise_feedback
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.errors import BadRequestError, ConflictError, ForbiddenError, NotFoundError
from gainroute.federation.coordinator.monitoring.statistics import HISTORY_SECONDS
from gainroute.federation.coordinator.outcome import ROUND2, round_of
from gainroute.federation.coordinator.tokens import Grant
from gainroute.routing.decide import rate_interval
from gainroute.routing.offers import Offers, score_of, subset_gains
from gainroute.routing.pooled_only import route_pooled
from gainroute.routing.routers import ExpectedGainRouter

__all__ = ["explanation_json", "operating_json", "status_json", "status_routes"]

FRESH_SECONDS = 2.0
MOST_DECISIONS = 500
# The bounds are checked where the value is used, with a message that says more.
Seconds = Annotated[float, Query(json_schema_extra={"exclusiveMinimum": 0, "maximum": HISTORY_SECONDS})]
Limit = Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": MOST_DECISIONS})]


def status_routes(coordinator: Coordinator) -> APIRouter:
    """Endpoints for the dashboard."""
    routes = APIRouter(prefix="/api", tags=["dashboard"], responses=error_responses())
    curves: dict[str, list[dict[str, Any]]] = {}
    judged: tuple[float, dict[str, Any]] = (0.0, {})

    @routes.get("/status", summary="Live status, in one object", responses={200: {"model": Status}})
    async def status(request: Request) -> Response:
        nonlocal judged
        if not judged[1] or time.monotonic() - judged[0] > FRESH_SECONDS:
            judged = time.monotonic(), await asyncio.to_thread(_read, coordinator)
        found = status_json(coordinator, named=request.state.grant.may("view"))
        return json_response(found | judged[1] | {"you": request.state.who})

    @routes.get(
        "/curve",
        summary="The trade-off curve from calibration, with the operating point",
        responses={200: {"model": Curve}},
    )
    async def curve() -> Response:
        deployment = coordinator.deployment
        if deployment.hash not in curves:
            points = await asyncio.to_thread(curve_points, deployment.router)
            curves.clear()
            curves[deployment.hash] = points
        last = coordinator.live.rate(1000)
        points, samples = curves[deployment.hash], len(deployment.router.threshold_scores_.score)
        found = {"version": deployment.name, "points": points, "samples": samples, "recommended": recommend(points)}
        return json_response(found | {"live": last, "operating_point": operating_json(deployment)})

    @routes.get("/rate", summary="The live rate over time", responses={200: {"model": Rates}})
    async def rate(seconds: Seconds = 3600) -> Response:
        """Rates of at most the last 1,000 samples since the operating point was changed, oldest first.

        At most 300 points of the last `seconds`, up to a day.
        """
        if not 0 < seconds <= HISTORY_SECONDS:
            raise BadRequestError(f"seconds is {seconds:g}; above 0 and up to {HISTORY_SECONDS} is allowed")
        return json_response({"points": coordinator.live.history(seconds, coordinator.deployment)})

    @routes.get(
        "/history",
        summary="Threshold and rate over time, with a budget controller",
        responses={200: {"model": History}},
    )
    async def history() -> Response:
        """At most 500 points, oldest first."""
        found = control_status(coordinator.deployment.control)
        return json_response({"on": found["on"], "budget": found.get("budget"), "points": found["history"]})

    @routes.get("/decisions", summary="The latest decisions, newest first", responses={200: {"model": Decisions}})
    async def decisions(request: Request, limit: Limit = 50) -> Response:
        """Those of the holder of the token; all of them with the role view."""
        grant: Grant = request.state.grant
        if not 1 <= limit <= MOST_DECISIONS:
            raise BadRequestError(f"limit is {limit}; 1 … {MOST_DECISIONS} are allowed")
        holder = None if grant.may("view") else grant.holder
        found = await asyncio.to_thread(latest, coordinator.log.place, limit, holder)
        listed = [_decision(row, _classes(coordinator, row)) for row in found]
        return json_response({"classes": coordinator.classes, "decisions": listed})

    @routes.get(
        "/decisions/{decision_id}/explanation",
        summary="Explain one decision, class by class",
        responses={200: {"model": Explanation}},
    )
    async def explanation(request: Request, decision_id: str) -> Response:
        """Needs the role view, since it shows the posterior of every party."""
        if not request.state.grant.may("view"):
            raise ForbiddenError("an explanation shows the parties' posteriors; a token for view is needed here")
        row = await asyncio.to_thread(one, coordinator.log.place, decision_id)
        return json_response(await asyncio.to_thread(explanation_json, coordinator, row))

    return routes


# ---- status ---------------------------------------------------------------------------------------------


def operating_json(deployment: Deployment) -> dict[str, Any]:
    """The operating point, and the rate and accuracy expected from calibration."""
    router = deployment.router
    if deployment.partial and router.offers_ is not None:
        rate, accuracy = router.offers_.expected(router.threshold_)
        low, high = rate_interval(rate * len(router.offers_.gain), len(router.offers_.gain))
    else:
        rate, low, high = router.expected_rate_
        _, accuracy = expected_at(router.threshold_scores_, router.threshold_)
    return deployment.point.as_json() | {
        "budget_of": "bytes" if deployment.partial else "samples",
        "expected_rate": rate,
        "expected_rate_low": low,
        "expected_rate_high": high,
        "expected_accuracy": accuracy,
        "guarantee": None if deployment.guarantee is None else deployment.guarantee.as_json(),
    }


def _read(coordinator: Coordinator) -> dict[str, Any]:
    """What the status takes from the decision log."""
    log, together = coordinator.log, None
    if log.shared:
        states = get_state(log.place, (), (STATE,)).values()
        together = control_together(coordinator.deployment.control, states)
    return {"feedback": summarise_feedback(log.place), "together": together}


def status_json(coordinator: Coordinator, *, named: bool = True) -> dict[str, Any]:
    """The live status, without what is read from the decision log; unless `named`, without the names of holders."""
    live, deployment, settings = coordinator.live, coordinator.deployment, coordinator.settings
    why = coordinator.not_ready()
    sent = live.bytes[1] + live.bytes[2]
    always = live.bytes[1] + live.bytes_always
    addresses = {p.name: p.address for p in settings.party}
    return {
        "time": time.time(),
        "since": live.since,
        "model": settings.server.model,
        "version": deployment.name,
        "ready": not why,
        "not_ready": why,
        "router": {
            "kind": type(deployment.router).__name__,
            "hash": deployment.hash,
            "artifact": str(deployment.path),
            "previous": coordinator.operator.previous,
            "classes": coordinator.classes,
            "codec": deployment.codec,
            "fusion": deployment.fusion.source,
        },
        "operating_point": operating_json(deployment),
        "controller": {k: v for k, v in control_status(deployment.control).items() if k != "history"},
        "protection": deployment.floor,
        "alarms": coordinator.monitor.alarms(named=named),
        "drift": coordinator.monitor.drift.status(named=named),
        "shadow": coordinator.monitor.shadow.status(),
        "escalation": {
            "samples": live.samples,
            "escalated": live.escalated,
            "now": live.now(deployment),
            "last_1000": live.rate(1000),
            "last_10000": live.rate(10_000),
        },
        "bytes": {
            "round1": live.bytes[1],
            "round2": live.bytes[2],
            "sent": sent,
            "always": always,
            "saved": max(always - sent, 0),
            "saved_share": max(1 - sent / always, 0) if always else None,
        },
        "latency_ms": live.latencies(),
        "parties": [
            {
                **{key: getattr(link, key) for key in ("name", "state", "error", "since", "last_seen", "latency_ms")},
                "address": addresses[link.name],
                "model": deployment.model(link.name),
                "dimension": link.dimensions.get(deployment.hash),
                "circuit": {f"round{number}": circuit.state for number, circuit in link.circuits.items()},
            }
            for link in coordinator.parties.links.values()
        ],
        "certificates": {} if coordinator.certificates is None else dict(coordinator.certificates()),
        "degraded": {"samples": live.degraded, "by_reason": dict(live.reasons), "unknown": live.unknown},
        "without_a_party": dict(live.without),
        "queue": {"samples": coordinator.batcher.in_flight, "limit": settings.batching.max_queued},
        "log": {
            "path": str(coordinator.log.place),
            "slot": coordinator.log.slot,
            "ok": not coordinator.log.error,
            "error": coordinator.log.error,
        },
        "policy": {
            "partial": deployment.partial,
            "on_missing_party": settings.rounds.on_missing_party,
            "on_log_failure": settings.log.on_failure,
            "round1": settings.privacy.round1,
        },
    }


# ---- decisions ------------------------------------------------------------------------------------------


def _classes(coordinator: Coordinator, row: dict[str, Any]) -> tuple[str, ...]:
    """Names of the classes of the router that decided; those of the current one if it is no longer in memory."""
    return coordinator.parties.class_names(coordinator.operator.kept(row["router"]) or coordinator.deployment)


def _decision(row: dict[str, Any], classes: tuple[str, ...]) -> dict[str, Any]:
    def name(column: int | None) -> str | None:
        return classes[column] if column is not None and 0 <= column < len(classes) else None

    kept = (
        "decision_id", "sample_id", "request_id", "time", "label", "route", "score", "threshold", "probability",
        "weak_prediction", "strong_prediction", "router", "bytes", "truth", "holder",
    )  # fmt: skip
    judged = row["truth"] is not None and row["label"] >= 0  # a sample that no party has is not answered wrongly
    return {key: row[key] for key in kept} | {
        "escalated": row["strong_prediction"] is not None,
        "explored": bool(row["explored"]),
        "capped": bool(row["capped"]),
        "latency_ms": 1e3 * row["latency"],
        "right": row["truth"] == row["label"] if judged else None,
        "class": name(row["label"]),
        "weak_class": name(row["weak_prediction"]),
        "strong_class": name(row["strong_prediction"]),
        "true_class": name(row["truth"]),
    }


def explanation_json(coordinator: Coordinator, row: dict[str, Any]) -> dict[str, Any]:
    """Explain a decision by its row: local posteriors, and what each class added to the score."""
    if row["pooled"] is None:
        raise NotFoundError(
            "the posteriors of this decision were not stored; set [log] posteriors = true to explain later decisions"
        )
    deployment = coordinator.operator.kept(row["router"])
    if deployment is None:
        raise ConflictError(
            f"the decision was made by router {row['router'][:12]}, which is no longer loaded; explain it offline with "
            "gainroute explain"
        )
    router = deployment.router
    masked = row["local"] is None
    stored = posterior(row["pooled"] if masked else row["local"], deployment.columns)
    local = np.array(stored)  # the pooled posterior stands for those of the parties where Round 1 was masked
    present = ~np.isnan(local).any(axis=1)
    pooled, strong = (posterior(row[name], router.n_classes_) for name in ("pooled", "strong"))
    columns: dict[str, Any] = {
        "pooled": None if pooled is None else pooled[0],
        "strong": None if strong is None else strong[0],
    }
    fitted = router if present.all() else router.subset_routers_.get(tuple(np.flatnonzero(present).tolist()))
    columns |= dict.fromkeys(("calibrated", "reliability", "contribution"))
    correction = None
    if masked and present.all():
        columns["calibrated"] = route_pooled(router, local).calibrated[0]
    elif fitted is not None:
        there = local[present]
        columns["calibrated"] = fitted.route(there[:, None]).calibrated[0]
        if isinstance(fitted, ExpectedGainRouter):
            explained = fitted.explain(there)
            columns |= {"reliability": explained.reliability, "contribution": explained.contribution}
            correction = explained.correction
    names = coordinator.parties.class_names(deployment)
    classes = [
        {
            "label": k,
            "name": name,
            "local": {
                party: float(local[i, k]) if present[i] else None
                for i, party in enumerate(deployment.parties)
                if not masked
            },
            **{column: None if values is None else float(values[k]) for column, values in columns.items()},
        }
        for k, name in enumerate(names)
    ]
    offers = []
    if deployment.partial and fitted is not None and router.offers_ is not None and columns["calibrated"] is not None:
        offers = _offers(deployment, router.offers_, row, columns["calibrated"], present)
    note = ""
    if masked:
        note = "Round 1 was masked: what the parties answered is not known, only the pooled posterior"
    elif not present.all() and fitted is not None:
        lacking = ", ".join(name for name, there in zip(deployment.parties, present, strict=True) if not there)
        note = f"without {lacking}: it was routed by the calibration for the other parties, and fused over them"
    elif not present.all():
        note = "a party did not have the sample, so that calibration does not apply and it was not escalated"
    elif columns["contribution"] is None:
        note = f"a {type(router).__name__} has no class-by-class score"
    return _decision(row, names) | {
        "kind": type(router).__name__,
        "note": note,
        "answered_by": "strong" if round_of(row["route"]) == ROUND2 else "weak",
        "classes": classes,
        "correction": correction,
        "offers": offers,
    }


def _offers(
    deployment: Deployment, offers: Offers, row: dict[str, Any], calibrated: Any, present: Any
) -> list[dict[str, Any]]:
    """What asking each subset of the parties present was expected to gain, and to cost, the best first."""
    utility = score_of(cast("ExpectedGainRouter", deployment.router)).utility
    weak = np.array([row["weak_prediction"]])
    gain = subset_gains(np.asarray(calibrated)[None], offers.value, weak, utility)[0]
    price = min(float(row["threshold"]), 1e9)  # infinite where the budget was spent
    found = [
        {
            "parties": [name for name, there in zip(deployment.parties, member, strict=True) if there],
            "gain": float(of),
            "bytes_share": float(cost),
            "gain_per_byte": float(of / cost),
            "net": float(of - price * cost),
        }
        for member, of, cost in zip(offers.member, gain, offers.cost, strict=True)
        if not (member & ~present).any()
    ]
    return sorted(found, key=lambda offer: -offer["net"])
