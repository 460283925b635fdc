"""Small synthetic two-route problems: parties with noisy logits, and a strong route of known reliability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class World:
    local: Array
    labels: Array
    strong: Array

    def take(self, rows: Any) -> World:
        return World(self.local[:, rows], self.labels[rows], self.strong[rows])


def world(n: int = 400, m: int = 3, k: int = 5, seed: int = 0, strength: float = 1.5) -> World:
    """Local posteriors that are informative but overconfident; classes differ in how well the strong route does."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n)
    logits = rng.normal(size=(m, n, k)) * 2
    logits[:, np.arange(n), labels] += strength
    local = np.exp(logits - logits.max(axis=2, keepdims=True))
    local /= local.sum(axis=2, keepdims=True)
    reliability = np.linspace(0.7, 0.98, k)
    right = rng.random(n) < reliability[labels]
    strong = np.where(right, labels, (labels + 1 + rng.integers(k - 1, size=n)) % k)
    return World(local, labels, strong)
