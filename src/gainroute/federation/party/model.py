"""One model version of a party: it answers by sample id, and its answers are checked before they are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import InputError
from gainroute.federation.transport.base import ModelDescription
from gainroute.io.ids import id_texts
from gainroute.routing.two_round import Party

__all__ = ["Answer", "ModelVersion", "is_temporary", "version_of"]

Answer = Callable[[Sequence[str]], npt.ArrayLike]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

NO_ROWS: Rows = np.zeros(0, np.int64)


@dataclass(frozen=True)
class ModelVersion:
    """One model version that answers.

    Attributes
    ----------
    model
        Its hash, and the length of its embeddings.
    classes
        Class names in the order of the posterior columns.
    posteriors, embeddings
        Ids as text → (N, K) and (N, d), with a row of NaN for a sample that the party does not have.
    immediate
        Whether an answer is a mere lookup, too short to run in a thread.
    """

    model: ModelDescription
    classes: tuple[str, ...]
    posteriors: Answer
    embeddings: Answer
    immediate: bool = False

    def width(self, *, posterior: bool) -> int:
        """Return the length of a row: the number of classes, or the dimension of an embedding."""
        return len(self.classes) if posterior else self.model.dimension

    def answer(self, ids: Sequence[str], *, posterior: bool) -> tuple[Floats, Rows]:
        """Return the rows of the samples that the party has, and the positions of the others.

        Raises
        ------
        InputError
            If the model returned anything else than what it declares. Nothing of it is sent.
        """
        returned = self.posteriors(ids) if posterior else self.embeddings(ids)
        shape = (len(ids), self.width(posterior=posterior))
        try:
            array = np.asarray(returned, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"the model returned no array of numbers ({error}); shape {shape} is needed") from error
        if array.shape != shape:
            raise InputError(f"the model returned shape {array.shape} for {len(ids)} ids; {shape} is needed")
        finite = np.isfinite(array)
        if np.logical_and.reduce(finite, axis=None):
            return array, NO_ROWS
        absent = np.isnan(array).all(axis=1)
        if not finite[~absent].all():
            row = int(np.flatnonzero(~absent & ~finite.all(axis=1))[0])
            raise InputError(
                f"the model returned NaN or infinity in row {row}; only a full row of NaN is allowed, for a sample "
                "that the party does not have"
            )
        return array[~absent], np.flatnonzero(absent)


def version_of(party: Party, model: str, classes: Sequence[str], dimension: int) -> ModelVersion:
    """Wrap an object in this process as a model version.

    Parameters
    ----------
    party
        Any `gainroute.Party`. If it has an attribute `ids`, requested ids are matched to those by their
        text; otherwise it is called with the text. A true attribute `immediate` means that its answers need no thread.
    model
        Hash of the version.
    classes
        Class names in the order of the posterior columns.
    dimension
        Length of the embeddings.
    """
    names = tuple(str(name) for name in classes)
    known = getattr(party, "ids", None)
    own: dict[str, Any] | None = None
    if known is not None:
        values = known.tolist() if isinstance(known, np.ndarray) else list(known)
        own = dict(zip(id_texts(values), values, strict=True))

    def ask(what: str, ids: Sequence[str], width: int) -> npt.ArrayLike:
        call: Answer = getattr(party, what)
        if own is None:
            return call(ids)
        there = [i for i, text in enumerate(ids) if text in own]
        if len(there) == len(ids):
            return call([own[text] for text in ids])
        rows = np.full((len(ids), width), np.nan, np.float32)
        if there:
            rows[there] = np.asarray(call([own[ids[i]] for i in there]), np.float32)
        return rows

    return ModelVersion(
        ModelDescription(model, dimension),
        names,
        lambda ids: ask("posteriors", ids, len(names)),
        lambda ids: ask("embeddings", ids, dimension),
        bool(getattr(party, "immediate", False)),
    )


def is_temporary(error: Exception) -> bool:
    """Tell whether an error of a model may be gone at the next request, because its data could not be reached."""
    if isinstance(error, (OSError, TimeoutError)):
        return True
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"OperationalError", "InterfaceError"})  # of SQLAlchemy and its drivers
