"""The page that a run on own data leaves: both routes, what the router makes of them, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gainroute import __version__
from gainroute.experiments.pages import html, tables
from gainroute.experiments.pages.headline import against, deployed, sentence
from gainroute.experiments.pages.parts import Pictures, draw_panels, drawn_routers, picture, route_cards, shown_table
from gainroute.experiments.records import Record
from gainroute.experiments.scores import OURS
from gainroute.experiments.study import Study

__all__ = ["draw_own", "own_page"]


def draw_own(study: Study, record: Record) -> dict[str, tuple[Any, Any]]:
    """Every figure in both themes."""
    return draw_panels(study, drawn_routers(record), "What each budget buys")


def own_page(results: Mapping[str, Any], pictures: Pictures) -> str:
    """Write the whole report, figures inside."""
    head, parties = results["headline"], results["parties"]
    body = [
        route_cards(results),
        html.note(f"{against(head)} {deployed(head)}"),
        html.section(
            "What was done",
            html.paragraph(
                f"{len(parties)} parties ({', '.join(parties)}) and {results['class_count']} classes. Both routes were "
                f"trained on one part of the samples, the router was calibrated on another "
                f"({results['calibration_samples']:,} samples), and everything here is measured on a third "
                f"({results['test_samples']:,}). Embeddings travel as {results['codec']}."
            ),
            html.paragraph(
                "Training ran where all views could be read. What serves does not need that: each party's folder holds "
                "its own models and views, the server's folder the fusion head and `router.safetensors`."
            ),
        ),
        html.section(
            "Every router, every budget",
            picture(
                pictures,
                "accuracy",
                "Accuracy against the escalation rate, a line a router",
                "Further up and further left is better. Squares: never and always escalating. The oracle knows which "
                "answers are wrong and bounds every router; random is what a budget buys without a score.",
            ),
            shown_table(tables.accuracy_table(results, "0")),
        ),
        html.section(
            "Is it better than confidence?",
            shown_table(tables.difference_table(results, "0")),
        ),
        html.section(
            "What is escalated",
            '<div class="pair">',
            picture(
                pictures, "EP", "EP against the escalation rate", "Higher is better: escalations that correct an error."
            ),
            picture(
                pictures, "NE", "NE against the escalation rate", "Lower is better: escalations that change nothing."
            ),
            "</div>",
            shown_table(tables.budget_table(results, "0", OURS)),
        ),
        html.section(
            "Calibration",
            picture(
                pictures,
                "reliability",
                "Reliability diagrams before and after calibration",
                "On the dotted line, a posterior that says 80 % is right in 80 % of the cases. ECE is the mean "
                "distance from it, on samples that calibrated nothing.",
            ),
        ),
    ]
    foot = (
        f"gainroute {__version__} · seed {results['seeds'][0]} · trained in {results['seconds']['training']:.0f} s · "
        "all numbers: results.json"
    )
    return html.page("Collaborate only where it pays", "gainroute train", sentence(head), body, foot)
