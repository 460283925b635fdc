"""What can be set about data."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["SOURCES", "AugmentSettings", "DataSettings"]

SOURCES = ("digits", "modelnet40", "cifar10", "cifar100")


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """How training views are altered anew each epoch.

    Attributes
    ----------
    flip
        Mirror images left to right half of the time.
    shift
        Move images by up to so many pixels.
    turn
        ModelNet40: turn the object about the vertical by up to so many radians before it is rendered.
    scale
        ModelNet40: scale it by a factor between these two.
    stretch
        ModelNet40: and each axis by up to this share.
    drop
        ModelNet40: leave out up to this share of its points.
    """

    flip: bool = False
    shift: int = 0
    turn: float = 0.0
    scale: tuple[float, ...] = (1.0, 1.0)
    stretch: float = 0.0
    drop: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where views come from and how much of the training part calibrates.

    Attributes
    ----------
    source
        One of `SOURCES`.
    calibration
        The share of the official training part that is held out for calibration.
    image_size
        ModelNet40: pixels a side of the rendered views.
    splat
        ModelNet40: pixels a side that a point covers.
    augment
        How training views are altered.
    """

    source: str
    calibration: float = 0.2
    image_size: int = 32
    splat: int = 1
    augment: AugmentSettings = field(default_factory=AugmentSettings)
