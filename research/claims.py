"""The paper's claims, tested on our records: numbers with intervals, and verdicts by fixed rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gainroute._util.blas import one_thread
from gainroute._util.resampling import interval, resampled_runs, resamples
from gainroute.experiments.measures import measures_at, over_seeds, resampled_accuracy
from gainroute.experiments.pages.text import percent, regime_title, signed, with_interval
from gainroute.experiments.scores import ABLATION, ANALYTICAL, CALIBRATED, REFERENCE, defer_name
from gainroute.experiments.study import Study
from gainroute.routing.types import FloatArray

__all__ = [
    "ALPHAS",
    "HELD",
    "MARGIN",
    "NOT_DECIDED",
    "NOT_HELD",
    "Finding",
    "claims_of",
    "findings_of",
    "points",
    "source_of",
]

HELD, NOT_HELD, NOT_DECIDED = "held", "did not hold", "not decided"
MARGIN = 0.005  # "level" at 80 %: at most half a point behind
BUDGETS = (0.2, 0.4)  # where the paper compares routers
PEAK = (0.4, 0.6)  # where it sees the peak
SATURATION = (0.2, 0.25)  # where it sees the oracle saturate
GRID = tuple(i / 20 for i in range(21))
ALPHAS = ("0.5", "1", "2", "3")


@dataclass(frozen=True)
class Finding:
    """One claim under one regime: what was measured, with intervals, and whether it held."""

    claim: str
    regime: str
    measured: str
    verdict: str


# ---- numbers ------------------------------------------------------------------------------------


def source_of(study: Study) -> str:
    """Which data a study's records were trained on, whatever their config is called."""
    first = study.records[0]
    config = first.metadata.get("config", {})
    return str(config.get("data", {}).get("source", first.dataset))


def claims_of(study: Study, *, count: int = 1000) -> dict[str, Any]:
    """All that the summary lacks and a claim needs, by regime: shares, ready for JSON.

    ``peak``: the best mean accuracy of expected gain on a grid of rates, how far above the better endpoint
    (`low` and `high` hold for all rates at once, because the peak was sought on the same samples), and where it lies
    on resampled seeds and test parts. ``worth``: the share of samples whose error the strong route corrects.
    ``ahead``: by router and budget, in how many seeds expected gain is ahead.
    """
    with one_thread():
        return {
            "source": source_of(study),
            "regimes": {str(regime): _regime(study, regime, count) for regime in study.regimes},
        }


def _regime(study: Study, regime: int, count: int) -> dict[str, Any]:
    runs = study.runs(ANALYTICAL, regime)
    return {
        "peak": _peak(measures_at(runs, GRID).accuracy, resampled_accuracy(runs, GRID, count=count)),
        "worth": _worth(np.stack([(run.gain > 0).astype(np.float64) for run in runs]), count),
        "ahead": {name: _ahead(study, name, regime) for name in study.scores if name != ANALYTICAL},
    }  # fmt: skip


def _peak(by_seed: FloatArray, drawn: FloatArray) -> dict[str, float]:
    accuracy = by_seed.mean(axis=0)
    end = -1 if accuracy[-1] >= accuracy[0] else 0
    best = int(accuracy.argmax())
    difference, moved = accuracy - accuracy[end], drawn - drawn[:, [end]]
    error = moved.std(axis=0, ddof=1)
    inner = np.flatnonzero(error[1:-1] > 0) + 1
    # The largest studentised deviation over all rates: a band that holds for the peak wherever it is.
    reach = 0.0
    if len(inner):
        deviation = np.abs(moved[:, inner] - difference[inner]) / error[inner]
        reach = float(np.percentile(deviation.max(axis=1), 95))
    low, high = interval(np.asarray(GRID)[drawn.argmax(axis=1)])
    return {
        "rate": GRID[best],
        "accuracy": float(accuracy[best]),
        "above": float(difference[best]),
        "low": float(difference[best] - reach * error[best]),
        "high": float(difference[best] + reach * error[best]),
        **over_seeds(by_seed[:, best] - by_seed[:, end]),
        "rate_low": float(low),
        "rate_high": float(high),
    }


