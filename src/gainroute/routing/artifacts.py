"""Saving and loading fitted routers: one safetensors file, JSON metadata, no code, no pickle."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from gainroute._util.files import write_bytes
from gainroute.errors import ArtifactError, ArtifactVersionError, NotAnArtifactError
from gainroute.routing.calibrate import DirichletCalibrator, IdentityCalibrator, TemperatureCalibrator
from gainroute.routing.learned_gain import LearnedGainScore
from gainroute.routing.pipeline import Road
from gainroute.routing.pool import LogLinearPool
from gainroute.routing.router import Router
from gainroute.routing.routers import (
    CalibratedConfidenceRouter,
    ConfidenceRouter,
    DeferRouter,
    ExpectedGainRouter,
    ExpectedGainScore,
    LearnedGainRouter,
    RandomRouter,
)
from gainroute.routing.types import Provenance, ThresholdScores

__all__ = ["FORMAT", "VERSION", "load", "save"]

FORMAT = "gainroute.router"
VERSION = 2
READABLE = ("1", "2")
# Settings that a file of version 1 does not name: what routers did before they had them.
BEFORE = {"pooling": "mean", "blend": "none"}

Tensors = dict[str, npt.NDArray[Any]]

# Everything that may stand in a file, by name: loading looks names up here and runs nothing else.
ROUTERS: dict[str, type[Router]] = {
    cls.__name__: cls
    for cls in (
        ExpectedGainRouter,
        ConfidenceRouter,
        CalibratedConfidenceRouter,
        LearnedGainRouter,
        DeferRouter,
        RandomRouter,
    )
}
PARTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        DirichletCalibrator,
        TemperatureCalibrator,
        IdentityCalibrator,
        ExpectedGainScore,
        LearnedGainScore,
        LogLinearPool,
    )
}


def save(router: Router, path: str | os.PathLike[str], *, provenance: Provenance | None = None) -> None:
    """Save a fitted router; the file is written whole or not at all.

    Parameters
    ----------
    router
        Any fitted router of this package.
    path
        Where to, by custom `router.safetensors`.
    provenance
        Hashes of the models and the embedding codec it was calibrated with, if it serves models.
    """
    router._check_fitted()
    if ROUTERS.get(type(router).__name__) is not type(router):
        raise ArtifactError(
            f"{type(router).__name__} is not one of the package's routers ({', '.join(ROUTERS)}); a file cannot carry "
            "its code: save what it was fitted with, and fit it where it is used"
        )
    tensors: Tensors = {"threshold": np.array(router.threshold_), "confusion": router.confusion_}
    _flatten("threshold_scores", router.threshold_scores_, tensors)
    road = router._road
    parts = {"pool": road.pool, "calibrator": road.calibrate, "score": road.score, "blend": road.blend}
    # What the class itself does needs no state: it is there again once the router is built.
    kinds = {n: _flatten(n, part, tensors) for n, part in parts.items() if type(part) in PARTS.values()}
    settings = router.settings()
    for name in ("utility", "classes"):
        if settings.get(name) is not None:
            settings[name] = settings[name].tolist()
    if isinstance(settings["threshold"], float) and math.isinf(settings["threshold"]):
        settings["threshold"] = str(settings["threshold"])
    made_with = router.provenance_ if provenance is None else provenance
    metadata = {
        "router": type(router).__name__,
        "settings": settings,
        "parts": kinds,
        "parties": router.n_parties_,
        "classes": router.n_classes_,
        "own_weak_prediction": router.own_weak_prediction_,
        "models": dict(made_with.models),
        "codec": made_with.codec,
    }
    header = {"format": FORMAT, "version": str(VERSION), "metadata": json.dumps(metadata, sort_keys=True)}
    contiguous = {name: np.array(t, order="C") for name, t in tensors.items()}  # ascontiguousarray would add an axis
    write_bytes(path, to_safetensors(contiguous, metadata=header))


def load(path: str | os.PathLike[str]) -> Router:
    """Load a router that `save` wrote. Runs no code from the file."""
    metadata, tensors = _read(path)
    try:
        return _rebuild(metadata, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise NotAnArtifactError(f"{path}: the artifact is damaged ({error!r}); save the router again") from error


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Tensors]:
    if not Path(path).is_file():
        raise NotAnArtifactError(f"{path}: no such file; pass what gr.save or `gainroute fit --out` wrote")
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise NotAnArtifactError(
                    f"{path}: format {header.get('format')!r}, {FORMAT!r} is needed; pass what gr.save wrote"
                )
            if header.get("version") not in READABLE:
                raise ArtifactVersionError(
                    f"{path}: format version {header.get('version')!r}, this gainroute reads up to {VERSION}; upgrade "
                    "gainroute, or save the router again with this version"
                )
            return json.loads(header["metadata"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, KeyError) as error:
        raise NotAnArtifactError(
            f"{path}: not a safetensors file, or truncated ({error}); pass what gr.save wrote, or copy it again"
        ) from error


def _rebuild(metadata: dict[str, Any], tensors: Tensors) -> Router:
    settings = metadata["settings"]
    if settings["threshold"] in ("inf", "-inf"):
        settings["threshold"] = float(settings["threshold"])
    kind = ROUTERS[metadata["router"]]
    known = inspect.signature(kind).parameters
    router = kind(**{name: value for name, value in BEFORE.items() if name in known} | settings)
    parts = {name: _unflatten(name, PARTS[kind], tensors) for name, kind in metadata["parts"].items()}
    router._set(
        road=Road(
            pool=parts.get("pool", router.pool),
            calibrate=parts["calibrator"],
            score=parts.get("score", router.score),
            blend=parts.get("blend"),
        ),
        scores=_unflatten("threshold_scores", ThresholdScores, tensors),
        confusion=tensors["confusion"],
        parties=metadata["parties"],
        classes=metadata["classes"],
        own_weak_prediction=metadata["own_weak_prediction"],
        provenance=Provenance(metadata["models"], metadata["codec"]),
        threshold=float(tensors["threshold"]),
    )
    return router


def _flatten(prefix: str, part: Any, tensors: Tensors) -> str:
    """Put the fields of a frozen record among the tensors; a field that is None is left out."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value is not None:
            tensors[f"{prefix}.{field.name}"] = np.asarray(value)
    return type(part).__name__


def _unflatten(prefix: str, kind: type[Any], tensors: Tensors) -> Any:
    values = {}
    for field in dataclasses.fields(kind):
        value = tensors.get(f"{prefix}.{field.name}")
        values[field.name] = value.item() if value is not None and value.ndim == 0 else value
    return kind(**values)
