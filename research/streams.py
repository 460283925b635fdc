"""Records replayed as streams that turn: what the controller, the monitor and recalibration make of them.

    python -m research.streams records/digits records/modelnet40

Streams draw from a record's test part, with replacement where they are longer than it. Routers are fitted on the
calibration part, and so is everything that is chosen: which classes count as hard, the step, the prior.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from gainroute._util.resampling import gains_at
from gainroute.control.budget import BudgetController
from gainroute.control.drift import DriftMonitor
from gainroute.control.logged_decisions import LoggedDecisions
from gainroute.control.recalibrate import recalibrate
from gainroute.control.shadow import compare_shadow
from gainroute.experiments.records import Record, RouteAnswers, load_record
from gainroute.routing.router import Router
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.types import BoolArray, FloatArray, IntArray

__all__ = [
    "BudgetStudy",
    "HarmStudy",
    "RecalibrationStudy",
    "Stream",
    "accuracy_at",
    "fit",
    "hard_classes",
    "harm_study",
    "hold_budget",
    "main",
    "noisy_stream",
    "recalibration_study",
    "spoiled",
    "turning_stream",
]

WINDOW = 2000
LENGTH = 20_000
LEAN = 3.0  # how much likelier the classes are that a mix leans to


@dataclass(frozen=True, eq=False)
class Stream:
    """Samples in their order, and where the world turns."""

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
    """A mix that leans to the easy classes, and from midway to the hard ones."""
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
    weak_right, gain = _gain(split)
    gained = gains_at(score, gain, np.ones((1, len(gain))), np.array([rate]))[0, 0]
    return float(weak_right.mean() + gained / len(gain))


# ---- a budget that holds ------------------------------------------------------------------------


@dataclass(frozen=True)
class BudgetStudy:
    """The controller on a stream that turns.

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
    weak_right, gain = _gain(split)
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
        What the alarm said.
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
        told = replace(decision, incomplete=rng.random(len(part)) >= feedback)  # the others never got a label
        monitor.feedback(told, part.labels, np.where(decision.escalate, part.strong_prediction, -1))
        if first >= half and alarm < 0:
            answers += int((decision.escalate & ~told.incomplete).sum())
        if monitor.collaboration.harmful and alarm < 0:
            alarm, evidence, early = first + len(part), str(monitor.collaboration), first < half
        monitor.protect(guarded)
    weak_right, gain = _gain(split)
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


