"""The figures of a report, drawn from a study and its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.evaluation.figures import (
    Diagram,
    Line,
    Panel,
    draw_differences,
    draw_grid,
    draw_reliability,
    encode,
    rate_panel,
)
from gainroute.experiments.measures import CALIBRATORS, mean_std
from gainroute.experiments.pages.text import regime_title
from gainroute.experiments.partial_curves import PARTIAL
from gainroute.experiments.scores import ABLATION, ANALYTICAL, CALIBRATED, ORACLE, OURS, REFERENCE, ROUTING_ONLY
from gainroute.experiments.study import Study

__all__ = ["diagrams_of", "draw_figures", "lines_of"]

MEASURES = {"accuracy": "accuracy", "EP": "precision", "NE": "neutral"}
COMPARED = (ANALYTICAL, OURS, CALIBRATED, "learned gain", REFERENCE, "random", ORACLE)
GUIDED = (OURS, ANALYTICAL, CALIBRATED, "learned gain", REFERENCE, ORACLE)


def lines_of(study: Study, names: Sequence[str], regime: int, measure: str) -> dict[str, Line]:
    """Curves of some routers, mean and standard deviation over seeds; `measure` is "accuracy", "EP" or "NE"."""
    lines = {}
    for name in names:
        band = study.band(name, regime)
        lines[name] = Line(band.rates, *mean_std(getattr(band, MEASURES[measure])))
    return lines


def diagrams_of(study: Study, regime: int) -> dict[str, Diagram]:
    """Reliability diagrams by calibrator, all seeds together."""
    found = {}
    for name in CALIBRATORS:
        parts = [by_regime[regime] for by_regime in study.quality[name].values()]
        share = np.mean([part.share for part in parts], axis=0)
        with np.errstate(invalid="ignore"):
            confidence = np.mean([np.nan_to_num(p.confidence) * p.share for p in parts], axis=0) / share
            accuracy = np.mean([np.nan_to_num(p.accuracy) * p.share for p in parts], axis=0) / share
        found[name] = Diagram(confidence, accuracy, share, float(np.mean([part.ece for part in parts])))
    return found


def draw_figures(study: Study, summary: Mapping[str, Any], external: Sequence[str]) -> dict[str, npt.NDArray[np.uint8]]:
    """Draw every figure of a data set's page; the bytes of each PNG and PDF file, by name."""

    def title(regime: int) -> str:
        return regime_title(str(regime), summary)

    def panel(names: Sequence[str], regime: int, measure: str) -> Panel:
        return rate_panel(lines_of(study, names, regime, measure), measure, title(regime))

    compared = [*COMPARED[:1], *external, *COMPARED[1:]]
    ablation = [*ABLATION, REFERENCE]
    figures = {
        "tradeoff": draw_grid([[panel(compared, r, m) for m in MEASURES] for r in study.regimes]),
        "ablation": draw_grid(
            [[Panel(_above_chance(study, ablation, r), "points above random", title=title(r)) for r in study.regimes]]
        ),
    }
    defer = [name for name in study.scores if name.startswith("defer") and name.count(" ") == 1]
    if defer:
        figures["defer"] = draw_grid([[panel([ANALYTICAL, *defer], r, m) for m in MEASURES] for r in study.regimes])
    names = [ANALYTICAL, OURS, ROUTING_ONLY, *external, CALIBRATED, "learned gain", *defer]
    figures["reliability"] = draw_reliability({title(r): diagrams_of(study, r) for r in study.regimes})
    deployable = [name for name in (*compared, ROUTING_ONLY, *defer) if name not in (ORACLE, "random")]
    figures["bytes"] = draw_grid([[_bytes_panel(study, deployable, summary, r, title(r)) for r in study.regimes]])
    guided = [*GUIDED[:1], *external, *GUIDED[1:]]
    figures["which"] = draw_grid([[panel(guided, r, "accuracy") for r in study.regimes]])
    figures["differences"] = draw_differences(
        {title(r): _differences(summary, str(r), names) for r in study.regimes},
        [f"{100 * rate:g} %" for rate in summary["rates"] if 0 < rate < 1],
        "points above confidence",
    )
    return {
        f"{name}.{kind}": np.array(bytearray(encode(figure, kind)), dtype=np.uint8)
        for name, figure in figures.items()
        for kind in ("png", "pdf")
    }


def _above_chance(study: Study, names: Sequence[str], regime: int) -> dict[str, Line]:
    """Accuracy above the chord between the endpoints (random escalation), so that close curves can be distinguished."""
    lines = {}
    for name in names:
        band = study.band(name, regime)
        ends = band.accuracy[:, :1], band.accuracy[:, -1:]
        lines[name] = Line(band.rates, *mean_std(band.accuracy - ends[0] - band.rates * (ends[1] - ends[0])))
    return lines


def _differences(summary: Mapping[str, Any], regime: str, names: Sequence[str]) -> dict[str, Any]:
    routers = summary["regimes"][regime]["routers"]
    at = [i for i, rate in enumerate(summary["rates"]) if 0 < rate < 1]
    groups = {}
    for name in names:
        apart = routers[name]["minus_confidence"]
        groups[name] = tuple(100 * np.array([apart[key][i] for i in at]) for key in ("mean", "low", "high"))
    return groups


def _bytes_panel(study: Study, names: Sequence[str], summary: Mapping[str, Any], regime: int, title: str) -> Panel:
    lines = lines_of(study, names, regime, "accuracy")
    in_bytes = {
        name: Line(np.array([study.bytes_at(rate) for rate in line.rate]), line.value, line.spread)
        for name, line in lines.items()
    }
    if summary["partial"]:
        curve = {key: np.array(values) for key, values in summary["partial"][str(regime)]["curve"].items()}
        spent = np.linspace(study.bytes_at(0.0), study.bytes_at(1.0), len(curve["mean"]))
        in_bytes[PARTIAL] = Line(spent, curve["mean"], curve["std"])
    marks = [study.bytes_at(rate) for rate in (0.1, 0.2, 0.4, 0.6, 0.8)]
    return Panel(
        in_bytes, "accuracy", "bytes per sample", title,
        ("weak route", "strong route"), marks, unit="",
    )  # fmt: skip
