"""The page that puts our results beside the paper's, and says which of its claims held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gainroute.experiments.pages.text import Table, percent, regime_title, to_markdown
from gainroute.experiments.scores import ANALYTICAL, defer_name
from research.claims import ALPHAS, HELD, MARGIN, NOT_DECIDED, NOT_HELD, Finding, findings_of, points

__all__ = ["paper_page"]

# What the paper prints. It does not say which noise regime its table belongs to.
PAPER_WEAK = {"0": "67", "10": "59", "20": "56"}
PAPER_STRONG = {"0": "79", "10": "71–74", "20": "71–74"}
PAPER_RATES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PAPER_TABLE = {
    "accuracy": {
        ANALYTICAL: (65.22, 75.40, 78.29, 78.30, 77.60, 74.67),
        defer_name("0.5"): (63.98, 69.76, 73.53, 76.29, 77.18, 74.67),
        defer_name("1"): (64.57, 69.71, 73.24, 75.49, 76.49, 74.67),
        defer_name("2"): (65.55, 70.92, 74.81, 77.02, 77.84, 74.67),
        defer_name("3"): (63.11, 68.82, 73.48, 76.27, 77.22, 74.67),
    },
    "precision": {
        ANALYTICAL: (0.00, 54.43, 39.35, 28.01, 21.44, 17.77),
        defer_name("0.5"): (0.00, 35.06, 30.78, 27.72, 23.99, 20.18),
        defer_name("1"): (0.00, 34.67, 30.28, 26.47, 22.98, 19.46),
        defer_name("2"): (0.00, 34.35, 30.69, 26.89, 23.18, 19.29),
        defer_name("3"): (0.00, 36.54, 33.69, 29.83, 25.33, 20.76),
    },
    "neutral": {
        ANALYTICAL: (0.00, 41.19, 53.65, 65.87, 72.56, 73.91),
        defer_name("0.5"): (0.00, 59.14, 62.49, 65.34, 68.71, 72.30),
        defer_name("1"): (0.00, 57.86, 62.14, 65.71, 69.04, 71.18),
        defer_name("2"): (0.00, 58.49, 61.97, 65.45, 69.05, 73.55),
        defer_name("3"): (0.00, 56.39, 59.22, 62.66, 67.15, 72.24),
    },
}
MISPRINT = 1.0  # points: more than rounding explains
WORDS = {"accuracy": "Acc.", "precision": "EP", "neutral": "NE"}

TITLES = {"modelnet40": "ModelNet40", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}

RULES = f"""\
Every verdict follows from two 95 % intervals by a fixed rule. In round brackets: bootstrap over seeds and test samples
together, so that it covers what other training runs and other samples would change. In square brackets: Student's
interval over the seeds alone, which is the wider one where runs differ and are few. *The interval* below is the
smallest that contains both.

- *above, stronger*: **{HELD}** if the whole interval of the paired difference lies above zero, **{NOT_HELD}** if it
  lies below, **{NOT_DECIDED}** if it spans zero. A claim of several parts (two budgets, four α, two calibrators)
  holds if every part does and fails if one of them fails.
- *the reliability term pays*: expected gain against the same calibrated posterior without classwise reliability. The
  paper argues for the term and has no figure for it.
- *peak above both endpoints*: the best mean accuracy at the rates 0, 5, … 100 % against the better endpoint. The peak
  is sought on the samples it is judged on, so its interval is one that holds for all rates at once. If no rate is
  above the endpoint, the claim did not hold.
- *peak at 40–60 %* and *oracle saturates at 20–25 %*: **{HELD}** if the interval lies inside these bounds,
  **{NOT_HELD}** if outside, **{NOT_DECIDED}** if it reaches across one. The oracle saturates at the share of samples
  whose error the strong route corrects: this is a property of the two routes, not of a router.
- *Dirichlet the best calibrator*: judged by the accuracy of the routed answers, since that is what calibration is for
  here; NLL and ECE of the calibrated posterior on the test part are given with it.
- *level or ahead at 80 %*: **{HELD}** if defer is at most {100 * MARGIN:g} points behind at the lower end of the
  interval, **{NOT_HELD}** if it is behind at the upper end.

