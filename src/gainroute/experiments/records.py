"""Records: the answers of both routes in a trained cell, small enough to commit, read without torch.

A record is one compressed ``.npz``. Posteriors are kept as logs: 16 bits in steps of 1/512, or 8 bits in
steps of 1/12 where there are 100 classes or more; predictions are exact. A noisy regime keeps only the
samples that the noise touched: the regimes are nested and share one noise, so those of the largest are
enough, and loading puts them over the clean test part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.damage import names_damage
from gainroute._util.files import write_npz
from gainroute.errors import ArtifactVersionError, NotAnArtifactError, SettingError
from gainroute.io.tables import read_table
from gainroute.routing.types import IntArray
from gainroute.training.route_answers import DeferAnswers, RouteAnswers, overlay

__all__ = ["DeferAnswers", "Record", "RouteAnswers", "load_record", "save_record"]

FORMAT = 1
_STEPS = {16: 512.0, 8: 12.0}
_SCORE = 32767.0


@dataclass(frozen=True)
class Record:
    """One data set, one seed: the answers of both routes."""

    dataset: str
    seed: int
    calibration: RouteAnswers
    test: RouteAnswers  # clean
    noisy: Mapping[int, RouteAnswers]  # by number of noisy classes: the whole test part with those degraded
    noisy_classes: Mapping[int, tuple[int, ...]]  # by the same number, which classes these are
    class_names: tuple[str, ...]  # in the order of labels
    party_names: tuple[str, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)  # config, versions, split hash, embedding sizes, timings

    def regimes(self) -> dict[int, RouteAnswers]:
        """The test part under every regime, 0 being the clean one."""
        return {0: self.test, **self.noisy}


def _encode(posterior: npt.NDArray[np.float32], bits: int) -> npt.NDArray[Any]:
    if bits == 32:
        return posterior
    top = 2**bits - 1
    logs = -np.log(np.maximum(posterior.astype(np.float64), 1e-300))
    codes = np.minimum(np.rint(logs * _STEPS[bits]), top)
    if bits == 8:
        return np.asarray(codes, dtype=np.uint8)
    # Two planes of bytes: the high ones compress well once the low ones are out of their way.
    return np.asarray(np.stack([codes // 256, codes % 256]), dtype=np.uint8)


def _decode(codes: npt.NDArray[Any], bits: int) -> npt.NDArray[np.float32]:
    if bits == 32:
        return codes.astype(np.float32)
    if bits == 16:
        codes = codes[0].astype(np.uint16) * 256 + codes[1]
    posterior = np.exp(codes.astype(np.float64) / -_STEPS[bits])
    return np.asarray(posterior / posterior.sum(axis=-1, keepdims=True), dtype=np.float32)


def _small(values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    return values.astype(np.uint8 if count <= 256 else np.uint16)


def _pack(split: RouteAnswers, prefix: str, bits: int, classes: int) -> dict[str, npt.NDArray[Any]]:
    arrays = {
        "ids": split.ids,
        "labels": _small(split.labels, classes),
        "local": _encode(split.local_posteriors, bits),
        "strong": _encode(split.strong_posterior, bits),
        "weak_prediction": _small(split.weak_prediction, classes),
        "strong_prediction": _small(split.strong_prediction, classes),
    }
    if split.subset_predictions:
        arrays["subsets"] = _small(np.stack(list(split.subset_predictions.values())), classes)
    if split.defer:
        stacked = np.stack([o.score for o in split.defer.values()])
        arrays["defer_score"] = stacked if bits == 32 else np.rint(stacked * _SCORE).astype(np.int16)
        arrays["defer_prediction"] = _small(np.stack([o.prediction for o in split.defer.values()]), classes)
        arrays["defer_canonical"] = np.packbits(np.stack([o.escalate_canonical for o in split.defer.values()]), axis=1)
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _unpack(arrays: Mapping[str, npt.NDArray[Any]], prefix: str, meta: Mapping[str, Any]) -> RouteAnswers:
    bits = meta["bits"]
    held = {name.removeprefix(f"{prefix}."): array for name, array in arrays.items() if name.startswith(f"{prefix}.")}
    labels, weak, strong = (held[k].astype(np.int64) for k in ("labels", "weak_prediction", "strong_prediction"))
    subsets = {tuple(parties): held["subsets"][i].astype(np.int64) for i, parties in enumerate(meta["subsets"])}
    defer = {}
    for i, alpha in enumerate(meta["alphas"]):
        score = held["defer_score"][i]
        defer[alpha] = DeferAnswers(
            (score if bits == 32 else score / _SCORE).astype(np.float32),
            held["defer_prediction"][i].astype(np.int64),
            np.unpackbits(held["defer_canonical"][i], count=len(labels)).astype(bool),
        )
    local, posterior = _decode(held["local"], bits), _decode(held["strong"], bits)
    return RouteAnswers(held["ids"], labels, local, posterior, weak, strong, subsets, defer)


def save_record(record: Record, path: str | os.PathLike[str], *, bits: int | None = None) -> None:
    """Write a record, atomically; a log posterior takes 16 or 8 `bits`, by the number of classes, or 32 for float32."""
    classes = len(record.class_names)
    bits = bits if bits is not None else (8 if classes >= 100 else 16)
    if bits not in (8, 16, 32):
        raise SettingError(f"bits is {bits}: a posterior is stored in 8, 16 or 32 bits")
    arrays = _pack(record.calibration, "calibration", bits, classes) | _pack(record.test, "test", bits, classes)
    if record.noisy:
        largest = max(record.noisy)
        rows = _touched(record.test.labels, record.noisy_classes[largest])
        arrays |= _pack(record.noisy[largest].take(rows), "touched", bits, classes)
    meta = {
        "format": FORMAT,
        "dataset": record.dataset,
        "seed": record.seed,
        "bits": bits,
        "class_names": record.class_names,
        "party_names": record.party_names,
        "subsets": list(record.test.subset_predictions),
        "alphas": list(record.test.defer),
        "noisy_classes": {str(count): list(chosen) for count, chosen in record.noisy_classes.items()},
        "metadata": dict(record.metadata),
    }
    body = np.frombuffer(json.dumps(meta, sort_keys=True).encode(), np.uint8)
    write_npz(path, {"metadata": body, **arrays}, compress=True)


@names_damage(NotAnArtifactError)
def load_record(path: str | os.PathLike[str]) -> Record:
    """Read a record that `save_record` wrote. Nothing in it can run code: pickled arrays are refused."""
    if not Path(path).exists():
        raise NotAnArtifactError(f"{path} does not exist; name a record that `save_record` wrote")
    try:
        arrays = read_table(path).columns
        meta = json.loads(arrays["metadata"].tobytes())
        version = meta["format"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # a DataError is a ValueError
        raise NotAnArtifactError(f"{path} is not a record, or damaged ({error}): fetch or run it again") from error
    if version != FORMAT:
        raise ArtifactVersionError(f"{path} has record format {version}: this version reads {FORMAT}; run it again")
    test = _unpack(arrays, "test", meta)
    chosen = {int(count): tuple(classes) for count, classes in meta["noisy_classes"].items()}
    noisy = {}
    if chosen:
        touched = _unpack(arrays, "touched", meta)
        for count, classes in chosen.items():
            rows = _touched(test.labels, classes)
            noisy[count] = overlay(test, rows, touched.take(np.isin(touched.labels, classes)))
    names = tuple(meta["class_names"]), tuple(meta["party_names"])
    calibration = _unpack(arrays, "calibration", meta)
    return Record(meta["dataset"], meta["seed"], calibration, test, noisy, chosen, *names, meta["metadata"])


def _touched(labels: IntArray, classes: Sequence[int]) -> IntArray:
    return np.flatnonzero(np.isin(labels, classes)).astype(np.int64)
