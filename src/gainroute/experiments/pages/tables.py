"""The tables of a summary, as texts; `text` and `html` render them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gainroute.evaluation.router_names import shown_name
from gainroute.experiments.pages.text import Summary, Table, best_of, interval_at, percent, regime_title, spread
from gainroute.experiments.scores import ABLATION, ANALYTICAL, ORACLE, OURS, REFERENCE

__all__ = [
    "ablation_table",
    "accuracy_table",
    "analytical_table",
    "budget_table",
    "bytes_table",
    "calibration_table",
    "defer_table",
    "deployed_table",
    "difference_table",
    "overview_table",
]


def _rate_names(summary: Summary, rates: Sequence[int]) -> list[str]:
    return [f"{100 * summary['rates'][i]:g} %" for i in rates]


def _between(summary: Summary) -> list[int]:
    """Where the rates lie between never and always escalating."""
    return [i for i, rate in enumerate(summary["rates"]) if 0 < rate < 1]


def _cells(router: Summary, rates: Sequence[int], measure: str = "accuracy") -> list[str]:
    return [spread(router[measure], i, len(router["seeds"])) for i in rates]


def _means(routers: Sequence[Summary], rates: Sequence[int], measure: str = "accuracy") -> list[list[float]]:
    return [[router[measure]["mean"][i] for i in rates] for router in routers]


def accuracy_table(summary: Summary, regime: str) -> Table:
    """Accuracy of each router at each budget, the best marked; the oracle is never marked."""
    routers = {k: v for k, v in summary["regimes"][regime]["routers"].items() if k not in ABLATION[1:3]}
    rates, seeds = range(len(summary["rates"])), len(summary["seeds"])
    skipped = [name == ORACLE or len(router["seeds"]) < seeds for name, router in routers.items()]
    marked = best_of(_means(list(routers.values()), rates), skipped)
    return Table(
        ("budget", *_rate_names(summary, rates)),
        tuple((shown_name(name), *_cells(router, rates)) for name, router in routers.items()),
        "Accuracy in %, the best router at each budget marked"
        + (f"; mean ± standard deviation over {seeds} seeds" if seeds > 1 else "")
        + ".",
        best=tuple((False, *row) for row in marked),
    )


def budget_table(summary: Summary, regime: str, name: str = ANALYTICAL) -> Table:
    """What each budget buys with one router, and what it costs: Acc., EP, NE, bytes per sample."""
    router = summary["regimes"][regime]["routers"][name]
    seeds, everything = len(router["seeds"]), summary["bytes"][-1]
    weak, strong = router["accuracy"]["mean"][0], router["accuracy"]["mean"][-1]

    def part(value: float) -> str:
        return f"{100 * (value - weak) / (strong - weak):.0f} %" if strong > weak else "–"

    rows = tuple(
        (
            rate,
            spread(router["accuracy"], i, seeds),
            part(router["accuracy"]["mean"][i]),
            spread(router["precision"], i, seeds),
            spread(router["neutral"], i, seeds),
            f"{summary['bytes'][i]:,.0f}",
            f"{100 * summary['bytes'][i] / everything:.0f} %",
        )
        for i, rate in enumerate(_rate_names(summary, range(len(summary["rates"]))))
    )
    return Table(
        ("budget", "Acc. %", "of full gain", "EP %", "NE %", "bytes per sample", "of all bytes"),
        rows,
        "EP: share of the escalated samples whose error is corrected. NE: share whose outcome does not change. "
        "Full gain: what always escalating adds to the weak route.",
        main=(),
    )


def difference_table(summary: Summary, regime: str, budgets: Sequence[float] = (0.1, 0.2, 0.4)) -> Table:
    """Accuracy at some budgets beside the paired difference from confidence, and the share of the oracle's gain."""
    routers = summary["regimes"][regime]["routers"]
    rates = [summary["rates"].index(budget) for budget in budgets]
    header = ["router"]
    for rate in _rate_names(summary, rates):
        header += [f"Acc. at {rate}", "against confidence"]
    rows = []
    for name, router in routers.items():
        if name in ABLATION[1:3]:  # in the ablation table
            continue
        row = [shown_name(name)]
        for i, cell in zip(rates, _cells(router, rates), strict=True):
            row += [cell, "–" if name == REFERENCE else interval_at(router["minus_confidence"], i)]
        rows.append((*row, f"{router['oracle_share']['mean']:.2f}"))
    return Table(
        (*header, "oracle share"),
        tuple(rows),
        "Differences in points, paired, with 95 % intervals (bootstrap over seeds and test samples together). Oracle "
        "share: area above the chord between the endpoints, as a share of the oracle's for the same Round 1.",
    )


