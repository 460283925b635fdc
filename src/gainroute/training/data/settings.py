"""Settings of data sets and augmentation."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AugmentSettings", "DataSettings"]


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """How training views are altered, differently in each epoch.

    Attributes
    ----------
    flip
        Mirror images left to right with probability 1/2.
    shift
        Move images by up to this many pixels.
    turn
        ModelNet40: rotate the object about the vertical axis by up to this many radians before it is rendered.
    scale
        ModelNet40: scale the object by a factor between these two.
    stretch
        ModelNet40: scale each axis by up to this share in addition.
    drop
        ModelNet40: drop up to this share of its points.
    """

    flip: bool = False
    shift: int = 0
    turn: float = 0.0
    scale: tuple[float, ...] = (1.0, 1.0)
    stretch: float = 0.0
    drop: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which data set, and how much of its training part is held out for calibration.

    Attributes
    ----------
    source
        The name of a data set: one of `gainroute.training.data.registry.datasets`.
    calibration
        The share of the official training part that is held out for calibration.
    image_size
        ModelNet40: width and height of the rendered views in pixels.
    splat
        ModelNet40: width and height of a point in pixels.
    augment
        How training views are altered.
    """

    source: str
    calibration: float = 0.2
    image_size: int = 32
    splat: int = 1
    augment: AugmentSettings = field(default_factory=AugmentSettings)
