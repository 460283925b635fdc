"""Rebuild every table and figure from records; fitted routers are kept in a cache, so that a second run is quick."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.files import write_bytes
from gainroute.errors import DataError
from gainroute.evaluation import figure_style
from gainroute.evaluation import figures as figures_module
from gainroute.evaluation.compare import load_router
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
from gainroute.experiments.bound import read_bound
from gainroute.experiments.cache import Cache, cached_partial, cached_study, settings_text, stamp
from gainroute.experiments.claims import claims_of, paper_page
from gainroute.experiments.guide import GUIDED, fill_guide, guide_block
from gainroute.experiments.pages import tables
from gainroute.experiments.partial_curves import PARTIAL, bytes_table, partial_summary
from gainroute.experiments.results import (
    ABLATION,
    ANALYTICAL,
    ORACLE,
    OURS,
    REFERENCE,
    ROUTING_ONLY,
    ablation_routers,
    compared_routers,
    mean_std,
)
from gainroute.experiments.study import CALIBRATORS, Study, summarise
from gainroute.experiments.versus import versus_of
from gainroute.experiments.versus_page import bound_table, oracle_gain_table, versus_page, versus_table
from gainroute.routing.router import Router

__all__ = ["build_report", "diagrams_of", "lines_of"]

MEASURES = {"accuracy": "accuracy", "EP": "precision", "NE": "neutral"}
LEGEND = (
    "Rows: noise regimes. Columns: accuracy, EP, NE. Lines are means over seeds, bands one standard deviation; squares "
    "mark never and always escalating."
)
OURS_NOTE = (
    "What is compared, and how, is in [versus_paper.md](versus_paper.md). On this page *expected gain* is the "
    f"paper's router; *{OURS}* and *{ROUTING_ONLY}* are our default."
)
COMPARED = (ANALYTICAL, OURS, "calibrated confidence", "learned gain", REFERENCE, "random", ORACLE)


def build_report(
    records_dir: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    routers: Sequence[str] = (),
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Rebuild all pages, tables and figures.

    Parameters
    ----------
    records_dir
        Holds ``<dataset>/seed<seed>.npz``.
    out_dir
        Gets ``README.md``, ``versus_paper.md``, ``<dataset>.md`` and ``<dataset>.json`` with figures (PNG and PDF) in
        ``<dataset>/``, and ``against_the_paper.md`` where a record is of the paper's datasets. If it holds a
        ``bound.json`` of these very records, its figures are shown. A ``which_router.md`` beside the folder that has
        marks for it gets its generated part written anew.
    routers
        Routers from outside the package, "module:Class", added to every table with paired differences.
    cache_dir
        Where fitted scores are kept, by the content of record, router and version; None keeps none.
    progress
        Called with a few words before each step.

    Returns
    -------
    dict
        The summary of each dataset, by name.
    """
    found = sorted(Path(records_dir).glob("*/seed*.npz"))
    if not found:
        raise DataError(f"{records_dir} holds no record <dataset>/seed<seed>.npz; name the folder of the records")
    strangers = {spec.rpartition(":")[2]: load_router(spec) for spec in routers}
    say = progress or (lambda _text: None)
    cache = Cache(None if cache_dir is None else Path(cache_dir))
    out = Path(out_dir)
    built, claims = {}, {}
    for folder in sorted({path.parent for path in found}):
        paths = [path for path in found if path.parent == folder]
        say(f"{folder.name}: {len(paths)} seeds")
        study = cached_study(paths, strangers, cache, say)
        builders: dict[str, Callable[[], Router]] = {**compared_routers(), **ablation_routers(), **strangers}
        key = (stamp(paths), *(f"{name} {settings_text(build)}" for name, build in builders.items()))
        summary = cache.numbers(("summary 2", *key), partial(summarise, study))
        claims[folder.name] = cache.numbers(("claims", *key), partial(claims_of, study))
        summary |= cache.numbers(("versus", *key), partial(versus_of, study))
        curves = cached_partial(study, cache, say)
        summary["partial"] = partial_summary(curves, summary["rates"]) if curves else {}
        summary["bound"] = read_bound(out / "bound.json", folder.name, study.stamps)
        (out / folder.name).mkdir(parents=True, exist_ok=True)
        say(f"{folder.name}: figures")
        drawing = partial(_figures, study, summary, list(strangers))
        files = cache.arrays(("figures", *key, json.dumps(summary["partial"]), _drawn_by()), drawing)
        for name, content in files.items():
            write_bytes(out / folder.name / name, content.tobytes())
        drawn = [name.removesuffix(".png") for name in files if name.endswith(".png")]
        write_bytes(out / f"{folder.name}.json", json.dumps(summary, indent=1).encode())
        write_bytes(out / f"{folder.name}.md", _markdown(summary, folder.name, routers, drawn).encode())
        built[folder.name] = summary
    beside = paper_page(built, claims)
    if beside is not None:
        write_bytes(out / "against_the_paper.md", beside.encode())
    write_bytes(out / "versus_paper.md", versus_page(built).encode())
    fill_guide(out.resolve().parent / "which_router.md", guide_block(built, out.name))
    pages = "\n".join(f"- [{name}]({name}.md)" for name in built)
    pages = f"- [Our default against the paper's router](versus_paper.md)\n{pages}"
    if beside is not None:
        pages = f"- [Our figures beside the paper's, and which of its claims held](against_the_paper.md)\n{pages}"
    overview = tables.to_markdown(tables.overview_table(built))
    write_bytes(out / "README.md", f"# Results\n\n{overview}\n{pages}\n".encode())
    return built