Of S seeds, S − 1 are drawn with replacement, which gives the variance of their mean without a bias. There are many
intervals on this page, each right about 19 times in 20; one narrow verdict among many may be chance."""

NOTES = """\
Differences are in points of accuracy, expected gain minus the other router unless the claim says otherwise. Defer is
learning to defer; it has a Round 1 of its own, so its difference is one of routers and of weak answers together. What
was reduced against the paper is in [benchmarks.md](../benchmarks.md). The paper's appendix with its settings is not
known to us: equal figures were not to be expected, and the order of the routers is what can be compared."""


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
        "Made by `gainroute report` from the committed records; only the rules are written by hand.",
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
        parts.append(f"No record of {' and '.join(missing)} exists yet, so this page does not cover that data.")
    return "\n\n".join(part.rstrip() for part in [*parts, NOTES]) + "\n"


def _verdict_table(summaries: Mapping[str, Mapping[str, Any]], found: Mapping[str, Sequence[Finding]]) -> str:
    columns = [(name, regime_title(r, summaries[name])) for name in found for r in summaries[name]["regimes"]]
    by_cell = {(name, f.regime, f.claim): f.verdict for name, findings in found.items() for f in findings}
    claims = list(dict.fromkeys(f.claim for findings in found.values() for f in findings))
    rows = tuple((claim, *(by_cell.get((*column, claim), "–") for column in columns)) for claim in claims)
    header = ("claim", *(f"{TITLES[name]}, {regime}" for name, regime in columns))
    best = tuple(tuple(cell == HELD for cell in row) for row in rows)
    return to_markdown(Table(header, rows, "– the paper does not claim it there.", best=best))


def _finding_table(findings: Sequence[Finding]) -> str:
    claims = list(dict.fromkeys(finding.claim for finding in findings))
    rows = []
    for claim in claims:
        for i, finding in enumerate(f for f in findings if f.claim == claim):
            rows.append((claim if i == 0 else "", finding.regime, finding.measured, finding.verdict))
    return to_markdown(Table(("claim", "test part", "measured (95 % intervals)", "verdict"), tuple(rows)))


def _figures(summary: Mapping[str, Any]) -> str:
    rates = [summary["rates"].index(rate) for rate in PAPER_RATES]

    def ours(name: str, measure: str, regime: str) -> tuple[str, ...]:
        router = summary["regimes"][regime]["routers"][name]
        several = len(router["seeds"]) > 1
        return tuple(
            percent(router[measure]["mean"][i]) + (f" ± {percent(router[measure]['std'][i])}" if several else "")
            for i in rates
        )

    routes = []
    for regime in summary["regimes"]:
        accuracy = ours(ANALYTICAL, "accuracy", regime)
        paper = PAPER_WEAK.get(regime, "–"), PAPER_STRONG.get(regime, "–")
        routes.append((regime_title(regime, summary), paper[0], accuracy[0], paper[1], accuracy[-1]))
    header: tuple[str, ...] = ("accuracy in %", "local, paper", "local, ours", "VFL, paper", "VFL, ours")
    parts = [to_markdown(Table(header, tuple(routes)))]
    for measure, by_router in PAPER_TABLE.items():
        rows: list[tuple[str, ...]] = []
        for name, figures in by_router.items():
            rows.append((f"{name}, paper", *(f"{figure:.1f}" for figure in figures)))
            rows += [
                (f"{name}, ours, {regime_title(regime, summary)}", *ours(name, measure, regime))
                for regime in summary["regimes"]
                if name in summary["regimes"][regime]["routers"]
            ]
        header = (f"{WORDS[measure]} in %, at a rate of", *(f"{100 * rate:g} %" for rate in PAPER_RATES))
        parts.append(to_markdown(Table(header, tuple(rows))))
    return "\n".join([*parts, _about_the_table()])


def _about_the_table() -> str:
    """What the paper's table leaves open, and where it contradicts itself."""
    measured = [PAPER_TABLE[measure] for measure in WORDS]
    ends = {name: tuple(by_router[name][-1] for by_router in measured) for name in PAPER_TABLE["accuracy"]}
    implied = {
        name: PAPER_TABLE["accuracy"][name][0] + 2 * precision + neutral - 100
        for name, (_, precision, neutral) in ends.items()
    }
    apart = [f"{implied[name]:.1f} ({name})" for name in implied if abs(implied[name] - ends[name][0]) >= MISPRINT]
    return (
        "The paper does not say which noise regime its table belongs to; all of ours are given. Its table does not "
        "agree with itself: what escalating all samples gains is 2 EP + NE − 100 points, and with its own figures "
        f"that leads to {', '.join(apart)}, where it prints {ends[ANALYTICAL][0]:.2f}."
    )


def _crossfit(summary: Mapping[str, Any]) -> str:
    """What an expert that is judged on samples it did not train on does to learning to defer."""
    lines = []
    at = [summary["rates"].index(rate) for rate in (0.2, 0.4, 0.8)]
    for regime, found in summary["regimes"].items():
        names = [defer_name(f"{alpha}-crossfit") for alpha in ALPHAS]
        for name in (name for name in names if name in found["routers"]):
            router = found["routers"][name]
            apart = router["minus_analytical"]
            cells = tuple(points(apart["mean"][i], apart["low"][i], apart["high"][i]) for i in at)
            seeds = ", ".join(map(str, router["seeds"]))
            lines.append((regime_title(regime, summary), name, seeds, *cells))
    if not lines:
        return ""
    header = ("test part", "router", "seed", "at 20 %", "at 40 %", "at 80 %")
    caption = (
        "Defer minus expected gain of the same seed, with the expert's correctness cross-fitted in "
        "two folds: on its own training samples the VFL route is almost always right, which tells a learner little."
    )
    return "### Defer with a cross-fitted expert\n\n" + to_markdown(Table(header, tuple(lines), caption))
