"""Draw trade-off curves, reliability diagrams and ablations from arrays; nothing is computed here.

A router looks the same in every picture: a colour (of a palette safe for colour-blind readers), a line style and a
marker of its own, so that it can be distinguished in print without colour. matplotlib is imported inside the functions
(extra ``[plots]``); no window, no global state.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gainroute.evaluation.figure_style import DARK, LIGHT, Theme, drawing, looks_of
from gainroute.evaluation.router_names import shown_name
from gainroute.routing.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "DARK",
    "LIGHT",
    "Diagram",
    "Line",
    "Panel",
    "Theme",
    "draw_differences",
    "draw_grid",
    "draw_panel",
    "draw_reliability",
    "encode",
    "rate_panel",
]


@dataclass(frozen=True, eq=False)
class Line:
    """One curve: x, y (mean over seeds) and its standard deviation; shares, not percent."""

    rate: FloatArray
    value: FloatArray
    spread: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes: curves by router, axis labels, and the endpoints to mark."""

    lines: Mapping[str, Line]  # by the router's name
    ylabel: str
    xlabel: str = "escalation rate"
    title: str = ""
    ends: tuple[str, str] | None = None  # names of the two endpoints, which are read off the first line
    mark: Sequence[float] = (0.1, 0.2, 0.4, 0.6, 0.8)  # rates at which a line carries its marker
    unit: str = " %"  # of the horizontal axis: shares as percent; anything else draws the numbers as they are


@dataclass(frozen=True, eq=False)
class Diagram:
    """A reliability diagram: mean confidence, accuracy and share of the samples by bin, and its ECE."""

    confidence: FloatArray
    accuracy: FloatArray
    share: FloatArray
    ece: float


def rate_panel(lines: Mapping[str, Line], measure: str, title: str = "") -> Panel:
    """Lay out one of the paper's panels: `measure` is "accuracy", "EP" or "NE"."""
    if measure == "accuracy":
        return Panel(lines, "accuracy", title=title, ends=("weak route", "strong route"))
    words = {"EP": "EP: escalations that correct an error", "NE": "NE: escalations that change nothing"}
    # At rate 0 nothing is escalated: both are 0 by definition, which is a point and not a part of the curve.
    drawn = {name: _from_rate(line, 0.02) for name, line in lines.items()}
    return Panel(drawn, words[measure], title=title, ends=("", "strong route"))


def draw_panel(
    panel: Panel, *, theme: Theme = LIGHT, size: tuple[float, float] = (6.4, 4.6), legend: str = "inside"
) -> Figure:
    """Draw one panel, its legend "inside", "below" or "none"."""
    with drawing(theme) as new_figure:
        figure = new_figure(size)
        axes = figure.add_subplot()
        _fill(axes, panel, theme)
        handles, names = axes.get_legend_handles_labels()
        if legend == "inside":
            axes.legend(handles, names, loc="lower right", handlelength=3.2)
        elif legend == "below":
            _legend_below(figure, handles, names)
        return figure


def draw_grid(
    rows: Sequence[Sequence[Panel]], *, theme: Theme = LIGHT, cell: tuple[float, float] = (3.6, 2.75)
) -> Figure:
    """Draw panels as the paper does: one row per noise regime, columns Acc., EP and NE, one legend below."""
    columns = max(len(row) for row in rows)
    with drawing(theme) as new_figure:
        figure = new_figure((cell[0] * columns, cell[1] * len(rows) + 0.6))
        grid = figure.subplots(len(rows), columns, squeeze=False, sharex=True)
        named: dict[str, Any] = {}
        for i, row in enumerate(rows):
            for j, panel in enumerate(row):
                _fill(grid[i][j], panel, theme, crowded=True)
                if i < len(rows) - 1:
                    grid[i][j].set_xlabel("")
                named |= {name: handle for handle, name in zip(*grid[i][j].get_legend_handles_labels(), strict=True)}
        _legend_below(figure, list(named.values()), list(named))
        return figure


