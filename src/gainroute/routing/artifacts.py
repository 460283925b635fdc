"""Saving and loading fitted routers: one safetensors file with JSON metadata, no code, no pickle.

A file names the class of the router and of every fitted stage. `load` looks these names up among the classes of this
package and those that are registered or offered by an installed package; it imports nothing else.
"""

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
from safetensors import safe_open
from safetensors.numpy import save as to_safetensors

from gainroute._util.files import write_bytes
from gainroute._util.registry import Registry
from gainroute.errors import ArtifactError, ArtifactVersionError, NotAnArtifactError, SettingError
from gainroute.routing.absent import check_subset
from gainroute.routing.agreement import AgreementRouter
from gainroute.routing.answer import FinalAnswer
from gainroute.routing.calibrate import CALIBRATORS, DirichletCalibrator, IdentityCalibrator, TemperatureCalibrator
from gainroute.routing.certify import Guarantee
from gainroute.routing.conformal import ConformalRouter
from gainroute.routing.learned_gain import LearnedGainRouter, LearnedGainScore
from gainroute.routing.offers import Offers
from gainroute.routing.party_statistics import PartyStatistics
from gainroute.routing.pipeline import Pipeline
from gainroute.routing.pool import POOLS, LogLinearPool
from gainroute.routing.quality import QualityRouter
from gainroute.routing.router import Router
from gainroute.routing.routers import (
    ROUTERS,
    CalibratedConfidenceRouter,
    ConfidenceRouter,
    DeferRouter,
    ExpectedGainRouter,
    RandomRouter,
)
from gainroute.routing.score import ExpectedGainScore
from gainroute.routing.taught import TaughtPool
from gainroute.routing.two_stage_defer import TwoStageDeferRouter
from gainroute.routing.types import Provenance, ThresholdScores

__all__ = ["FORMAT", "VERSION", "load", "save"]

FORMAT = "gainroute.router"
VERSION = 2
READABLE = ("1", "2")
MOST_PARTIES = 10_000
# Settings that older files do not hold, with the values that routers of that time used.
BEFORE = {"pooling": "mean", "blend": "none", "correction": "none", "answer_by": "argmax"}
# Those in which a subset's router may differ.
SUBSET_SETTINGS = ("folds", "threshold", "kept_error", "pooling", "training_weight", "lam", "eps")

Tensors = dict[str, npt.NDArray[Any]]

# In a file, the package's own classes stand under their class names, all others under the name they are registered as.
OWN_ROUTERS: dict[str, type[Router]] = {
    cls.__name__: cls
    for cls in (
        ExpectedGainRouter,
        ConfidenceRouter,
        CalibratedConfidenceRouter,
        AgreementRouter,
        QualityRouter,
        ConformalRouter,
        TwoStageDeferRouter,
        LearnedGainRouter,
        DeferRouter,
        RandomRouter,
    )
}
OWN_FITTED = (
    DirichletCalibrator,
    TemperatureCalibrator,
    IdentityCalibrator,
    ExpectedGainScore,
    LearnedGainScore,
    LogLinearPool,
    TaughtPool,
)
STAGES: dict[str, Registry[Any]] = {"calibration": CALIBRATORS, "pooling": POOLS}


