"""How much the parties agree, and how confident each is: the reference for judging a party later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gainroute.routing.types import FloatArray

__all__ = ["PartyStatistics", "pairwise_agreement"]

BLOCK_VALUES = 1 << 22
TINY = float(np.finfo(float).tiny)


def pairwise_agreement(local: FloatArray) -> FloatArray:
    """Agreement of any two parties on each sample, (M, M, N): the probability that a draw from each is the same class.

    The diagonal is 1.
    """
    parties, n, _ = local.shape
    found = np.ones((parties, parties, n))
    for i in range(parties):
        for j in range(i):
            both = np.einsum("nk,nk->n", local[i], local[j], dtype=np.float64)
            found[i, j] = found[j, i] = np.clip(both, 0.0, 1.0)  # rounding may leave [0, 1]
    return found


@dataclass(frozen=True, eq=False)
class PartyStatistics:
    """Means over samples that all parties have, and their standard errors."""

    agreement: FloatArray  # (M, M)
    agreement_error: FloatArray
    confidence: FloatArray  # (M,) of the largest probability
    confidence_error: FloatArray
    samples: float  # effective number

    @classmethod
    def of(cls, local: FloatArray, weight: FloatArray | None = None) -> PartyStatistics:
        """Compute them from local posteriors, (M, N, K)."""
        parties, n, k = local.shape
        w = np.ones(n) if weight is None else weight
        sums = np.zeros((2, parties, parties)), np.zeros((2, parties))
        rows = max(1, BLOCK_VALUES // (k * parties))
        for first in range(0, n, rows):
            part = slice(first, first + rows)
            confidence = np.clip(local[:, part].max(axis=2), 0.0, 1.0)
            for total, values in zip(sums, (pairwise_agreement(local[:, part]), confidence), strict=True):
                total += np.stack([values @ w[part], np.square(values) @ w[part]])
        mass = max(float(w.sum()), TINY)
        effective = mass**2 / max(float(np.square(w).sum()), TINY)
        agreement, confidence = (_mean_and_error(total / mass, effective) for total in sums)
        return cls(*agreement, *confidence, effective)


def _mean_and_error(moments: FloatArray, samples: float) -> tuple[FloatArray, FloatArray]:
    mean, square = moments
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0) / samples)
