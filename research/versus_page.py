"""The page on our default against the paper's router: differences, seed by seed, the oracle's gain, and the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gainroute.experiments.pages.text import Summary, Table, percent, regime_title, signed, to_markdown, with_interval
from research.versus import AIM

__all__ = ["bound_table", "oracle_gain_table", "versus_page", "versus_table"]

MADE = (
    "Made by `gainroute report` from the committed records. The same numbers, as shares, are in `gainroute report "
    "--json` under `versus_paper`."
)
NO_BOUND = "No bound is stated: `python -m research.bound` has not been run on these records."

PROTOCOL = f"""\
*Our default* is `ExpectedGainRouter()` with its own answers on both routes; *routing only* takes its score alone and
leaves both routes the paper's answers. *Expected gain* is the paper's router, `ExpectedGainRouter.paper()`, on the same
trained models. Differences are accuracy at matched rates, our default minus expected gain, in points, with 95 %
intervals: bootstrap over seeds and test samples together, drawn jointly for both routers. *Seeds alone* is Student's
interval over the seeds. How the default was chosen, on calibration data and before
any of this was computed (first trials with noise were known), is in [0003](../decisions/0003-a-better-default.md). The
aim is {100 * AIM:+g} points at 20 % and a third more of the oracle's gain."""

ORACLE_NOTE = (
    "Area above the chord between the paper's endpoints, divided by the oracle's area on the paper's routes; a better "
    "weak or strong answer counts, and can lift the share above 1. Multiple: our default over expected gain; the aim "
    "is 1.33."
)

BOUND_NOTE = (
    "How far these messages could take any router, as estimated by strong learners that are cross-validated on "
    "calibration and test samples together, the best of them taken after the fact: a bound to compare with, not a "
    "router, and a little optimistic. *Routing only* keeps the paper's answers on both routes; otherwise the learners "
    "also answer as well as they can. It is an estimate: a router can come out above it."
)


def versus_page(summaries: Mapping[str, Summary]) -> str:
    """Write the page, all datasets together."""
    parts = [
        "# Our default against the paper's router",
        MADE,
        PROTOCOL,
        "## Was the aim reached?",
        to_markdown(_aims(summaries)),
    ]
    for name, summary in summaries.items():
        parts += [f"## {name}", to_markdown(versus_table(summary))]
        parts.append(to_markdown(oracle_gain_table(summary)))
        if summary.get("bound"):
            parts.append(to_markdown(bound_table(summary)))
        else:
            parts.append(NO_BOUND)
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _aims(summaries: Mapping[str, Summary]) -> Table:
    rows = []
    for name, summary in summaries.items():
        at = [row for row in summary["versus_paper"] if row["rate"] == 0.2]
        for row, gain in zip(at, summary["oracle_gain"], strict=True):
            multiple = gain["multiple"]["value"]
            rows.append(
                (
                    f"{name}, {_title(row, summary)}",
                    _points(row),
                    "yes" if row["difference"] >= AIM else "no",
                    "–" if multiple is None else f"{multiple:.2f}",
                    "yes" if gain["a_third_more"] else "no",
                )
            )
    header = ("test part", "difference at 20 %", f"{100 * AIM:+g} points", "oracle's gain, multiple", "a third more")
    return Table(header, tuple(rows), "Yes and no refer to the point estimate; the interval is given with it.")


def versus_table(summary: Summary) -> Table:
    """Differences at every rate and regime, in all and of routing only, and seed by seed."""
    seeds = list(summary["versus_paper"][0]["by_seed"])
    rows = [
        (
            _title(row, summary),
            f"{100 * row['rate']:g} %",
            percent(row["accuracy"]["paper"]),
            percent(row["accuracy"]["ours"]),
            _points(row),
            _seeds_alone(row),
            _points(row["routing_only"]),
            _along(row, seeds),
            _along(row["routing_only"], seeds),
        )
        for row in summary["versus_paper"]
    ]
    header = (
        "test part", "rate", "expected gain %", "our default %", "difference", "seeds alone", "routing only",
        f"difference, seeds {', '.join(seeds)}", "routing only, seeds",
    )  # fmt: skip
    return Table(header, tuple(rows))


def oracle_gain_table(summary: Summary) -> Table:
    """Shares of the oracle's gain on the paper's routes."""
    rows = []
    for row in summary["oracle_gain"]:
        multiple = row["multiple"]
        cells = [
            f"{row[who]['share']:.2f} ({row[who]['low']:.2f} … {row[who]['high']:.2f})"
            for who in ("paper", "ours", "routing_only")
        ]
        stated = (
            "–"
            if multiple["value"] is None
            else f"{multiple['value']:.2f} ({multiple['low']:.2f} … {multiple['high']:.2f})"
        )
        along = ", ".join(f"{share:.2f}" for share in row["ours"]["by_seed"].values())
        rows.append((_title(row, summary), *cells, stated, "yes" if row["a_third_more"] else "no", along))
    header = (
        "oracle's gain", "expected gain", "our default", "our default (routing only)", "multiple", "a third more",
        "our default, by seed",
    )  # fmt: skip
    return Table(header, tuple(rows), ORACLE_NOTE)


def bound_table(summary: Summary) -> Table:
    """What the messages could give, beside what expected gain and our default make of them."""
    rows = []
    for row in summary["versus_paper"]:
        found = summary["bound"].get(str(row["noise_classes"]))
        if found is None:
            continue
        at = found["rates"].index(row["rate"])
        paper = row["accuracy"]["paper"]
        rows.append(
            (
                _title(row, summary),
                f"{100 * row['rate']:g} %",
                percent(paper),
                signed(row["routing_only"]["difference"]),
                signed(found["routing_only"][at] - paper),
                signed(row["difference"]),
                signed(found["total"][at] - paper),
            )
        )
    header = (
        "bound", "rate", "expected gain %", "our default (routing only)", "bound (routing only)", "our default",
        "bound",
    )  # fmt: skip
    return Table(header, tuple(rows), f"Points above expected gain. {BOUND_NOTE}")


def _title(row: Mapping[str, Any], summary: Summary) -> str:
    return regime_title(str(row["noise_classes"]), summary)


def _points(row: Mapping[str, Any]) -> str:
    return with_interval(row["difference"], row["low"], row["high"])


def _seeds_alone(row: Mapping[str, Any]) -> str:
    return f"{signed(row['t_low'])} … {signed(row['t_high'])}" if "t_low" in row else "–"


def _along(row: Mapping[str, Any], seeds: Sequence[str]) -> str:
    return ", ".join(signed(row["by_seed"][seed]) for seed in seeds)
