"""The paper's claims against our records: numbers with intervals, verdicts by fixed rules, and the page of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gainroute._util.blas import one_thread
from gainroute._util.resampling import interval, resamples
from gainroute.experiments.measures import measures_at, resampled_accuracy
from gainroute.experiments.pages import tables
from gainroute.experiments.scores import ABLATION, ANALYTICAL, REFERENCE, defer_name
from gainroute.experiments.study import Study
from gainroute.routing.types import FloatArray

__all__ = ["HELD", "NOT_DECIDED", "NOT_HELD", "Finding", "claims_of", "findings_of", "paper_page", "source_of"]

HELD, NOT_HELD, NOT_DECIDED = "held", "did not hold", "not decided"
MARGIN = 0.005  # "level" at 80 %: at most half a point behind
BUDGETS = (0.2, 0.4)  # where the paper compares routers
PEAK = (0.4, 0.6)  # where it sees the peak
SATURATION = (0.2, 0.25)  # where it sees the oracle saturate
GRID = tuple(i / 20 for i in range(21))
ALPHAS = ("0.5", "1", "2", "3")

# What the paper prints. It does not say which noise regime its table belongs to.
PAPER_WEAK = {"0": "67", "10": "59", "20": "56"}
PAPER_STRONG = {"0": "79", "10": "71–74", "20": "71–74"}
PAPER_RATES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PAPER_ACCURACY = ("65.2", "75.4", "78.3", "78.3", "77.6", "74.7")
PAPER_PRECISION = ("0.0", "54.4", "39.4", "28.0", "21.4", "17.8")
PAPER_DEFER = ("65.6", "70.9", "74.8", "77.0", "77.8", "74.7")  # α = 2, its best at 20 and 80 %

TITLES = {"modelnet40": "ModelNet40", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


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

    ``peak``: the best mean accuracy of the expected-gain router on a grid of rates, how far above the better endpoint
    (`low` and `high` hold for all rates at once, because the peak was sought on the same samples), and where it lies
    on resampled test parts. ``worth``: the share of samples whose error the strong route corrects. ``ahead``: by
    router and budget, in how many seeds the expected-gain router is ahead.
    """
    with one_thread():
        return {
            "source": source_of(study),
            "regimes": {str(regime): _regime(study, regime, count) for regime in study.regimes},
        }


def _regime(study: Study, regime: int, count: int) -> dict[str, Any]:
    runs = study.runs(ANALYTICAL, regime)
    return {
        "peak": _peak(
            measures_at(runs, GRID).accuracy.mean(axis=0), resampled_accuracy(runs, GRID, count=count)
        ),
        "worth": _worth(np.stack([(run.gain > 0).astype(np.float64) for run in runs]), count),
        "ahead": {name: _ahead(study, name, regime) for name in study.scores if name != ANALYTICAL},
    }  # fmt: skip


def _peak(accuracy: FloatArray, drawn: FloatArray) -> dict[str, float]:
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
        "rate_low": float(low),
        "rate_high": float(high),
    }


def _worth(corrected: FloatArray, count: int) -> dict[str, float]:
    share, n = corrected.mean(axis=0), corrected.shape[1]
    drawn = np.concatenate([weights @ share for weights in resamples(n, count, np.random.default_rng(0))]) / n
    low, high = interval(drawn)
    return {"mean": float(share.mean()), "low": float(low), "high": float(high)}


def _ahead(study: Study, name: str, regime: int) -> dict[str, list[int]]:
    seeds = study.seeds(name)
    mine = [r for r, s in zip(study.runs(ANALYTICAL, regime), study.seeds(ANALYTICAL), strict=True) if s in seeds]
    at = (*BUDGETS, 0.8)
    apart = measures_at(mine, at).accuracy - measures_at(study.runs(name, regime), at).accuracy
    return {f"{rate:g}": [int((apart[:, i] > 0).sum()), len(apart)] for i, rate in enumerate(at)}


# ---- verdicts -----------------------------------------------------------------------------------


