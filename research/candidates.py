"""Candidates for a better router, compared by nested cross-validation inside the calibration part.

::

    python -m research.candidates --records records --out docs/results/candidates.json

An outer fold is scored by a router that was fitted without it; whatever a router chooses for itself (λ, whether to
blend) it chooses inside the other folds. Test parts are never read.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gainroute._util.blas import one_thread
from gainroute._util.files import write_bytes
from gainroute.evaluation.metrics import TradeoffCurve, oracle_score, oracle_share, tradeoff_curve
from gainroute.experiments.records import Record, load_record
from gainroute.experiments.scores import blended_answers
from gainroute.routing.calibrate import DirichletCalibrator, folds_of
from gainroute.routing.router import Router
from gainroute.routing.routers import CalibratedConfidenceRouter, ConfidenceRouter, ExpectedGainRouter
from gainroute.routing.types import FloatArray, IntArray
from gainroute.training.route_answers import LocalAnswers, RouteAnswers
from research.candidate_routers import AllPartyRouter, CorrectedGainRouter, LookRouter, PartyClassRouter

__all__ = ["CANDIDATES", "PAPER", "Candidate", "OutOfFold", "judge", "main"]

OUTER_FOLDS = 5
RATES = (0.1, 0.2, 0.4)
PAPER = "paper"


@dataclass(frozen=True)
class Candidate:
    """One way to route.

    Attributes
    ----------
    build
        Makes the router.
    answers
        Whether its pooling also gives the Round-1 answer; otherwise the paper's mean does.
    about
        In a few words.
    largest
        Number of classes beyond which it is too slow to be a default, and is left out.
    trained
        Whether it gets Round 1 of the training part.
    """

    build: Callable[[], Router]
    answers: bool
    about: str
    largest: int = 10_000
    trained: bool = False


def _gain(kind: type[ExpectedGainRouter] = ExpectedGainRouter, **settings: Any) -> Callable[[], Router]:
    return lambda: kind.paper(**settings)


_BETTER: dict[str, Any] = {"pooling": "log-linear", "lam": "cv", "shrinkage": "empirical-bayes"}
_TAUGHT: dict[str, Any] = {**_BETTER, "pooling": "taught", "blend": "cv"}

CANDIDATES: Mapping[str, Candidate] = {
    PAPER: Candidate(_gain(), False, "the paper's router"),
    "confidence": Candidate(lambda: ConfidenceRouter(threshold="calibration"), False, "for comparison"),
    "1 − m[ŷ]": Candidate(lambda: CalibratedConfidenceRouter(threshold="calibration"), False, "for comparison"),
    "λ by cross-validation": Candidate(_gain(lam="cv"), False, "the paper's with λ chosen"),
    "shrunk reliability": Candidate(_gain(shrinkage="empirical-bayes"), False, "empirical Bayes over the classes"),
    "log-linear, score": Candidate(_gain(pooling="log-linear"), False, "one weight per party, mean answers"),
    "log-linear": Candidate(_gain(pooling="log-linear"), True, "one weight per party, answers too"),
    "log-linear, λ cv": Candidate(_gain(pooling="log-linear", lam="cv"), True, ""),
    "log-linear, λ cv, shrunk, score": Candidate(_gain(**_BETTER), False, "mean answers"),
    "log-linear, λ cv, shrunk": Candidate(_gain(**_BETTER), True, ""),
    "party and class": Candidate(_gain(PartyClassRouter, **_BETTER), True, "one weight per party and class, shrunk"),
    "all parties, score": Candidate(
        _gain(AllPartyRouter, shrinkage="empirical-bayes", calibration="none"), False, "all-party map, mean answers", 50
    ),
    "all parties": Candidate(
        _gain(AllPartyRouter, shrinkage="empirical-bayes", calibration="none"), True, "all-party map, answers too", 50
    ),
    "look": Candidate(_gain(LookRouter, **_BETTER), True, "reliability by class and by what Round 1 looked like"),
    "corrected": Candidate(_gain(CorrectedGainRouter, **_BETTER), True, "a ridge correction on top of the score"),
    "blend": Candidate(_gain(blend="cv"), False, "the paper's, strong answer blended with Round 1"),
    "log-linear, λ cv, shrunk, blend": Candidate(_gain(**_BETTER, blend="cv"), True, ""),
    "corrected, blend": Candidate(_gain(**_BETTER, blend="cv", correction="cv"), True, "corrected where that pays"),
    "taught": Candidate(_gain(**_TAUGHT), True, "a map of the pool, taught by the strong route"),
    "taught, corrected": Candidate(_gain(**_TAUGHT, correction="cv"), True, "that, corrected where that pays"),
    "taught, corrected, training part": Candidate(
        _gain(**_TAUGHT, correction="cv"), True, "that, and the training part as further samples", trained=True
    ),
}


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """A candidate on a calibration part, every sample routed by a router that had not seen it; (N,) each."""

    score: FloatArray
    weak_prediction: IntArray
    strong_prediction: IntArray

    def curve(self, labels: IntArray) -> TradeoffCurve:
        """Trade-off between rate and accuracy."""
        return tradeoff_curve(self.score, self.weak_prediction, self.strong_prediction, labels)


# λ by outer fold and pooling: candidates that differ elsewhere choose the same one, and choosing takes longest.
Chosen = dict[tuple[int, str, str], float]


def cross_validate(
    candidate: Candidate,
    held: RouteAnswers,
    folds: int = OUTER_FOLDS,
    seed: int = 1,
    chosen: Chosen | None = None,
    training: LocalAnswers | None = None,
) -> OutOfFold:
    """Route every calibration sample by a router fitted on the other folds.

    Parameters
    ----------
    candidate, held
        What is judged, on what.
    folds, seed
        Outer folds.
    chosen
        What others have chosen on the same samples and folds; added to.
    training
        Round 1 of the training part.
    """
    n = len(held.labels)
    chosen = {} if chosen is None else chosen
    score = np.empty(n)
    weak, strong = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for number, out in enumerate(folds_of(n, folds, seed)):
        kept = np.setdiff1d(np.arange(n), out)
        router = candidate.build()
        key = number, type(router).fit_pool.__qualname__, f"{getattr(router, 'pooling', '')} {candidate.trained}"
        chooses = isinstance(router, ExpectedGainRouter) and router.lam == "cv"
        if isinstance(router, ExpectedGainRouter) and chooses and key in chosen:
            router.lam = chosen[key]
        own = None if candidate.answers else held.weak_prediction
        router.fit(
            held.local_posteriors[:, kept],
            held.labels[kept],
            held.strong_prediction[kept],
            strong_posterior=held.strong_posterior[kept],
            weak_prediction=None if own is None else own[kept],
            training=(training.posteriors, training.labels) if candidate.trained and training is not None else None,
        )
        if chooses and isinstance(router.calibrator_, DirichletCalibrator):
            chosen[key] = router.calibrator_.lam
        decision = router.route(held.local_posteriors[:, out], weak_prediction=None if own is None else own[out])
        score[out], weak[out] = decision.score, decision.weak_prediction
        blended = blended_answers(router, decision, held.strong_posterior[out])
        strong[out] = held.strong_prediction[out] if blended is None else blended
    return OutOfFold(score, weak, strong)


def judge(
    record: Record,
    names: Sequence[str] = tuple(CANDIDATES),
    samples: int | None = None,
    chosen: Chosen | None = None,
) -> dict[str, Any]:
    """Judge candidates on one record's calibration part.

    Parameters
    ----------
    record
        Of which only the calibration part is read.
    names
        Candidates.
    samples
        Use only that many calibration samples, drawn by the record's seed: is a candidate safe with few?
    chosen
        For `cross_validate`, between calls for the same record and samples.

    Returns
    -------
    dict
        By candidate: accuracy at the rates, accuracy of both routes, share of the oracle's gain on the paper's routes.
    """
    held = record.calibration
    if samples is not None and samples < len(held.labels):
        held = held.take(np.sort(np.random.default_rng(record.seed).permutation(len(held.labels))[:samples]))
    oracle = oracle_score(held.weak_prediction, held.strong_prediction, held.labels)
    best = tradeoff_curve(oracle, held.weak_prediction, held.strong_prediction, held.labels)
    found: dict[str, Any] = {}
    chosen = {} if chosen is None else chosen
    for name in names:
        candidate = CANDIDATES[name]
        if len(record.class_names) > candidate.largest:
            continue
        began = time.perf_counter()
        curve = cross_validate(candidate, held, chosen=chosen, training=record.training).curve(held.labels)
        found[name] = {
            "accuracy": [float(np.interp(rate, curve.escalation_rate, curve.accuracy)) for rate in RATES],
            "weak": float(curve.accuracy[0]),
            "strong": float(curve.accuracy[-1]),
            "oracle_share": oracle_share(curve, best),
            "seconds": round(time.perf_counter() - began, 1),
        }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge all candidates on all records, adding to what the file already holds."""
    parser = argparse.ArgumentParser(description="Judge candidate routers on calibration data.")
    parser.add_argument("--records", type=Path, default=Path("records"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/candidates.json"))
    parser.add_argument("--datasets", nargs="*", default=None)
    parser.add_argument("--samples", type=int, default=None)
    parser.add_argument("--candidates", nargs="*", default=list(CANDIDATES))
    options = parser.parse_args(arguments)
    known: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    paths = sorted(options.records.glob("*/seed*.npz"))
    for path in paths:
        dataset = path.parent.name
        if options.datasets is not None and dataset not in options.datasets:
            continue
        key = f"{dataset}/{path.stem}" + (f"/{options.samples}" if options.samples else "")
        left = [name for name in options.candidates if name not in known.get(key, {})]
        if not left:
            continue
        print(f"{key}: {len(left)} candidates", file=sys.stderr, flush=True)
        record, chosen = load_record(path), Chosen()
        for name in left:
            with one_thread():
                known.setdefault(key, {}).update(judge(record, [name], options.samples, chosen))
            write_bytes(options.out, json.dumps(known, indent=1, sort_keys=True).encode() + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