def draw_reliability(
    rows: Mapping[str, Mapping[str, Diagram]], *, theme: Theme = LIGHT, cell: tuple[float, float] = (2.7, 2.7)
) -> Figure:
    """Draw reliability diagrams: one row per test part, one column per calibrator, both by name."""
    columns = max(len(row) for row in rows.values())
    with drawing(theme) as new_figure:
        figure = new_figure((cell[0] * columns, cell[1] * len(rows) + 0.5))
        grid = figure.subplots(len(rows), columns, squeeze=False, sharex=True, sharey=True)
        for i, (part, diagrams) in enumerate(rows.items()):
            for axes, (name, diagram) in zip(grid[i], diagrams.items(), strict=True):
                _fill_diagram(axes, diagram, theme)
                axes.set_title(f"{name}\nECE {100 * diagram.ece:.1f} %", fontsize=9.5)
                axes.set_xlabel("confidence" if i == len(rows) - 1 else "")
            grid[i][0].set_ylabel(f"accuracy\n({part})" if len(rows) > 1 else "accuracy")
        _legend_below(figure, *grid[0][0].get_legend_handles_labels())
        return figure


def draw_differences(
    panels: Mapping[str, Mapping[str, tuple[FloatArray, FloatArray, FloatArray]]],
    labels: Sequence[str],
    ylabel: str,
    *,
    theme: Theme = LIGHT,
    cell: tuple[float, float] = (7.2, 2.7),
) -> Figure:
    """Draw differences with their intervals, one panel per title: by name, (value, low, high) at each of `labels`."""
    with drawing(theme) as new_figure:
        figure = new_figure((cell[0], cell[1] * len(panels) + 0.6))
        column = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for axes, (title, groups) in zip(column, panels.items(), strict=True):
            axes.axhline(0, color=theme.faint, linewidth=1)
            step = 0.8 / max(len(groups), 1)
            looks = looks_of(list(groups), theme)
            for i, (name, (value, low, high)) in enumerate(groups.items()):
                look, colour = looks[name]
                at = np.arange(len(labels)) + (i - (len(groups) - 1) / 2) * step
                axes.errorbar(
                    at, value, yerr=np.abs(np.stack([value - low, high - value])), fmt=look.marker or "o",
                    color=colour, markersize=5.5, linewidth=1.4, capsize=2.5, label=shown_name(name),
                    markeredgecolor=theme.paper, markeredgewidth=0.6,
                )  # fmt: skip
            for edge in np.arange(len(labels) - 1) + 0.5:
                axes.axvline(edge, color=theme.grid, linewidth=0.8)
            axes.grid(visible=False, axis="x")
            axes.set_ylabel(ylabel)
            axes.set_title(title, loc="left")
        column[-1].set_xticks(np.arange(len(labels)), labels)
        column[-1].set_xlim(-0.5, len(labels) - 0.5)
        column[-1].set_xlabel("escalation rate")
        _legend_below(figure, *column[0].get_legend_handles_labels())
        return figure


def encode(figure: Figure, kind: str, dpi: int = 200) -> bytes:
    """Encode a figure as "png", "pdf" or "svg"; the same figure gives the same bytes."""
    import matplotlib as mpl

    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    out = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "gainroute", "pdf.fonttype": 42}):
        figure.savefig(out, format=kind, dpi=dpi, metadata=undated[kind])
    return out.getvalue()


# ---- inside -------------------------------------------------------------------------------------


def _fill(axes: Any, panel: Panel, theme: Theme, *, crowded: bool = False) -> None:
    scale = 100 if panel.unit == " %" else 1
    looks = looks_of(list(panel.lines), theme)
    # The first line is the one to see: it is drawn above the others.
    for depth, (name, line) in enumerate(panel.lines.items()):
        look, colour = looks[name]
        x, y = scale * line.rate, 100 * line.value
        if line.spread is not None and line.spread.any():
            axes.fill_between(
                x, y - 100 * line.spread, y + 100 * line.spread, color=colour, alpha=0.13, linewidth=0, zorder=2
            )
        marked = [int(np.abs(line.rate - rate).argmin()) for rate in panel.mark if rate <= line.rate.max()]
        axes.plot(
            x, y, color=colour, linestyle=look.dash, linewidth=look.width, marker=look.marker or None,
            markevery=marked, markersize=look.size * (4.4 if crowded else 5.2), markeredgecolor=theme.paper,
            markeredgewidth=0.5, label=shown_name(name), zorder=5 - depth * 0.05,
        )  # fmt: skip
    if panel.ends is not None and panel.lines:
        _mark_ends(axes, panel, theme, scale, crowded=crowded)
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel(panel.ylabel, fontsize=8 if crowded else 9)
    axes.set_title(panel.title, loc="left", fontsize=9 if crowded else 10)
    if panel.unit == " %":
        axes.set_xlim(-2, 102)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.05 * (high - low), high)  # room for the label of the left end
    _percent(axes, "x" if panel.ylabel.startswith("points") else "both" if panel.unit == " %" else "y")


