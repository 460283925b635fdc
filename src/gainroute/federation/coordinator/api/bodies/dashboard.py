"""The trade-off curve, rates over time, decisions, and runs of `gainroute federate`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from gainroute.federation.coordinator.api.bodies.base import Body, Number
from gainroute.federation.coordinator.api.bodies.operation import OperatingPoint
from gainroute.federation.coordinator.api.bodies.status import Rate, RateNow

__all__ = ["Curve", "Decisions", "Explanation", "Formation", "History", "Rates"]


class CurvePoint(Body):
    """Accuracy at a rate, with its interval."""

    rate: float
    accuracy: float
    low: float
    high: float
    error: float
    threshold: Number


class Curve(Body):
    """The trade-off curve from calibration."""

    version: str
    points: list[CurvePoint]
    samples: int
    recommended: float | None
    live: Rate
    operating_point: OperatingPoint


class RatePoint(RateNow):
    """The rate at a time."""

    time: float
    budget: float | None


class Rates(Body):
    """The rate over time, oldest first."""

    points: list[RatePoint]


class ControlPoint(Body):
    """The controller at a time."""

    time: float
    threshold: Number
    rate: float | None


class History(Body):
    """The controller over time, oldest first."""

    on: bool
    budget: float | None
    points: list[ControlPoint]


class Decision(Body):
    """A decision, without posteriors."""

    decision_id: str
    sample_id: str
    request_id: str
    time: float
    label: int
    route: str
    score: Number
    threshold: Number
    probability: float
    weak_prediction: int
    strong_prediction: int | None
    router: str
    bytes: int
    truth: int | None
    holder: str | None
    escalated: bool
    explored: bool
    capped: bool
    latency_ms: float
    right: bool | None
    class_: str | None = Field(alias="class")
    weak_class: str | None
    strong_class: str | None
    true_class: str | None


class Decisions(Body):
    """Decisions, newest first."""

    classes: list[str]
    decisions: list[Decision]


class ExplainedClass(Body):
    """What the parties said of a class, and what it added to the score."""

    label: int
    name: str
    local: dict[str, float | None]
    pooled: Number
    strong: Number
    calibrated: Number
    reliability: Number
    contribution: Number


class Offer(Body):
    """Asking some of the parties: the expected gain, its share of the bytes, and the gain net of their price."""

    parties: list[str]
    gain: Number
    bytes_share: Number
    gain_per_byte: Number
    net: Number


class Explanation(Decision):
    """A decision, class by class."""

    kind: str
    note: str
    answered_by: Literal["strong", "weak"]
    classes: list[ExplainedClass]
    correction: Number  # what no class explains; with their contributions, it adds up to the score
    offers: list[Offer]  # the best first; empty unless router.partial is set


class FormationRun(Body):
    """A run of `gainroute federate`, as it last wrote its status."""

    model_config = ConfigDict(extra="allow")
    federation: str
    version: int
    stages: dict[str, Literal["open", "running", "done", "stopped"]]
    parties: dict[str, dict[str, Any]]
    time: float


class Formation(Body):
    """The newest run, if there is one."""

    run: FormationRun | None