def save(router: Router, path: str | os.PathLike[str], *, provenance: Provenance | None = None) -> None:
    """Save a fitted router; the file is written completely or not at all.

    Parameters
    ----------
    router
        A fitted router of this package, or one that is registered (`gainroute.register_router`, or the entry point
        group "gainroute.routers").
    path
        Where to write it, by convention `router.safetensors`.
    provenance
        Hashes of the models and the embedding codec it was calibrated with, if it serves models.
    """
    router._check_fitted()
    name, packages = _router_name(router)
    tensors: Tensors = {}
    kinds = _add_fitted(router, tensors)
    made_with = router.provenance_ if provenance is None else provenance
    metadata: dict[str, Any] = {
        "router": name,
        "settings": {key: _plain(key, value, packages) for key, value in router.settings().items()},
        "parts": kinds,
        "parties": router.n_parties_,
        "classes": router.n_classes_,
        "own_weak_prediction": router.own_weak_prediction_,
        "models": dict(made_with.models),
        "codec": made_with.codec,
    } | ({"packages": packages} if packages else {})
    if router.offers_ is not None:
        _flatten("offers", router.offers_, tensors)
    if router.subset_routers_:
        metadata["subsets"] = [
            {
                "parties": list(subset),
                "settings": {
                    key: _plain(key, getattr(fitted, key), packages) for key in SUBSET_SETTINGS if hasattr(fitted, key)
                },
                "parts": _add_fitted(fitted, tensors, f"subset{number}."),
            }
            for number, (subset, fitted) in enumerate(router.subset_routers_.items())
        ]
    header = {"format": FORMAT, "version": str(VERSION), "metadata": json.dumps(metadata, sort_keys=True)}
    contiguous = {name: np.array(t, order="C") for name, t in tensors.items()}  # ascontiguousarray would add an axis
    write_bytes(path, to_safetensors(contiguous, metadata=header))


def _add_fitted(router: Router, tensors: Tensors, prefix: str = "") -> dict[str, str]:
    """Add everything fitted to the tensors, each name behind a prefix; returns the classes of the stages."""
    pipeline = router._pipeline
    tensors[f"{prefix}threshold"], tensors[f"{prefix}confusion"] = np.array(router.threshold_), router.confusion_
    tensors[f"{prefix}tied_share"] = np.array(router.tied_share_)
    _flatten(f"{prefix}threshold_scores", router.threshold_scores_, tensors)
    if router.party_statistics_ is not None:
        _flatten(f"{prefix}party_statistics", router.party_statistics_, tensors)
    if router.guarantee_ is not None:
        _flatten(f"{prefix}guarantee", router.guarantee_, tensors)
    parts: dict[str, Any] = {
        "pool": pipeline.pool,
        "calibrator": pipeline.calibrate,
        "score": pipeline.score,
        "blend": pipeline.answer.blend,
    }
    allowed = _fitted_types(router)
    kinds: dict[str, str] = {}
    for part, fitted in parts.items():
        if fitted is None or getattr(fitted, "__self__", None) is router:
            continue  # a method of the router needs no state: it is there again once the router is built
        if allowed.get(type(fitted).__name__) is not type(fitted) or not dataclasses.is_dataclass(fitted):
            raise ArtifactError(
                f"the fitted {part} is a {type(fitted).__name__}, which a file cannot hold; make it a frozen dataclass "
                "of arrays and numbers, and list its class in fitted_types of the router or of the registered stage"
            )
        kinds[part] = _flatten(f"{prefix}{part}", fitted, tensors)
    return kinds


def load(path: str | os.PathLike[str]) -> Router:
    """Load a router that `save` wrote. Runs no code from the file.

    A router, calibrator or pool of another package is found if that package is installed or its module imported.
    """
    metadata, tensors = _read(path)
    try:
        router = _rebuild(metadata, tensors)
        _check_parts(router)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error
    except Exception as error:  # whatever a damaged file leads to
        raise NotAnArtifactError(f"{path}: the artifact is damaged ({error!r}); save the router again") from error
    return router


# ---- names ------------------------------------------------------------------------------------------


def _router_name(router: Router) -> tuple[str, dict[str, str]]:
    """The name of a router in a file, and, by name, the packages that loading it needs."""
    kind = type(router)
    if OWN_ROUTERS.get(kind.__name__) is kind:
        return kind.__name__, {}
    name = ROUTERS.name_of(kind)
    if name is None:
        raise ArtifactError(
            f"{kind.__name__} is not one of the package's routers ({', '.join(OWN_ROUTERS)}), nor registered; a file "
            'cannot carry its code: register it with gr.register_router("name"), or offer it as an entry point of '
            f"{ROUTERS.group!r}"
        )
    return name, {name: ROUTERS.package_of(name) or kind.__module__}


