"""What the unit of the noise decides: both routes and the paper's router with σ read in several units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gainroute.experiments.measures import measures_at, routed
from gainroute.experiments.pages.text import Table, regime_title, signed
from gainroute.experiments.records import Record
from gainroute.experiments.scores import fit_router
from gainroute.experiments.study import Study
from gainroute.routing.routers import ExpectedGainRouter
from gainroute.training.data.noise import UNITS

__all__ = ["noise_units_of", "noise_units_table"]

RATE = 0.2


def noise_units_of(study: Study) -> dict[str, Any]:
    """By unit and regime: what noise takes from each route and from the paper's router at 20 %, per seed, as shares.

    Only seeds whose record holds several readings count; ``noise_units`` is empty if there are none.
    """
    records = [record for record in study.records if record.readings]
    if not records:
        return {"noise_units": []}
    own = records[0].metadata["config"]["noise"].get("unit", UNITS[0])
    units = [unit for unit in UNITS if unit == own or unit in records[0].readings]
    found = {unit: [_losses(record if unit == own else record.read_in(unit)) for record in records] for unit in units}
    rows = [
        {
            "unit": unit,
            "own": unit == own,
            "noise_classes": regime,
            "seeds": [record.seed for record in records],
            **{name: [loss[regime][name] for loss in found[unit]] for name in ("weak", "strong", "routed", "gap")},
        }
        for unit in units
        for regime in sorted(records[0].noisy)
    ]
    return {"noise_units": rows}


def _losses(record: Record) -> dict[int, dict[str, float]]:
    scores = fit_router(ExpectedGainRouter.paper, record)
    accuracy = {}
    for regime, split in record.regimes().items():
        at = measures_at([routed(scores, split, regime)], [RATE]).accuracy[0, 0]
        accuracy[regime] = {"weak": split.weak_accuracy, "strong": split.strong_accuracy, "routed": float(at)}
    clean = accuracy[0]
    return {
        regime: {name: value - clean[name] for name, value in found.items()} | {"gap": found["strong"] - found["weak"]}
        for regime, found in accuracy.items()
        if regime
    }


def noise_units_table(summary: Mapping[str, Any]) -> Table | None:
    """The table of one data set, or None if its records hold one reading only."""
    rows = summary.get("noise_units") or []
    if not rows:
        return None
    seeds = ", ".join(map(str, rows[0]["seeds"]))
    shown = tuple(
        (
            row["unit"] + (" (used on this page)" if row["own"] else ""),
            regime_title(str(row["noise_classes"]), summary),
            *(_mean(row[name]) for name in ("weak", "strong", "routed", "gap")),
        )
        for row in rows
    )
    routes = ("weak route", "strong route", "expected gain at 20 %", "strong − weak")
    note = (
        f"What noise with σ = 0.25 takes, in points, seeds {seeds}: mean, and each seed in brackets. *Standardised*: "
        "views divided by their deviation; *−1..1* and *0..1*: views scaled to that range. The paper says normalised "
        "inputs. The last column is not a loss: it is how far the strong route lies above the weak one under noise."
    )
    return Table(("unit of σ", "test part", *routes), shown, note)


def _mean(values: Sequence[float]) -> str:
    return f"{signed(float(np.mean(values)))} ({', '.join(map(signed, values))})"
