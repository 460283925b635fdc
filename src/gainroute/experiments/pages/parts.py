"""Pieces that every report page is made of: the cards of both routes, figures in both themes, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gainroute.evaluation.figures import DARK, LIGHT, draw_panel, draw_reliability, encode, rate_panel
from gainroute.experiments.figures import diagrams_of, lines_of
from gainroute.experiments.measures import chosen_alpha
from gainroute.experiments.pages import html
from gainroute.experiments.pages.text import Table
from gainroute.experiments.records import Record
from gainroute.experiments.scores import ANALYTICAL, ORACLE, OURS, REFERENCE, defer_name
from gainroute.experiments.study import Study

__all__ = ["Pictures", "draw_panels", "draw_regime", "drawn_routers", "picture", "route_cards", "shown_table"]

Pictures = Mapping[str, tuple[Any, Any]]


def drawn_routers(record: Record) -> list[str]:
    """Routers to draw: one α of learning to defer, chosen on calibration data, is enough for a figure."""
    alpha = chosen_alpha(record)
    defer = [] if alpha is None else [defer_name(alpha)]
    return [OURS, ANALYTICAL, REFERENCE, "learned gain", *defer, "random", ORACLE]


def draw_panels(study: Study, names: Sequence[str], title: str) -> dict[str, tuple[Any, Any]]:
    """Accuracy, EP and NE on clean samples, and reliability before and after calibration; light and dark each."""
    words = {"accuracy": title, "EP": "Are the right samples escalated?", "NE": "How many escalations are idle?"}
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


def shown_table(shown: Table) -> str:
    """A table of `gainroute.experiments.pages.tables` as HTML."""
    return html.table(
        shown.header, shown.rows, caption=shown.caption, main=shown.main, faint=shown.faint, best=shown.best
    )


def route_cards(results: Mapping[str, Any]) -> str:
    """Never, sometimes, always: accuracy and bytes of both routes and of the router between them."""
    head = results["headline"]
    size = dict(zip(results["rates"], results["bytes"], strict=True))
    budget = head["budget"]
    return html.cards(
        [
            html.Card(
                "Weak route", f"{100 * head['weak']:.1f} %", ("never escalate", f"{size[0.0]:,.0f} bytes a sample")
            ),
            html.Card(
                "Expected-gain router",
                f"{100 * head['accuracy']:.1f} %",
                (f"escalate {100 * budget:g} %", f"{size[budget]:,.0f} bytes a sample"),
                main=True,
            ),
            html.Card(
                "Strong route",
                f"{100 * head['strong']:.1f} %",
                ("always escalate", f"{size[1.0]:,.0f} bytes a sample"),
            ),
        ]
    )