def _plain(key: str, value: Any, packages: dict[str, str]) -> Any:
    """A setting as JSON; adds the package that a stage comes from."""
    registry = STAGES.get(key)
    if registry is not None:
        named = isinstance(value, str)
        kind = registry.get(value) if named else type(value)
        name = value if named else registry.name_of(kind)
        if name is None or not (named or dataclasses.is_dataclass(kind)):
            raise ArtifactError(
                f"{key} is {value!r}, which a file cannot name; make it a dataclass of numbers, and register its class"
            )
        if name not in registry.builtin:
            packages[name] = registry.package_of(name) or kind.__module__
        return value if named else {"stage": name, **dataclasses.asdict(value)}
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    try:
        json.dumps(value)
    except TypeError:
        raise ArtifactError(
            f"{key} is {value!r}, which a file cannot hold; use a setting that is a name, a number or an array"
        ) from None
    return value


def _fitted_types(router: Router) -> dict[str, type[Any]]:
    """The classes that a fitted stage of this router may have, by name."""
    sources: list[Any] = [router]
    for key, registry in STAGES.items():
        value = getattr(router, key, None)
        sources.append(registry.get(value) if isinstance(value, str) else value)
    listed = [kind for source in sources for kind in getattr(source, "fitted_types", ())]
    return {kind.__name__: kind for kind in (*listed, *OWN_FITTED)}


def _find(registry: Registry[Any], name: str, packages: dict[str, str]) -> Any:
    package = packages.get(name)
    remedy = f"install {package}, or import the module that registers it" if package else ""
    try:
        return registry.get(name, remedy)
    except SettingError as error:
        raise ArtifactError(str(error)) from error