def analytical_table(summary: Summary, regime: str) -> Table:
    """Every router minus expected gain, paired, at each budget between the endpoints."""
    rates = _between(summary)
    rows = tuple(
        (shown_name(name), *(interval_at(router["minus_analytical"], i) for i in rates))
        for name, router in summary["regimes"][regime]["routers"].items()
        if name not in (ANALYTICAL, ORACLE, "random")
    )
    return Table(
        ("minus expected gain, at", *_rate_names(summary, rates)),
        rows,
        "Points of accuracy, paired, with 95 % intervals: below zero, expected gain is ahead.",
    )


def overview_table(summaries: Mapping[str, Summary]) -> Table:
    """One row per data set and regime: both routes, the router between them, and intervals."""
    rows = []
    for name, summary in summaries.items():
        at = summary["rates"].index(0.2)
        for regime, found in summary["regimes"].items():
            router, best = found["routers"][ANALYTICAL], found["routers"][ORACLE]
            ours, seeds = found["routers"][OURS], len(summary["seeds"])
            rows.append(
                (
                    f"{name}, {regime_title(regime, summary)}",
                    str(seeds),
                    spread(router["accuracy"], 0, seeds),
                    spread(router["accuracy"], at, seeds),
                    spread(router["accuracy"], -1, seeds),
                    interval_at(router["minus_confidence"], at),
                    spread(ours["accuracy"], at, seeds),
                    interval_at(ours["minus_analytical"], at),
                    f"{percent(router['peak']['accuracy'])} at {100 * router['peak']['rate']:.0f} %",
                    f"{router['oracle_share']['mean']:.2f}",
                    f"{percent(best['precision']['mean'][-1], 0)} %",
                )
            )
    return Table(
        (
            "test part", "seeds", "weak route", "expected gain at 20 %", "strong route", "against confidence at 20 %",
            "our default at 20 %", "our default against expected gain at 20 %", "peak", "oracle share",
            "worth escalating",
        ),
        tuple(rows),
        "Accuracy in %, mean ± standard deviation over seeds. Differences in points, paired, with 95 % intervals. "
        "Expected gain is the paper's router; our default has its own answers on both routes. Peak: the best mean "
        "accuracy of expected gain at any rate, read off the test part. Worth escalating: the share of samples whose "
        "error the strong route corrects, where the oracle saturates.",
    )  # fmt: skip


def defer_table(summary: Summary, regime: str) -> Table:
    """The paper's table: Acc., EP and NE of expected gain and of defer at each α."""
    routers = summary["regimes"][regime]["routers"]
    names = [name for name in routers if name == ANALYTICAL or name.startswith("defer")]
    rates = [i for i, rate in enumerate(summary["rates"]) if rate != 0.1]
    partial = [len(routers[name]["seeds"]) < len(summary["seeds"]) for name in names]
    rows: list[tuple[str, ...]] = []
    best: list[tuple[bool, ...]] = []
    for measure, word in (("accuracy", "Acc."), ("precision", "EP"), ("neutral", "NE")):
        values = _means([routers[name] for name in names], rates, measure)
        rows += [(name, word, *_cells(routers[name], rates, measure)) for name in names]
        best += [(False, False, *row) for row in best_of(values, partial, lowest=measure == "neutral")]
    return Table(
        ("router", "", *_rate_names(summary, rates)),
        tuple(rows),
        "In %. Bold is best at that budget (higher for Acc. and EP, lower for NE), before rounding differences of 0.1. "
        "Defer is learning to defer, which has a Round 1 of its own.",
        best=tuple(best),
    )


