"""Parts that HTML reports share: cards of both routes, figures in both themes, tables, whole sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gainroute.evaluation.figures import DARK, LIGHT, draw_panel, draw_reliability, encode, rate_panel
from gainroute.experiments.figures import diagrams_of, lines_of
from gainroute.experiments.measures import chosen_alpha
from gainroute.experiments.pages import html, tables
from gainroute.experiments.pages.text import Table, percent
from gainroute.experiments.records import Record
from gainroute.experiments.scores import ANALYTICAL, CALIBRATED, ORACLE, OURS, REFERENCE, defer_name
from gainroute.experiments.study import Study

__all__ = [
    "TITLE",
    "Pictures",
    "draw_panels",
    "draw_regime",
    "drawn_routers",
    "escalated_section",
    "html_table",
    "picture",
    "reliability_picture",
    "route_cards",
    "routers_section",
]

TITLE = "Collaborate only where it pays"

Pictures = Mapping[str, tuple[Any, Any]]


def drawn_routers(record: Record) -> list[str]:
    """Names of the routers to draw; of learning to defer, the α that is best on calibration data."""
    alpha = chosen_alpha(record)
    defer = [] if alpha is None else [defer_name(alpha)]
    return [OURS, ANALYTICAL, REFERENCE, CALIBRATED, "learned gain", *defer, "random", ORACLE]


def draw_panels(study: Study, names: Sequence[str], title: str) -> dict[str, tuple[Any, Any]]:
    """Accuracy, EP and NE on clean samples, and reliability before and after calibration; light and dark each."""
    words = {"accuracy": title, "EP": "Are the right samples escalated?", "NE": "How many escalations change nothing?"}
    drawn = {}
    for measure, heading in words.items():
        panel = rate_panel(lines_of(study, names, 0, measure), measure, heading)
        drawn[measure] = _both(panel, wide=measure == "accuracy")
    diagrams = {name: diagram for name, diagram in diagrams_of(study, 0).items() if name != "temperature"}
    named = {"clean": dict(zip(("before calibration", "after calibration"), diagrams.values(), strict=True))}
    drawn["reliability"] = draw_reliability(named, theme=LIGHT), draw_reliability(named, theme=DARK)
    return drawn


def _both(panel: Any, *, wide: bool = False) -> tuple[Any, Any]:
    size, legend = ((6.2, 4.3), "inside") if wide else ((4.6, 3.9), "below")
    return (
        draw_panel(panel, theme=LIGHT, size=size, legend=legend),
        draw_panel(panel, theme=DARK, size=size, legend=legend),
    )


def draw_regime(study: Study, names: Sequence[str], regime: int, title: str) -> tuple[Any, Any]:
    """Accuracy under one regime, light and dark."""
    return _both(rate_panel(lines_of(study, names, regime, "accuracy"), "accuracy", title))


def picture(pictures: Pictures, name: str, alt: str, caption: str) -> str:
    """Embed one of the pictures in both themes."""
    light, dark = pictures[name]
    narrow = name in ("reliability", "noisy")
    return html.figure(encode(light, "svg"), encode(dark, "svg"), alt, caption, narrow=narrow)


def html_table(shown: Table) -> str:
    """Render a table as HTML."""
    return html.table(
        shown.header, shown.rows, caption=shown.caption, main=shown.main, faint=shown.faint, best=shown.best
    )


def route_cards(results: Mapping[str, Any]) -> str:
    """Accuracy and bytes of never, sometimes and always escalating, side by side."""
    head = results["headline"]
    size = dict(zip(results["rates"], results["bytes"], strict=True))

    def card(title: str, accuracy: float, rate: float, about: str, *, main: bool = False) -> html.Card:
        return html.Card(title, f"{percent(accuracy)} %", (about, f"{size[rate]:,.0f} bytes per sample"), main=main)

    budget = head["budget"]
    return html.cards(
        [
            card("Weak route", head["weak"], 0.0, "never escalate, our default's pool"),
            card("Our default", head["accuracy"], budget, f"escalate {100 * budget:g} %", main=True),
            card("Strong route", head["strong"], 1.0, "always escalate"),
        ]
    )


def routers_section(results: Mapping[str, Any], pictures: Pictures, *, note: str = "", below: str = "") -> str:
    """Accuracy of every router at every budget; `note` ends the caption of the figure, `below` is HTML at the end."""
    return html.section(
        "Every router, every budget",
        picture(
            pictures,
            "accuracy",
            "Accuracy against the escalation rate, one line per router",
            "Further up and further left is better. Squares: never and always escalating. The oracle knows which of "
            "the paper's answers are wrong, and bounds the routers that give these answers; our default answers by "
            "itself on both routes, and may exceed it. Random escalation uses no score." + note,
        ),
        html_table(tables.accuracy_table(results, "0")),
        below,
    )


def escalated_section(results: Mapping[str, Any], pictures: Pictures, *, above: str = "") -> str:
    """Which samples are escalated, by EP and NE, and what each budget buys; `above` is HTML at the beginning."""
    return html.section(
        "What is escalated",
        above,
        '<div class="pair">',
        picture(
            pictures, "EP", "EP against the escalation rate", "Higher is better: escalations that correct an error."
        ),
        picture(pictures, "NE", "NE against the escalation rate", "Lower is better: escalations that change nothing."),
        "</div>",
        html_table(tables.budget_table(results, "0", OURS)),
    )


def reliability_picture(pictures: Pictures, *, note: str = "") -> str:
    """The reliability diagrams before and after calibration; `note` ends the caption."""
    return picture(
        pictures,
        "reliability",
        "Reliability diagrams before and after calibration",
        "On the dotted line, a posterior of 80 % is right in 80 % of the cases. ECE is the mean distance from the "
        "line, on test samples, which were not used for calibration." + note,
    )
