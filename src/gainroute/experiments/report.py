"""Every table, figure and page of a report, rebuilt from records."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from gainroute._util.files import write_bytes
from gainroute._util.hashing import hash_contents
from gainroute.errors import DataError, SettingError
from gainroute.evaluation.compare import load_router
from gainroute.experiments.cache import Cache, source_hash
from gainroute.experiments.figures import draw_figures
from gainroute.experiments.pages import tables
from gainroute.experiments.pages.text import regime_title, to_markdown
from gainroute.experiments.partial_curves import load_partial_curves, partial_summary
from gainroute.experiments.scores import ORACLE, Builder, ablation_routers, compared_routers
from gainroute.experiments.study import Study, load_study, router_key
from gainroute.experiments.summary import summarise

__all__ = ["Kept", "Page", "ReportExtra", "build_report"]

LEGEND = (
    "Rows: noise regimes. Columns: accuracy, EP, NE. Lines are means over seeds, bands one standard deviation; squares "
    "mark never and always escalating. The oracle knows which of the paper's answers are wrong: it bounds the routers "
    "that give these answers. Our default answers by itself on both routes, and may exceed it."
)
REGIME_TABLES = {
    "All routers, against confidence": tables.difference_table,
    "All routers, against expected gain": tables.analytical_table,
    "All routers at every budget": tables.accuracy_table,
    "Expected gain and defer": tables.defer_table,
    "What each budget buys, and its bytes": tables.budget_table,
    "Every deployable router for the same bytes": tables.bytes_table,
    "Ablation of the calibrator": tables.ablation_table,
}
PICTURES = {
    "Against confidence": "differences",
    "Defer": "defer",
    "Accuracy for bytes": "bytes",
    "Ablation": "ablation",
}
Summary = Mapping[str, Any]
Kept = Callable[[Callable[[Study], dict[str, Any]]], dict[str, Any]]


@dataclass(frozen=True)
class Page:
    """A page beside those of the data sets: its file name, how the index names it, and its text."""

    file: str
    title: str
    text: str


class ReportExtra(Protocol):
    """Further numbers, sections and pages of a report."""

    def numbers(self, name: str, study: Study, kept: Kept, out: Path) -> dict[str, Any]:
        """Numbers to add to the summary of data set `name`; ``kept(function)`` is ``function(study)``, cached."""
        ...

    def section(self, summary: Summary) -> Sequence[str]:
        """Blocks of Markdown for a data set's page, placed before its noise regimes."""
        ...

    def pages(self, summaries: Mapping[str, Summary]) -> Sequence[Page]:
        """Further pages, in the order in which the index lists them."""
        ...


