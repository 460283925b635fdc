"""Which router to use on which data: advice by fixed rules, from summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gainroute.evaluation.router_names import shown_name
from gainroute.experiments.pages.text import Table, best_of, interval_at, percent, regime_title, to_markdown
from gainroute.experiments.scores import ABLATION, ORACLE, OURS, REFERENCE, ROUTING_ONLY

__all__ = ["advice", "guide_page", "winners_table"]

BUDGET = 0.2
MADE = (
    "Made by `gainroute report` from the records; the rules are below the table. How to choose a router for other data "
    "is explained in [which_router.md](../which_router.md)."
)
_NOT_ADVISED = (ORACLE, "random", OURS, ROUTING_ONLY, *ABLATION[1:3])


def advice(summary: Mapping[str, Any], regime: str) -> tuple[str, str]:
    """Which router to take on such data, and why; "none" where escalating has not been shown to pay.

    Our default is taken unless another router is ahead of it at 20 % by more than its interval. None is worth it if
    the router so chosen is not above Round 1 alone by more than its interval.
    """
    routers, at = summary["regimes"][regime]["routers"], summary["rates"].index(BUDGET)
    seeds = len(summary["seeds"])
    rivals = [name for name, found in routers.items() if name not in _NOT_ADVISED and len(found["seeds"]) == seeds]
    ahead = [name for name in rivals if routers[name]["minus_ours"]["low"][at] > 0]
    chosen = max(ahead, key=lambda name: float(routers[name]["minus_ours"]["mean"][at]), default=OURS)
    gain = routers[chosen]["minus_weak"]
    if gain["low"][at] <= 0:
        return "none", f"{interval_at(gain, at)} over Round 1 alone: escalating has not been shown to pay"
    reasons = [f"{interval_at(gain, at)} over Round 1 alone"]
    if chosen != OURS:
        reasons.append(f"{interval_at(routers[chosen]['minus_ours'], at)} over our default")
    elif routers[REFERENCE]["minus_ours"]["high"][at] >= 0:
        reasons.append("confidence is level, and fits nothing")
    whole = routers[chosen]["minus_strong"]
    if whole["low"][at] > 0:
        reasons.append(f"{interval_at(whole, at)} over always escalating")
    return chosen, "; ".join(reasons)


def winners_table(summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """Accuracy of every router at 20 % on all data, the highest of each column marked."""
    parts = {
        f"{name}, {regime_title(regime, summary)}": (found["routers"], summary["rates"].index(BUDGET))
        for name, summary in summaries.items()
        for regime, found in summary["regimes"].items()
    }
    first = next(iter(parts.values()))[0]
    skipped = (*ABLATION[1:3], ORACLE, "random")
    names = [name for name in first if name not in skipped and all(name in routers for routers, _ in parts.values())]
    values = [[float(found[name]["accuracy"]["mean"][at]) for found, at in parts.values()] for name in names]
    marked = best_of(values, [False] * len(names))
    return Table(
        ("accuracy in % at 20 %", *parts),
        tuple((shown_name(name), *map(percent, row)) for name, row in zip(names, values, strict=True)),
        "Mean over seeds, the highest of each column marked; differences are judged by intervals, which are on the "
        "page of each data set. Our default has its own answers on both routes, and defer its own Round 1; all others "
        "share the paper's answers.",
        best=tuple((False, *row) for row in marked),
    )


def guide_page(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the page: which router to use on which data and why, all routers on all data, a figure per data set."""
    rows = []
    for name, summary in summaries.items():
        at = summary["rates"].index(BUDGET)
        for regime, found in summary["regimes"].items():
            ours = found["routers"][OURS]["accuracy"]["mean"]
            chosen, why = advice(summary, regime)
            rows.append(
                (
                    f"{name}, {regime_title(regime, summary)}",
                    percent(ours[0]),
                    percent(ours[at]),
                    percent(ours[-1]),
                    f"{100 * summary['bytes'][at] / summary['bytes'][-1]:.0f} %",
                    shown_name(chosen),
                    why,
                )
            )
    header = (
        "data", "Round 1", "our default at 20 %", "always", "bytes at 20 %, of always", "router", "why (95 % interval)",
    )  # fmt: skip
    caption = (
        "Accuracy in %, with our default's answers on both routes. It is taken unless another router is ahead of it at "
        "20 % by its whole interval; none is worth it where the interval over Round 1 alone reaches zero."
    )
    parts = [
        "# Which router to use on these data",
        MADE,
        to_markdown(Table(header, tuple(rows), caption)),
        "## Every router on every data set",
        to_markdown(winners_table(summaries)),
    ]
    for name in summaries:
        parts.append(f"## {name}")
        parts.append(f"![{name}: accuracy of each router against the escalation rate]({name}/which.png)")
        parts.append(f"[All figures and tables]({name}.md)")
    return "\n\n".join(part.rstrip() for part in parts) + "\n"