def above_zero(low: float, high: float) -> str:
    """Judge a difference that should be positive by its interval."""
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
            of.ahead("analytical above confidence at 20 and 40 %", [REFERENCE]),
            of.ahead("analytical above learned gain at 20 and 40 %", ["learned gain"]),
        ]
        defer = [defer_name(alpha) for alpha in ALPHAS if defer_name(alpha) in of.routers]
        if modelnet and defer:
            found.append(of.ahead("analytical above learning to defer at 20 and 40 %, every α", defer))
            if defer_name("2") in defer:
                found.append(of.level())
        if modelnet:
            found.append(of.saturation())
        found.append(of.calibrator())
    return found


class _Regime:
    """One regime of one dataset; each method judges one claim."""

    def __init__(self, summary: Mapping[str, Any], claims: Mapping[str, Any], regime: str) -> None:
        self.summary, self.title = summary, tables.regime_title(regime, summary)
        found = summary["regimes"][regime]
        self.routers, self.calibration, self.extra = found["routers"], found["calibration"], claims["regimes"][regime]

    def stronger(self) -> Finding:
        ends = self.routers[ANALYTICAL]["minus_strong"]  # at rate 0: weak minus strong
        mean, low, high = -ends["mean"][0], -ends["high"][0], -ends["low"][0]
        return Finding("VFL stronger than the local route", self.title, _points(mean, low, high), above_zero(low, high))

    def peak(self) -> Finding:
        peak, claim = self.extra["peak"], "peak above both endpoints"
        if peak["above"] <= 0:
            return Finding(claim, self.title, "no rate is above the better endpoint", NOT_HELD)
        at = f"{tables.percent(peak['accuracy'])} % at a rate of {100 * peak['rate']:.0f} %: "
        measured = at + _points(peak["above"], peak["low"], peak["high"])
        return Finding(claim, self.title, measured, above_zero(peak["low"], peak["high"]))

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
                mean, low, high = self._over(name, budget)
                verdicts.append(above_zero(low, high))
                ahead, seeds = self.extra["ahead"][name][f"{budget:g}"]
                cells.append(_points(mean, low, high) + (f", {ahead} of {seeds} seeds" if seeds > 1 else ""))
            word = name.removeprefix(f"{ANALYTICAL}, ")
            measured.append((f"{word}: " if len(names) > 1 else "") + "; ".join(cells))
        return Finding(claim, self.title, "<br>".join(measured), all_of(verdicts))

    def calibrator(self) -> Finding:
        judged = self.ahead("Dirichlet the best calibrator (temperature, none) at 20 and 40 %", ABLATION[1:3])
        stated = [
            f"{name} {found['nll']['mean']:.3f} and {tables.percent(found['ece']['mean'])} %"
            for name, found in self.calibration.items()
        ]
        return replace(judged, measured=f"{judged.measured}<br>NLL and ECE: {', '.join(stated)}")

    def level(self) -> Finding:
        mean, low, high = self._over(defer_name("2"), 0.8)
        behind = (-mean, -high, -low)  # learning to defer minus the analytical router
        verdict = HELD if behind[1] > -MARGIN else NOT_HELD if behind[2] < 0 else NOT_DECIDED
        return Finding("learning to defer, α = 2, level or ahead at 80 %", self.title, _points(*behind), verdict)

    def saturation(self) -> Finding:
        worth = self.extra["worth"]
        mean, low, high = (tables.percent(worth[key]) for key in ("mean", "low", "high"))
        measured = f"{mean} % ({low} … {high} %)"
        verdict = within(worth["low"], worth["high"], SATURATION)
        return Finding("oracle saturates at 20–25 %", self.title, measured, verdict)

    def _over(self, name: str, budget: float) -> tuple[float, float, float]:
        """The analytical router minus another one: mean and interval."""
        apart, at = self.routers[name]["minus_analytical"], self.summary["rates"].index(budget)
        return -apart["mean"][at], -apart["high"][at], -apart["low"][at]


def _points(mean: float, low: float, high: float) -> str:
    # An end that rounds to zero decides a verdict: it gets a digit more.
    digits = 2 if min(abs(low), abs(high)) < 0.001 else 1
    return f"{tables.signed(mean, digits)} ({tables.signed(low, digits)} … {tables.signed(high, digits)})"


