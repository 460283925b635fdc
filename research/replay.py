"""Records replayed as streams that drift: what the budget controller and the drift monitor do on them.

Streams draw from a record's test part, with replacement where they are longer than it. Routers are fitted on the
calibration part, and everything that is chosen is chosen there: which classes count as hard, the step, the prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gainroute._util.resampling import gains_at
from gainroute.control.budget import BudgetController
from gainroute.control.drift import DriftMonitor
from gainroute.experiments.records import Record, RouteAnswers
from gainroute.routing.router import Router
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import BoolArray, FloatArray, IntArray

__all__ = [
    "BudgetStudy",
    "HarmStudy",
    "Stream",
    "accuracy_at",
    "fit",
    "hard_classes",
    "harm_study",
    "hold_budget",
    "noisy_stream",
    "spoiled",
    "turning_stream",
    "weak_and_gain",
]

WINDOW = 2000
LENGTH = 20_000
LEAN = 3.0  # how much likelier the favoured classes of a mix are


@dataclass(frozen=True, eq=False)
class Stream:
    """Samples in order, and the index at which the distribution changes."""

    split: RouteAnswers
    turn: int


def fit(record: Record, budget: float, threshold: str = "cross-fitted") -> ExpectedGainRouter:
    """The paper's router on the record's calibration part: both routes' answers are those of the record."""
    held = record.calibration
    router = ExpectedGainRouter.paper(budget, threshold=threshold)
    return router.fit(held.local_posteriors, held.labels, held.strong_prediction)


