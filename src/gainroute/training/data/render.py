"""Depth images of point clouds: an orthographic camera and a z-buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gainroute.routing.types import IntArray
from gainroute.training.data.augment import shift_images
from gainroute.training.data.settings import AugmentSettings

__all__ = ["CAMERAS", "Camera", "Resplat", "centred", "render"]

Points = npt.NDArray[np.float32]

# A point in front is 1, one at the back 0.2; where nothing is, 0.
_BACK = 0.2
_CHUNK = 1024


@dataclass(frozen=True)
class Camera:
    """Where an orthographic camera stands, in degrees: looking at the origin, z being up."""

    azimuth: float
    elevation: float

    def axes(self) -> npt.NDArray[np.float32]:
        """Rows: to the right of the image, up in the image, towards the camera."""
        a, e = np.radians(self.azimuth), np.radians(self.elevation)
        right = [-np.sin(a), np.cos(a), 0.0]
        up = [-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e)]
        towards = [np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)]
        return np.array([right, up, towards], dtype=np.float32)


CAMERAS = {"top": Camera(0.0, 90.0), "diagonal": Camera(45.0, 30.0)}


def centred(points: Points) -> Points:
    """Clouds (N, P, 3) with the middle of their bounding box at 0 and their farthest point at distance 1."""
    middle = (points.max(axis=1, keepdims=True) + points.min(axis=1, keepdims=True)) / 2
    moved = points - middle
    radius = np.sqrt(np.square(moved).sum(axis=2).max(axis=1))
    return np.asarray(moved / np.maximum(radius, 1e-9)[:, None, None], dtype=np.float32)


def render(
    points: Points, camera: Camera, size: int, splat: int = 1, keep: npt.NDArray[np.bool_] | None = None
) -> npt.NDArray[np.float32]:
    """Depth images (N, 1, size, size) of clouds (N, P, 3) within the unit ball, less the points not in `keep` (N, P).

    A point is `splat` pixels wide and high; what lies outside the ball is moved to the edge of the image.
    """
    if len(points) > _CHUNK:
        parts = [slice(first, first + _CHUNK) for first in range(0, len(points), _CHUNK)]
        kept = [None if keep is None else keep[part] for part in parts]
        return np.concatenate([render(points[p], camera, size, splat, k) for p, k in zip(parts, kept, strict=True)])
    seen = points @ camera.axes().T
    near = np.clip(_BACK + (1 - _BACK) * (seen[..., 2] + 1) / 2, _BACK, 1).astype(np.float32)
    if keep is not None:
        near = np.where(keep, near, np.float32(0))
    first = np.arange(len(points))[:, None] * size * size
    images = np.zeros(len(points) * size * size, np.float32)
    for down in range(splat):
        for across in range(splat):
            # The footprint is centred on the point: an even one leans by half a pixel.
            column = (seen[..., 0] + 1) * (size / 2) + across - (splat - 1) / 2
            row = (1 - seen[..., 1]) * (size / 2) + down - (splat - 1) / 2
            column, row = (np.clip(value, 0, size - 1).astype(np.int64) for value in (column, row))
            np.maximum.at(images, (first + row * size + column).ravel(), near.ravel())
    return images.reshape(-1, 1, size, size)


@dataclass(frozen=True)
class Resplat:
    """Objects turned, scaled, stretched and thinned at random, rendered anew, and shifted.

    Two parties with generators of one seed see the same altered object, each from its own camera.
    """

    points: Points
    cameras: tuple[Camera, ...]
    size: int
    splat: int
    settings: AugmentSettings

    def __call__(self, party: int, rows: IntArray, rng: np.random.Generator, /) -> npt.NDArray[np.float32]:
        """The views of `rows` as `party` sees them this time."""
        count, s = len(rows), self.settings
        points = self.points[rows]
        angle = rng.uniform(-s.turn, s.turn, count)
        factor = rng.uniform(s.scale[0], s.scale[1], (count, 1)) * rng.uniform(1 - s.stretch, 1 + s.stretch, (count, 3))
        share = rng.uniform(0, s.drop, (count, 1))
        keep = rng.random(points.shape[:2], np.float32) >= share
        turn = np.zeros((count, 3, 3))
        turn[:, 0, 0] = turn[:, 1, 1] = np.cos(angle)
        turn[:, 1, 0], turn[:, 0, 1] = np.sin(angle), -np.sin(angle)
        turn[:, 2, 2] = 1
        moved = np.matmul(points, (turn * factor[:, :, None]).transpose(0, 2, 1).astype(np.float32))
        images = render(moved, self.cameras[party], self.size, self.splat, keep)
        return shift_images(images, s.shift, rng)
