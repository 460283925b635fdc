"""Settings of data sets and augmentation."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AugmentSettings", "DataSettings"]


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """How training views are altered, differently in each epoch."""

    flip: bool = False  # mirror images left to right with probability 1/2
    shift: int = 0  # move images by up to this many pixels
    # ModelNet40, before an object is rendered:
    turn: float = 0.0  # rotate it about the vertical axis by up to this many radians
    scale: tuple[float, ...] = (1.0, 1.0)  # scale it by a factor between these two
    stretch: float = 0.0  # scale each axis by up to this share in addition
    drop: float = 0.0  # drop up to this share of its points


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which data set, and how much of its training part is held out for calibration."""

    source: str  # the name of a data set: one of `gainroute.training.data.registry.datasets`
    calibration: float = 0.2  # the share of the official training part that is held out
    image_size: int = 32  # ModelNet40: width and height of the rendered views in pixels
    splat: int = 1  # ModelNet40: width and height of a point in pixels
    augment: AugmentSettings = field(default_factory=AugmentSettings)
