"""What this repository adds to a report: our default against the paper's router, the paper's claims, and advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gainroute.evaluation.router_names import shown_name
from gainroute.experiments.pages.text import to_markdown
from gainroute.experiments.report import Kept, Page
from gainroute.experiments.scores import ROUTING_ONLY
from gainroute.experiments.study import Study
from research.bound import read_bound
from research.claims import claims_of
from research.claims_page import paper_page
from research.guide import guide_page
from research.noise_units import noise_units_of, noise_units_table
from research.versus import versus_of
from research.versus_page import bound_table, oracle_gain_table, versus_page, versus_table

__all__ = ["ComparisonPages"]

NOTE = (
    "What is compared, and how, is in [versus_paper.md](versus_paper.md). On this page *expected gain* is the "
    f"paper's router; *{shown_name(ROUTING_ONLY)}* has the score of our default and the paper's answers."
)


class ComparisonPages:
    """A `gainroute.experiments.report.ReportExtra`.

    Adds ``versus_paper``, ``oracle_gain``, ``noise_units`` and ``bound`` to each summary (the bound from ``bound.json``
    in the report's folder, if that file is of exactly these records), and the pages ``versus_paper.md``,
    ``which_router.md`` and, where a record is of one of the paper's data sets, ``against_the_paper.md``.
    """

    def __init__(self) -> None:
        self._claims: dict[str, dict[str, Any]] = {}

    def numbers(self, name: str, study: Study, kept: Kept, out: Path) -> dict[str, Any]:
        """Compare with the paper's router, and judge the paper's claims."""
        self._claims[name] = kept(claims_of)
        bound = {"bound": read_bound(out / "bound.json", name, study.stamps)}
        return kept(versus_of) | kept(noise_units_of) | bound

    def section(self, summary: Mapping[str, Any]) -> Sequence[str]:
        """Our default against the paper's router on one data set."""
        shown = [versus_table(summary), oracle_gain_table(summary)]
        if summary["bound"]:
            shown.append(bound_table(summary))
        parts = ["## Our default against the paper's router", NOTE, *map(to_markdown, shown)]
        units = noise_units_table(summary)
        return parts if units is None else [*parts, "## The unit of the noise", to_markdown(units)]

    def pages(self, summaries: Mapping[str, Mapping[str, Any]]) -> Sequence[Page]:
        """All data sets together."""
        pages = [
            Page("versus_paper.md", "Our default against the paper's router", versus_page(summaries)),
            Page("which_router.md", "Which router to use on these data", guide_page(summaries)),
        ]
        beside = paper_page(summaries, self._claims)
        if beside is not None:
            title = "Our figures beside the paper's, and which of its claims held"
            pages.insert(0, Page("against_the_paper.md", title, beside))
        return pages