def build_report(
    records_dir: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    names: Sequence[str] = (),
    routers: Sequence[str] = (),
    extra: ReportExtra | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Rebuild all pages, tables and figures; nothing is written outside `out_dir` and `cache_dir`.

    Parameters
    ----------
    records_dir
        Holds ``<dataset>/seed<seed>.npz``.
    out_dir
        Gets ``README.md``, ``<dataset>.md`` and ``<dataset>.json``, figures (PNG and PDF) in ``<dataset>/``, and the
        pages of `extra`.
    names
        Data sets whose pages are rebuilt; the index and the pages of all data sets together are then left alone. By
        default all.
    routers
        Routers from outside the package, "module:Class", added to every table with paired differences.
    cache_dir
        Where fitted scores, numbers and figures are kept, by the content of record, settings and code; None keeps none.

    Returns
    -------
    dict
        The summary of each data set, by name.
    """
    found = sorted(Path(records_dir).glob("*/seed*.npz"))
    if not found:
        raise DataError(f"{records_dir} holds no record <dataset>/seed<seed>.npz; name the folder of the records")
    strange = sorted(set(names) - {path.parent.name for path in found})
    if strange:
        known = ", ".join(sorted({path.parent.name for path in found}))
        raise SettingError(f"{records_dir} holds no record of {strange[0]!r}; it holds records of {known}")
    external: dict[str, Builder] = {spec.rpartition(":")[2]: load_router(spec) for spec in routers}
    taken = sorted(external.keys() & {*compared_routers(), *ablation_routers(), ORACLE})
    if taken:
        raise SettingError(
            f"router {taken[0]!r} is in every table already; leave it out, or give the class another name"
        )
    say = progress or (lambda _text: None)
    cache = Cache(None if cache_dir is None else Path(cache_dir))
    out = Path(out_dir)
    built: dict[str, dict[str, Any]] = {}
    for folder in sorted({path.parent for path in found if not names or path.parent.name in names}):
        name, paths = folder.name, [path for path in found if path.parent == folder]
        say(f"{name}: {len(paths)} seeds")
        study = load_study(paths, external, cache, say)
        builders = {**compared_routers(), **ablation_routers(), **external}
        key = (hash_contents(*paths), *(f"{word} {router_key(build)}" for word, build in builders.items()))
        kept = partial(_kept, study, cache, key)
        summary = kept(summarise)
        if extra is not None:
            summary |= extra.numbers(name, study, kept, out)
        curves = load_partial_curves(study, cache, say)
        summary["partial"] = partial_summary(curves, summary["rates"]) if curves else {}
        say(f"{name}: figures")
        drawn_from = ("figures", *key, json.dumps(summary), source_hash(draw_figures.__module__), version("matplotlib"))
        files = cache.arrays(drawn_from, partial(draw_figures, study, summary, list(external)))
        (out / name).mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            write_bytes(out / name / file, content.tobytes())
        drawn = [file.removesuffix(".png") for file in files if file.endswith(".png")]
        inserted = extra.section(summary) if extra is not None else ()
        write_bytes(out / f"{name}.json", json.dumps(summary, indent=1).encode())
        write_bytes(out / f"{name}.md", _markdown(summary, name, routers, drawn, inserted).encode())
        built[name] = summary
    if names:
        return built
    further = extra.pages(built) if extra is not None else ()
    for page in further:
        write_bytes(out / page.file, page.text.encode())
    index = [*(f"- [{page.title}]({page.file})" for page in further), *(f"- [{name}]({name}.md)" for name in built)]
    overview = to_markdown(tables.overview_table(built))
    write_bytes(out / "README.md", "\n".join(["# Results\n", overview, *index, ""]).encode())
    return built


def _kept(study: Study, cache: Cache, key: Sequence[str], make: Callable[[Study], dict[str, Any]]) -> dict[str, Any]:
    """``make(study)``, from the cache while neither the study nor the code of `make` has changed."""
    code = (make.__qualname__, source_hash(make.__module__))
    return cache.numbers((*code, *key), partial(make, study))


# ---- the page -----------------------------------------------------------------------------------


def _markdown(
    summary: Mapping[str, Any], name: str, routers: Sequence[str], drawn: Sequence[str], inserted: Sequence[str]
) -> str:
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
        *inserted,
    ]
    for regime in summary["regimes"]:
        title = regime_title(regime, summary)
        parts.append(f"## {title[0].upper()}{title[1:]}")
        for heading, table in REGIME_TABLES.items():
            parts += [f"### {heading}", to_markdown(table(summary, regime))]
    for title, file in PICTURES.items():
        if file in drawn:
            parts += [f"## {title}", f"![{title}]({name}/{file}.png)"]
    parts += [
        "## Calibration before and after",
        f"![Reliability before and after calibration]({name}/reliability.png)",
        to_markdown(tables.calibration_table(summary)),
        "## Thresholds as deployed",
        "τ is set on calibration data alone; the rate is the actual rate on the test part.",
        to_markdown(tables.deployed_table(summary)),
    ]
    shifts = summary["quantisation_shift"]
    if shifts:
        worst = max(value for by_regime in shifts.values() for value in by_regime.values())
        parts.append(
            f"Everything here is computed from the decoded records; against float32, accuracy at the budgets changes "
            f"by at most {worst:g} points."
        )
    return "\n\n".join(parts) + "\n"
