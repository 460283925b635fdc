"""Whether certified thresholds keep their promise about the answers that are kept: repeated draws from records.

::

    python -m research.kept_error --out docs/results/kept_error.json   # and .md beside it

A record, calibration and test part together, is taken as the whole population. Samples are drawn from it at random
with replacement: one half fits the router, the other certifies a threshold. The true error of kept answers is that of
the population, so that a broken promise is counted as such without any noise. A promise holds given the fit: every fit
is certified by many draws. Each finished cell is kept in `--work`, and the same command goes on from there; another
folder begins anew.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from scipy.special import bdtr

import gainroute as gr
from gainroute._util.blas import one_thread
from gainroute._util.files import write_bytes
from gainroute.errors import SettingError
from gainroute.experiments.records import load_record
from gainroute.routing.certify import STEPS, Guarantee, certify_kept_error
from gainroute.routing.types import BoolArray, FloatArray, IntArray, ThresholdScores

__all__ = ["Population", "main", "measure"]

CONFIDENCE = 0.95
SHARES = (0.25, 0.5, 0.75)  # α as a share of the error of the weak route
ROOM = 0.1  # what a budget leaves above the smallest rate that would do, for both promises together
SIZES = (500, 2000)
FITS, DRAWS = 20, 50
RECORDS = ("digits", "modelnet40", "cifar10", "cifar100")
ROUTERS: dict[str, Callable[[], gr.Router]] = {
    "our default": lambda: gr.ExpectedGainRouter(threshold="calibration"),
    "calibrated confidence": lambda: gr.CalibratedConfidenceRouter(threshold="calibration"),
    "confidence": lambda: gr.ConfidenceRouter(threshold="calibration"),
}

ABOUT = """# Do certified thresholds keep their promise about kept answers?

Made by `python -m research.kept_error`. `threshold="certified-error"` promises with 95 % confidence that at most a
share α of the kept answers is wrong; `"certified-both"` promises a budget as well. Each record is taken as the whole
population: N samples are drawn from it with replacement, half of them fit the router, the other half certifies, and
the population shows whether the promise was broken. {fits} fits with {draws} draws each are {runs:,} runs per row.

- **The error of kept answers:** the promise was broken in {error} of {total:,} runs ({error_share}), and in {worst} of
  those of the worst row. Allowed are 5 %.
- **Error and budget together:** broken in {both} of {total:,} runs ({both_share}), and in {worst_both} of those of the
  worst row.

α is a quarter, a half and three quarters of the error of the weak route. *Certified*: the share of runs in which the
error could be certified; in the others `fit` raises an error, and nothing is promised. *Rate*: the mean true rate of
the certified thresholds. *Least rate*: the smallest rate at which the kept error of the fitted router is at most α,
which only the population shows. *Bonferroni*: the same thresholds, each tested at the level divided by their number
instead of in a fixed sequence. *Both*: with a budget {room:g} points above the least rate.

The confidence is that of the whole procedure: shares of broken promises are of all runs. Where hardly any run is
certified, the few that are may be mostly lucky draws: ask for an α that the data can certify in most draws.

{table}
"""


@dataclass(frozen=True, eq=False)
class Population:
    """Posteriors of both routes on samples that trained neither."""

    name: str
    local: FloatArray
    labels: IntArray
    strong: FloatArray

    @property
    def errors(self) -> list[float]:
        """The α of the study: shares of the weak route's error, to two digits."""
        weak = float((self.local.mean(axis=0).argmax(axis=1) != self.labels).mean())
        return [float(f"{share * weak:.2g}") for share in SHARES]


@dataclass(frozen=True, eq=False)
class Truth:
    """What a fitted router does on the whole population, at every threshold."""

    score: FloatArray
    right: BoolArray

    def rate(self, threshold: float) -> float:
        """The true escalation rate."""
        return float((self.score > threshold).mean())

    def error(self, threshold: float) -> float:
        """The true error of the answers that are kept; 0 if none is."""
        kept = self.score <= threshold
        return float((~self.right[kept]).mean()) if kept.any() else 0.0

    def least_rate(self, kept_error: float) -> float:
        """The smallest rate at which the kept error is at most `kept_error`; 1 if that is none."""
        order = np.argsort(self.score, kind="stable")
        kept = np.arange(1, len(order) + 1)
        whole = np.append(self.score[order][1:] != self.score[order][:-1], True)  # ties are kept together
        good = np.flatnonzero(whole & (np.cumsum(~self.right[order]) <= kept_error * kept))
        return 1 - float(kept[good[-1]]) / len(order) if len(good) else 1.0