# ---- what figures are drawn from ----------------------------------------------------------------


def lines_of(study: Study, names: Sequence[str], regime: int, measure: str) -> dict[str, Line]:
    """Curves of some routers, mean and standard deviation over seeds; `measure` is "accuracy", "EP" or "NE"."""
    lines = {}
    for name in names:
        band = study.band(name, regime)
        lines[name] = Line(band.rates, *mean_std(getattr(band, MEASURES[measure])))
    return lines


def diagrams_of(study: Study, regime: int) -> dict[str, Diagram]:
    """Reliability diagrams by calibrator, all seeds in one."""
    found = {}
    for name in CALIBRATORS:
        parts = [by_regime[regime] for by_regime in study.quality[name].values()]
        share = np.mean([part.share for part in parts], axis=0)
        with np.errstate(invalid="ignore"):
            confidence = np.mean([np.nan_to_num(p.confidence) * p.share for p in parts], axis=0) / share
            accuracy = np.mean([np.nan_to_num(p.accuracy) * p.share for p in parts], axis=0) / share
        found[name] = Diagram(confidence, accuracy, share, float(np.mean([part.ece for part in parts])))
    return found


def _drawn_by() -> str:
    """All that decides a figure beside its numbers: the code that draws it."""
    code = "".join(inspect.getsource(module) for module in (figures_module, figure_style, sys.modules[__name__]))
    return f"{version('matplotlib')} {hashlib.sha256(code.encode()).hexdigest()}"


