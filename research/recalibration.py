"""Recalibration studied on records: routers refitted from a decision log after the data have drifted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gainroute.control.budget import BudgetController
from gainroute.control.logged_decisions import LoggedDecisions
from gainroute.control.recalibrate import recalibrate
from gainroute.control.shadow import compare_shadow
from gainroute.experiments.records import Record, RouteAnswers
from gainroute.routing.router import Router
from gainroute.routing.types import FloatArray
from research.replay import fit, hard_classes, spoiled, weak_and_gain

__all__ = ["RecalibrationStudy", "logged", "recalibration_study"]


@dataclass(frozen=True, eq=False)
class RecalibrationStudy:
    """Accuracy at the same rate before and after a refit from the log, on samples that were in neither fit.

    Attributes
    ----------
    labels
        Labelled answers a refit was made from, on average.
    old, new
        Right answers of each router, one entry per sample, between 0 and 1 at the cut.
    rate
        Share that the new router's own threshold escalates.
    shadow
        Differences that `compare_shadow` estimated from logs of the samples held out.
    """

    labels: float
    old: FloatArray
    new: FloatArray
    rate: float
    shadow: FloatArray

    @property
    def difference(self) -> tuple[float, float, float]:
        """New less old, with its 95 % interval over samples."""
        each = self.new - self.old
        half = 1.96 * float(each.std(ddof=1)) / len(each) ** 0.5
        return float(each.mean()), float(each.mean()) - half, float(each.mean()) + half


def recalibration_study(
    records: Sequence[Record],
    drift: str,
    budget: float = 0.2,
    *,
    explore: float = 0.02,
    folds: int = 5,
    bias: float = 0.0,
    declared: bool = True,
) -> RecalibrationStudy:
    """Refit on all folds but one of the drifted test part, and compare on that one; each sample is held out once.

    Parameters
    ----------
    records
        One per seed.
    drift
        "noise": the largest noisy regime. "spoiled": synthetic, 70 % of the strong answers of the hard half of the
        classes replaced by wrong ones. "none".
    bias
        Share of the right weak answers that nobody confirms: feedback that comes from complaints.
    declared
        Whether the feedback says so, by carrying its probability.
    """
    old_right: list[FloatArray] = []
    new_right: list[FloatArray] = []
    labels, rate, shadow = [], [], []
    for record in records:
        router = fit(record, budget, threshold="calibration")
        split = record.noisy[max(record.noisy)] if drift == "noise" else record.test
        if drift == "spoiled":
            split = spoiled(split, 0.7, record.seed, hard_classes(router, record.calibration))
        rng = np.random.default_rng(record.seed)
        order = rng.permutation(len(split))
        for fold in range(folds):
            held_out = split.take(order[fold::folds])
            log = logged(router, split.take(np.delete(order, np.s_[fold::folds])), budget, explore, rng, bias, declared)
            made = recalibrate(router, log, min_explored=1)
            labels.append(int((np.asarray(log.labels) >= 0).sum()))
            for target, which in ((old_right, router), (new_right, made)):
                target.append(_right_at(held_out, which.route(held_out.local_posteriors).score, budget))
            rate.append(float(made.route(held_out.local_posteriors).escalate.mean()))
            live = logged(router, held_out, budget, explore, rng, 0.0, True)
            shadow.append(compare_shadow(router, made, live, rate=budget).difference)
    return RecalibrationStudy(
        float(np.mean(labels)),
        np.concatenate(old_right),
        np.concatenate(new_right),
        float(np.mean(rate)),
        np.array(shadow),
    )


def logged(
    router: Router,
    split: RouteAnswers,
    budget: float,
    explore: float,
    rng: np.random.Generator,
    bias: float,
    declared: bool,
    share: float = 1.0,
) -> LoggedDecisions:
    """What a controller would have logged, with feedback on a `share` of the decisions."""
    decision = BudgetController(router, budget, explore=explore, seed=int(rng.integers(2**31))).route(
        split.local_posteriors
    )
    chance = share * np.where(split.weak_prediction == split.labels, 1.0 - bias, 1.0)
    labelled = rng.random(len(split)) < chance
    return LoggedDecisions(
        split.local_posteriors,
        np.where(labelled, split.labels, -1),
        np.where(decision.escalate, split.strong_prediction, -1),
        decision.probability,
        feedback_probability=chance if declared and bias else None,
        threshold=decision.thresholds,
    )


def _right_at(split: RouteAnswers, score: FloatArray, rate: float) -> FloatArray:
    """Right answers with this share escalated, (N,)."""
    weak_right, gain = weak_and_gain(split)
    top = np.zeros(len(split))
    top[np.argsort(-score, kind="stable")[: round(rate * len(split))]] = 1.0
    return weak_right + top * gain
