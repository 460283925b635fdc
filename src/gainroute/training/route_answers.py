"""The answers of both routes on a set of samples: arrays, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.routing.types import BoolArray, IntArray, LabelArray

__all__ = ["DeferAnswers", "LocalAnswers", "RouteAnswers", "overlay", "training_rows"]

MOST_VALUES = 2_000_000  # in Round 1 on the training part

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DeferAnswers:
    """The answers of learning to defer, (N,) each.

    Attributes
    ----------
    score
        Pooled probability of deferring minus the largest pooled probability of a class.
    prediction
        The class of the largest pooled probability.
    escalate_canonical
        Whether the defer output is the largest of all K + 1: score > 0.
    """

    score: Float32
    prediction: IntArray
    escalate_canonical: BoolArray

    def take(self, rows: npt.NDArray[Any]) -> DeferAnswers:
        """The samples of `rows`."""
        return DeferAnswers(self.score[rows], self.prediction[rows], self.escalate_canonical[rows])


@dataclass(frozen=True)
class RouteAnswers:
    """The answers of both routes on N samples, M parties, K classes.

    Attributes
    ----------
    ids, labels
        (N,) the samples and their classes.
    local_posteriors
        (M, N, K) Round 1, one posterior per party.
    strong_posterior
        (N, K) Round 2.
    weak_prediction, strong_prediction
        (N,) exact: from the posteriors before any rounding.
    subset_predictions
        By tuple of parties, the answers of the masked head when only these are present, (N,).
    defer
        Learning to defer, by α as a string; "1-crossfit" is α = 1 with a cross-fitted expert.
    """

    ids: LabelArray
    labels: IntArray
    local_posteriors: Float32
    strong_posterior: Float32
    weak_prediction: IntArray
    strong_prediction: IntArray
    subset_predictions: Mapping[tuple[int, ...], IntArray] = field(default_factory=dict)
    defer: Mapping[str, DeferAnswers] = field(default_factory=dict)

    @classmethod
    def from_posteriors(
        cls,
        ids: LabelArray,
        labels: IntArray,
        local: Float32,
        strong: Float32,
        subset_predictions: Mapping[tuple[int, ...], IntArray] | None = None,
        defer: Mapping[str, DeferAnswers] | None = None,
    ) -> RouteAnswers:
        """Answers whose predictions follow from the posteriors: the weak one from their mean over the parties."""
        weak = local.mean(axis=0, dtype=np.float64).argmax(axis=1).astype(np.int64)
        prediction = strong.argmax(axis=1).astype(np.int64)
        return cls(ids, labels, local, strong, weak, prediction, subset_predictions or {}, defer or {})

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def weak_accuracy(self) -> float:
        """Share of samples that the weak route gets right."""
        return float((self.weak_prediction == self.labels).mean())

    @property
    def strong_accuracy(self) -> float:
        """Share of samples that the strong route gets right."""
        return float((self.strong_prediction == self.labels).mean())

    def of_both_routes(self) -> RouteAnswers:
        """The answers without those of subsets and of learning to defer."""
        return replace(self, subset_predictions={}, defer={})

    def take(self, rows: npt.NDArray[Any]) -> RouteAnswers:
        """The samples of `rows`."""
        return RouteAnswers(
            self.ids[rows],
            self.labels[rows],
            self.local_posteriors[:, rows],
            self.strong_posterior[rows],
            self.weak_prediction[rows],
            self.strong_prediction[rows],
            {parties: answer[rows] for parties, answer in self.subset_predictions.items()},
            {alpha: outcome.take(rows) for alpha, outcome in self.defer.items()},
        )


@dataclass(frozen=True)
class LocalAnswers:
    """Round 1 on samples that the local classifiers were trained on.

    Attributes
    ----------
    labels
        (N,).
    posteriors
        (M, N, K), one posterior per party. They look more certain than on other samples.
    """

    labels: IntArray
    posteriors: Float32


def training_rows(samples: int, parties: int, classes: int) -> IntArray:
    """Rows of the training part that also fit the router: all, or as many at random as `MOST_VALUES` allow."""
    kept = min(samples, MOST_VALUES // (parties * classes))
    return np.sort(np.random.default_rng(samples).choice(samples, kept, replace=False)).astype(np.int64)


def overlay(clean: RouteAnswers, rows: IntArray, touched: RouteAnswers) -> RouteAnswers:
    """`clean` with the samples of `rows` replaced by those of `touched`, in the same order."""

    def merge(base: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
        merged = base.copy()
        merged[rows] = new
        return merged

    local = clean.local_posteriors.copy()
    local[:, rows] = touched.local_posteriors
    return replace(
        clean,
        local_posteriors=local,
        strong_posterior=merge(clean.strong_posterior, touched.strong_posterior),
        weak_prediction=merge(clean.weak_prediction, touched.weak_prediction),
        strong_prediction=merge(clean.strong_prediction, touched.strong_prediction),
        subset_predictions={
            parties: merge(answer, touched.subset_predictions[parties])
            for parties, answer in clean.subset_predictions.items()
        },
        defer={
            alpha: DeferAnswers(
                merge(outcome.score, touched.defer[alpha].score),
                merge(outcome.prediction, touched.defer[alpha].prediction),
                merge(outcome.escalate_canonical, touched.defer[alpha].escalate_canonical),
            )
            for alpha, outcome in clean.defer.items()
        },
    )