def measure(
    population: Population, router: Callable[[], gr.Router], size: int, fits: int, draws: int
) -> dict[str, Any]:
    """Certify every α by every draw; counts and mean rates, by α."""
    n, half, alphas = len(population.labels), size // 2, population.errors
    names = ("certified", "broken", "rate", "least_rate", "bonferroni", "bonferroni_rate", "both", "both_broken")
    total = {name: np.zeros(len(alphas)) for name in names}
    for fit in range(fits):
        rng = np.random.default_rng([fit, size])
        rows, made = rng.integers(n, size=half), router()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gr.GainrouteWarning)  # classes that a small draw lacks
            made.fit(
                population.local[:, rows], population.labels[rows], strong_posterior=population.strong[rows],
                check_class_order=False,
            )  # fmt: skip
        decision = made.route(population.local, checked=True)
        truth = Truth(decision.score, np.asarray(decision.weak_prediction == population.labels))
        least = [truth.least_rate(alpha) for alpha in alphas]
        for _ in range(draws):
            picked = rng.integers(n, size=size - half)
            right = truth.right[picked]
            held = ThresholdScores(truth.score[picked], np.ones(len(picked)), right, right)
            for i, alpha in enumerate(alphas):
                total["least_rate"][i] += least[i]
                found = _certified(held, made.threshold_scores_, alpha)
                if found is not None:
                    total["certified"][i] += 1
                    total["broken"][i] += truth.error(found.threshold) > alpha
                    total["rate"][i] += truth.rate(found.threshold)
                other = _bonferroni(held, made.threshold_scores_, alpha)
                if other is not None:
                    total["bonferroni"][i] += 1
                    total["bonferroni_rate"][i] += truth.rate(other)
                budget = min(math.ceil(100 * (least[i] + ROOM)) / 100, 1.0)
                both = _certified(held, made.threshold_scores_, alpha, budget)
                if both is not None:
                    total["both"][i] += 1
                    broken = truth.error(both.threshold) > alpha or truth.rate(both.threshold) > budget
                    total["both_broken"][i] += broken
    total["rate"] /= np.maximum(total["certified"], 1)
    total["bonferroni_rate"] /= np.maximum(total["bonferroni"], 1)
    total["least_rate"] /= fits * draws
    found_all = {name: np.round(values, 4).tolist() for name, values in total.items()}
    return {"data": population.name, "size": size, "runs": fits * draws, "kept_error": alphas, **found_all}


def _certified(
    held: ThresholdScores, fitted_on: ThresholdScores, kept_error: float, budget: float | None = None
) -> Guarantee | None:
    try:
        return certify_kept_error(held, fitted_on, kept_error, CONFIDENCE, budget=budget)
    except (SettingError, gr.errors.TooFewSamplesError):
        return None


def _bonferroni(held: ThresholdScores, fitted_on: ThresholdScores, kept_error: float) -> float | None:
    """The largest of the same thresholds that passes at δ over their number."""
    levels = np.quantile(fitted_on.score, np.linspace(0, 1, STEPS + 1), method="higher")
    thresholds = np.unique(np.append(levels, math.inf))
    order = np.argsort(held.score, kind="stable")
    kept = np.searchsorted(held.score[order], thresholds, side="right")
    wrong = np.concatenate([[0], np.cumsum(~held.weak_right[order])])[kept]
    passes = bdtr(wrong.astype(np.float64), kept, kept_error) <= (1 - CONFIDENCE) / len(thresholds)
    return float(thresholds[passes][-1]) if passes.any() else None


def _populations(records_dir: Path) -> list[Population]:
    found = []
    for name in RECORDS:
        record = load_record(records_dir / name / "seed0.npz")
        parts = record.calibration, record.test
        found.append(
            Population(
                name,
                np.concatenate([part.local_posteriors for part in parts], axis=1).astype(np.float64),
                np.concatenate([part.labels for part in parts]),
                np.concatenate([part.strong_posterior for part in parts]).astype(np.float64),
            )
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Certify, compare with the population; write counts as JSON and as a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records-dir", type=Path, default=Path("records"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/kept_error.json"))
    parser.add_argument("--work", type=Path, default=Path("out/kept_error"))
    options = parser.parse_args(arguments)
    cells = [
        (population, name, size)
        for population in _populations(options.records_dir)
        for size in SIZES
        for name in ROUTERS
        if size <= len(population.labels)
    ]
    with one_thread():
        rows = [_kept(options.work, *cell) for cell in track(cells, "cells")]
    write_bytes(options.out, json.dumps({"confidence": CONFIDENCE, "rows": rows}, indent=1).encode())
    write_bytes(options.out.with_suffix(".md"), _page(rows).encode())
    return 0


def _kept(folder: Path, population: Population, router: str, size: int) -> dict[str, Any]:
    """A row that was measured before, or measured now and kept."""
    path = folder / f"{population.name}-{router}-{size}.json".replace(" ", "_")
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_bytes())
        return kept
    row = {"router": router, **measure(population, ROUTERS[router], size, FITS, DRAWS)}
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(path, json.dumps(row).encode())
    return row


def _page(rows: Sequence[dict[str, Any]]) -> str:
    runs = [row["runs"] for row in rows for _ in row["kept_error"]]
    broken, both = ([count for row in rows for count in row[name]] for name in ("broken", "both_broken"))

    def worst(counts: Sequence[float]) -> str:
        return _percent(max(count / of for count, of in zip(counts, runs, strict=True)))

    return ABOUT.format(
        fits=FITS,
        draws=DRAWS,
        runs=FITS * DRAWS,
        total=sum(runs),
        error=f"{sum(broken):,.0f}",
        error_share=_percent(sum(broken) / sum(runs)),
        worst=worst(broken),
        both=f"{sum(both):,.0f}",
        both_share=_percent(sum(both) / sum(runs)),
        worst_both=worst(both),
        room=100 * ROOM,
        table=_table(rows),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    titles = ("data", "router", "N", "α", "certified", "broken", "rate", "least rate", "Bonferroni: certified", "rate",
              "both: certified", "broken")  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for row in rows:
        for i, alpha in enumerate(row["kept_error"]):
            shares = {name: row[name][i] / row["runs"] for name in ("certified", "broken", "bonferroni", "both")}
            cells = [
                row["data"], row["router"], f"{row['size']:,}", _percent(alpha),
                _percent(shares["certified"]), _percent(shares["broken"]),
                _percent(row["rate"][i]) if row["certified"][i] else "–", _percent(row["least_rate"][i]),
                _percent(shares["bonferroni"]), _percent(row["bonferroni_rate"][i]) if row["bonferroni"][i] else "–",
                _percent(shares["both"]), _percent(row["both_broken"][i] / row["runs"]),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
