"""Feedback and admin calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from gainroute.federation.coordinator.api.bodies.base import Body, Number

__all__ = [
    "AuditTrail", "Budget", "Deleted", "Deployed", "DriftReset", "Feedback", "FeedbackReply", "OperatingPoint",
    "Reset", "RouterChange", "ShadowChange", "Threshold",
]  # fmt: skip

# ---- feedback ---------------------------------------------------------------------------------------

Name = Annotated[str, Field(max_length=1024)]
ClassName = Annotated[str | int, Field(description="the name of a class; a number where classes are named 0 … K−1")]
Chance = Annotated[float, Field(gt=0, le=1)]


class LabelByDecision(Body):
    """The true label of a decision."""

    decision_id: Name
    sample_id: None = None
    label: ClassName
    probability: Chance | None = None


class LabelBySample(Body):
    """The true label of the only decision about a sample."""

    sample_id: Name
    decision_id: None = None
    label: ClassName
    probability: Chance | None = None


class Labels(Body):
    """Several labels at once; the valid ones are accepted."""

    feedback: Annotated[list[LabelByDecision | LabelBySample], Field(max_length=10_000)]


class Feedback(RootModel[LabelByDecision | LabelBySample | Labels]):
    """One label, or several."""


class RefusedLabel(Body):
    """A label that was not accepted."""

    index: int
    error: str
    code: str


class FeedbackReply(Body):
    """Ids of the decisions that were labelled, and the items that were refused."""

    accepted: list[str]
    errors: list[RefusedLabel]


# ---- admin calls ------------------------------------------------------------------------------------


class Budget(Body):
    """The share of samples to escalate."""

    budget: Annotated[float, Field(ge=0, le=1)]


class Threshold(Body):
    """Samples with a score above it are escalated."""

    threshold: float | Literal["inf", "-inf"]


class FusionRun(Body):
    """The strong route of a trained run."""

    run: Annotated[str, Field(description="a server folder")]


class FusionFile(Body):
    """Strong answers that were computed before."""

    strong: Annotated[str, Field(description="an .npz or Parquet file")]


class Switch(Body):
    """A router to switch to; without `fusion`, the strong route stays."""

    artifact: Annotated[str, Field(description="a path below the folder of the router")]
    fusion: FusionRun | FusionFile | None = None


class Rollback(Body):
    """Back to the router before."""

    rollback: Literal[True]


class RouterChange(RootModel[Switch | Rollback]):
    """A router, or a rollback."""


class ShadowLoad(Body):
    """A router to load as shadow."""

    artifact: Annotated[str, Field(description="a path below the folder of the router")]


class ShadowSwap(Body):
    """The shadow router becomes the router in use."""

    swap: Literal[True]


class ShadowDrop(Body):
    """No shadow router any more."""

    drop: Literal[True]


class ShadowChange(RootModel[ShadowLoad | ShadowSwap | ShadowDrop]):
    """A shadow router, or what becomes of it."""


class Reset(Body):
    """The monitor starts again."""

    reset: Literal[True]


class Guarantee(Body):
    """What was certified for the threshold in force, and the held-out samples that certified it."""

    confidence: float
    samples: int
    kept: int
    wrong: int
    budget: float | None
    kept_error: float | None
    text: str


class OperatingPoint(Body):
    """Where the service runs on the trade-off curve, and what calibration lets expect there."""

    set_by: Literal["artifact", "budget", "threshold"]
    # Of what the budget is a share: of the samples, or of the bytes of asking every party for every sample.
    budget_of: Literal["samples", "bytes"]
    budget: float | None
    threshold: Number
    expected_rate: Number
    expected_rate_low: Number
    expected_rate_high: Number
    expected_accuracy: Number
    guarantee: Guarantee | None


class Deployed(Body):
    """The router in use after the call."""

    version: str
    hash: str
    operating_point: OperatingPoint


class DriftReset(Body):
    """The alarms that were current, by name."""

    reset: dict[str, str]


class Deleted(Body):
    """How many decisions were deleted."""

    deleted: int


class AuditEntry(Body):
    """An admin call; `chain` links it to the one before."""

    number: int
    time: float
    who: str
    request_id: str
    action: str
    before: Any
    after: Any
    chain: str | None


class AuditTrail(Body):
    """Admin calls, newest first."""

    audit: list[AuditEntry]
