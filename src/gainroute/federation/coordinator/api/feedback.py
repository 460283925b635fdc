"""True labels, attached to decisions afterwards."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gainroute.federation.coordinator.api.bodies.operation import Feedback, FeedbackReply
from gainroute.federation.coordinator.api.http import json_response, read_object
from gainroute.federation.coordinator.api.openapi import error_responses, json_body
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.decision_log.engine import LogConnection
from gainroute.federation.coordinator.decision_log.store import give_feedback
from gainroute.federation.coordinator.errors import BadRequestError, CoordinatorError, TooLargeError
from gainroute.federation.coordinator.tokens import Grant

__all__ = ["feedback_routes"]

KEYS = ("decision_id", "sample_id", "label", "probability")
MOST = 10_000
CHUNK = 200  # labels in one transaction
EXAMPLE = {"decision_id": "0006271f0c2b4d10", "label": "cat"}


def feedback_routes(coordinator: Coordinator) -> APIRouter:
    """POST /feedback."""
    routes = APIRouter(tags=["feedback"], responses=error_responses())

    @routes.post(
        "/feedback",
        summary="Attach the true label to a decision",
        openapi_extra=json_body(Feedback, EXAMPLE),
        responses={200: {"model": FeedbackReply}},
    )
    async def feedback(request: Request) -> Response:
        """Attach true labels: `{"decision_id" or "sample_id", "label"}`, or `{"feedback": [<such objects>]}`.

        A label is the name of a class, as text, as in the output `class` of an answer. A number is accepted only where
        the classes are named 0 … K−1: elsewhere it could mean a column or a name. A sample id must belong to exactly
        one decision. If some decisions are more likely to be labelled than others of the same route, give the
        probability with which this one was chosen as `"probability"`, above 0 and up to 1. The valid items of a list
        are accepted; the others are listed in `errors`. A client's token labels the holder's own decisions, a token
        with the role feedback labels all.
        """
        body = await read_object(request, coordinator.settings.server.max_body_bytes, (*KEYS, "feedback"))
        many = "feedback" in body
        items = body["feedback"] if many else [body]
        if not isinstance(items, list) or (many and len(body) > 1):
            raise BadRequestError('"feedback" must be a list, and the only key')
        if len(items) > MOST:
            raise TooLargeError(f"{len(items)} labels at once; {MOST} are allowed: split the request")
        grant, classes = request.state.grant, coordinator.classes
        watched = coordinator.monitor.drift.enabled

        coordinator.quotas.charge(grant.holder)
        accepted: list[str] = []
        errors: list[dict[str, Any]] = []

        def work(connection: LogConnection, start: int) -> tuple[list[str], list[dict[str, Any]]]:
            accepted: list[str] = []
            errors: list[dict[str, Any]] = []
            for index, item in enumerate(items[start : start + CHUNK], start):
                try:
                    accepted.append(_attach(connection, item, classes, grant, watched))
                except CoordinatorError as error:  # noqa: PERF203 (items fail one by one)
                    if not many:
                        raise
                    errors.append({"index": index, "error": str(error), "code": error.code})
            return accepted, errors

        for start in range(0, len(items), CHUNK):  # decisions are written in between
            some, wrong = await coordinator.log.write(partial(work, start=start))
            accepted += some
            errors += wrong
        coordinator.monitor.drift.labels_wait = True
        return json_response({"accepted": accepted, "errors": errors})

    return routes


def _attach(connection: LogConnection, item: Any, classes: tuple[str, ...], grant: Grant, watched: bool) -> str:
    if not isinstance(item, dict) or not set(item) <= set(KEYS):
        raise BadRequestError(
            f"feedback is an object with label and one of decision_id, sample_id; allowed: {', '.join(KEYS)}"
        )
    decision, sample = item.get("decision_id"), item.get("sample_id")
    if (decision is None) == (sample is None):
        raise BadRequestError("exactly one of decision_id and sample_id is needed")
    named = sample if decision is None else decision
    if not isinstance(named, str) or not named.isprintable() or len(named) > 1024:
        raise BadRequestError(f"decision_id or sample_id is {str(named)[:60]!r}; text is needed")
    label, probability = _column(item.get("label"), classes), _probability(item.get("probability"))
    return give_feedback(
        connection, label, grant.who, decision=decision, sample=sample, probability=probability, watched=watched,
        holder=None if grant.may("feedback") else grant.holder,
    )  # fmt: skip


def _probability(given: Any) -> float | None:
    if given is None or (type(given) in (int, float) and 0 < given <= 1):
        return None if given is None else float(given)
    raise BadRequestError(
        f"probability is {str(given)[:60]!r}; the probability that this decision is labelled is needed, above 0 and "
        "up to 1: leave it out if it is the same for all decisions of a route"
    )


def _column(label: Any, classes: tuple[str, ...]) -> int:
    if isinstance(label, str) and label in classes:
        return classes.index(label)
    if type(label) is int and 0 <= label < len(classes) and classes == tuple(map(str, range(len(classes)))):
        return label
    allowed = ", ".join(map(json.dumps, classes[:20])) + (f", … ({len(classes)} in all)" if len(classes) > 20 else "")
    meant = json.dumps(str(label) if str(label) in classes else classes[0])
    number = "; a number could mean a column or a name" if type(label) is int else ""
    raise BadRequestError(
        f'label is {json.dumps(label)[:60]}{number}; classes are given by name, as text: {allowed}. Send {{"label": '
        f"{meant}}}, or the output `class` of an answer"
    )