# ---- recalibration ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RecalibrationStudy:
    """Accuracy at the same rate before and after a refit from the log, on samples that were in neither fit.

    Attributes
    ----------
    labels
        Labelled answers a refit was made from, on average.
    old, new
        Right answers of each router, one entry a sample, between 0 and 1 at the cut.
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
        One a seed.
    drift
        "noise": the largest noisy regime. "spoiled": synthetic, 70 % of the strong answers of the hard half of the
        classes replaced by wrong ones. "none".
    bias
        Share of the right cheap answers that nobody confirms: feedback that comes from complaints.
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
            log = _logged(
                router, split.take(np.delete(order, np.s_[fold::folds])), budget, explore, rng, bias, declared
            )
            made = recalibrate(router, log, min_explored=1)
            labels.append(int((np.asarray(log.labels) >= 0).sum()))
            for target, which in ((old_right, router), (new_right, made)):
                target.append(_right_at(held_out, which.route(held_out.local_posteriors).score, budget))
            rate.append(float(made.route(held_out.local_posteriors).escalate.mean()))
            live = _logged(router, held_out, budget, explore, rng, 0.0, True)
            shadow.append(compare_shadow(router, made, live, rate=budget).difference)
    return RecalibrationStudy(
        float(np.mean(labels)),
        np.concatenate(old_right),
        np.concatenate(new_right),
        float(np.mean(rate)),
        np.array(shadow),
    )


def _logged(
    router: Router,
    split: RouteAnswers,
    budget: float,
    explore: float,
    rng: np.random.Generator,
    bias: float,
    declared: bool,
) -> LoggedDecisions:
    """What a controller would have logged, with the feedback it got."""
    decision = BudgetController(router, budget, explore=explore, seed=int(rng.integers(2**31))).route(
        split.local_posteriors
    )
    chance = np.where(split.weak_prediction == split.labels, 1.0 - bias, 1.0)
    told = rng.random(len(split)) < chance
    return LoggedDecisions(
        split.local_posteriors,
        np.where(told, split.labels, -1),
        np.where(decision.escalate, split.strong_prediction, -1),
        decision.probability,
        feedback_probability=chance if declared and bias else None,
        threshold=decision.thresholds,
    )


# ---- all of it ----------------------------------------------------------------------------------


def main(folders: Sequence[str], length: int = LENGTH) -> None:
    """Print what every record in these folders gives."""
    for folder in folders:
        records = [load_record(path) for path in sorted(Path(folder).glob("seed*.npz"))]
        for record in records:
            router = fit(record, 0.2)
            hard = hard_classes(router, record.calibration)
            streams = {"mix": turning_stream(record.test, hard, length, record.seed)}
            streams |= {f"noise on {c}": noisy_stream(record, c, length, record.seed) for c in record.noisy}
            for name, stream in streams.items():
                for explore in (0.0, 0.01):
                    found = asdict(hold_budget(router, stream, 0.2, explore=explore))
                    _say(record, f"{name}, explore {explore}", {k: f"{100 * v:.2f}" for k, v in found.items()})
            for share in (0.7, 0.9):
                harm = asdict(harm_study(router, record.test, share=share, length=length, seed=record.seed))
                _say(record, f"{100 * share:g} % of the strong answers spoiled (synthetic)", harm)
        for drift, bias, declared in (
            ("noise", 0.0, True), ("spoiled", 0.0, True), ("noise", 0.9, True), ("noise", 0.9, False),
        ):  # fmt: skip
            study = recalibration_study(records, drift, bias=bias, declared=declared)
            old, new = 100 * study.old.mean(), 100 * study.new.mean()
            low, high = (100 * v for v in study.difference[1:])
            _say(
                records[0],
                f"recalibration, {drift}, bias {bias}, declared {declared}",
                {
                    "labels": study.labels,
                    "old": f"{old:.2f}",
                    "new": f"{new:.2f}",
                    "difference": f"{new - old:+.2f} ({low:+.2f} to {high:+.2f})",
                    "rate at its own threshold": f"{100 * study.rate:.1f}",
                    "shadow": f"{100 * study.shadow.mean():+.2f} ± {100 * study.shadow.std():.2f}",
                },
            )


def _say(record: Record, what: str, found: dict[str, object]) -> None:
    sys.stdout.write(f"{record.dataset} seed {record.seed}, {what}: {found}\n")
    sys.stdout.flush()


# ---- inside -------------------------------------------------------------------------------------


def _drawn(rng: np.random.Generator, weight: FloatArray, count: int) -> IntArray:
    return rng.choice(len(weight), count, p=weight / weight.sum())


def _join(one: RouteAnswers, two: RouteAnswers) -> RouteAnswers:
    """Two splits, one after the other; what is not replayed is left out."""
    return RouteAnswers(
        ids=np.concatenate([one.ids, two.ids]),
        labels=np.concatenate([one.labels, two.labels]),
        local_posteriors=np.concatenate([one.local_posteriors, two.local_posteriors], axis=1),
        strong_posterior=np.concatenate([one.strong_posterior, two.strong_posterior]),
        weak_prediction=np.concatenate([one.weak_prediction, two.weak_prediction]),
        strong_prediction=np.concatenate([one.strong_prediction, two.strong_prediction]),
    )


def _gain(split: RouteAnswers) -> tuple[FloatArray, FloatArray]:
    weak_right = (split.weak_prediction == split.labels).astype(np.float64)
    return weak_right, (split.strong_prediction == split.labels) - weak_right


def _right_at(split: RouteAnswers, score: FloatArray, rate: float) -> FloatArray:
    """Right answers with this share escalated, (N,)."""
    weak_right, gain = _gain(split)
    top = np.zeros(len(split))
    top[np.argsort(-score, kind="stable")[: round(rate * len(split))]] = 1.0
    return weak_right + top * gain


def _worst_window(escalated: BoolArray, budget: float, window: int = WINDOW) -> float:
    sums = np.concatenate([[0], np.cumsum(escalated)])
    return float(np.abs((sums[window:] - sums[:-window]) / window - budget).max())


if __name__ == "__main__":
    main(sys.argv[1:])
