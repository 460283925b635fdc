"""How figures look: paper and ink, light or dark, and a colour, line style and marker for each router."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gainroute.errors import MissingExtraError
from gainroute.evaluation.router_names import shown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DARK", "LIGHT", "Look", "Theme", "drawing", "looks_of"]


@dataclass(frozen=True)
class Theme:
    """Colours of paper and ink."""

    paper: str
    ink: str
    faint: str
    grid: str
    colours: Mapping[str, str]


LIGHT = Theme(
    "#ffffff", "#1b1f24", "#646b75", "#dfe3e8",
    {"blue": "#0a5fa8", "sky": "#3f9fd8", "vermilion": "#c8500a", "green": "#00805d", "purple": "#a8558a",
     "amber": "#a87800", "grey": "#8a9099", "teal": "#0f8a8a",
     "purple 1": "#d68fc0", "purple 2": "#bb5f9d", "purple 3": "#8f3a77", "purple 4": "#571b49"},
)  # fmt: skip
DARK = Theme(
    "#14181d", "#e8ebef", "#9aa3ae", "#2d343c",
    {"blue": "#5aaef5", "sky": "#9ad6ff", "vermilion": "#ff9152", "green": "#3fd0a4", "purple": "#e59bc9",
     "amber": "#f0c14b", "grey": "#868e98", "teal": "#4cd6d0",
     "purple 1": "#9c5285", "purple 2": "#c273a7", "purple 3": "#e59bc9", "purple 4": "#fbd9ee"},
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """How one router is drawn."""

    colour: str
    dash: Any
    marker: str
    width: float = 1.5
    size: float = 1.0


LOOKS = {
    "expected gain": Look("blue", "-", "o", 2.4),
    "our default": Look("teal", "-", "s", 2.4),
    "our default (routing only)": Look("teal", (0, (3, 1.5)), "p"),
    "partial escalation": Look("amber", (0, (5, 1.5)), "*", 1.9, 1.3),
    "calibrated confidence": Look("sky", (0, (6, 2)), "s"),
    "confidence": Look("vermilion", (0, (4, 2)), "^"),
    "agreement": Look("purple", (0, (2, 1.5)), "P"),
    "conformal": Look("grey", (0, (5, 2)), "X"),
    "quality estimate": Look("green", (0, (2, 1.5)), "8"),
    "two-stage defer": Look("purple 2", (0, (8, 2, 2, 2)), "H"),
    "learned gain": Look("green", (0, (6, 2, 1, 2)), "D"),
    "random": Look("grey", (0, (1, 2)), "", 1.3),
    "oracle": Look("ink", "-", "*", 1.1, 1.6),
    "expected gain, temperature": Look("amber", (0, (4, 1.5, 1, 1.5)), "P"),
    "expected gain, uncalibrated": Look("vermilion", (0, (2, 2)), "v"),
    # One hue, for they are one method: the larger α, the more it stands out from the paper.
    "defer α=0.5": Look("purple 1", (0, (1, 1)), "<", 1.5, 1.25),
    "defer α=1": Look("purple 2", (0, (3, 1, 1, 1)), ">", 1.5, 1.25),
    "defer α=2": Look("purple 3", (0, (5, 1)), "h", 1.5, 1.25),
    "defer α=3": Look("purple 4", (0, (5, 1, 1, 1, 1, 1)), "d", 1.5, 1.35),
}
# Routers from outside the package, in the order in which they appear.
EXTERNAL = (Look("amber", (0, (8, 2)), "X", 1.9), Look("purple", (0, (8, 2, 2, 2)), "P", 1.9))


def looks_of(names: Sequence[str], theme: Theme) -> dict[str, tuple[Look, str]]:
    """Look and colour of each router; those from outside the package get theirs in the order they appear."""
    external = [name for name in names if shown_name(name) not in LOOKS]
    found = {}
    for name in names:
        look = LOOKS.get(shown_name(name)) or EXTERNAL[external.index(name) % len(EXTERNAL)]
        found[name] = look, theme.ink if look.colour == "ink" else theme.colours[look.colour]
    return found


@contextmanager
def drawing(theme: Theme) -> Iterator[Callable[[tuple[float, float]], Figure]]:
    """Yield what makes a figure of a size, with the theme set for as long as it is drawn on."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing", "plots") from None

    def new_figure(size: tuple[float, float]) -> Figure:
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        return figure

    style: Any = {  # matplotlib types its keys one by one
        "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold",
        "figure.facecolor": theme.paper, "axes.facecolor": theme.paper, "savefig.facecolor": theme.paper,
        "text.color": theme.ink, "axes.labelcolor": theme.ink, "axes.edgecolor": theme.faint,
        "xtick.color": theme.faint, "ytick.color": theme.faint, "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": theme.grid, "grid.linewidth": 0.7, "axes.axisbelow": True, "legend.frameon": False,
        "legend.fontsize": 8.5, "lines.solid_capstyle": "round",
    }  # fmt: skip
    with mpl.rc_context(style):
        yield new_figure
