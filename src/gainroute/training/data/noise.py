"""Degradation at test time: Gaussian noise on the views of some classes, the same in both rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gainroute.errors import SettingError
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["UNITS", "add_noise", "noise_deviations", "noisy_classes"]

UNITS = ("standardised", "-1..1", "0..1")
_IN_0_TO_1 = {"-1..1": 0.5, "0..1": 1.0}

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


def noise_deviations(unit: str, sigma: float, scales: Sequence[FloatArray]) -> list[FloatArray]:
    """The deviation of the noise per party, in units of the standardised views.

    Parameters
    ----------
    unit
        What `sigma` is measured in: "standardised", "-1..1" (views scaled to that range) or "0..1" (views as they are
        given: images have values from 0 to 1).
    sigma
        The deviation in that unit.
    scales
        Per party, the deviations (per channel or feature) by which its views were divided.
    """
    if unit not in UNITS:
        raise SettingError(f"the unit of the noise is {unit!r}: one of {', '.join(map(repr, UNITS))}")
    if sigma < 0:
        raise SettingError(f"sigma is {sigma}: a deviation is 0 or more")
    return [np.full_like(scale, sigma) if unit == UNITS[0] else _IN_0_TO_1[unit] * sigma / scale for scale in scales]


def add_noise(
    views: Sequence[npt.NDArray[np.float32]], deviations: Sequence[FloatArray], seed: int
) -> tuple[npt.NDArray[np.float32], ...]:
    """Add zero-mean Gaussian noise to every view, with one deviation per channel or feature.

    The noise depends only on the seed: a sample that two regimes touch is the same noisy sample in both, and in another
    unit it is the same noise, scaled.
    """
    noisy = []
    for party, (view, deviation) in enumerate(zip(views, deviations, strict=True)):
        noise = np.random.default_rng([seed, _NOISE, party]).standard_normal(view.shape, np.float32)
        noisy.append(view + noise * deviation.astype(np.float32).reshape(-1, *(1,) * (view.ndim - 2)))
    return tuple(noisy)
