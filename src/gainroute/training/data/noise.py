"""Degradation at test time: Gaussian noise on the standardised views of some classes, the same in both rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gainroute.errors import SettingError
from gainroute.routing.types import IntArray

__all__ = ["add_noise", "noisy_classes"]

# Separate random streams, so that neither changes when another draw is added elsewhere.
_CLASSES, _NOISE = 101, 102


def noisy_classes(classes: int, count: int, seed: int) -> IntArray:
    """The noisy classes of a regime with `count` of them; a larger regime contains every smaller one.

    Examples
    --------
    >>> set(noisy_classes(10, 2, seed=0)) <= set(noisy_classes(10, 5, seed=0))
    True
    """
    if not 0 <= count <= classes:
        raise SettingError(f"{count} noisy classes: between 0 and the {classes} classes there are")
    order = np.random.default_rng([seed, _CLASSES]).permutation(classes)
    return np.sort(order[:count]).astype(np.int64)


def add_noise(views: Sequence[npt.NDArray[np.float32]], sigma: float, seed: int) -> tuple[npt.NDArray[np.float32], ...]:
    """Add zero-mean Gaussian noise of standard deviation `sigma` to every view; all are standardised.

    The noise depends only on the seed: a sample that two regimes touch is the same noisy sample in both.
    """
    if sigma < 0:
        raise SettingError(f"sigma is {sigma}: a deviation is 0 or more")
    return tuple(
        view + np.float32(sigma) * np.random.default_rng([seed, _NOISE, party]).standard_normal(view.shape, np.float32)
        for party, view in enumerate(views)
    )
