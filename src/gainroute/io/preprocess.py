"""Preprocessing, from a raw view to the input of a model; saved in the party's folder as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from gainroute.errors import DataError, NotAnArtifactError, SettingError
from gainroute.io.features import TablePreprocess, fit_table

__all__ = [
    "KINDS",
    "ImagePreprocess",
    "Preprocess",
    "Raw",
    "Standardiser",
    "apply_preprocess",
    "as_columns",
    "fit_preprocess",
    "fit_standardiser",
    "parse_kinds",
    "preprocess_from_json",
]

Raw = Union[npt.NDArray[Any], Mapping[str, npt.NDArray[Any]]]  # noqa: UP007 (an alias, evaluated on Python 3.10)
KINDS = ("auto", "images", "features")
_MODEL_KINDS = {"cnn": "images", "mlp": "features"}


@dataclass(frozen=True)
class Standardiser:
    """The mean and deviation of each channel of a view, (C,)."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, view: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """`view` (N, C, …) with each channel shifted and scaled."""
        shape = (1, -1) + (1,) * (view.ndim - 2)
        mean = np.asarray(self.mean, np.float32).reshape(shape)
        scale = (1 / np.asarray(self.deviation)).astype(np.float32).reshape(shape)
        return np.asarray((view.astype(np.float32) - mean) * scale, dtype=np.float32)


def fit_standardiser(view: npt.NDArray[Any]) -> Standardiser:
    """Measure the channels of a training view (N, C, …); a constant channel is shifted only."""
    axes = (0, *range(2, view.ndim))
    mean = view.mean(axis=axes, dtype=np.float64)
    deviation = view.std(axis=axes, dtype=np.float64)
    deviation = np.where(deviation > 0, deviation, 1.0)
    return Standardiser(tuple(mean.tolist()), tuple(deviation.tolist()))


@dataclass(frozen=True)
class ImagePreprocess:
    """Images to (N, C, H, W), standardised per channel; feature vectors (N, C) likewise."""

    standardise: Standardiser
    layout: str = "NCHW"  # or "NHWC", "NHW" for a single channel without an axis, "NC" for feature vectors

    def __call__(self, raw: Raw) -> npt.NDArray[np.float32]:
        """Model inputs from raw images."""
        images = _channels_first(_numbers(raw), self.layout)
        if images.shape[1] != len(self.standardise.mean):
            raise DataError(f"images have {images.shape[1]} channels: training had {len(self.standardise.mean)}")
        return self.standardise(images)

    def to_json(self) -> dict[str, Any]:
        """Plain containers."""
        scale = self.standardise
        return {"kind": "images", "mean": scale.mean, "deviation": scale.deviation, "layout": self.layout}


Preprocess = Union[ImagePreprocess, TablePreprocess]  # noqa: UP007 (an alias, evaluated on Python 3.10)


def _numbers(raw: Raw) -> npt.NDArray[Any]:
    if not isinstance(raw, np.ndarray):
        raise DataError(f"a table with columns {', '.join(raw)} was given, but training had images")
    return raw


def _channels_first(images: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    if images.ndim != len(layout):
        raise DataError(f"images have shape {images.shape}: training had {layout}")
    if layout == "NHW":
        return images[:, None]
    return np.moveaxis(images, 3, 1) if layout == "NHWC" else images


def _layout(shape: tuple[int, ...]) -> str:
    if len(shape) == 3:
        return "NHW"
    return "NHWC" if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4) else "NCHW"


def as_columns(raw: Raw) -> Mapping[str, npt.NDArray[Any]]:
    """A table unchanged, a structured array by its fields; an array as one column per feature: x0, x1 and so on."""
    if not isinstance(raw, np.ndarray):
        return raw
    if raw.dtype.names is not None:
        return {name: raw[name] for name in raw.dtype.names}
    flat = raw.reshape(len(raw), -1)
    return {f"x{index}": flat[:, index] for index in range(flat.shape[1])}


def parse_kinds(texts: Sequence[str]) -> dict[str, str]:
    """Read "party=cnn" (or "images") and "party=mlp" (or "features") into a kind per party.

    Examples
    --------
    >>> parse_kinds(["front=cnn", "vitals=features"])
    {'front': 'images', 'vitals': 'features'}
    """
    found = {}
    for text in texts:
        party, equals, kind = text.partition("=")
        kind = _MODEL_KINDS.get(kind, kind)
        if not (party and equals) or kind not in KINDS:
            raise SettingError(f"kind is {text!r}; PARTY=cnn (images) or PARTY=mlp (features) is needed")
        found[party] = kind
    return found


def fit_preprocess(raw: Raw, kind: str = "auto") -> Preprocess:
    """Fit preprocessing on the training part of a view; the kind "auto" decides by the shape.

    A view is (N, C, H, W), (N, H, W, C) or (N, H, W) images, (N, d) feature vectors, or columns of a table.
    """
    if kind not in KINDS:
        raise SettingError(f"kind {kind!r} is unknown: one of {', '.join(KINDS)}")
    images = isinstance(raw, np.ndarray) and raw.ndim in (3, 4)
    if kind == "images" and not images:
        raise DataError("a view of kind 'images' has to be (N, C, H, W), (N, H, W, C) or (N, H, W)")
    if kind == "features" or not images:
        return fit_table(as_columns(raw))
    array = _numbers(raw)
    layout = _layout(array.shape)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError("images hold NaN or infinite values: gaps are imputed in feature vectors only")
    return ImagePreprocess(fit_standardiser(_channels_first(array, layout)), layout)


def apply_preprocess(preprocess: Preprocess, raw: Raw) -> npt.NDArray[np.float32]:
    """Model inputs from a raw view."""
    return preprocess(as_columns(raw)) if isinstance(preprocess, TablePreprocess) else preprocess(raw)


def preprocess_from_json(body: Mapping[str, Any]) -> Preprocess:
    """Restore preprocessing from what `to_json` returned."""
    if body.get("kind") == "table":
        return TablePreprocess.from_json(body)
    if body.get("kind") == "images":
        return ImagePreprocess(Standardiser(tuple(body["mean"]), tuple(body["deviation"])), body["layout"])
    raise NotAnArtifactError(f"preprocessing of kind {body.get('kind')!r} is unknown: images or table")