def _fill_diagram(axes: Any, diagram: Diagram, theme: Theme) -> None:
    axes.plot([0, 100], [0, 100], color=theme.faint, linewidth=1, linestyle=(0, (1, 2)), label="what it says")
    width = 100 / len(diagram.share)
    middles = width * (np.arange(len(diagram.share)) + 0.5)
    axes.bar(
        middles, 100 * diagram.share, width * 0.9, color=theme.colours["grey"], alpha=0.45, label="share of the samples"
    )
    some = diagram.share > 0
    x, y = 100 * diagram.confidence[some], 100 * diagram.accuracy[some]
    axes.plot(x, y, color=theme.colours["blue"], linewidth=1.4, clip_on=False, label="how often it is right")
    # A bin counts by its samples: the size of a point says how much it may be trusted.
    axes.scatter(x, y, 8 + 260 * diagram.share[some], color=theme.colours["blue"], clip_on=False, zorder=3)
    axes.set(xlim=(0, 100), ylim=(0, 100), xticks=[0, 25, 50, 75, 100], yticks=[0, 25, 50, 75, 100])
    _percent(axes, "both")


def _mark_ends(axes: Any, panel: Panel, theme: Theme, scale: int, *, crowded: bool) -> None:
    from matplotlib.patheffects import withStroke

    line = next(iter(panel.lines.values()))
    ends = panel.ends or ("", "")
    for at, name, side in ((0, ends[0], "left"), (-1, ends[1], "right")):
        if not name:
            continue
        x, y = scale * float(line.rate[at]), 100 * float(line.value[at])
        axes.plot(
            [x], [y], marker="s", markersize=5 if crowded else 7, markerfacecolor=theme.paper,
            markeredgecolor=theme.ink, markeredgewidth=1.3, linestyle="none", zorder=7, clip_on=False,
        )  # fmt: skip
        text = f"{y:.1f}" if crowded else f"{name}{' ' if side == 'left' else chr(10)}{y:.1f} %"
        # The left label stands inside, where curves may pass: a halo keeps it readable. The right one stands outside.
        axes.annotate(
            text, (x, y), xytext=(8, 0 if side == "right" else -9), textcoords="offset points", ha="left",
            va="center", fontsize=7.5 if crowded else 8.5, color=theme.ink, zorder=8,
            path_effects=[withStroke(linewidth=3, foreground=theme.paper)],
        )  # fmt: skip


def _from_rate(line: Line, rate: float) -> Line:
    kept = line.rate >= rate - 1e-9
    return Line(line.rate[kept], line.value[kept], None if line.spread is None else line.spread[kept])


def _legend_below(figure: Any, handles: list[Any], names: list[str]) -> None:
    # As many columns as fit: a legend wider than its figure would be cut off. Inches a letter, and around a name.
    fitting = int(figure.get_figwidth() / (0.075 * max(map(len, names), default=1) + 0.75))
    columns = min(len(names), max(1, fitting))
    rows = -(-len(names) // max(columns, 1))
    figure.set_figheight(figure.get_figheight() + 0.19 * max(rows - 2, 0))  # a long legend leaves the axes their size
    figure.legend(
        handles, names, loc="outside lower center", ncols=-(-len(names) // max(rows, 1)), handlelength=3.2,
        columnspacing=1.6,
    )  # fmt: skip


def _percent(axes: Any, which: str) -> None:
    from matplotlib.ticker import FuncFormatter

    for axis in ("x", "y") if which == "both" else (which,):
        getattr(axes, f"{axis}axis").set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
