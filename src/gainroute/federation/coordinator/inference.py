"""Inference behind every front door: who may ask, the answer by the version asked for, and its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.decision_log.schema import decision_id
from gainroute.federation.coordinator.errors import ForbiddenError, NotFoundError
from gainroute.federation.coordinator.open_inference import InferRequest, Tensor
from gainroute.federation.coordinator.outcome import Outcome
from gainroute.federation.coordinator.tokens import Grant
from gainroute.federation.tracing import served

__all__ = ["Asker", "Write", "answer", "check_role"]

T = TypeVar("T")
LARGEST = float(np.finfo(np.float32).max)

# Writes a reply: the request, the name of the model, the version that answered, and a function from the name of an
# output to its tensor.
Write = Callable[[InferRequest, str, str, Callable[[str], Tensor]], T]


@dataclass(frozen=True)
class Asker:
    """What a token grants, and the id and trace of its request."""

    grant: Grant
    request_id: str
    traceparent: str = ""  # W3C trace context that the client sent


def check_role(grant: Grant) -> None:
    """Refuse a holder that may not ask."""
    if not grant.may("client", "infer"):
        raise ForbiddenError(f"the roles of {grant.who} do not include inference; a token for infer is needed here")


async def answer(
    coordinator: Coordinator, asker: Asker, request: InferRequest, name: str, version: str | None, write: Write[T]
) -> T:
    """Answer a request to the model `name`, by `version` if it is given; returns what `write` makes of the answer."""

    def encode(outcome: Outcome, numbers: range) -> T:
        used = outcome.deployment.name
        if version is not None and used != version:
            raise NotFoundError(f"version {version!r} was replaced by {used!r} while the request waited")
        return write(request, name, used, lambda tensor: _tensor(coordinator, outcome, numbers, tensor))

    with served(coordinator.tracing, "request", asker.traceparent, samples=len(request.ids)):
        return await coordinator.infer(request.ids, asker.request_id, encode, asker.grant.holder)


def _tensor(coordinator: Coordinator, outcome: Outcome, numbers: range, name: str) -> Tensor:
    if name == "class":
        names = coordinator.parties.class_names(outcome.deployment)
        return [names[label] if label >= 0 else "" for label in outcome.label.tolist()]
    if name == "score":
        return np.nan_to_num(outcome.score, nan=0.0, posinf=LARGEST, neginf=-LARGEST).astype(np.float32)
    if name == "decision_id":
        return [decision_id(seq) for seq in numbers]
    found: Tensor = getattr(outcome, name)
    return found