def _figures(study: Study, summary: Mapping[str, Any], strangers: Sequence[str]) -> dict[str, npt.NDArray[np.uint8]]:
    """Every figure as the bytes of its files, by name: drawing takes longer than all else once scores are kept."""

    def title(regime: int) -> str:
        return tables.regime_title(str(regime), summary)

    compared = [*COMPARED[:1], *strangers, *COMPARED[1:]]
    ablation = [*ABLATION, REFERENCE]
    figures = {
        "tradeoff": draw_grid(
            [[rate_panel(lines_of(study, compared, r, m), m, title(r)) for m in MEASURES] for r in study.regimes]
        ),
        "ablation": draw_grid(
            [[Panel(_above_chance(study, ablation, r), "points above random", title=title(r)) for r in study.regimes]]
        ),
    }
    defer = [name for name in study.scores if name.startswith("defer") and name.count(" ") == 1]
    if defer:
        names = [ANALYTICAL, *defer]
        figures["defer"] = draw_grid(
            [[rate_panel(lines_of(study, names, r, m), m, title(r)) for m in MEASURES] for r in study.regimes]
        )
    names = [ANALYTICAL, OURS, ROUTING_ONLY, *strangers, "calibrated confidence", "learned gain", *defer]
    figures["reliability"] = draw_reliability({title(r): diagrams_of(study, r) for r in study.regimes})
    deployable = [name for name in (*compared, ROUTING_ONLY, *defer) if name not in (ORACLE, "random")]
    figures["bytes"] = draw_grid([[_bytes_panel(study, deployable, summary, r, title(r)) for r in study.regimes]])
    guided = [*GUIDED[:1], *strangers, *GUIDED[1:]]
    figures["which"] = draw_grid(
        [[rate_panel(lines_of(study, guided, r, "accuracy"), "accuracy", title(r)) for r in study.regimes]]
    )
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
    """Accuracy above the chord between the endpoints, which random escalation follows: it tells close curves apart."""
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
        in_bytes, "accuracy", "bytes a sample", title,
        ("weak route", "strong route"), marks, unit="",
    )  # fmt: skip


# ---- the page -----------------------------------------------------------------------------------


def _markdown(summary: Mapping[str, Any], name: str, routers: Sequence[str], drawn: Sequence[str]) -> str:
    seeds = ", ".join(map(str, summary["seeds"]))
    command = "gainroute report" + "".join(f" --router {spec}" for spec in routers)
    about = (
        f"Made by `{command}` from the records of seed(s) {seeds}: {summary['test_samples']:,} test and "
        f"{summary['calibration_samples']:,} calibration samples, {summary['class_count']} classes, "
        f"{len(summary['parties'])} parties ({', '.join(summary['parties'])}). Nothing is retrained."
    )
    parts = [
        f"# Results: {name}",
        about,
        f"![Accuracy, EP and NE against the escalation rate]({name}/tradeoff.png)",
        LEGEND,
        "## Our default against the paper's router",
        OURS_NOTE,
        tables.to_markdown(versus_table(summary)),
        tables.to_markdown(oracle_gain_table(summary)),
        *([tables.to_markdown(bound_table(summary))] if summary["bound"] else []),
    ]
    for regime in summary["regimes"]:
        title = tables.regime_title(regime, summary)
        parts += [
            f"## {title[0].upper()}{title[1:]}",
            "### All routers, against confidence",
            tables.to_markdown(tables.difference_table(summary, regime)),
            "### All routers, against the expected-gain router",
            tables.to_markdown(tables.analytical_table(summary, regime)),
            "### All routers at every budget",
            tables.to_markdown(tables.accuracy_table(summary, regime)),
            "### The analytical router and learning to defer",
            tables.to_markdown(tables.defer_table(summary, regime)),
            "### What each budget buys, and its bytes",
            tables.to_markdown(tables.budget_table(summary, regime)),
            "### Every deployable router for the same bytes",
            tables.to_markdown(bytes_table(summary, regime)),
            "### Ablation of the calibrator",
            tables.to_markdown(tables.ablation_table(summary, regime)),
        ]
    pictures = {
        "Against confidence": "differences",
        "Learning to defer": "defer",
        "Accuracy for bytes": "bytes",
        "Ablation": "ablation",
    }
    for title, file in pictures.items():
        if file in drawn:
            parts += [f"## {title}", f"![{title}]({name}/{file}.png)"]
    parts += [
        "## Calibration before and after",
        f"![Reliability before and after calibration]({name}/reliability.png)",
        tables.to_markdown(tables.calibration_table(summary)),
        "## Thresholds as deployed",
        "τ is set on calibration data alone; the rate is the one it really gave on the test part.",
        tables.to_markdown(tables.deployed_table(summary)),
    ]
    shifts = summary["quantisation_shift"]
    if shifts:
        worst = max(value for by_regime in shifts.values() for value in by_regime.values())
        parts.append(
            f"Everything here is computed from the decoded records; against float32, accuracy at the budgets moves by "
            f"at most {worst:g} points."
        )
    return "\n\n".join(parts) + "\n"
