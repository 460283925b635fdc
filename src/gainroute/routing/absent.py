"""Absent parties: a router of its own for each set of parties that may be present.

The pooled posterior of fewer parties has another distribution, and fusion without a party other reliabilities: what was
fitted for all of them does not apply. `fit_subsets` fits the same stages again for each subset, on its parties' columns
of the same calibration samples and the strong answers of a fusion that accepts absent parties. `Router.route` and
`Router.answer` then take a sample by the router of those present; a subset without one is pooled and not escalated.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gainroute._util.arrays import from_tensors
from gainroute.errors import GainrouteWarning, SettingError, TooFewSamplesError
from gainroute.routing._dirichlet import DirichletCalibrator
from gainroute.routing._many_classes import MANY
from gainroute.routing.decide import Turns
from gainroute.routing.inputs import as_local_posteriors, as_present, in_class_order
from gainroute.routing.samples import as_samples
from gainroute.routing.taught import TaughtPool
from gainroute.routing.types import Answer, ArrayLike, BoolArray, Decision, FloatArray

if TYPE_CHECKING:
    from gainroute.routing.offers import Offers
    from gainroute.routing.router import Router

__all__ = [
    "FEWEST",
    "Subset",
    "answer_subsets",
    "calibrated_subsets",
    "check_subset",
    "fit_subsets",
    "route_subsets",
    "routers_of",
    "thresholds_of",
    "with_thresholds",
]

Subset = tuple[int, ...]
AnyRouter = TypeVar("AnyRouter", bound="Router")

FEWEST = 100  # calibration samples; with fewer, a calibration per subset is mostly noise
FOLDS = 5  # at most, of a subset's threshold: there are many subsets, and their rate matters less than that of all
MERGED = ("escalate", "score", "weak_prediction", "pooled", "calibrated", "incomplete")  # of a `Decision`, by sample
ALL_SUBSETS = 4  # parties; for more, the 2^M − 2 subsets are too many to fit


def calibrated_subsets(parties: int) -> list[Subset]:
    """The subsets that a trained run is calibrated for: all for up to four parties; for more, all parties but one.

    Examples
    --------
    >>> calibrated_subsets(3)
    [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    >>> len(calibrated_subsets(4)), len(calibrated_subsets(6))
    (14, 6)
    """
    smallest = 1 if parties <= ALL_SUBSETS else parties - 1
    return [chosen for size in range(smallest, parties) for chosen in combinations(range(parties), size)]


def fit_subsets(
    router: AnyRouter,
    local_posteriors: Any,
    labels: ArrayLike,
    subset_answers: Mapping[Subset, ArrayLike],
    *,
    weak_prediction: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    present: ArrayLike | None = None,
    party_bytes: Sequence[float] | None = None,
    training: tuple[Any, ArrayLike] | None = None,
) -> AnyRouter:
    """Fit a router for each subset of the parties, so that samples that lack the others are routed too.

    Parameters
    ----------
    router
        Fitted for all parties; it is not changed.
    local_posteriors, labels, weak_prediction, sample_weight, present
        Calibration data of all parties, as in `Router.fit`. With `present`, a subset is fitted on the samples that all
        its parties have.
    subset_answers
        Strong answers from the embeddings of these parties alone, by the parties' numbers: predictions (N,), or
        posteriors (N, K), with which the answer may be blended. At least 100 samples are needed.
    party_bytes : (M,), optional
        Bytes of each party's embedding. With them, an expected-gain router also learns what asking each subset is worth
        (`offers_`), for `gainroute.PartialRouter`; the samples are those that it was fitted on.
    training
        As in `Router.fit`, if that had it.

    Returns
    -------
    Router
        A copy with `subset_routers_`. They have the settings of `router`, but at most 5 folds, the λ and ε it chose by
        "cv", and the rule "cross-fitted" where its own certifies: a guarantee covers samples that all parties have.

    Examples
    --------
    >>> import numpy as np
    >>> import gainroute as gr
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=400)
    >>> local = rng.dirichlet([1, 1, 1], size=(2, 400)) + 0.5 * np.eye(3)[labels]
    >>> local /= local.sum(axis=2, keepdims=True)
    >>> strong = np.where(rng.random(400) < 0.95, labels, (labels + 1) % 3)
    >>> router = gr.ExpectedGainRouter(budget=0.2).fit(local, labels, strong)
    >>> router = gr.fit_subsets(router, local, labels, {(0,): strong})
    >>> decision = router.route(local, present=np.array([[True] * 400, [False] * 400]))
    >>> bool(decision.incomplete.any()), bool(0.1 < decision.escalate.mean() < 0.3)
    (False, True)
    """
    router._check_fitted()
    if router.pooled_only:
        raise SettingError(
            "the router is fitted with pooled_only=True, for a masked Round 1, where nobody knows what a single party "
            "said: leave the subsets out, or fit it with pooled_only=False"
        )
    columns = router.n_classes_ + router.extra_columns
    local = as_local_posteriors(
        local_posteriors, parties=router.n_parties_, classes=columns, class_names=router.classes
    )
    trained = (
        ()
        if training is None
        else as_local_posteriors(training[0], parties=router.n_parties_, class_names=router.classes)
    )
    mask = as_present(present, local.shape[:2])
    fitted: dict[Subset, Router] = {}
    for given, answers in subset_answers.items():
        subset = check_subset(given, router.n_parties_, proper=True)
        chosen = list(subset)
        there = None if mask is None else mask[chosen]
        samples = local.shape[1] if there is None else int(there.all(axis=0).sum())
        if samples < FEWEST:
            raise TooFewSamplesError(
                f"subset {subset} has {samples} calibration samples; at least {FEWEST} are needed to calibrate for "
                "absent parties: leave it out, or add samples"
            )
        strong = np.asarray(answers)
        given_as: dict[str, Any] = {"strong_posterior" if strong.ndim == 2 else "strong_prediction": strong}
        settings = _subset_settings(router, posteriors=strong.ndim == 2, training=training is not None)
        part = None if training is None else ([trained[i] for i in chosen], training[1])
        with warnings.catch_warnings():  # the fit of all parties has warned of what is wrong with the samples
            warnings.simplefilter("ignore", GainrouteWarning)
            fitted[subset] = type(router)(**settings).fit(
                local[chosen], labels, **given_as, weak_prediction=weak_prediction, sample_weight=sample_weight,
                present=there, check_class_order=False, training=part,
            )  # fmt: skip
    made = copy.copy(router)
    made.subset_routers_ = fitted
    if party_bytes is not None:
        made.offers_ = _offers(router, local, labels, subset_answers, party_bytes, weak_prediction, sample_weight, mask)
    return made


def _offers(
    router: Router,
    local: FloatArray,
    labels: ArrayLike,
    subset_answers: Mapping[Subset, ArrayLike],
    party_bytes: Sequence[float],
    weak_prediction: ArrayLike | None,
    sample_weight: ArrayLike | None,
    mask: BoolArray | None,
) -> Offers:
    from gainroute.routing.offers import fit_offers  # which builds on this module
    from gainroute.routing.routers import ExpectedGainRouter

    if not isinstance(router, ExpectedGainRouter):
        raise SettingError(
            f"party_bytes is given, but a {type(router).__name__} does not estimate a gain per subset; use an "
            "ExpectedGainRouter, or leave party_bytes out"
        )
    given = {subset: np.asarray(answers) for subset, answers in subset_answers.items()}
    names, whole = router._labels, slice(None) if mask is None else mask.all(axis=0)
    columns = {
        subset: (a.argmax(axis=1) if a.ndim == 2 else names.encode(a, f"subset_answers[{subset}]", missing=True))[whole]
        for subset, a in given.items()
    }
    first = next(iter(columns.values()))
    samples, _ = as_samples(
        local[:, whole], np.asarray(labels)[whole], names.decode(first), None,
        weak_prediction=None if weak_prediction is None else np.asarray(weak_prediction)[whole],
        sample_weight=None if sample_weight is None else np.asarray(sample_weight)[whole],
        present=None, classes=router.classes, extra_columns=0, check_class_order=False,
    )  # fmt: skip
    return fit_offers(router, samples, columns, party_bytes)


def _subset_settings(router: Router, *, posteriors: bool, training: bool) -> dict[str, Any]:
    settings = router.settings() | {"folds": min(router.folds, FOLDS)}
    pool = router._pipeline.pool
    taught = isinstance(pool, TaughtPool)
    if settings.get("pooling") == "taught" and not taught:
        settings["pooling"] = "log-linear"
    if isinstance(pool, TaughtPool):
        settings["training_weight"] = pool.training_weight
    if router.stages().threshold.certifies:
        settings |= {"threshold": "cross-fitted", "kept_error": None}
    chosen = pool.map if isinstance(pool, TaughtPool) else router.calibrator_
    # A map that was taught, or fitted to more samples, or of all parties needs another λ. With many classes, "cv" also
    # chooses the map.
    alike = taught <= posteriors and (not getattr(pool, "training_weight", 0) or training)
    if isinstance(chosen, DirichletCalibrator) and alike and router.n_classes_ <= MANY:
        settings |= {"lam": chosen.lam, "eps": chosen.eps}
    return settings


def check_subset(subset: Any, parties: int, *, proper: bool = False) -> Subset:
    """Refuse what is not a set of parties, in ascending order; `proper` allows no subset of all."""
    found = tuple(int(i) for i in subset)
    most = parties - proper
    if not 0 < len(found) <= most or list(found) != sorted(set(found)) or not 0 <= found[0] <= found[-1] < parties:
        raise SettingError(
            f"subset {found} is not a set of 1 to {most} parties; distinct numbers from 0 to {parties - 1} in "
            "ascending order are"
        )
    return found


# ---- routing ----------------------------------------------------------------------------------------


def route_subsets(
    router: Router,
    decision: Decision,
    local: FloatArray,
    weak_prediction: ArrayLike | None,
    present: BoolArray,
    turns: Turns | None = None,
) -> Decision:
    """Route the samples that lack parties by the router of those present, where there is one.

    Parameters
    ----------
    router, decision
        The router of all parties, and what it decided.
    local, weak_prediction
        What `Router.route` was given, checked.
    present : (M, N) bool
        Who answered.
    turns
        As in `Router.route`.
    """
    own = None if weak_prediction is None else np.asarray(weak_prediction)
    found = {name: getattr(decision, name).copy() for name in MERGED}
    number = np.zeros(len(decision), dtype=np.int64)
    for i, (subset, fitted) in enumerate(router.subset_routers_.items(), start=1):
        chosen = list(subset)
        rows = np.flatnonzero(present[chosen].all(axis=0) & (present.sum(axis=0) == len(chosen)))
        if not len(rows):
            continue
        weak = None if own is None else own[rows]
        part = fitted.route(local[chosen][:, rows], weak_prediction=weak, checked=True, turns=turns)
        for name, values in found.items():
            values[rows] = getattr(part, name)
        number[rows] = i
    # Whatever stood in for an absent party is not what it sent.
    sent = np.where(present[..., None], local, np.nan)
    return replace(decision, **found, subset=number, local=sent)


def routers_of(router: Router) -> list[tuple[Subset, Router]]:
    """All routers in the order in which `Decision.subset` numbers them, that of all parties first."""
    return [(tuple(range(router.n_parties_)), router), *router.subset_routers_.items()]


def answer_subsets(router: Router, decision: Decision, strong: ArrayLike | None) -> Answer:
    """Combine the answers of both routes, each sample by the router that decided on it."""
    given = None if strong is None else np.asarray(from_tensors(in_class_order(strong, router.classes, "strong")))
    prediction, probabilities = decision.weak_prediction.copy(), decision.pooled.copy()
    escalated = np.zeros(len(decision), dtype=bool)
    for rows, subset, fitted, alone in _groups(router, decision):
        part = _taken(decision, rows, subset)
        mine = None if given is None else given[rows[decision.escalate]]
        combine = fitted._pipeline.answer
        answer = (replace(combine, blend=None) if alone else combine)(part, mine, fitted._labels)
        prediction[rows], probabilities[rows], escalated[rows] = (
            answer.prediction,
            answer.probabilities,
            answer.escalated,
        )
    return Answer(prediction, probabilities, escalated)


def _groups(router: Router, decision: Decision) -> Iterator[tuple[BoolArray, Subset, Router, bool]]:
    """Samples by the router that decided, and by whether fewer parties than it knows were asked.

    Then the strong answer stands alone: the blend was fitted to that of all of them.
    """
    numbers = np.zeros(len(decision), dtype=np.int64) if decision.subset is None else decision.subset
    for number, (subset, fitted) in enumerate(routers_of(router)):
        mine = np.asarray(numbers == number)
        fewer = np.zeros_like(mine)
        if decision.ask is not None:
            fewer = mine & decision.escalate & ~decision.ask[list(subset)].all(axis=0)
        for rows, alone in ((mine & ~fewer, False), (fewer, True)):
            if rows.any():
                yield rows, subset, fitted, alone


def _taken(decision: Decision, rows: BoolArray, subset: Subset) -> Decision:
    """The decision on some samples, with the posteriors of some parties."""
    found = {name: getattr(decision, name)[rows] for name in MERGED}
    return Decision(**found, threshold=decision.threshold, local=decision.local[list(subset)][:, rows])


# ---- thresholds -------------------------------------------------------------------------------------


def thresholds_of(router: Router, decision: Decision) -> float | FloatArray:
    """τ of a decision: one number, or (N,) where samples were routed by the routers of different subsets."""
    if decision.subset is None:
        return decision.threshold
    each = np.array([fitted.threshold_ for _, fitted in routers_of(router)])
    values: FloatArray = each[decision.subset]
    return values


def with_thresholds(router: Router, find: Callable[[Router], float]) -> Router:
    """A copy of a router whose own τ and those of its subsets are as `find` says."""
    changed = copy.copy(router)
    changed.threshold_ = find(router)
    if changed.threshold_ != router.threshold_:
        changed.tied_share_ = 0.0  # it belongs to the τ of the fit
    changed.subset_routers_ = {s: with_thresholds(fitted, find) for s, fitted in router.subset_routers_.items()}
    return changed
