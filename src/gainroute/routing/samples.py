"""Calibration samples, checked once before anything is fitted to them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gainroute._util.arrays import shown
from gainroute.errors import GainrouteWarning, InputError, ShapeError
from gainroute.routing.class_order import check_class_order as check_order
from gainroute.routing.inputs import as_local_posteriors, as_posteriors, as_present, as_weights, check_posteriors
from gainroute.routing.labels import Labels
from gainroute.routing.taught import TrainingPart
from gainroute.routing.types import ArrayLike, BoolArray, FloatArray, IntArray, LabelArray

__all__ = ["Samples", "as_samples"]


@dataclass(frozen=True, eq=False)
class Samples:
    """Checked calibration samples, labels as columns; a `weak_prediction` of None means the argmax."""

    local: FloatArray
    labels: IntArray
    strong_prediction: IntArray
    weak_prediction: IntArray | None
    weight: FloatArray
    strong_posterior: FloatArray | None = None
    soft: FloatArray | None = None  # (N, K): labels mixed with what the strong route says
    training: TrainingPart | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: IntArray | BoolArray) -> Samples:
        """Return the samples of these rows."""
        local, *columns, training = vars(self).values()
        taken: list[Any] = [None if column is None else column[rows] for column in columns]
        return replace(Samples(local[:, rows], *taken), training=training)


def as_samples(
    local_posteriors: Any,
    labels: ArrayLike,
    strong_prediction: ArrayLike | None,
    strong_posterior: ArrayLike | None,
    *,
    weak_prediction: ArrayLike | None,
    sample_weight: ArrayLike | None,
    present: ArrayLike | None,
    classes: LabelArray | None,
    extra_columns: int,
    check_class_order: bool = True,
    training: tuple[Any, ArrayLike] | None = None,
) -> tuple[Samples, int]:
    """Check what `Router.fit` was given; return the complete samples, and K."""
    local = as_local_posteriors(local_posteriors, class_names=classes)
    m, n, k = local.shape[0], local.shape[1], local.shape[2] - extra_columns
    names = Labels(k, classes)
    truth = names.encode(labels, "labels", n)
    posterior, strong = None, None
    if strong_posterior is not None:
        posterior = as_posteriors(strong_posterior, classes=k, class_names=classes, name="strong_posterior")
        if len(posterior) != n:
            raise ShapeError(f"strong_posterior has {len(posterior)} rows for {n} samples; one each is needed")
        strong = posterior.argmax(axis=1)
    if strong_prediction is not None:
        strong = names.encode(strong_prediction, "strong_prediction", n, missing=True)
    if strong is None:
        raise InputError(
            "neither strong_prediction nor strong_posterior was given; fit needs the strong route's answers"
        )
    weak = None if weak_prediction is None else names.encode(weak_prediction, "weak_prediction", n)
    mask = as_present(present, (m, n))
    check_posteriors(local, mask)
    part = None if training is None else _training_part(training, m, k, names, classes)
    samples = Samples(local, truth, strong, weak, as_weights(sample_weight, n), posterior, training=part)
    if mask is not None:
        samples = _complete(samples, mask)
    if check_class_order:
        _check_order(samples, k, classes)
    return samples, k


def _training_part(given: Any, m: int, k: int, names: Labels, classes: LabelArray | None) -> TrainingPart:
    try:
        posteriors, labels = given
    except (TypeError, ValueError):
        raise ShapeError(
            f"training is {shown(given)}; a pair is needed: posteriors (M, N, K), and labels (N,)"
        ) from None
    name = "training posteriors"
    local = as_local_posteriors(posteriors, classes=k, class_names=classes, name=name)
    if len(local) != m:
        raise ShapeError(
            f"training posteriors come from {len(local)} part(ies), local_posteriors from {m}; pass all {m}"
        )
    check_posteriors(local, name=name)
    return TrainingPart(local, names.encode(labels, "training labels", local.shape[1]))


def _check_order(samples: Samples, k: int, classes: LabelArray | None) -> None:
    local = samples.local[..., :k]
    answers = [("local_posteriors", local.mean(axis=0))]
    if len(local) > 1:
        answers += [(f"local_posteriors of party {i}", posterior) for i, posterior in enumerate(local)]
    if samples.strong_posterior is not None:
        answers.append(("strong_posterior", samples.strong_posterior))
    check_order(answers, samples.labels, classes)


def _complete(samples: Samples, present: BoolArray) -> Samples:
    """Leave out the samples that lack a party, and warn how many there are."""
    whole = np.logical_and.reduce(present, axis=0)
    if not whole.any():
        raise ShapeError(f"all {len(whole)} samples lack a party; a fit needs samples that every party answered")
    warnings.warn(
        f"{int((~whole).sum())} of {len(whole)} samples lack a party and are left out of the fit",
        GainrouteWarning,
        stacklevel=4,
    )
    return samples.take(whole)
