"""Our default against the paper's router on the same models, recomputed from records, with paired intervals.

Two differences are reported. *Total*: the default with its own answers on both routes. *Routing only*: the default's
score while both routes answer as the paper's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gainroute._util.blas import one_thread
from gainroute._util.resampling import interval
from gainroute.experiments.measures import Routed, measures_at, over_seeds, resampled_accuracy
from gainroute.experiments.scores import ANALYTICAL, BUDGETS, ORACLE, OURS, ROUTING_ONLY
from gainroute.experiments.study import Study
from gainroute.routing.types import FloatArray

__all__ = ["AIM", "THIRD", "oracle_gain_of", "versus_of"]

AIM = 0.02  # what the default is to gain at 20 %
THIRD = 4 / 3  # what it is to collect of the oracle's gain, as a multiple of the paper's share
GRID = np.linspace(0, 1, 101)  # areas on resampled test parts


def versus_of(study: Study, *, count: int = 1000) -> dict[str, Any]:
    """Compare under every regime; shares, not percent, ready for JSON.

    Parameters
    ----------
    study
        Of one dataset.
    count
        Resamples of the test ids, drawn jointly for all seeds and routers.

    Returns
    -------
    dict
        ``versus_paper``: one row per regime and rate. ``oracle_gain``: one row per regime.
    """
    rows, gains = [], []
    rates = np.concatenate([BUDGETS, GRID])
    with one_thread():
        for regime in study.regimes:
            names = (ANALYTICAL, OURS, ROUTING_ONLY, ORACLE)
            runs = {name: study.runs(name, regime) for name in names}
            drawn = {name: resampled_accuracy(runs[name], rates.tolist(), count=count) for name in names}
            at = {name: drawn[name][:, : len(BUDGETS)] for name in names}
            rows += _rows(study, regime, runs, at)
            above = {name: drawn[name][:, len(BUDGETS) :] for name in names}
            gains.append(_gain(study, regime, runs, above))
    return {"versus_paper": rows, "oracle_gain": gains}


def _rows(
    study: Study, regime: int, runs: dict[str, list[Routed]], drawn: dict[str, FloatArray]
) -> list[dict[str, Any]]:
    at = {name: measures_at(runs[name], BUDGETS).accuracy for name in (ANALYTICAL, OURS, ROUTING_ONLY)}

    def apart(name: str, i: int) -> dict[str, Any]:
        by_seed = at[name][:, i] - at[ANALYTICAL][:, i]
        low, high = interval(drawn[name][:, i] - drawn[ANALYTICAL][:, i])
        seeds = map(str, study.seeds(name))
        return {
            "difference": float(by_seed.mean()),
            "low": float(low),
            "high": float(high),
            **over_seeds(by_seed),
            "by_seed": dict(zip(seeds, by_seed.tolist(), strict=True)),
        }

    return [
        {
            "dataset": study.records[0].dataset,
            "noise_classes": regime,
            "rate": rate,
            **apart(OURS, i),
            "routing_only": apart(ROUTING_ONLY, i),
            "accuracy": {"paper": float(at[ANALYTICAL][:, i].mean()), "ours": float(at[OURS][:, i].mean())},
        }
        for i, rate in enumerate(BUDGETS)
    ]


# ---- the oracle's gain --------------------------------------------------------------------------


def oracle_gain_of(mine: Sequence[Routed], paper: Sequence[Routed], oracle: Sequence[Routed]) -> FloatArray:
    """A router's area above the chord of the paper's endpoints, and the oracle's on the paper's routes, (2, S)."""

    def area(run: Routed, by: Routed) -> float:
        chord = (by.curve.accuracy[0] + by.curve.accuracy[-1]) / 2
        return float(np.trapezoid(run.curve.accuracy, run.curve.escalation_rate) - chord)

    return np.array(
        [
            [area(run, by) for run, by in zip(mine, paper, strict=True)],
            [area(run, by) for run, by in zip(oracle, paper, strict=True)],
        ]
    )


def _gain(study: Study, regime: int, runs: dict[str, list[Routed]], drawn: dict[str, FloatArray]) -> dict[str, Any]:
    chord = (drawn[ANALYTICAL][:, 0] + drawn[ANALYTICAL][:, -1]) / 2
    resampled = {name: np.trapezoid(values, GRID, axis=1) - chord for name, values in drawn.items()}
    found: dict[str, Any] = {"dataset": study.records[0].dataset, "noise_classes": regime}
    words = {"paper": ANALYTICAL, "ours": OURS, "routing_only": ROUTING_ONLY}
    for word, name in words.items():
        mine, best = oracle_gain_of(runs[name], runs[ANALYTICAL], runs[ORACLE])
        low, high = interval(_over(resampled[name], resampled[ORACLE]))
        found[word] = {
            "share": float(_over(mine.mean(), best.mean())),
            "low": float(low),
            "high": float(high),
            "by_seed": dict(zip(map(str, study.seeds(name)), _over(mine, best).tolist(), strict=True)),
        }
    paper = found["paper"]["share"]
    low, high = interval(_over(resampled[OURS], resampled[ANALYTICAL]))
    multiple = found["ours"]["share"] / paper if paper > 0 else None
    found["multiple"] = {"value": multiple, "low": float(low), "high": float(high)}
    found["a_third_more"] = multiple is not None and multiple >= THIRD
    return found


def _over(area: FloatArray, whole: FloatArray) -> FloatArray:
    """Share of an area in another, 0 where there is none to take a share of."""
    some = np.asarray(whole) > 0
    ratio: FloatArray = np.where(some, area / np.where(some, whole, 1), 0.0)
    return ratio