# ---- the page -----------------------------------------------------------------------------------

RULES = f"""\
Every verdict follows from a 95 % interval by a fixed rule:

- *above, stronger*: **{HELD}** if the whole interval of the paired difference lies above zero, **{NOT_HELD}** if it
  lies below, **{NOT_DECIDED}** if it spans zero. A claim of several parts (two budgets, four α, two calibrators)
  holds if every part does and fails if one of them fails.
- *peak above both endpoints*: the best mean accuracy at the rates 0, 5, … 100 % against the better endpoint. The peak
  is sought on the samples it is judged on, so its interval is one that holds for all rates at once. If no rate is
  above the endpoint, the claim did not hold.
- *peak at 40–60 %* and *oracle saturates at 20–25 %*: **{HELD}** if the interval lies inside these bounds,
  **{NOT_HELD}** if outside, **{NOT_DECIDED}** if it reaches across one. The oracle saturates at the share of samples
  whose error the strong route corrects: this is a property of the two routes, not of a router.
- *Dirichlet the best calibrator*: judged by the accuracy of the routed answers, since that is what calibration is for
  here; NLL and ECE of the calibrated posterior on the test part stand beside it.
- *level or ahead at 80 %*: **{HELD}** if learning to defer is at most {100 * MARGIN:g} points behind at the lower end
  of the interval, **{NOT_HELD}** if it is behind at the upper end.

Intervals are bootstrapped over test samples, all seeds together. They do not cover what another training run would
change: for that, each comparison also says in how many seeds the analytical router is ahead. There are many
intervals on this page, each right 19 times in 20; one narrow verdict among many may be chance."""

NOTES = """\
Differences are in points of accuracy, the analytical router minus the other unless the claim says otherwise. Learning
to defer has a Round 1 of its own, so its difference is one of routers and of weak answers together. What was reduced
against the paper is in [benchmarks.md](../benchmarks.md). The paper's appendix with its settings is not known to us:
equal figures were not to be expected, and the order of the routers is what can be compared."""


