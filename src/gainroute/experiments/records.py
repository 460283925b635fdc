"""Records: the answers of both routes in a trained cell, small enough to commit, read without torch.

A record is one compressed ``.npz``. A probability p is kept as a code of 2 log(1 + L/2) with L = −log p: in 16 bits, or
in 8 where 2,000 test samples or more have 100 classes or more; the larger p, the finer the code. Predictions are exact.
A noisy regime keeps only the samples that the noise touched: the regimes are nested and share one noise, so those of
the largest are enough, and loading puts them over the clean test part. Round 1 on the training part is kept coarsely,
of as many samples as take up to two million numbers.

Format 1 kept L itself, in equal steps; it is read as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.damage import names_damage
from gainroute._util.files import write_npz
from gainroute.errors import ArtifactVersionError, NotAnArtifactError, SettingError
from gainroute.io.tables import read_table
from gainroute.routing.types import IntArray
from gainroute.training.route_answers import DeferAnswers, LocalAnswers, RouteAnswers, overlay, training_rows

__all__ = ["DeferAnswers", "LocalAnswers", "Record", "RouteAnswers", "load_record", "save_record"]

FORMAT = 2
# Codes per unit, by bits; of 8 bits there is a fine and a coarse code.
_STEPS = {"16": 256.0, "8": 12.0, "8 coarse": 6.0}
_STEPS_OF_FORMAT_1 = {"16": 512.0, "8": 12.0}
# With both, 8 bits: one sample of few moves an accuracy more than bytes matter.
_MANY_CLASSES, _MANY_SAMPLES = 100, 2000
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
    # By another unit in which the deviation of the noise is read: as `noisy`, of both routes only.
    readings: Mapping[str, Mapping[int, RouteAnswers]] = field(default_factory=dict)
    training: LocalAnswers | None = None  # a sample of the training part

    def regimes(self) -> dict[int, RouteAnswers]:
        """The test part under every regime, 0 being the clean one."""
        return {0: self.test, **self.noisy}

    def read_in(self, unit: str) -> Record:
        """The record with the noise of another unit, one of `readings`, and without learning to defer and subsets."""
        parts = {name: getattr(self, name).of_both_routes() for name in ("calibration", "test")}
        return replace(self, **parts, noisy=self.readings[unit], readings={})


def _encode(posterior: npt.NDArray[np.float32], bits: str) -> npt.NDArray[Any]:
    if bits == "32":
        return posterior
    logs = -np.log(np.maximum(posterior.astype(np.float64), 1e-300))
    codes = np.rint(2 * np.log1p(logs / 2) * _STEPS[bits])
    if bits != "16":
        return np.asarray(np.minimum(codes, 255), dtype=np.uint8)
    # Two planes of bytes: the high ones compress well once the low ones are out of their way.
    return np.asarray(np.stack([codes // 256, codes % 256]), dtype=np.uint8)


def _decode(codes: npt.NDArray[Any], bits: str, version: int) -> npt.NDArray[np.float32]:
    if bits == "32":
        return codes.astype(np.float32)
    if bits == "16":
        codes = codes[0].astype(np.uint16) * 256 + codes[1]
    if version == 1:
        logs = codes.astype(np.float64) / _STEPS_OF_FORMAT_1[bits]
    else:
        logs = 2 * np.expm1(codes.astype(np.float64) / (2 * _STEPS[bits]))
    posterior = np.exp(-logs)
    return np.asarray(posterior / posterior.sum(axis=-1, keepdims=True), dtype=np.float32)


def _small(values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    return values.astype(np.uint8 if count <= 256 else np.uint16)


def _pack(split: RouteAnswers, prefix: str, bits: str, classes: int) -> dict[str, npt.NDArray[Any]]:
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
        arrays["defer_score"] = stacked if bits == "32" else np.rint(stacked * _SCORE).astype(np.int16)
        arrays["defer_prediction"] = _small(np.stack([o.prediction for o in split.defer.values()]), classes)
        arrays["defer_canonical"] = np.packbits(np.stack([o.escalate_canonical for o in split.defer.values()]), axis=1)
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _unpack(arrays: Mapping[str, npt.NDArray[Any]], prefix: str, meta: Mapping[str, Any]) -> RouteAnswers:
    bits, version = str(meta["bits"]), meta["format"]
    held = {name.removeprefix(f"{prefix}."): array for name, array in arrays.items() if name.startswith(f"{prefix}.")}
    labels, weak, strong = (held[k].astype(np.int64) for k in ("labels", "weak_prediction", "strong_prediction"))
    subsets, defer = {}, {}
    if "subsets" in held:
        subsets = {tuple(parties): held["subsets"][i].astype(np.int64) for i, parties in enumerate(meta["subsets"])}
    for i, alpha in enumerate(meta["alphas"] if "defer_score" in held else ()):
        score = held["defer_score"][i]
        defer[alpha] = DeferAnswers(
            (score if bits == "32" else score / _SCORE).astype(np.float32),
            held["defer_prediction"][i].astype(np.int64),
            np.unpackbits(held["defer_canonical"][i], count=len(labels)).astype(bool),
        )
    local, posterior = (_decode(held[name], bits, version) for name in ("local", "strong"))
    return RouteAnswers(held["ids"], labels, local, posterior, weak, strong, subsets, defer)


def save_record(record: Record, path: str | os.PathLike[str], *, bits: int | None = None) -> None:
    """Write a record, atomically; a probability takes 16 or 8 `bits`, by the size of the record, or 32 for float32."""
    classes = len(record.class_names)
    large = classes >= _MANY_CLASSES and len(record.test) >= _MANY_SAMPLES
    bits = bits if bits is not None else (8 if large else 16)
    if bits not in (8, 16, 32):
        raise SettingError(f"bits is {bits}: a posterior is stored in 8, 16 or 32 bits")
    parts = {"calibration": record.calibration, "test": record.test}
    if record.noisy:
        largest = max(record.noisy)
        rows = _touched(record.test.labels, record.noisy_classes[largest])
        parts["touched"] = record.noisy[largest].take(rows)
        parts |= {f"touched {unit}": answers[largest].take(rows) for unit, answers in record.readings.items()}
    arrays = {key: a for prefix, part in parts.items() for key, a in _pack(part, prefix, str(bits), classes).items()}
    if record.training is not None:
        arrays |= _pack_training(record.training, bits, classes)
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
        "readings": list(record.readings),
        "metadata": dict(record.metadata),
    }
    body = np.frombuffer(json.dumps(meta, sort_keys=True).encode(), np.uint8)
    write_npz(path, {"metadata": body, **arrays}, compress=True)


def _pack_training(training: LocalAnswers, bits: int, classes: int) -> dict[str, npt.NDArray[Any]]:
    parties, count, _ = training.posteriors.shape
    rows = training_rows(count, parties, classes)
    codes = _encode(training.posteriors[:, rows], "32" if bits == 32 else "8 coarse")
    return {"training.labels": _small(training.labels[rows], classes), "training.local": codes}


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
    if version not in (1, FORMAT):
        raise ArtifactVersionError(
            f"{path} has record format {version}: this version reads 1 and {FORMAT}; run it again"
        )
    test = _unpack(arrays, "test", meta)
    chosen = {int(count): tuple(classes) for count, classes in meta["noisy_classes"].items()}

    def regimes(clean: RouteAnswers, prefix: str) -> dict[int, RouteAnswers]:
        touched = _unpack(arrays, prefix, meta)
        return {
            count: overlay(clean, _touched(clean.labels, classes), touched.take(np.isin(touched.labels, classes)))
            for count, classes in chosen.items()
        }

    training = None
    if "training.local" in arrays:
        coarse = "32" if meta["bits"] == 32 else "8 coarse"
        labels, codes = arrays["training.labels"].astype(np.int64), arrays["training.local"]
        training = LocalAnswers(labels, _decode(codes, coarse, version))
    return Record(
        dataset=meta["dataset"],
        seed=meta["seed"],
        calibration=_unpack(arrays, "calibration", meta),
        test=test,
        noisy=regimes(test, "touched") if chosen else {},
        noisy_classes=chosen,
        class_names=tuple(meta["class_names"]),
        party_names=tuple(meta["party_names"]),
        metadata=meta["metadata"],
        readings={unit: regimes(test.of_both_routes(), f"touched {unit}") for unit in meta.get("readings", ())},
        training=training,
    )


def _touched(labels: IntArray, classes: Sequence[int]) -> IntArray:
    return np.flatnonzero(np.isin(labels, classes)).astype(np.int64)