def ablation_table(summary: Summary, regime: str) -> Table:
    """The expected-gain score with each calibrator, and 1 − m[ŷ], which leaves reliability out."""
    routers = summary["regimes"][regime]["routers"]
    kinds = ("Dirichlet (the paper's)", "temperature", "none", "Dirichlet, 1 − m[ŷ] alone")
    rates, compared = _between(summary), [routers[name] for name in ABLATION]
    shares = [f"{router['oracle_share']['mean']:.3f}" for router in compared]
    marked = best_of(_means(compared, rates), [False] * len(compared))
    return Table(
        ("calibration", *_rate_names(summary, rates), "oracle share"),
        tuple((kind, *_cells(r, rates), share) for kind, r, share in zip(kinds, compared, shares, strict=True)),
        "Accuracy in % of expected gain by calibrator.",
        main=kinds[:1],
        best=tuple((False, *row, False) for row in marked),
    )


def calibration_table(summary: Summary) -> Table:
    """ECE and NLL of the pooled posterior before and after calibration, under every regime."""
    rows = []
    for regime, found in summary["regimes"].items():
        for name, stated in found["calibration"].items():
            ece = percent(stated["ece"]["mean"]) + _std(stated["ece"]["std"], 100, 1)
            nll = f"{stated['nll']['mean']:.3f}" + _std(stated["nll"]["std"], 1, 3)
            rows.append((regime_title(regime, summary), name, ece, nll))
    return Table(("test part", "calibration", "ECE %", "NLL"), tuple(rows), "Lower is better.", main=())


def deployed_table(summary: Summary, names: Sequence[str] = (ANALYTICAL, OURS, REFERENCE)) -> Table:
    """Actual rates when τ is set on calibration data alone, and the accuracy there."""
    several = len(names) > 1
    rows = []
    for regime, found in summary["regimes"].items():
        for name in names:
            for point in found["routers"][name]["deployed"]:
                if point["budget"] is None:
                    continue
                rows.append(
                    (
                        regime_title(regime, summary),
                        *([shown_name(name)] if several else []),
                        point["rule"],
                        f"{100 * point['budget']:g} %",
                        percent(point["rate"]["mean"]) + _std(point["rate"]["std"], 100, 1) + " %",
                        percent(point["accuracy"]["mean"]) + _std(point["accuracy"]["std"], 100, 1),
                    )
                )
    header = ("test part", *(["router"] if several else []), "threshold", "budget", "rate given", "Acc. %")
    return Table(header, tuple(rows), main=())


def bytes_table(summary: Summary, regime: str) -> Table:
    """Accuracy of every deployable router, and of partial escalation, for the same bytes per sample."""
    left_out = (ORACLE, "random", *ABLATION[1:3])
    routers = {k: v for k, v in summary["regimes"][regime]["routers"].items() if k not in left_out}
    if summary.get("partial"):
        routers["partial escalation"] = {**summary["partial"][regime], "seeds": summary["seeds"]}
    at = _between(summary)
    header = ("router", *(f"{summary['bytes'][i]:,.0f} bytes ({100 * summary['rates'][i]:g} %)" for i in at))
    skipped = [len(router["seeds"]) < len(summary["seeds"]) for router in routers.values()]
    marked = best_of(_means(list(routers.values()), at), skipped)
    return Table(
        header,
        tuple((shown_name(name), *_cells(router, at)) for name, router in routers.items()),
        "Accuracy in % for the same payload bytes per sample, both rounds, in float32; in brackets, the escalation "
        "rate at which asking every party costs as much. Partial escalation asks the parties whose embeddings are "
        "worth their bytes, by our default's score; where it asks all, the strong route answers alone.",
        best=tuple((False, *row) for row in marked),
    )


def _std(value: float, scale: float, digits: int) -> str:
    return f" ± {scale * value:.{digits}f}" if value else ""