def hard_classes(router: Router, held: RouteAnswers) -> IntArray:
    """The half of the classes that the router escalates most, by the calibration part."""
    above = router.route(held.local_posteriors).escalate
    count = np.maximum(np.bincount(held.labels, minlength=router.n_classes_), 1)
    rate = np.bincount(held.labels, above, minlength=router.n_classes_) / count
    return np.sort(np.argsort(-rate, kind="stable")[: router.n_classes_ // 2])


def turning_stream(split: RouteAnswers, hard: IntArray, length: int = LENGTH, seed: int = 0) -> Stream:
    """A mix that favours the easy classes, and from midway on the hard ones."""
    rng = np.random.default_rng(seed)
    is_hard = np.isin(split.labels, hard)
    halves = [_drawn(rng, np.where(is_hard == late, LEAN, 1.0), length // 2) for late in (False, True)]
    return Stream(split.take(np.concatenate(halves)), length // 2)


def noisy_stream(record: Record, classes: int, length: int = LENGTH, seed: int = 0) -> Stream:
    """Clean samples, and from midway the same with this many classes noisy."""
    rng = np.random.default_rng(seed)
    n, half = len(record.test), length // 2
    clean, noisy = (rng.integers(n, size=half) for _ in range(2))
    return Stream(_join(record.test.take(clean), record.noisy[classes].take(noisy)), half)


def spoiled(split: RouteAnswers, share: float, seed: int = 0, classes: IntArray | None = None) -> RouteAnswers:
    """Synthetic: this share of the strong answers (of some classes only) replaced by a wrong one drawn at random."""
    rng = np.random.default_rng(seed)
    k = split.local_posteriors.shape[2]
    hit = rng.random(len(split)) < share
    if classes is not None:
        hit &= np.isin(split.labels, classes)
    wrong = (split.labels + 1 + rng.integers(k - 1, size=len(split))) % k
    return replace(split, strong_prediction=np.where(hit, wrong, split.strong_prediction))


def accuracy_at(split: RouteAnswers, score: FloatArray, rate: float) -> float:
    """Accuracy when this share of the highest scores is escalated: a threshold matched afterwards."""
    weak_right, gain = weak_and_gain(split)
    gained = gains_at(score, gain, np.ones((1, len(gain))), np.array([rate]))[0, 0]
    return float(weak_right.mean() + gained / len(gain))


# ---- a budget that holds ------------------------------------------------------------------------


@dataclass(frozen=True)
class BudgetStudy:
    """The controller on a stream that drifts.

    Attributes
    ----------
    fixed_before, fixed_after
        Rate of the router's own threshold on both sides of the turn.
    rate
        Of the controller, over all.
    worst
        How far the controller's rate over any 2,000 samples in a row is from B, the first 2,000 left out.
    accuracy, matched
        Of the controller, and of a threshold matched afterwards to its rate on each side of the turn.
    """

    fixed_before: float
    fixed_after: float
    rate: float
    worst: float
    accuracy: float
    matched: float


def hold_budget(
    router: Router, stream: Stream, budget: float, *, explore: float = 0.0, step: float | None = None, batch: int = 64
) -> BudgetStudy:
    """Run the controller over a stream, batch by batch."""
    split, turn = stream.split, stream.turn
    controller = BudgetController(router, budget, explore=explore, step=step)
    cuts = range(batch, len(split), batch)
    decisions = [controller.route(part) for part in np.split(split.local_posteriors, cuts, axis=1)]
    escalated = np.concatenate([d.escalate for d in decisions])
    score = np.concatenate([d.score for d in decisions])
    weak_right, gain = weak_and_gain(split)
    fixed = score > router.threshold_
    sides = [np.arange(turn), np.arange(turn, len(split))]
    matched = [len(rows) * accuracy_at(split.take(rows), score[rows], float(escalated[rows].mean())) for rows in sides]
    return BudgetStudy(
        fixed_before=float(fixed[:turn].mean()),
        fixed_after=float(fixed[turn:].mean()),
        rate=float(escalated.mean()),
        worst=_worst_window(escalated[WINDOW:], budget),
        accuracy=float((weak_right + escalated * gain).mean()),
        matched=sum(matched) / len(split),
    )


# ---- collaboration that begins to hurt ----------------------------------------------------------


@dataclass(frozen=True)
class HarmStudy:
    """The monitor on a stream whose strong answers are spoiled from midway on (synthetic).

    Attributes
    ----------
    early
        Whether it raised an alarm before the turn.
    delay, delay_answers
        Samples, and escalated and labelled answers, from the turn to the alarm; −1 if there was none.
    before, unprotected, protected
        Accuracy before the turn; after it, with nothing done; and with the controller protected from the alarm on.
    weak
        Accuracy after the turn without any collaboration.
    evidence
        The text of the alarm.
    """

    early: bool
    delay: int
    delay_answers: int
    before: float
    unprotected: float
    protected: float
    weak: float
    evidence: str


def harm_study(
    router: Router,
    test: RouteAnswers,
    budget: float = 0.2,
    *,
    share: float = 0.9,
    feedback: float = 0.5,
    length: int = LENGTH,
    batch: int = 50,
    seed: int = 0,
) -> HarmStudy:
    """Spoil the strong answers from midway, and let the monitor protect the controller."""
    rng = np.random.default_rng(seed)
    half = length // 2
    good = test.take(rng.integers(len(test), size=half))
    bad = spoiled(test, share, seed).take(rng.integers(len(test), size=length - half))
    split = _join(good, bad)
    free, guarded = (BudgetController(router, budget, explore=0.01, seed=seed) for _ in range(2))
    monitor = DriftMonitor(router)
    alarm, answers, evidence, early = -1, 0, "", False
    kept: list[BoolArray] = []
    guarded_kept: list[BoolArray] = []
    for first in range(0, length, batch):
        part = split.take(np.arange(first, min(first + batch, length)))
        kept.append(free.route(part.local_posteriors).escalate)
        decision = guarded.route(part.local_posteriors)
        guarded_kept.append(decision.escalate)
        labelled = replace(decision, incomplete=rng.random(len(part)) >= feedback)  # the others never got a label
        monitor.feedback(labelled, part.labels, np.where(decision.escalate, part.strong_prediction, -1))
        if first >= half and alarm < 0:
            answers += int((decision.escalate & ~labelled.incomplete).sum())
        if monitor.collaboration.harmful and alarm < 0:
            alarm, evidence, early = first + len(part), str(monitor.collaboration), first < half
        monitor.protect(guarded)
    weak_right, gain = weak_and_gain(split)
    one, two = (weak_right + np.concatenate(mask) * gain for mask in (kept, guarded_kept))
    return HarmStudy(
        early=early,
        delay=alarm - half if alarm >= 0 else -1,
        delay_answers=answers if alarm >= 0 else -1,
        before=float(one[:half].mean()),
        unprotected=float(one[half:].mean()),
        protected=float(two[half:].mean()),
        weak=float(weak_right[half:].mean()),
        evidence=evidence,
    )


# ---- inside -------------------------------------------------------------------------------------


def _drawn(rng: np.random.Generator, weight: FloatArray, count: int) -> IntArray:
    return rng.choice(len(weight), count, p=weight / weight.sum())


def _join(one: RouteAnswers, two: RouteAnswers) -> RouteAnswers:
    """Concatenate two sets of answers; fields that are not replayed are left out."""
    return RouteAnswers(
        ids=np.concatenate([one.ids, two.ids]),
        labels=np.concatenate([one.labels, two.labels]),
        local_posteriors=np.concatenate([one.local_posteriors, two.local_posteriors], axis=1),
        strong_posterior=np.concatenate([one.strong_posterior, two.strong_posterior]),
        weak_prediction=np.concatenate([one.weak_prediction, two.weak_prediction]),
        strong_prediction=np.concatenate([one.strong_prediction, two.strong_prediction]),
    )


def weak_and_gain(split: RouteAnswers) -> tuple[FloatArray, FloatArray]:
    """Which weak answers are right, and the realised gain of escalating, (N,) each."""
    weak_right = (split.weak_prediction == split.labels).astype(np.float64)
    return weak_right, (split.strong_prediction == split.labels) - weak_right


def _worst_window(escalated: BoolArray, budget: float, window: int = WINDOW) -> float:
    sums = np.concatenate([[0], np.cumsum(escalated)])
    return float(np.abs((sums[window:] - sums[:-window]) / window - budget).max())
