"""Partial escalation: ask only the parties whose embeddings are worth their bytes.

A fusion head that accepts absent parties can answer from any subset S of them. What that is worth on a sample is the
expected gain with the subset's own reliability,

    ŝ_S = Σₖ m[k] C_S[k, k] − m[ŷ],

and the sample goes to the subset with the largest ŝ_S − μ·bytes_S, or keeps its weak answer if none exceeds 0. The
price μ of a byte is set so that calibration samples spend the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gainroute._util.arrays import shown
from gainroute.errors import NotFittedError, SettingError, ShapeError
from gainroute.routing.inputs import as_local_posteriors
from gainroute.routing.labels import Labels
from gainroute.routing.offers import choose, out_of_fold_gains, price_for, subset_gains
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.routing.samples import as_samples
from gainroute.routing.types import ArrayLike, BoolArray, FloatArray, IntArray, LabelArray

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PartialDecision", "PartialEscalation"]

Subset = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PartialDecision:
    """Which parties to ask for which samples.

    Attributes
    ----------
    subset : (N,)
        Number of the subset in `subsets` that is asked; −1 where the weak answer is kept.
    subsets
        Parties of each subset.
    ask : (M, N) bool
        The same, party by party.
    gain : (N, S)
        Expected gain of each subset.
    bytes : (N,)
        What is sent in Round 2.
    weak_prediction : (N,)
        The weak answer.
    pooled, calibrated : (N, K)
        As in `gainroute.Decision`.
    """

    subset: IntArray
    subsets: tuple[Subset, ...]
    ask: BoolArray
    gain: FloatArray
    bytes: FloatArray
    weak_prediction: LabelArray
    pooled: FloatArray
    calibrated: FloatArray

    @property
    def escalate(self) -> BoolArray:
        """Where any party is asked, (N,)."""
        return self.subset >= 0


class PartialEscalation:
    """Escalate to the subset of parties with the largest expected gain net of the price of its bytes.

    Parameters
    ----------
    byte_budget
        Average bytes per sample allowed in Round 2.
    router
        Supplies pooling, calibration and shrinkage; `ExpectedGainRouter()` by default. Its budget is not used.

    Attributes
    ----------
    price_
        μ, the expected gain in accuracy that a byte must bring.
    reliability_ : (S, K)
        C_S[k, k].
    subsets_, bytes_
        The subsets, and the bytes per sample of each.

    Examples
    --------
    Two parties, the second sends ten times as much:

    >>> import numpy as np
    >>> import gainroute as gr
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=600)
    >>> local = rng.dirichlet([1, 1, 1], size=(2, 600)) + 0.5 * np.eye(3)[labels]
    >>> local /= local.sum(axis=2, keepdims=True)
    >>> def answers(accuracy):
    ...     return np.where(rng.random(600) < accuracy, labels, (labels + 1) % 3)
    >>> head = {(0,): answers(0.9), (1,): answers(0.9), (0, 1): answers(0.95)}
    >>> partial = gr.PartialEscalation(50).fit(local, labels, head, [200, 2000])
    >>> decision = partial.route(local)
    >>> bool(40 < decision.bytes.mean() < 60), int(decision.ask[1].sum())
    (True, 0)
    """

    def __init__(self, byte_budget: float, router: ExpectedGainRouter | None = None) -> None:
        if not (isinstance(byte_budget, (int, float, np.integer, np.floating)) and byte_budget >= 0):
            raise SettingError(
                f"byte_budget is {shown(byte_budget)}; a number of bytes per sample, 0 or more, is needed (see "
                "gr.communication_cost for the cost of asking all parties)"
            )
        self.byte_budget = float(byte_budget)
        self.router = ExpectedGainRouter() if router is None else router

    def fit(
        self,
        local_posteriors: Any,
        labels: ArrayLike,
        subset_predictions: Mapping[Subset, ArrayLike],
        party_bytes: Sequence[float],
        *,
        weak_prediction: ArrayLike | None = None,
        check_class_order: bool = True,
    ) -> Self:
        """Fit on calibration data: samples that trained no route.

        Parameters
        ----------
        local_posteriors : (M, N, K), list of M arrays (N, K), or (N, K)
        labels : (N,)
        subset_predictions
            Strong answers (N,) from the embeddings of a subset of parties alone, by the parties' numbers.
        party_bytes : (M,)
            Bytes of each party's embedding.
        weak_prediction : (N,), optional
            Your own weak answer, as in `Router.fit`.
        check_class_order
            Whether to refuse columns that, by the labels, are in another order than the classes.
        """
        router = self.router
        subsets, costs = _checked(subset_predictions, party_bytes, len(as_local_posteriors(local_posteriors)))
        largest = max(subsets, key=len)
        samples, classes = as_samples(
            local_posteriors,
            labels,
            subset_predictions[largest],
            None,
            weak_prediction=weak_prediction,
            sample_weight=None,
            present=None,
            classes=router.classes,
            extra_columns=0,
            check_class_order=check_class_order,
        )
        names = Labels(classes, router.classes)
        answers = [
            names.encode(subset_predictions[s], f"subset_predictions[{s}]", len(samples), missing=True) for s in subsets
        ]

        router.fit(
            local_posteriors,
            labels,
            subset_predictions[largest],
            weak_prediction=weak_prediction,
            check_class_order=check_class_order,
        )
        self.subsets_, self.bytes_ = subsets, costs
        self.reliability_, self._calibration_gain = out_of_fold_gains(
            router.stages(), samples, router._pipeline, answers
        )
        self.price_ = self.price_for(self.byte_budget)
        return self

    def price_for(self, byte_budget: float) -> float:
        """μ at which calibration samples spend no more than `byte_budget` bytes on average; 0 if they need less."""
        self._check_fitted()
        return price_for(self._calibration_gain, self.bytes_, byte_budget)

    def route(
        self, local_posteriors: Any, *, weak_prediction: ArrayLike | None = None, price: float | None = None
    ) -> PartialDecision:
        """Decide which parties to ask for which samples.

        Parameters
        ----------
        local_posteriors : (M, N, K), list of M arrays (N, K), or (N, K)
        weak_prediction : (N,), optional
            Needed if it was fitted with one.
        price
            A μ other than that of the budget; see `price_for`.
        """
        self._check_fitted()
        decision = self.router.route(local_posteriors, weak_prediction=weak_prediction)
        column = Labels(self.router.n_classes_, self.router.classes).encode(
            decision.weak_prediction, "weak_prediction", missing=True
        )
        gain = subset_gains(decision.calibrated, self.reliability_, column)
        subset, cost = choose(gain, self.bytes_, self.price_ if price is None else price)
        member = np.array([[party in s for s in self.subsets_] for party in range(self.router.n_parties_)])
        return PartialDecision(
            subset=subset,
            subsets=self.subsets_,
            ask=member[:, subset] & (subset >= 0),
            gain=gain,
            bytes=cost,
            weak_prediction=decision.weak_prediction,
            pooled=decision.pooled,
            calibrated=decision.calibrated,
        )

    def _check_fitted(self) -> None:
        if not hasattr(self, "subsets_"):
            raise NotFittedError("this PartialEscalation is not fitted; call fit(…) on calibration data first")


def _checked(
    predictions: Mapping[Subset, ArrayLike], party_bytes: Sequence[float], parties: int
) -> tuple[tuple[Subset, ...], FloatArray]:
    """Check the subsets; return them with the bytes that each costs."""
    each = np.asarray(party_bytes, dtype=np.float64)
    if each.shape != (parties,) or not (each > 0).all():
        raise ShapeError(f"party_bytes is {party_bytes!r}; {parties} numbers above 0 are needed, one per party")
    if not predictions:
        raise SettingError(
            "subset_predictions is empty; the strong route's answers from at least one subset are needed"
        )
    subsets = tuple(tuple(int(i) for i in subset) for subset in predictions)
    for subset in subsets:
        if not subset or len(set(subset)) < len(subset) or not all(0 <= i < parties for i in subset):
            raise SettingError(f"subset {subset} is not a set of parties; distinct numbers from 0 to {parties - 1} are")
    return subsets, np.array([each[list(subset)].sum() for subset in subsets])