def _worth(corrected: FloatArray, count: int) -> dict[str, float]:
    seeds, n = corrected.shape
    shares = np.concatenate([weights @ corrected.T for weights in resamples(n, count, np.random.default_rng(0))]) / n
    low, high = interval((shares * resampled_runs(seeds, count, np.random.default_rng([0, seeds]))).sum(axis=1))
    by_seed = corrected.mean(axis=1)
    return {"mean": float(by_seed.mean()), "low": float(low), "high": float(high), **over_seeds(by_seed)}


def _ahead(study: Study, name: str, regime: int) -> dict[str, list[int]]:
    seeds = study.seeds(name)
    mine = [r for r, s in zip(study.runs(ANALYTICAL, regime), study.seeds(ANALYTICAL), strict=True) if s in seeds]
    at = (*BUDGETS, 0.8)
    apart = measures_at(mine, at).accuracy - measures_at(study.runs(name, regime), at).accuracy
    return {f"{rate:g}": [int((apart[:, i] > 0).sum()), len(apart)] for i, rate in enumerate(at)}


# ---- verdicts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A mean with its interval over seeds and samples, and Student's over the seeds alone, if there are several."""

    mean: float
    low: float
    high: float
    t_low: float | None = None
    t_high: float | None = None

    @classmethod
    def at(cls, stated: Mapping[str, Any], index: int) -> Measured:
        """Read one entry of a summary's list of differences."""
        return cls(**{name: values[index] for name, values in stated.items()})

    def __neg__(self) -> Measured:
        def minus(value: float | None) -> float | None:
            return None if value is None else -value

        return Measured(-self.mean, -self.high, -self.low, minus(self.t_high), minus(self.t_low))

    @property
    def bounds(self) -> tuple[float, float]:
        """What a verdict is judged by: both intervals together."""
        if self.t_low is None or self.t_high is None:
            return self.low, self.high
        return min(self.low, self.t_low), max(self.high, self.t_high)

    def points(self) -> str:
        """Write a difference with its intervals."""
        return points(self.mean, self.low, self.high) + self.seeds_alone(signed)

    def seeds_alone(self, write: Callable[[float], str]) -> str:
        """Write the interval over the seeds alone."""
        if self.t_low is None or self.t_high is None:
            return ""
        return f" [{write(self.t_low)} … {write(self.t_high)}]"


def above_zero(found: Measured) -> str:
    """Judge a difference that should be positive."""
    low, high = found.bounds
    return HELD if low > 0 else NOT_HELD if high < 0 else NOT_DECIDED


def within(low: float, high: float, bounds: tuple[float, float]) -> str:
    """Judge a quantity that should lie between bounds by its interval."""
    if bounds[0] <= low and high <= bounds[1]:
        return HELD
    return NOT_HELD if high < bounds[0] or low > bounds[1] else NOT_DECIDED


def all_of(verdicts: Sequence[str]) -> str:
    """Judge a claim of several parts: it fails with one of them, and holds with all."""
    if NOT_HELD in verdicts:
        return NOT_HELD
    return HELD if set(verdicts) == {HELD} else NOT_DECIDED


def findings_of(summary: Mapping[str, Any], claims: Mapping[str, Any]) -> list[Finding]:
    """Every claim under every regime it is made for.

    Parameters
    ----------
    summary
        Of `gainroute.experiments.study.summarise`.
    claims
        Of `claims_of`, on the same records.
    """
    modelnet = claims["source"] == "modelnet40"
    found = []
    for index, regime in enumerate(summary["regimes"]):
        of = _Regime(summary, claims, regime)
        found += [of.stronger(), of.peak()]
        if modelnet and index < 2:  # the paper says so of the clean test part and of noise on 10 classes
            found.append(of.peak_rate())
        found += [
            of.ahead("expected gain above confidence at 20 and 40 %", [REFERENCE]),
            of.ahead("expected gain above learned gain at 20 and 40 %", ["learned gain"]),
        ]
        defer = [defer_name(alpha) for alpha in ALPHAS if defer_name(alpha) in of.routers]
        if modelnet and defer:
            found.append(of.ahead("expected gain above defer at 20 and 40 %, every α", defer))
            if defer_name("2") in defer:
                found.append(of.level())
        if modelnet:
            found.append(of.saturation())
        found += [
            of.calibrator(),
            of.ahead("the reliability term pays (above calibrated confidence) at 20 and 40 %", [CALIBRATED]),
        ]
    return found


