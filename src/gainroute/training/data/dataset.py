"""What every data set provides: two parts with one view per party, and the names of parties and classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError
from gainroute.routing.types import IntArray, LabelArray
from gainroute.training.data.settings import DataSettings

__all__ = ["Augment", "Dataset", "DatasetLoader", "Part", "required_folder"]


class Augment(Protocol):
    """Altered training views, in the units of the clean ones.

    Parties with generators of the same seed alter the same sample in the same way, without exchanging a message.
    """

    def __call__(self, party: int, rows: IntArray, rng: np.random.Generator, /) -> npt.NDArray[np.float32]:
        """The views of `rows` of the training part for `party`, altered."""
        ...


@dataclass(frozen=True)
class Part:
    """Aligned samples: row n of every view, of `labels` and of `ids` is the same sample."""

    ids: LabelArray  # (N,), integers or strings, all different
    labels: IntArray  # (N,), classes as 0 … K − 1
    # One per party: images (N, C, H, W), feature vectors (N, d), or a table, a structured array (N,) of columns.
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
    """A data set with its official split."""

    name: str
    train: Part  # calibration is taken from it
    test: Part
    class_names: tuple[str, ...]  # in the order of labels
    party_names: tuple[str, ...]  # in the order of views
    augment: Augment | None = None  # alters the training views, differently in each epoch

    @property
    def classes(self) -> int:
        """The number of classes, K."""
        return len(self.class_names)


class DatasetLoader(Protocol):
    """Loads a data set. If it can also be downloaded, the loader has a method `download(data_dir)`."""

    def __call__(self, settings: DataSettings, data_dir: Path | None, /) -> Dataset:
        """Load the data set from `data_dir`, None if no folder was given."""
        ...


def required_folder(source: str, data_dir: Path | None) -> Path:
    """Return the folder, or raise DataError if none was given."""
    if data_dir is None:
        raise DataError(f"{source} is read from files: name their folder with --data-dir (data_dir=...)")
    return data_dir
