"""Logged decisions, checked: the input of a refit and of a comparison with a shadow router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gainroute.errors import InputError, SettingError, ShapeError, TooFewSamplesError
from gainroute.routing.inputs import as_local_posteriors
from gainroute.routing.labels import Labels
from gainroute.routing.router import Router
from gainroute.routing.types import ArrayLike, BoolArray, FloatArray, IntArray

__all__ = ["LoggedDecisions", "Rows", "check_enough", "checked"]


@dataclass(frozen=True, eq=False)
class LoggedDecisions:
    """The contents of a decision log, one row per decision, labelled or not.

    Attributes
    ----------
    local_posteriors : (M, N, K)
        What the parties sent.
    labels : (N,)
        True labels; −1 (None) where there was no feedback.
    strong_prediction : (N,)
        −1 (None) where the sample was not escalated.
    probability : (N,)
        Probability with which each was escalated: `ControlledDecision.probability`.
    feedback_probability : (N,), optional
        Probability with which each got a label. Without it, or where it is NaN, feedback is assumed independent of the
        sample given its route: the probability is the share of that route's decisions with a label.
    threshold : (N,), optional
        τ of each decision. Rows with +∞ are left out: nothing could be escalated because the cap was reached.
    weak_prediction : (N,), optional
        The user's own weak answer, if the router was fitted with one.
    """

    local_posteriors: Any
    labels: ArrayLike
    strong_prediction: ArrayLike
    probability: ArrayLike
    feedback_probability: ArrayLike | None = None
    threshold: ArrayLike | None = None
    weak_prediction: ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Checked rows of a log: labels and answers as columns, −1 if unknown, and the probabilities of observing them."""

    local: FloatArray
    labels: IntArray
    strong: IntArray
    weak: IntArray | None
    probability: FloatArray
    feedback: FloatArray

    def take(self, rows: BoolArray | IntArray) -> Rows:
        """Return these rows."""
        local, *columns = vars(self).values()
        taken: list[Any] = [None if column is None else column[rows] for column in columns]
        return Rows(local[:, rows], *taken)

    @property
    def weight(self) -> FloatArray:
        """One over the probability of the label, mean 1."""
        inverse = 1 / self.feedback
        return np.asarray(inverse / inverse.mean())

    @property
    def strong_weight(self) -> FloatArray:
        """One over the probability of label and strong answer; 0 where there is no strong answer."""
        return np.where(self.strong >= 0, self.weight / self.probability, 0.0)


def checked(router: Router, log: LoggedDecisions) -> Rows:
    """Check a log, and leave out the rows that cannot be used."""
    if log.local_posteriors is None:
        raise InputError("the log holds no posteriors; a refit needs them: keep them in the log (posteriors = true)")
    local = as_local_posteriors(
        log.local_posteriors, parties=router.n_parties_, classes=router.n_classes_ + router.extra_columns
    )
    n = local.shape[1]
    names = Labels(router.n_classes_, router.classes)
    labels = names.encode(log.labels, "labels", n, missing=True)
    strong = names.encode(log.strong_prediction, "strong_prediction", n, missing=True)
    weak = None if log.weak_prediction is None else names.encode(log.weak_prediction, "weak_prediction", n)
    chance = _probabilities(log.probability, "probability", n)
    threshold = np.zeros(n) if log.threshold is None else np.asarray(log.threshold, dtype=np.float64)
    closed = (threshold == np.inf) & (chance == 0)
    lost = (chance == 1) & (strong < 0)  # escalated, and no answer came
    kept = ~closed & ~lost & ~np.isnan(local).any(axis=(0, 2))
    blind = kept & (chance == 0)
    if blind.any():
        raise InputError(
            f"{int(blind.sum()):,} of {n:,} decisions had no chance of being escalated (probability 0): below the "
            "threshold nothing is known of the strong route; log with explore=0.01, and refit from those decisions"
        )
    if not kept.any():
        raise TooFewSamplesError(f"none of the {n:,} decisions in the log can be used; wait for more")
    feedback = _feedback(log, labels, strong, kept)
    return Rows(local, labels, strong, weak, chance, feedback).take(kept)


def _feedback(log: LoggedDecisions, labels: IntArray, strong: IntArray, kept: BoolArray) -> FloatArray:
    """Probability with which each row got a label; if not given, the share of its route."""
    n = len(labels)
    known, asked = labels >= 0, strong >= 0
    share = np.ones(n)
    for route in (kept & asked, kept & ~asked):
        share[route] = known[route].mean() if route.any() else 1.0
    if log.feedback_probability is None:
        return share
    given = np.asarray(log.feedback_probability, dtype=np.float64)
    found = _probabilities(np.where(np.isnan(given), 1.0, given), "feedback_probability", n)
    if (found[known] == 0).any():
        raise SettingError("a labelled decision has feedback_probability 0; it lies in (0, 1] where there is a label")
    return np.where(np.isnan(given), share, found)


def _probabilities(values: ArrayLike, name: str, n: int) -> FloatArray:
    found = np.asarray(values, dtype=np.float64)
    if found.shape != (n,):
        raise ShapeError(f"{name} has shape {found.shape} for {n} decisions; one each is needed")
    if not ((found >= 0) & (found <= 1)).all():
        raise SettingError(f"{name} reaches from {found.min():g} to {found.max():g}; probabilities lie in [0, 1]")
    return found


def check_enough(rows: Rows, labels: int, explored: int) -> None:
    """Refuse a log with too few labels, or too few of them explored."""
    seen = int(((rows.strong >= 0) & (rows.probability < 1)).sum())
    if len(rows.labels) < labels or seen < explored:
        raise TooFewSamplesError(
            f"the log has {len(rows.labels):,} labelled decisions, {seen:,} of them explored; {labels:,} and "
            f"{explored:,} are needed: wait for more feedback, or explore more"
        )
