"""What every transport checks: ids, what a model gave, and what a party may answer to be believed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gainroute.errors import InputError
from gainroute.federation.transport.base import ModelDescription, PartyDescription, PartyRefusedError
from gainroute.routing.inputs import SUM_TOLERANCE

__all__ = ["NOTHING", "check_codec_offered", "check_values", "find_model", "scatter", "split_missing"]

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

NOTHING: Rows = np.zeros(0, np.int64)
FEW = 64  # numbers that Python looks through faster than numpy gets going


def split_missing(values: npt.ArrayLike, rows: int, width: int) -> tuple[Floats, Rows]:
    """What a model gave → the rows there are, and the positions of those that are not (rows of NaN).

    Raises
    ------
    InputError
        Where shape or numbers are not what was promised: nothing of it is sent.
    """
    try:
        array = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"the model gave no array of numbers ({error}); ({rows}, {width}) is needed") from error
    if array.shape != (rows, width):
        raise InputError(f"the model gave shape {array.shape} for {rows} ids; ({rows}, {width}) is needed")
    finite = np.isfinite(array)
    if np.logical_and.reduce(finite, axis=None):
        return array, NOTHING
    absent = np.isnan(array).all(axis=1)
    if not finite[~absent].all():
        row = int(np.flatnonzero(~absent & ~finite.all(axis=1))[0])
        raise InputError(f"the model gave NaN or infinity in row {row}; only a whole row of NaN says: I lack this one")
    return array[~absent], np.flatnonzero(absent)


def scatter(values: Floats, missing: Rows, rows: int) -> Floats:
    """Rows that were sent back to their places, NaN at the others."""
    if not len(missing):
        return values
    whole = np.full((rows, values.shape[1]), np.nan, np.float32)
    there = np.ones(rows, bool)
    there[missing] = False
    whole[there] = values
    return whole


def check_values(party: str, values: Floats, *, posterior: bool) -> None:
    """Refuse numbers that cannot be posteriors or embeddings; rows of samples the party lacks are left out before."""
    problem = _problem(values, posterior=posterior)
    if problem:
        kind = "posterior" if posterior else "embedding"
        raise PartyRefusedError(party, f"its {kind} has {problem}: its model or its data are broken")


def _problem(values: Floats, *, posterior: bool) -> str | None:
    if not values.size:
        return None
    if posterior:
        # Comparisons with NaN are false, so that two passes find everything.
        if values.size <= FEW:
            rows = values.tolist()
            if all(min(row) >= 0 and abs(sum(row) - 1) <= SUM_TOLERANCE for row in rows):
                return None
        off = np.abs(np.add.reduce(values, axis=1) - 1)
        if np.minimum.reduce(values, axis=None) >= 0 and np.maximum.reduce(off) <= SUM_TOLERANCE:
            return None
        if not np.isfinite(values).all():
            return "NaN or infinity"
        if values.min() < 0:
            return f"the negative entry {values.min():.3g}"
        return f"a row that sums to {values[off.argmax()].sum():.4g}"
    return None if np.isfinite(values).all() else "NaN or infinity"


def find_model(description: PartyDescription, model: str) -> ModelDescription:
    """The version named, or a refusal that names those there are."""
    for found in description.models:
        if found.hash == model:
            return found
    there = ", ".join(found.hash for found in description.models) or "none"
    raise PartyRefusedError(description.name, f"model {model!r} is unknown; there are: {there}")


def check_codec_offered(description: PartyDescription, codec: str) -> None:
    """Refuse a codec that the party does not send."""
    if codec not in description.codecs:
        offered = ", ".join(description.codecs)
        raise PartyRefusedError(description.name, f"codec {codec!r} is not offered; allowed are: {offered}")
