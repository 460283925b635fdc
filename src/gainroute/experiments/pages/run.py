"""The report of a run on a user's own data: both routes, the routers between them, and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gainroute import __version__
from gainroute.experiments.pages import html, tables
from gainroute.experiments.pages.headline import against, deployed, sentence
from gainroute.experiments.pages.parts import (
    TITLE,
    Pictures,
    draw_panels,
    drawn_routers,
    escalated_section,
    html_table,
    reliability_picture,
    route_cards,
    routers_section,
)
from gainroute.experiments.records import Record
from gainroute.experiments.study import Study

__all__ = ["draw_own", "own_page"]


def draw_own(study: Study, record: Record) -> dict[str, tuple[Any, Any]]:
    """Draw every figure in both themes."""
    return draw_panels(study, drawn_routers(record), "What each budget buys")


def own_page(results: Mapping[str, Any], pictures: Pictures) -> str:
    """Write the report as one HTML page with its figures."""
    head, parties = results["headline"], results["parties"]
    body = [
        route_cards(results),
        html.note(f"{against(head)} {deployed(head)}"),
        html.section(
            "What was done",
            html.paragraph(
                f"{len(parties)} parties ({', '.join(parties)}) and {results['class_count']} classes. Both routes were "
                f"trained on one part of the samples, the router was calibrated on a second part "
                f"({results['calibration_samples']:,} samples), and everything here is measured on a third "
                f"({results['test_samples']:,}). Embeddings are sent as {results['codec']}."
            ),
            html.paragraph(
                "Training ran where all views can be read. Serving does not need that: each party's folder holds its "
                "own models and views, the server's folder the fusion head and `router.safetensors`."
            ),
        ),
        routers_section(results, pictures),
        html.section("Is it better than confidence?", html_table(tables.difference_table(results, "0"))),
        escalated_section(results, pictures),
        html.section("Calibration", reliability_picture(pictures)),
    ]
    foot = (
        f"gainroute {__version__} · seed {results['seeds'][0]} · trained in {results['seconds']['training']:.0f} s · "
        "all numbers: results.json"
    )
    return html.page(TITLE, "gainroute train", sentence(head), body, foot)
