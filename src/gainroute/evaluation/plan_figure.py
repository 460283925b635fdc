"""The figure of a plan: what each budget buys, with intervals and marks."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from gainroute._util.files import write_bytes
from gainroute.errors import MissingExtraError, SettingError
from gainroute.evaluation.plan import Plan, PlanPoint

__all__ = ["draw_plan"]

FORMATS = ("png", "svg", "pdf")
CURVE, KNEE, LOSS, USED = "#1f5a92", "#c05a00", "#b3261e", "#222222"


def draw_plan(plan: Plan, path: str | os.PathLike[str], title: str = "") -> None:
    """Draw a plan into a `.png`, `.svg` or `.pdf` file, written completely or not at all."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter
    except ImportError:
        raise MissingExtraError("drawing", "plots") from None
    kind = Path(path).suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise SettingError(f"{path} ends in {Path(path).suffix!r}; a picture ends in .png, .svg or .pdf")

    figure = Figure(figsize=(7.2, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # a canvas of its own: no window, no global state
    axes = figure.add_subplot()
    scale = 100 if plan.measure == "accuracy" else 1
    axes.fill_between(
        100 * plan.band_rate, scale * plan.band_low, scale * plan.band_high, color=CURVE, alpha=0.16, linewidth=0,
        label="95 % interval",
    )  # fmt: skip
    axes.plot(100 * plan.rate, scale * plan.value, color=CURVE, linewidth=1.8, label=f"{plan.measure} at this budget")
    first, last = scale * plan.value[0], scale * plan.value[-1]
    axes.plot([0, 100], [first, last], color="#777777", linewidth=1, linestyle=":", label="escalating at random")
    if plan.gain_ends is not None and plan.gain_ends.rate < 1:
        axes.axvspan(100 * plan.gain_ends.rate, 100, color=LOSS, alpha=0.07, linewidth=0, label="expected to lose")
    _mark(axes, plan.knee, scale, "D", KNEE, "knee")
    _mark(axes, plan.target, scale, "^", KNEE, "target")
    _mark(axes, plan.deployed, scale, "o", USED, "router as saved")
    axes.set_xlim(0, 100)
    axes.set_xlabel("budget: share of samples escalated to the strong route")
    axes.set_ylabel("accuracy" if plan.measure == "accuracy" else "mean utility")
    for axis in (axes.xaxis, axes.yaxis) if plan.measure == "accuracy" else (axes.xaxis,):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_title(title or "What each budget buys", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")
    out = io.BytesIO()
    # No date inside: the same plan gives the same bytes.
    figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_bytes(path, out.getvalue())


def _mark(axes: Any, point: PlanPoint | None, scale: int, marker: str, colour: str, name: str) -> None:
    if point is None:
        return
    unit = " %" if scale == 100 else ""
    label = f"{name}: {100 * point.rate:.3g} % → {scale * point.value:.4g}{unit}"
    axes.plot(
        [100 * point.rate], [scale * point.value], marker=marker, color=colour, markersize=7, linestyle="none",
        markeredgecolor="white", label=label, clip_on=False, zorder=5,
    )  # fmt: skip
