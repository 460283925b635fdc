"""Detect drift: whether the data still look like the calibration data, and whether collaboration still helps.

Without labels, the scores of every window are compared with the calibration scores. With feedback, the monitor tracks
whether the weak answers are right as often as the calibrated posterior predicts, how reliable the strong route is for
each class, and whether the strong route still does better than the weak one on escalated samples.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from gainroute.control.change_test import ChangeTest
from gainroute.control.drift_report import Collaboration, DriftReport, ScoreDrift
from gainroute.control.score_scale import CalibrationScale
from gainroute.errors import SettingError, ShapeError
from gainroute.routing.decide import escalate
from gainroute.routing.inputs import as_utility, check_fraction
from gainroute.routing.labels import Labels
from gainroute.routing.learned_gain import LearnedGainRouter
from gainroute.routing.router import Router
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import ArrayLike, BoolArray, Decision, FloatArray, ThresholdScores

__all__ = ["DriftMonitor"]

FORMAT = "gainroute.drift"
VERSION = 1
BINS = 10
CALIBRATION_SLACK = 0.05  # error of the calibrated posterior that does not count as drift
HINT_Z = 2.576  # of the intervals of the classes: 99 %, before the correction for their number


class Protected(Protocol):
    """Anything with a `protection` to set, such as a `BudgetController`."""

    protection: float | None


class DriftMonitor:
    """Monitor scores, and feedback if there is any.

    Parameters
    ----------
    router
        The fitted router in use.
    window
        Number of scores that are compared with calibration at a time.
    horizon, false_alarm
        Each kind of alarm is false with probability at most `false_alarm` over `horizon` samples (scores) or answers
        with feedback (the others). For the scores this is Smirnov's asymptotic limit; for the others it holds for any
        number of samples, by Ville's inequality.
    memory
        About how many recent answers with feedback the estimates cover.
    min_feedback_probability
        The smallest feedback probability allowed.

    Examples
    --------
    >>> import numpy as np
    >>> import gainroute as gr
    >>> from gainroute.control.drift import DriftMonitor
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=500)
    >>> local = 0.6 * rng.dirichlet([1, 1, 1], size=500) + 0.4 * np.eye(3)[labels]
    >>> router = gr.ExpectedGainRouter(budget=0.2).fit(local, labels, labels)
    >>> monitor = DriftMonitor(router, window=500)
    >>> decision = router.route(local)
    >>> monitor.observe(decision)
    >>> strong = np.where(decision.escalate, (labels + 1) % 3, -1)  # a strong route that is always wrong
    >>> monitor.feedback(decision, labels, strong)
    >>> report = monitor.report()
    >>> report.collaboration.strong_right, "collaboration" in report.alarms
    (0, True)
    """

    def __init__(
        self,
        router: Router,
        *,
        window: int = 1000,
        horizon: int = 10_000,
        false_alarm: float = 0.01,
        memory: int = 5000,
        min_feedback_probability: float = 0.1,
    ) -> None:
        router._check_fitted()
        if not 0 < window <= horizon:
            raise SettingError(f"window is {window} and horizon {horizon}; 0 < window ≤ horizon is needed")
        self.router, self.window, self.horizon, self.memory = router, int(window), int(horizon), int(memory)
        self.false_alarm = check_fraction(false_alarm, "false_alarm", "such as 0.01")
        self.min_feedback_probability = check_fraction(
            min_feedback_probability, "min_feedback_probability", "such as 0.1"
        )
        self.scale = CalibrationScale.of(router.threshold_scores_)
        self._calibration_scores = _CalibrationScores(router.threshold_scores_, self.scale)
        self._names = Labels(router.n_classes_, router.classes)
        self._utility = as_utility(getattr(router, "utility", None), router.n_classes_)
        self.reset()

    def reset(self) -> None:
        """Forget everything, for example after a recalibration, a new strong route, or an alarm that was resolved."""
        k = self.router.n_classes_
        self.scores: ScoreDrift | None = None
        self.labels = 0
        self._pending = np.zeros(0), np.zeros(0, dtype=bool)  # scores and escalations of the current window
        self._bins = np.zeros((3, BINS))  # weight, confidence, right
        self._classes = np.zeros((3, k))  # weight, its square, right
        self._helps = ChangeTest(self.horizon, self.false_alarm, tallies=5)
        # Two directions share the probability of a false alarm.
        self._overconfident, self._underconfident = (ChangeTest(self.horizon, self.false_alarm / 2) for _ in range(2))
        self._tests = self._helps, self._overconfident, self._underconfident

    # ---- what comes in --------------------------------------------------------------------------

    def observe(self, decision: Decision) -> None:
        """Add a batch of decisions, labelled or not."""
        use = ~decision.incomplete
        self.observe_scores(decision.score[use], decision.escalate[use])

    def observe_scores(self, score: FloatArray, escalated: BoolArray) -> None:
        """Add scores, (N,), and which samples were escalated; NaN is left out."""
        known = ~np.isnan(score)
        scores, asked = (
            np.concatenate([held, new[known]]) for held, new in zip(self._pending, (score, escalated), strict=True)
        )
        # Only the last full window is reported, even if several have filled at once.
        full = len(scores) // self.window * self.window
        if full:
            last = slice(full - self.window, full)
            self.scores = self._compare(scores[last], float(asked[last].mean()))
        self._pending = scores[full:], asked[full:]

    def feedback(
        self,
        decision: Decision,
        labels: ArrayLike,
        strong_prediction: ArrayLike,
        *,
        probability: ArrayLike | None = None,
    ) -> None:
        """Add the true labels of some decisions, in the order in which they became known.

        Parameters
        ----------
        decision
            The decisions concerned: `score`, `weak_prediction`, `calibrated` and `escalate`, and of a
            `ControlledDecision` also `probability` and `explored`. Rows whose `calibrated` is NaN (not stored) are not
            used for calibration.
        labels : (N,)
            True labels.
        strong_prediction : (N,)
            The strong answers; −1 (None) where the sample was not escalated.
        probability : (N,), optional
            Probability with which each of these decisions got feedback, if it is not the same for all.
        """
        n = len(decision)
        truth = self._names.encode(labels, "labels", n)
        strong = self._names.encode(strong_prediction, "strong_prediction", n, missing=True)
        weak = self._names.encode(decision.weak_prediction, "weak_prediction", n, missing=True)
        inverse = self._inverse(probability, n)
        chance = np.asarray(getattr(decision, "probability", np.ones(n)), dtype=np.float64)
        explored = np.asarray(getattr(decision, "explored", np.zeros(n, dtype=bool)))
        use = ~decision.incomplete & (weak >= 0)
        asked = use & (strong >= 0)
        fade = (1 - 1 / self.memory) ** int(use.sum())
        self.labels += int(use.sum())
        said = use & ~np.isnan(decision.calibrated).any(axis=1)
        self._note_calibration(decision.calibrated[said], weak[said], truth[said], inverse[said], fade)
        # A sample with probability 0 of escalation carries no weight, even if it was escalated by other means.
        weight = np.where(chance > 0, inverse / np.maximum(chance, 1e-9), 0.0)
        self._note_reliability(truth[asked], strong[asked], weight[asked], fade)
        chosen = asked & ~explored
        self._note_gain(truth[chosen], weak[chosen], strong[chosen], decision.score[chosen], inverse[chosen])

    # ---- what comes out -------------------------------------------------------------------------

    @property
    def collaboration(self) -> Collaboration:
        """Whether the strong route still helps."""
        test = self._helps
        n, strong, weak, promised, gained = test.since_change().tolist()
        share = 1 / n if n else math.nan
        counts = int(n), int(strong), int(weak)
        return Collaboration(*counts, promised * share, gained * share, test.evidence, test.limit, test.alarm)

    def report(self) -> DriftReport:
        """Everything that is known now."""
        error, gap = self._calibration()
        reliability, low, high, effective = self._reliability()
        own = self.router.reliability_
        changed = np.flatnonzero((own < low) | (own > high))
        return DriftReport(
            scores=self.scores,
            labels=self.labels,
            calibration_error=error,
            confidence_gap=gap,
            reliability=reliability,
            reliability_low=low,
            reliability_high=high,
            reliability_labels=effective,
            changed_classes=tuple(self._names.decode(changed).tolist()),
            collaboration=self.collaboration,
            alarms=self._alarms(gap),
        )

    @property
    def recommended_min_gain(self) -> float | None:
        """The gain to demand while the alarm is on; None without an alarm.

        If the scores promised p on average and the gain was g, each is assumed to be p − g too high, so that only
        samples above p − g are expected to gain. +∞ (exploration only) if the score is not an expected gain.
        """
        found = self.collaboration
        if not found.harmful:
            return None
        if not isinstance(self.router, (ExpectedGainRouter, LearnedGainRouter)):
            return math.inf
        return max(found.promised - found.gained, 0.0)

    def protect(self, controller: Protected) -> float | None:
        """Set the controller's `protection` while the alarm is on, remove it otherwise, and return it."""
        wanted = self.recommended_min_gain
        if wanted is None or controller.protection is None:
            controller.protection = wanted
        else:  # fewer samples are escalated now and say less about the others, so it is never lowered
            controller.protection = max(wanted, controller.protection)
        return controller.protection

    def state(self) -> dict[str, Any]:
        """Everything that must survive a restart, as plain JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "router": self.scale.digest(),
            "scores": None if self.scores is None else vars(self.scores),
            "labels": self.labels,
            "pending": [[s, e] for s, e in zip(*(column.tolist() for column in self._pending), strict=True)],
            "bins": self._bins.tolist(),
            "classes": self._classes.tolist(),
            "tests": [test.state() for test in self._tests],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the saved state of a monitor of the same router."""
        wanted = (FORMAT, VERSION, self.scale.digest())
        found = tuple(state.get(name) for name in ("format", "version", "router"))
        if found != wanted:
            raise SettingError(
                f"the state has format, version and router {found}, {wanted} is needed; pass what DriftMonitor.state "
                "returned for the same router, or start without it"
            )
        self.scores = None if state["scores"] is None else ScoreDrift(**state["scores"])
        self.labels = int(state["labels"])
        pending = np.array(state["pending"], dtype=np.float64).reshape(-1, 2)
        self._pending = pending[:, 0].copy(), pending[:, 1].astype(bool)
        self._bins, self._classes = np.array(state["bins"]), np.array(state["classes"])
        for test, saved in zip(self._tests, state["tests"], strict=True):
            test.restore(saved)

    # ---- inside ---------------------------------------------------------------------------------

    def _compare(self, score: FloatArray, rate: float) -> ScoreDrift:
        behind, ranked = self._calibration_scores, np.sort(score)
        at = np.concatenate([behind.ranked, ranked])
        now, before = np.searchsorted(ranked, at, side="right") / len(score), behind(at)
        # Windows do not overlap: they share the probability of a false alarm over the horizon.
        level = self.false_alarm * self.window / self.horizon
        threshold = self.router.threshold_
        p, q = _shares(self.scale(score), np.ones(len(score))), behind.shares
        return ScoreDrift(
            samples=len(score),
            distance=float(np.abs(now - before).max()),
            limit=math.sqrt(math.log(2 / level) / 2) * math.sqrt(1 / len(score) + 1 / behind.effective),
            stability_index=float(((p - q) * np.log(p / q)).sum()),
            rate=rate,
            fixed_rate=float(escalate(score, threshold).mean()),
            calibration_rate=1.0 - float(behind(np.array([threshold]))[0]),
        )

    def _inverse(self, probability: ArrayLike | None, n: int) -> FloatArray:
        """Weights in (0, 1], inverse to the probability of feedback."""
        if probability is None:
            return np.ones(n)
        chance = np.asarray(probability, dtype=np.float64)
        if chance.shape != (n,):
            raise ShapeError(f"probability has shape {chance.shape} for {n} decisions; one each is needed")
        if not ((chance >= self.min_feedback_probability) & (chance <= 1)).all():
            raise SettingError(
                f"a feedback probability is {float(chance.min()):.4g}; allowed are {self.min_feedback_probability:g} "
                "to 1: lower min_feedback_probability, or leave such feedback out"
            )
        return self.min_feedback_probability / chance

    def _note_calibration(self, calibrated: Any, weak: Any, truth: Any, weight: FloatArray, fade: float) -> None:
        confidence = calibrated[np.arange(len(weak)), weak]
        right = (weak == truth).astype(np.float64)
        column = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
        added = [np.bincount(column, weight * v, minlength=BINS) for v in (np.ones(len(weak)), confidence, right)]
        self._bins = self._bins * fade + np.stack(added)
        gap, slack = right - confidence, CALIBRATION_SLACK
        for test, sign in ((self._overconfident, 1.0), (self._underconfident, -1.0)):
            test.update(weight * np.clip((sign * gap + slack) / (1 + slack), -1, 1))

    def _note_reliability(self, truth: Any, strong: Any, weight: FloatArray, fade: float) -> None:
        k = self.router.n_classes_
        right = (strong == truth).astype(np.float64)
        added = [np.bincount(truth, v, minlength=k) for v in (weight, weight**2, weight * right)]
        self._classes = self._classes * fade + np.stack(added)

    def _note_gain(self, truth: Any, weak: Any, strong: Any, score: FloatArray, weight: FloatArray) -> None:
        strong_right, weak_right = (strong == truth).astype(np.float64), (weak == truth).astype(np.float64)
        gain = strong_right - weak_right
        if self._utility is not None:
            gain = self._utility[truth, strong] - self._utility[truth, weak]
        widest = 1.0 if self._utility is None else float(np.ptp(self._utility)) or 1.0
        tallies = np.stack([np.ones(len(gain)), strong_right, weak_right, score, gain], axis=1)
        self._helps.update(weight * gain / widest, tallies)

    def _calibration(self) -> tuple[float, float]:
        weight, confidence, right = self._bins
        total = weight.sum()
        if not total:
            return math.nan, math.nan
        return float(np.abs(right - confidence).sum() / total), float((right - confidence).sum() / total)

    def _reliability(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        weight, square, right = self._classes
        with np.errstate(invalid="ignore", divide="ignore"):
            share = right / weight
            effective = np.where(square > 0, weight**2 / square, 0.0)
            # Wilson's interval, jointly over all classes: z grows about like Bonferroni's with their number.
            z2 = HINT_Z**2 + 2 * math.log(max(self.router.n_classes_, 1))
            centre = (share + z2 / (2 * effective)) / (1 + z2 / effective)
            half = np.sqrt(z2 * share * (1 - share) / effective + z2**2 / (4 * effective**2)) / (1 + z2 / effective)
        return share, centre - half, centre + half, effective

    def _alarms(self, gap: float) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.scores is not None and self.scores.drifted:
            s = self.scores
            found["scores"] = (
                f"the scores of the last {s.samples:,} samples differ from calibration: distance {s.distance:.3f} > "
                f"{s.limit:.3f}; the router's own threshold would escalate {100 * s.fixed_rate:.1f} %, not "
                f"{100 * s.calibration_rate:.1f} %"
            )
        for test, word in ((self._overconfident, "less"), (self._underconfident, "more")):
            if test.alarm:
                found["calibration"] = (
                    f"the weak answers are right {word} often than the calibrated posterior predicts, by more than "
                    f"{100 * CALIBRATION_SLACK:g} points (recently {100 * gap:+.1f}); e-value {test.evidence:.3g} ≥ "
                    f"{test.limit:g}"
                )
        if self._helps.alarm:
            found["collaboration"] = str(self.collaboration)
        return found


class _CalibrationScores:
    """The calibration scores, sorted once; call it for the share of them at or below other scores."""

    def __init__(self, behind: ThresholdScores, scale: CalibrationScale) -> None:
        order = np.argsort(behind.score, kind="stable")
        self.ranked = behind.score[order]
        self._below = np.concatenate([[0.0], np.cumsum(behind.weight[order])]) / behind.weight.sum()
        self.effective = float(behind.weight.sum() ** 2 / np.square(behind.weight).sum())
        self.shares = _shares(scale(behind.score), behind.weight)

    def __call__(self, score: FloatArray) -> FloatArray:
        found: FloatArray = self._below[np.searchsorted(self.ranked, score, side="right")]
        return found


def _shares(level: FloatArray, weight: FloatArray) -> FloatArray:
    """Share in each of ten equal bins of [0, 1]; half a sample in an empty one keeps logarithms finite."""
    edges = np.linspace(0, 1, BINS + 1)[1:-1]
    found = np.bincount(np.searchsorted(edges, level), weight, minlength=BINS) + 0.5 * weight.mean()
    return np.asarray(found / found.sum())