class _Regime:
    """One regime of one dataset; each method judges one claim."""

    def __init__(self, summary: Mapping[str, Any], claims: Mapping[str, Any], regime: str) -> None:
        self.summary, self.title = summary, regime_title(regime, summary)
        found = summary["regimes"][regime]
        self.routers, self.calibration, self.extra = found["routers"], found["calibration"], claims["regimes"][regime]

    def stronger(self) -> Finding:
        found = -Measured.at(self.routers[ANALYTICAL]["minus_strong"], 0)  # at rate 0: weak minus strong
        return Finding("VFL stronger than the local route", self.title, found.points(), above_zero(found))

    def peak(self) -> Finding:
        peak, claim = self.extra["peak"], "peak above both endpoints"
        if peak["above"] <= 0:
            return Finding(claim, self.title, "no rate is above the better endpoint", NOT_HELD)
        at = f"{percent(peak['accuracy'])} % at a rate of {100 * peak['rate']:.0f} %: "
        found = Measured(peak["above"], peak["low"], peak["high"], peak.get("t_low"), peak.get("t_high"))
        return Finding(claim, self.title, at + found.points(), above_zero(found))

    def peak_rate(self) -> Finding:
        peak = self.extra["peak"]
        low, high = peak["rate_low"], peak["rate_high"]
        measured = f"{100 * peak['rate']:.0f} % ({100 * low:.0f} … {100 * high:.0f} %)"
        return Finding("peak at a rate of 40–60 %", self.title, measured, within(low, high, PEAK))

    def ahead(self, claim: str, names: Sequence[str]) -> Finding:
        measured, verdicts = [], []
        for name in names:
            cells = []
            for budget in BUDGETS:
                found = self._over(name, budget)
                verdicts.append(above_zero(found))
                ahead, seeds = self.extra["ahead"][name][f"{budget:g}"]
                cells.append(found.points() + (f", {ahead} of {seeds} seeds" if seeds > 1 else ""))
            word = name.removeprefix(f"{ANALYTICAL}, ")
            measured.append((f"{word}: " if len(names) > 1 else "") + "; ".join(cells))
        return Finding(claim, self.title, "<br>".join(measured), all_of(verdicts))

    def calibrator(self) -> Finding:
        judged = self.ahead("Dirichlet the best calibrator (temperature, none) at 20 and 40 %", ABLATION[1:3])
        stated = [
            f"{name} {found['nll']['mean']:.3f} and {percent(found['ece']['mean'])} %"
            for name, found in self.calibration.items()
        ]
        return replace(judged, measured=f"{judged.measured}<br>NLL and ECE: {', '.join(stated)}")

    def level(self) -> Finding:
        behind = -self._over(defer_name("2"), 0.8)  # defer minus expected gain
        low, high = behind.bounds
        verdict = HELD if low > -MARGIN else NOT_HELD if high < 0 else NOT_DECIDED
        return Finding("defer α=2 level or ahead at 80 %", self.title, behind.points(), verdict)

    def saturation(self) -> Finding:
        worth = Measured(**self.extra["worth"])
        mean, low, high = (percent(value) for value in (worth.mean, worth.low, worth.high))
        measured = f"{mean} % ({low} … {high} %){worth.seeds_alone(percent)}"
        return Finding("oracle saturates at 20–25 %", self.title, measured, within(*worth.bounds, SATURATION))

    def _over(self, name: str, budget: float) -> Measured:
        """Expected gain minus another router."""
        return -Measured.at(self.routers[name]["minus_analytical"], self.summary["rates"].index(budget))


def points(mean: float, low: float, high: float) -> str:
    """Write a difference with its interval."""
    # The sign of an end decides a verdict: an end that rounds to zero gets a digit more.
    digits = 2 if min(abs(low), abs(high)) < 0.001 else 1
    return with_interval(mean, low, high, digits)
