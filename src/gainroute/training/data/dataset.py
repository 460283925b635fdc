"""What every source of data gives: two parts, a view a party, and who they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError
from gainroute.routing.types import IntArray, LabelArray

__all__ = ["Augment", "Dataset", "Part"]


class Augment(Protocol):
    """Altered training views, in the units of the clean ones.

    Parties that are handed generators of the same seed alter the same sample in the same way, without
    a message between them.
    """

    def __call__(self, party: int, rows: IntArray, rng: np.random.Generator, /) -> npt.NDArray[np.float32]:
        """The views of `rows` of the training part as `party` sees them this time."""
        ...


@dataclass(frozen=True)
class Part:
    """Aligned samples: row n of every view, of `labels` and of `ids` is the same sample.

    Attributes
    ----------
    ids
        (N,) names of the samples, integers or strings, all different.
    labels
        (N,) classes as 0 … K − 1.
    views
        One array a party, (N, …): images (N, C, H, W) or feature vectors (N, d).
    """

    ids: LabelArray
    labels: IntArray
    views: tuple[npt.NDArray[Any], ...]

    def __post_init__(self) -> None:
        sizes = [len(self.ids), *(len(view) for view in self.views)]
        if any(size != len(self.labels) for size in sizes):
            raise DataError(
                f"views, ids and labels must hold the same samples: {len(self.labels)} labels, {sizes[0]} ids, "
                f"views of {sizes[1:]} samples; a party that lacks samples has to be aligned by id first"
            )

    def take(self, rows: IntArray) -> Part:
        """The samples of `rows`, in that order."""
        return Part(self.ids[rows], self.labels[rows], tuple(view[rows] for view in self.views))

    def joined(self, other: Part) -> Part:
        """These samples, then those of `other`."""
        views = tuple(np.concatenate(pair) for pair in zip(self.views, other.views, strict=True))
        return Part(np.concatenate([self.ids, other.ids]), np.concatenate([self.labels, other.labels]), views)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A source of data with its official split.

    Attributes
    ----------
    name
        What the records call it.
    train, test
        The two official parts; calibration is taken from `train`.
    class_names, party_names
        In the order of labels and of views.
    augment
        How training views are altered anew each epoch; None where nothing is.
    """

    name: str
    train: Part
    test: Part
    class_names: tuple[str, ...]
    party_names: tuple[str, ...]
    augment: Augment | None = None

    @property
    def classes(self) -> int:
        """The number of classes, K."""
        return len(self.class_names)
