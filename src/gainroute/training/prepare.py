"""From a data source to what is trained on, calibrated on and tested on: split, then standardised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gainroute.io.preprocess import ImagePreprocess, Preprocess
from gainroute.io.standardise import Standardiser, fit_standardiser
from gainroute.routing.types import IntArray
from gainroute.training.data.dataset import Augment, Dataset, Part
from gainroute.training.data.splits import content_hash, split_hash, stratified_split
from gainroute.training.routes import TrainingData
from gainroute.training.training_view import TrainingView

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """The three parts, with every view standardised by the training part.

    Attributes
    ----------
    train
        What both routes train on.
    train_ids
        (N,) the ids of those samples.
    calibration, test
        The other two parts.
    preprocess
        One a party: from a view as it was given to a model's input.
    fingerprint
        The hash of the split.
    """

    train: TrainingData
    train_ids: npt.NDArray[np.generic]
    calibration: Part
    test: Part
    preprocess: tuple[Preprocess, ...]
    fingerprint: str


@dataclass(frozen=True)
class _Altered:
    augment: Augment
    party: int
    standardise: Standardiser

    def __call__(self, rows: IntArray, rng: np.random.Generator) -> npt.NDArray[np.float32]:
        return self.standardise(self.augment(self.party, rows, rng))


def prepare(dataset: Dataset, calibration: float, seed: int, settings: str = "") -> Prepared:
    """Hold out `calibration` of the official training part, stratified; standardise by what is left.

    Parameters
    ----------
    dataset
        A data source.
    calibration
        The share held out.
    seed
        Of the split.
    settings
        What else decides the training data, such as how it is altered; checkpoints are told apart by it.
    """
    first, second = stratified_split(dataset.train.labels, calibration, seed)
    train, held = dataset.train.take(first), dataset.train.take(second)
    scalers = tuple(fit_standardiser(view) for view in train.views)

    def scaled(part: Part) -> Part:
        return Part(part.ids, part.labels, tuple(s(view) for s, view in zip(scalers, part.views, strict=True)))

    fingerprint = split_hash(*((part.ids, part.labels) for part in (train, held, dataset.test)))
    views = tuple(
        TrainingView(scale(view), first, None if dataset.augment is None else _Altered(dataset.augment, party, scale))
        for party, (scale, view) in enumerate(zip(scalers, train.views, strict=True))
    )
    told = f"{fingerprint}/{content_hash([view.clean for view in views])}/{settings}"
    data = TrainingData(views, train.labels, dataset.classes, dataset.party_names, told)
    return Prepared(
        data, train.ids, scaled(held), scaled(dataset.test), tuple(map(ImagePreprocess, scalers)), fingerprint
    )
