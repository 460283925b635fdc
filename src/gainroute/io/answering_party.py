"""A party that answers by sample id: its views in memory, preprocessed, and models that a subclass runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError
from gainroute.io.preprocess import Preprocess, Raw, apply_preprocess
from gainroute.io.tables import read_table
from gainroute.routing.types import LabelArray

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AnsweringParty"]

Float32 = npt.NDArray[np.float32]


class AnsweringParty(ABC):
    """Looks up the inputs of samples and applies a model; a `gainroute.routing.two_round.Party`.

    An embedding has `dimension` values. `preprocess` leads from a raw view to a model's input, None if models take
    views as they are; `views` is a file of preprocessed views by id, and need not exist.
    """

    def __init__(
        self, name: str, class_names: Sequence[str], dimension: int, preprocess: Preprocess | None, views: Path
    ) -> None:
        self.name, self.class_names, self.dimension = name, tuple(class_names), dimension
        self._preprocess = preprocess
        self._rows: dict[Any, int] = {}
        self.inputs = np.zeros((0,), np.float32)
        if views.is_file():
            table = read_table(views)
            self._hold(table.array("ids"), table.array("x"))

    def _hold(self, ids: LabelArray, inputs: Float32) -> None:
        self._rows = {value: row for row, value in enumerate(np.asarray(ids).tolist())}
        self.inputs = inputs

    @property
    def ids(self) -> list[Any]:
        """The samples this party has."""
        return list(self._rows)

    def holding(self, ids: LabelArray, raw: Raw) -> Self:
        """The same party with other views: given raw, preprocessed as in training."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        if self._preprocess is not None:
            inputs = apply_preprocess(self._preprocess, raw)
        elif isinstance(raw, np.ndarray):
            inputs = raw.astype(np.float32)
        else:
            inputs = np.column_stack([np.asarray(column, np.float32) for column in raw.values()])
        if len(inputs) != len(ids):
            raise DataError(f"{len(ids)} ids for {len(inputs)} samples of party {self.name!r}: one id per sample")
        other._hold(ids, inputs)
        return other

    def posteriors(self, ids: Sequence[Any], /) -> Float32:
        """Round 1: local posteriors (N, K); NaN for samples this party does not have."""
        return self._answer(ids, len(self.class_names), posterior=True)

    def embeddings(self, ids: Sequence[Any], /) -> Float32:
        """Round 2: embeddings (N, d); NaN for samples this party does not have."""
        return self._answer(ids, self.dimension, posterior=False)

    def _answer(self, ids: Sequence[Any], width: int, *, posterior: bool) -> Float32:
        rows = [self._rows.get(value, -1) for value in np.asarray(ids).tolist()]
        there = np.flatnonzero(np.array(rows, dtype=np.int64) >= 0)
        answers = np.full((len(rows), width), np.nan, np.float32)
        if len(there):
            answers[there] = self._forward(self.inputs[[rows[i] for i in there]], posterior=posterior)
        return answers

    @abstractmethod
    def _forward(self, inputs: Float32, *, posterior: bool) -> Float32:
        """Posteriors, or embeddings, of preprocessed views."""
