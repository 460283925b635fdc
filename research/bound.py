"""How well any router could do with the messages of Round 1: an estimate by strong learners, used only as a bound.

::

    python -m research.bound --datasets digits --out docs/results/bound.json

Learners are cross-validated on the calibration and the test part of a record together, noisy test parts included, and
the best is chosen by test accuracy. A router must never do that: the bound shows what is left to gain, and nothing is
chosen by it. Out-of-fold posteriors are features of the next learner, as in stacking, which is a little optimistic.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from gainroute._util.blas import one_thread
from gainroute._util.files import write_bytes
from gainroute.evaluation.metrics import tradeoff_curve
from gainroute.experiments.records import Record, load_record
from gainroute.routing import _newton
from gainroute.routing.calibrate import folds_of, softmax, solve_dirichlet
from gainroute.routing.pool import solve_log_linear
from gainroute.routing.reliability import estimate_confusion
from gainroute.routing.types import FloatArray, IntArray

__all__ = ["RATES", "bound_of", "main", "read_bound"]

RATES = (0.1, 0.2, 0.4)
FOLDS = 4
EPS = 1e-6
MAP_LAM = 30.0
LARGEST_MAP = 10_000  # weights of a map from all posteriors to the classes; beyond, a calibrated pool stands in for it


@dataclass(frozen=True, eq=False)
class _Pooled:
    """Calibration and test samples together; `judged` are the test rows."""

    local: FloatArray
    strong: FloatArray
    labels: IntArray
    weak_prediction: IntArray
    strong_prediction: IntArray
    judged: IntArray


def bound_of(record: Record, regime: int = 0) -> dict[str, Any]:
    """Estimate what the best router could reach on one record under one regime.

    Parameters
    ----------
    record
        Both its parts are used.
    regime
        Number of noisy classes, 0 for the clean test part.

    Returns
    -------
    dict
        Accuracy at `RATES` on the test part: ``routing_only`` with the paper's answers of both routes, ``total`` with
        the best answers as well; accuracy of these, and which learners they are.
    """
    data = _together(record, regime)
    with one_thread():
        weak = _class_posteriors(data.local, data.labels, None)
        both = np.concatenate([data.strong[None], data.local])
        strong = _class_posteriors(both, data.labels, 0)
        believed = min(weak.values(), key=lambda p: _loss(p, data.labels))
        answers = {
            "weak": _best_answers({"mean": data.weak_prediction, **_top(weak)}, data.labels),
            "strong": _best_answers({"as it comes": data.strong_prediction, **_top(strong)}, data.labels),
        }
        routing = _scores(data, believed, data.weak_prediction, data.strong_prediction)
        total = _scores(data, believed, answers["weak"][1], answers["strong"][1])
    paper = {f"{name}, the paper's answers": found for name, found in routing.items()}
    best_routing, best_total = _best(routing), _best({**paper, **total})
    rows = data.judged
    return {
        "rates": list(RATES),
        "routing_only": best_routing[1],
        "total": best_total[1],
        "weak": float((answers["weak"][1] == data.labels)[rows].mean()),
        "strong": float((answers["strong"][1] == data.labels)[rows].mean()),
        "learners": {
            "routing_only": best_routing[0],
            "total": best_total[0],
            **{route: name for route, (name, _) in answers.items()},
        },
    }


def _together(record: Record, regime: int) -> _Pooled:
    parts = [record.calibration, record.regimes()[regime]]
    held = len(parts[0].labels)
    return _Pooled(
        np.concatenate([part.local_posteriors for part in parts], axis=1).astype(np.float64),
        np.concatenate([part.strong_posterior for part in parts]).astype(np.float64),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.weak_prediction for part in parts]),
        np.concatenate([part.strong_prediction for part in parts]),
        np.arange(held, held + len(parts[1].labels)),
    )


def _folds(n: int) -> list[tuple[IntArray, IntArray]]:
    everything = np.arange(n)
    return [(np.setdiff1d(everything, out), out) for out in folds_of(n, FOLDS, seed=1)]


# ---- what the class is, from posteriors ---------------------------------------------------------


def _class_posteriors(posteriors: FloatArray, labels: IntArray, alone: int | None) -> dict[str, FloatArray]:
    """P(class | posteriors (P, N, K)), out of fold, by learner; `alone` is the one that all are drawn towards."""
    parties, n, classes = posteriors.shape
    origin = None if alone is None else np.eye(parties)[alone]
    found = {name: np.empty((n, classes)) for name in ("log-linear", "map")}
    for kept, out in _folds(n):
        weight = np.ones(len(kept))
        pool = solve_log_linear(posteriors[:, kept], labels[kept], weight, 1.0, EPS, origin)
        found["log-linear"][out] = pool(posteriors[:, out])
        if parties * classes * classes <= LARGEST_MAP:
            towards = np.hstack([*(w * np.eye(classes) for w in pool.weight), pool.bias[:, None]])
            features = np.ascontiguousarray(_features(posteriors[:, kept]))
            theta = _newton.minimise(features, labels[kept], towards, MAP_LAM, weight)
            found["map"][out] = softmax(_features(posteriors[:, out]).T @ theta.T)
        else:
            pooled = pool(posteriors[:, kept])
            found["map"][out] = solve_dirichlet(pooled, labels[kept], 1.0, EPS, weight)(found["log-linear"][out])
    return found


def _features(posteriors: FloatArray) -> FloatArray:
    return np.vstack([*(np.log(p + EPS).T for p in posteriors), np.ones(posteriors.shape[1])])


def _loss(posterior: FloatArray, labels: IntArray) -> float:
    return float(-np.log(np.maximum(posterior[np.arange(len(labels)), labels], 1e-12)).mean())


def _top(posteriors: Mapping[str, FloatArray]) -> dict[str, IntArray]:
    return {name: posterior.argmax(axis=1) for name, posterior in posteriors.items()}


def _best_answers(answers: Mapping[str, IntArray], labels: IntArray) -> tuple[str, IntArray]:
    name = max(answers, key=lambda name: float((answers[name] == labels).mean()))
    return name, answers[name]


# ---- what escalating gains ----------------------------------------------------------------------


def _scores(data: _Pooled, believed: FloatArray, weak: IntArray, strong: IntArray) -> dict[str, list[float]]:
    """Accuracy at `RATES` on the test rows of every learner of the gain, for given answers of both routes."""
    n, classes = believed.shape
    gain = (strong == data.labels).astype(np.float64) - (weak == data.labels)
    analytical, boosted = np.empty(n), np.empty(n)
    for kept, out in _folds(n):
        confusion = estimate_confusion(data.labels[kept], strong[kept], classes, np.ones(len(kept)), "empirical-bayes")
        analytical[out] = believed[out] @ np.diagonal(confusion) - believed[out, weak[out]]
    look = _look(data.local, believed, weak, analytical)
    booster = _booster()
    with threadpool_limits(limits=1):  # its threads are not BLAS's, and are known only once it is imported
        for kept, out in _folds(n):
            boosted[out] = booster.fit(look[kept], gain[kept]).predict(look[out])
    rows = data.judged
    right = np.ones(len(rows), dtype=int)

    def accuracy(score: FloatArray) -> list[float]:
        curve = tradeoff_curve(
            score[rows], (weak == data.labels)[rows].astype(int), (strong == data.labels)[rows].astype(int), right
        )
        return [float(np.interp(rate, curve.escalation_rate, curve.accuracy)) for rate in RATES]

    found = {"analytical": analytical, "boosted": boosted, "both": (analytical + boosted) / 2}
    return {name: accuracy(score) for name, score in found.items()}


def _look(local: FloatArray, believed: FloatArray, weak: IntArray, analytical: FloatArray) -> FloatArray:
    """What Round 1 looked like, (N, F): the score, how sure and how agreed all are, and the likeliest classes."""
    rows = np.arange(len(weak))
    ranked = np.sort(believed, axis=1)[:, ::-1]
    entropy = -(believed * np.log(believed + 1e-12)).sum(axis=1)
    columns = [analytical, believed[rows, weak], entropy, *ranked[:, :4].T, weak, believed.argmax(axis=1)]
    columns += [p.max(axis=1) for p in local]
    columns += [p[rows, weak] for p in local]
    columns.append((local.argmax(axis=2) == weak).mean(axis=0))
    if believed.shape[1] <= 20:
        columns += list(believed.T)
    return np.column_stack(columns)


def _booster() -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        max_iter=120, learning_rate=0.05, max_leaf_nodes=12, min_samples_leaf=40, l2_regularization=5.0,
        early_stopping=False, random_state=0,
    )  # fmt: skip


def _best(found: Mapping[str, list[float]]) -> tuple[str, list[float]]:
    return max(found.items(), key=lambda item: float(np.mean(item[1])))


# ---- the file -----------------------------------------------------------------------------------


def read_bound(path: Path, dataset: str, stamps: Mapping[int, str]) -> dict[str, Any]:
    """Bounds by regime, mean over seeds; {} unless the file covers exactly these records.

    Parameters
    ----------
    path
        A file that `main` wrote; it may be missing.
    dataset
        Whose records.
    stamps
        Hash of each record's file, by seed.
    """
    if not path.is_file() or not stamps:
        return {}
    found = json.loads(path.read_bytes()).get(dataset, {})
    if any(found.get(str(seed), {}).get("record") != mark for seed, mark in stamps.items()):
        return {}
    by_seed = [found[str(seed)]["regimes"] for seed in stamps]
    means: dict[str, Any] = {}
    for regime in by_seed[0]:
        parts = [regimes[regime] for regimes in by_seed]
        means[regime] = {"rates": parts[0]["rates"]}
        for key in ("routing_only", "total", "weak", "strong"):
            means[regime][key] = np.mean([part[key] for part in parts], axis=0).tolist()
    return means


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] | None = None) -> int:
    """Estimate the bound of every record that the file does not cover yet."""
    parser = argparse.ArgumentParser(description="Estimate how well any router could do with the messages of Round 1.")
    parser.add_argument("--records", type=Path, default=Path("records"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/bound.json"))
    parser.add_argument("--datasets", nargs="*", default=None, help="folders of --records; all unless given")
    options = parser.parse_args(arguments)
    tell = say or (lambda text: print(text, file=sys.stderr, flush=True))
    known: dict[str, Any] = json.loads(options.out.read_bytes()) if options.out.exists() else {}
    for path in sorted(options.records.glob("*/seed*.npz")):
        dataset, mark = path.parent.name, hashlib.sha256(path.read_bytes()).hexdigest()
        if options.datasets is not None and dataset not in options.datasets:
            continue
        record = load_record(path)
        of_dataset = known.setdefault(dataset, {})
        if of_dataset.get(str(record.seed), {}).get("record") == mark:
            continue
        began = time.perf_counter()
        regimes = {str(regime): bound_of(record, regime) for regime in record.regimes()}
        seconds = round(time.perf_counter() - began, 1)
        tell(f"{dataset}, seed {record.seed}: {seconds} s")
        of_dataset[str(record.seed)] = {"record": mark, "seconds": seconds, "regimes": regimes}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(options.out, json.dumps(known, indent=1, sort_keys=True).encode() + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
