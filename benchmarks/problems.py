"""Synthetic posteriors for measurements: overconfident, correlated between classes, of any size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["posteriors"]


def posteriors(
    classes: int, samples: int, parties: int = 1, seed: int = 0
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Local posteriors (M, N, K) of noisy, mixed-up and overconfident parties, and the labels (N,).

    How classes are mixed up depends on their number alone: another seed gives new samples of the same problem.
    """
    mixing = np.eye(classes) + np.random.default_rng(0).normal(size=(classes, classes)) * 0.3 / np.sqrt(classes)
    rng = np.random.default_rng((1, seed))
    labels = rng.integers(classes, size=samples)
    local = np.empty((parties, samples, classes))
    for party in range(parties):
        logits = rng.normal(size=(samples, classes))
        logits[np.arange(samples), labels] += 2
        logits = 2 * logits @ mixing
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        local[party] = p / p.sum(axis=1, keepdims=True)
    return local, labels