def paper_page(summaries: Mapping[str, Mapping[str, Any]], claims: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Write the page that sets our figures beside the paper's; None where no record is of the paper's datasets.

    Parameters
    ----------
    summaries, claims
        By dataset, of `summarise` and `claims_of`.
    """
    named = [name for name in summaries if name in TITLES and claims[name]["source"] == name]
    ordered = sorted(named, key=list(TITLES).index)
    if not ordered:
        return None
    found = {name: findings_of(summaries[name], claims[name]) for name in ordered}
    parts = [
        "# Our figures beside the paper's",
        "Made by `gainroute report` from the committed records; nothing here is written by hand but the rules.",
        "## Which claims held",
        _verdict_table(summaries, found),
        RULES,
    ]
    for name in ordered:
        summary = summaries[name]
        seeds = summary["seeds"]
        count = f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed"
        parts.append(f"## {TITLES[name]} ({count}, {summary['test_samples']:,} test samples)")
        if name == "modelnet40":
            parts += ["### Figures", _figures(summary)]
            if len(seeds) < 5:
                parts.append(f"The paper averages 5 runs; so far the records hold {count}.")
        parts += ["### Claims", _finding_table(found[name])]
        crossfit = _crossfit(summary)
        if crossfit:
            parts.append(crossfit)
    missing = [title for name, title in TITLES.items() if name not in ordered]
    if missing:
        parts.append(f"No record of {' and '.join(missing)} is there yet, so nothing is said of them.")
    return "\n\n".join(part.rstrip() for part in [*parts, NOTES]) + "\n"


def _verdict_table(summaries: Mapping[str, Mapping[str, Any]], found: Mapping[str, Sequence[Finding]]) -> str:
    columns = [(name, tables.regime_title(r, summaries[name])) for name in found for r in summaries[name]["regimes"]]
    by_cell = {(name, f.regime, f.claim): f.verdict for name, findings in found.items() for f in findings}
    claims = list(dict.fromkeys(f.claim for findings in found.values() for f in findings))
    rows = tuple((claim, *(by_cell.get((*column, claim), "–") for column in columns)) for claim in claims)
    header = ("claim", *(f"{TITLES[name]}, {regime}" for name, regime in columns))
    best = tuple(tuple(cell == HELD for cell in row) for row in rows)
    return tables.to_markdown(tables.Table(header, rows, "– the paper does not claim it there.", best=best))


def _finding_table(findings: Sequence[Finding]) -> str:
    claims = list(dict.fromkeys(finding.claim for finding in findings))
    rows = []
    for claim in claims:
        for i, finding in enumerate(f for f in findings if f.claim == claim):
            rows.append((claim if i == 0 else "", finding.regime, finding.measured, finding.verdict))
    return tables.to_markdown(tables.Table(("claim", "test part", "measured (95 % interval)", "verdict"), tuple(rows)))


def _figures(summary: Mapping[str, Any]) -> str:
    rates = [summary["rates"].index(rate) for rate in PAPER_RATES]

    def ours(name: str, measure: str, regime: str) -> tuple[str, ...]:
        router = summary["regimes"][regime]["routers"][name]
        several = len(router["seeds"]) > 1
        return tuple(
            tables.percent(router[measure]["mean"][i])
            + (f" ± {tables.percent(router[measure]['std'][i])}" if several else "")
            for i in rates
        )

    routes = []
    for regime in summary["regimes"]:
        accuracy = ours(ANALYTICAL, "accuracy", regime)
        paper = PAPER_WEAK.get(regime, "–"), PAPER_STRONG.get(regime, "–")
        routes.append((tables.regime_title(regime, summary), paper[0], accuracy[0], paper[1], accuracy[-1]))
    header: tuple[str, ...] = ("accuracy in %", "local, paper", "local, ours", "VFL, paper", "VFL, ours")
    parts = [tables.to_markdown(tables.Table(header, tuple(routes)))]
    shown = {
        "Acc.": (ANALYTICAL, "accuracy", PAPER_ACCURACY),
        "EP": (ANALYTICAL, "precision", PAPER_PRECISION),
        "Acc., learning to defer α = 2": (defer_name("2"), "accuracy", PAPER_DEFER),
    }
    rows: list[tuple[str, ...]] = []
    for word, (name, measure, paper_row) in shown.items():
        rows.append((f"{word}, paper", *paper_row))
        for regime in summary["regimes"]:
            if name in summary["regimes"][regime]["routers"]:
                title = tables.regime_title(regime, summary)
                rows.append((f"{word}, ours, {title}", *ours(name, measure, regime)))
    header = ("in %, at a rate of", *(f"{100 * rate:g} %" for rate in PAPER_RATES))
    caption = "The paper does not say which noise regime its table belongs to; all of ours are given."
    parts.append(tables.to_markdown(tables.Table(header, tuple(rows), caption)))
    return "\n".join(parts).rstrip()


def _crossfit(summary: Mapping[str, Any]) -> str:
    """What an expert that is judged on samples it did not train on does to learning to defer."""
    lines = []
    at = [summary["rates"].index(rate) for rate in (0.2, 0.4, 0.8)]
    for regime, found in summary["regimes"].items():
        names = [defer_name(f"{alpha}-crossfit") for alpha in ALPHAS]
        for name in (name for name in names if name in found["routers"]):
            router = found["routers"][name]
            apart = router["minus_analytical"]
            cells = tuple(_points(apart["mean"][i], apart["low"][i], apart["high"][i]) for i in at)
            seeds = ", ".join(map(str, router["seeds"]))
            lines.append((tables.regime_title(regime, summary), name, seeds, *cells))
    if not lines:
        return ""
    header = ("test part", "router", "seed", "at 20 %", "at 40 %", "at 80 %")
    caption = (
        "Learning to defer minus the analytical router of the same seed, with the expert's correctness cross-fitted in "
        "two folds: on its own training samples the VFL route is almost always right, which tells a learner little."
    )
    return "### Learning to defer with a cross-fitted expert\n\n" + tables.to_markdown(
        tables.Table(header, tuple(lines), caption)
    )
