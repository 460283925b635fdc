"""The live status, and the shadow router."""

from __future__ import annotations

from typing import Literal

from gainroute.federation.coordinator.api.bodies.base import Body, Number
from gainroute.federation.coordinator.api.bodies.operation import Deployed, OperatingPoint

__all__ = ["Rate", "RateNow", "ShadowChanged", "Status"]


class RouterStatus(Body):
    """The router in use."""

    kind: str
    hash: str
    artifact: str
    previous: str | None
    classes: list[str]
    codec: str
    fusion: str


class Window(Body):
    """The controller's recent samples."""

    samples: int
    rate: float | None
    bound: float


class Cap(Body):
    """A hard limit on bursts of escalations."""

    rate: float
    burst: float
    unit: Literal["samples", "bytes"]
    per: Literal["second", "sample"]


class NoControl(Body):
    """No budget controller decides."""

    on: Literal[False]


class Control(Body):
    """The budget controller."""

    on: Literal[True]
    budget: float
    step: Number
    explore: float
    threshold: Number
    min_gain: Number
    protection: Number
    samples: int
    escalated: int
    explored: int
    capped: int
    window: Window
    bound: float
    cap: Cap | None


class Alarm(Body):
    """A current alarm."""

    name: str
    since: float
    text: str


class DriftAlarm(Body):
    """A current alarm, and whose labels raised it."""

    since: float
    text: str
    labels_by: str


class ScoreDrift(Body):
    """Scores of a window, compared with calibration."""

    samples: int
    distance: Number
    limit: Number
    stability_index: Number
    rate: Number
    fixed_rate: Number
    calibration_rate: Number
    drifted: bool


class Collaboration(Body):
    """Whether the strong route still helps."""

    answers: int
    strong_right: int
    weak_right: int
    promised: Number
    gained: Number
    e_value: Number
    limit: Number
    harmful: bool


class PartyDrift(Body):
    """A party's answers, compared with calibration."""

    agreement: Number
    reference_agreement: Number
    confidence: Number
    reference_confidence: Number
    changed: list[str]
    e_value: Number
    limit: Number


class NoDrift(Body):
    """There is no report yet, or no monitor."""

    enabled: bool
    alarms: dict[str, DriftAlarm]


class Drift(NoDrift):
    """The report of the drift monitor."""

    withheld: dict[str, str]
    labels_by: dict[str, int]
    since: float
    window: int
    scores: ScoreDrift | None
    labels: int
    labels_left_out: int
    calibration_error: Number
    confidence_gap: Number
    changed_classes: list[str]
    collaboration: Collaboration
    parties: dict[str, PartyDrift]
    protect: bool
    protection: Number
    recommended_min_gain: Number
    false_alarm: float
    horizon: int


class Comparison(Body):
    """Two routers on the same labelled answers, at the same rate."""

    rate: Number
    old: Number
    new: Number
    difference: Number
    low: Number
    high: Number
    level: float
    labels: int
    explored: int
    disagreements: int
    verdict: Literal["better", "worse", "undecided"]
    text: str


class Shadow(Body):
    """The shadow router."""

    version: str
    hash: str
    artifact: str
    since: float
    threshold: Number
    samples: int
    answers: int
    agreement: float | None
    old_rate: float | None
    new_rate: float | None
    same_cheap_answer: float | None
    comparison: Comparison | None
    no_comparison: str


class ShadowLoaded(Body):
    """The shadow router after the call."""

    shadow: Shadow | None


ShadowChanged = ShadowLoaded | Deployed


class Rate(Body):
    """Share of recent samples for which Round 2 was asked."""

    samples: int
    rate: float | None


class RateNow(Rate):
    """The same, since the operating point was changed."""

    changed: bool


class Escalation(Body):
    """Samples and escalations since the start, and recent rates."""

    samples: int
    escalated: int
    now: RateNow
    last_1000: Rate
    last_10000: Rate


class Payload(Body):
    """Bytes of numbers that parties sent, and what escalating all samples would have taken."""

    round1: int
    round2: int
    sent: int
    always: float
    saved: float
    saved_share: float | None


class Latency(Body):
    """Milliseconds."""

    count: int
    p50: float | None
    p99: float | None


class Latencies(Body):
    """By round, and of whole requests."""

    round1: Latency
    round2: Latency
    request: Latency


class PartyStatus(Body):
    """A party's connection."""

    name: str
    state: Literal["connecting", "ok", "unavailable", "refused", "mismatch"]
    error: str
    since: float
    last_seen: float | None
    latency_ms: float | None
    address: str
    model: str
    dimension: int | None
    circuit: dict[str, Literal["closed", "open", "half-open"]]


class Degraded(Body):
    """Answers that differ from what the router was calibrated for."""

    samples: int
    by_reason: dict[str, int]
    unknown: int


class WithoutAParty(Body):
    """Samples that lack a party and were routed by the calibration for those present, by the round that answered."""

    round1: int
    round2: int


class Queue(Body):
    """Samples in flight."""

    samples: int
    limit: int


class LogStatus(Body):
    """The decision log: its file or database, and the slot of this coordinator among those that share it."""

    path: str
    slot: int
    ok: bool
    error: str


class Policy(Body):
    """What happens when something is missing."""

    partial: bool
    on_missing_party: str
    on_log_failure: str
    round1: str


class FeedbackSummary(Body):
    """Accuracy on labelled decisions, and on the escalated among them."""

    labels: int
    accuracy: float | None
    weak_accuracy: float | None
    escalated_labels: int
    escalated_accuracy: float | None
    escalated_weak_accuracy: float | None
    unanswered: int


class Together(Body):
    """What the budget controllers of all coordinators have decided; with a log that they share."""

    slots: int
    samples: int
    escalated: int
    rate: float | None
    bound: float


class Status(Body):
    """Everything the dashboard shows at a glance."""

    time: float
    since: float
    model: str
    version: str
    ready: bool
    not_ready: str
    router: RouterStatus
    operating_point: OperatingPoint
    controller: Control | NoControl
    together: Together | None
    protection: Number
    alarms: list[Alarm]
    drift: Drift | NoDrift
    shadow: Shadow | None
    escalation: Escalation
    bytes: Payload
    latency_ms: Latencies
    parties: list[PartyStatus]
    certificates: dict[str, float]
    degraded: Degraded
    without_a_party: WithoutAParty
    queue: Queue
    log: LogStatus
    policy: Policy
    feedback: FeedbackSummary
    you: str