# ---- the file ---------------------------------------------------------------------------------------


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Tensors]:
    if not Path(path).is_file():
        raise NotAnArtifactError(f"{path}: no such file; pass what gr.save or `gainroute fit --out` wrote")
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            header = file.metadata() or {}
            _check_format(path, header)
            return json.loads(header["metadata"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except ArtifactError:
        raise
    except Exception as error:  # SafetensorError, and whatever unknown types and malformed JSON lead to
        raise NotAnArtifactError(
            f"{path}: not a safetensors file, or truncated ({error}); pass what gr.save wrote, or copy it again"
        ) from error


def _check_format(path: str | os.PathLike[str], header: dict[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise NotAnArtifactError(
            f"{path}: format {header.get('format')!r}, {FORMAT!r} is needed; pass what gr.save wrote"
        )
    if header.get("version") not in READABLE:
        raise ArtifactVersionError(
            f"{path}: format version {header.get('version')!r}, this gainroute reads up to {VERSION}; upgrade "
            "gainroute, or save the router again with this version"
        )


def _rebuild(metadata: dict[str, Any], tensors: Tensors) -> Router:
    settings, packages = metadata["settings"], metadata.get("packages", {})
    for key, registry in STAGES.items():
        value = settings.get(key)
        if isinstance(value, dict):
            settings[key] = _find(registry, value.pop("stage"), packages)(**value)
        elif value is not None:
            _find(registry, value, packages)
    name = metadata["router"]
    kind = OWN_ROUTERS[name] if name in OWN_ROUTERS else _find(ROUTERS, name, packages)
    known = inspect.signature(kind).parameters
    settings = {key: value for key, value in BEFORE.items() if key in known} | settings
    router = _refitted(kind, settings, metadata, tensors)
    subsets = {}
    for number, given in enumerate(metadata.get("subsets", [])):
        subset = check_subset(given["parties"], router.n_parties_, proper=True)
        own = metadata | {"parties": len(subset), "parts": given["parts"]}
        subsets[subset] = _refitted(kind, settings | given["settings"], own, tensors, f"subset{number}.")
    router.subset_routers_ = subsets
    if "offers.member" in tensors:
        router.offers_ = _unflatten("offers", Offers, tensors)
    return router


def _refitted(
    kind: type[Router], settings: dict[str, Any], metadata: dict[str, Any], tensors: Tensors, prefix: str = ""
) -> Router:
    """A router with its settings and what `_add_fitted` wrote."""
    if settings["threshold"] in ("inf", "-inf"):
        settings = settings | {"threshold": float(settings["threshold"])}
    router = kind(**settings)
    types = _fitted_types(router)

    def read(part: str, of: type[Any]) -> Any:
        return _unflatten(f"{prefix}{part}", of, tensors)

    parts = {part: read(part, types[fitted]) for part, fitted in metadata["parts"].items()}
    router._set(
        pipeline=Pipeline(
            pool=parts.get("pool", router.pool),
            calibrate=parts["calibrator"],
            score=parts.get("score", router.score),
            answer=FinalAnswer(tensors[f"{prefix}confusion"], parts.get("blend"), router.stages().utility),
            pooled_only=router.pooled_only,
        ),
        scores=read("threshold_scores", ThresholdScores),
        parties=metadata["parties"],
        classes=metadata["classes"],
        own_weak_prediction=metadata["own_weak_prediction"],
        provenance=Provenance(metadata["models"], metadata["codec"]),
        party_statistics=(
            read("party_statistics", PartyStatistics) if f"{prefix}party_statistics.samples" in tensors else None
        ),
        threshold=float(tensors[f"{prefix}threshold"]),
        tied_share=float(tensors.get(f"{prefix}tied_share", 0.0)),
        guarantee=read("guarantee", Guarantee) if f"{prefix}guarantee.threshold" in tensors else None,
    )
    return router


def _check_parts(router: Router) -> None:
    """Raise if the parts do not fit together, as the answer to one sample shows."""
    m, k, scores = router.n_parties_, router.n_classes_, router.threshold_scores_
    if type(m) is not int or type(k) is not int or not 0 < m <= MOST_PARTIES or router.confusion_.shape[:1] != (k,):
        raise ValueError(f"{m!r} parties and {k!r} classes, with a confusion matrix {router.confusion_.shape}")
    lengths = {np.shape(value) for value in vars(scores).values()}
    if len(lengths) != 1 or len(lengths.pop()) != 1:
        raise ValueError("the scores of the threshold differ in length")
    if router._guarantee is not None and not router._guarantee.text:  # the text needs all numbers
        raise ValueError("the guarantee is not whole")
    if not isinstance(router.own_weak_prediction_, bool):
        raise TypeError(f"own_weak_prediction is {router.own_weak_prediction_!r}")
    if not all(isinstance(text, str) for pair in router.provenance_.models.items() for text in pair):
        raise TypeError("the hashes of the models are not text")
    weak = router._labels.decode(np.zeros(1, dtype=np.int64)) if router.own_weak_prediction_ else None
    router.route(np.full((m, 1, k + router.extra_columns), 1 / k), weak_prediction=weak, checked=True)
    for fitted in router.subset_routers_.values():
        _check_parts(fitted)
    if router.offers_ is not None:
        n, s = router.offers_.gain.shape
        shapes = {"member": (s, m), "share": (m,), "value": (s, k), "weight": (n,), "weak_right": (n,), "right": (n, s)}
        if any(getattr(router.offers_, name).shape != shape for name, shape in shapes.items()):
            raise ValueError("the offers do not fit the router")


def _flatten(prefix: str, part: Any, tensors: Tensors) -> str:
    """Add the fields of a frozen dataclass to the tensors; a field that is None is left out."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value is not None:
            tensors[f"{prefix}.{field.name}"] = np.asarray(value)
    return type(part).__name__


def _unflatten(prefix: str, kind: type[Any], tensors: Tensors) -> Any:
    """What `_flatten` wrote. A field that is not there is None, or has its default: the file may be older than it."""
    values = {}
    for field in dataclasses.fields(kind):
        value = tensors.get(f"{prefix}.{field.name}")
        if value is None and field.default is not dataclasses.MISSING:
            continue
        values[field.name] = value.item() if value is not None and value.ndim == 0 else value
    return kind(**values)
