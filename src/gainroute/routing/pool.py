"""Round 1: (M, N, K) local posteriors become one (N, K) pooled posterior."""

from __future__ import annotations

from typing import Any

import numpy as np

from gainroute.routing.inputs import as_local_posteriors, as_present, check_posteriors
from gainroute.routing.types import ArrayLike, BoolArray, FloatArray

__all__ = ["mean_over_parties", "pool_mean"]


def pool_mean(local_posteriors: Any, present: ArrayLike | None = None) -> FloatArray:
    """Average the parties' posteriors (eq. 1): p̄ = (1/M) Σᵢ pᵢ.

    Parameters
    ----------
    local_posteriors : (M, N, K), list of M arrays (N, K), or (N, K)
    present : (M, N) bool, optional
        Who answered. A sample is averaged over those present; one that nobody has becomes a row of NaN.

    Returns
    -------
    (N, K)

    Examples
    --------
    >>> pool_mean([[[0.9, 0.1]], [[0.5, 0.5]]])
    array([[0.7, 0.3]])
    """
    local = as_local_posteriors(local_posteriors)
    mask = as_present(present, local.shape[:2])
    check_posteriors(local, mask)
    return mean_over_parties(local, mask)


def mean_over_parties(local: FloatArray, present: BoolArray | None = None) -> FloatArray:
    """`pool_mean` on arrays already checked, always in double precision."""
    if present is None:
        # Summing party by party beats a reduction over the first axis of a wide array.
        total: FloatArray = local[0].astype(np.float64)
        for posterior in local[1:]:
            total += posterior
        if len(local) > 1:
            total /= len(local)
        return total
    weight = present[..., None]
    total = np.where(weight, local, 0.0).sum(axis=0, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        pooled: FloatArray = total / weight.sum(axis=0)
    return pooled
