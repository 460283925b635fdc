"""Figures: every kind is drawn, the same each time, and a router looks the same and unlike the others everywhere."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gainroute.errors import MissingExtraError
from gainroute.evaluation import figures
from gainroute.evaluation.figure_style import DARK, LIGHT, LOOKS, looks_of
from gainroute.evaluation.router_names import shown_name
from gainroute.experiments.scores import ORACLE, ablation_routers, compared_routers, defer_name

RATE = np.linspace(0, 1, 21)


def lines(*names: str) -> dict[str, figures.Line]:
    return {name: figures.Line(RATE, 0.7 + 0.2 * RATE ** (i + 1), 0.02 * RATE) for i, name in enumerate(names)}


def test_a_panel_becomes_png_pdf_and_svg_and_the_same_bytes_each_time() -> None:
    panel = figures.rate_panel(lines("expected gain", "confidence", "oracle"), "accuracy", "digits")
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        first, second = (figures.encode(figures.draw_panel(panel), kind, 60) for _ in range(2))
        assert first.startswith(start)
        assert first == second


@pytest.mark.parametrize("legend", ["inside", "below", "none"])
def test_a_panel_in_the_dark_names_both_endpoints(legend: str) -> None:
    panel = figures.rate_panel(lines("expected gain", "confidence"), "accuracy")
    figure = figures.draw_panel(panel, theme=DARK, legend=legend)
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words == ["weak route 70.0 %", "strong route\n90.0 %"]


def test_ep_is_not_drawn_at_rate_zero_where_it_is_zero_by_definition() -> None:
    panel = figures.rate_panel(lines("expected gain"), "EP")
    assert panel.lines["expected gain"].rate.min() > 0


def test_a_grid_has_a_row_a_regime_and_one_legend() -> None:
    row = [figures.rate_panel(lines("expected gain", "random"), m) for m in ("accuracy", "EP", "NE")]
    figure = figures.draw_grid([row, row])
    assert len(figure.axes) == 6
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["expected gain", "random"]


def test_a_long_legend_leaves_the_axes_their_size() -> None:
    few, many = (figures.draw_grid([[figures.rate_panel(lines(*map(str, range(n))), "accuracy")]]) for n in (2, 20))
    for figure in (few, many):
        figure.draw_without_rendering()
    heights = [figure.axes[0].get_window_extent().height for figure in (few, many)]
    assert heights[1] > 0.8 * heights[0]


def test_reliability_and_differences_are_drawn() -> None:
    share = np.array([0.0, 0.4, 0.6])
    diagram = figures.Diagram(np.array([np.nan, 0.5, 0.9]), np.array([np.nan, 0.6, 0.8]), share, 0.1)
    figure = figures.draw_reliability({"clean": {"none": diagram, "Dirichlet": diagram}})
    assert "ECE 10.0 %" in figure.axes[0].get_title()
    one = np.array([1.0, 2.0])
    figure = figures.draw_differences({"clean": {"expected gain": (one, one - 1, one + 1)}}, ["10 %", "20 %"], "points")
    assert figures.encode(figure, "png", 50).startswith(b"\x89PNG")


def test_no_two_routers_share_line_and_marker_so_that_print_needs_no_colour() -> None:
    names = [*compared_routers(), *ablation_routers(), ORACLE, *map(defer_name, ("0.5", "1", "2", "3"))]
    assert {shown_name(name) for name in names} <= set(LOOKS)
    drawn = [(str(look.dash), look.marker) for look, _ in looks_of([*names, "Mine", "Yours"], LIGHT).values()]
    assert len(set(drawn)) == len(drawn)


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"gainroute\[plots\]"):
        figures.draw_panel(figures.rate_panel(lines("expected gain"), "accuracy"))
