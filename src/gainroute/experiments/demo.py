"""The demo: digits in four quadrants, one per party, from training to a report of every router."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gainroute._util.files import write_bytes
from gainroute._util.progress import Progress
from gainroute._version import __version__
from gainroute.errors import MissingExtraError, NotAnArtifactError
from gainroute.evaluation.figures import encode
from gainroute.experiments.config import Config, load_config
from gainroute.experiments.pages.headline import headline_of, print_summary
from gainroute.experiments.pages.reports import TITLE, demo_page, draw_demo
from gainroute.experiments.records import Record, load_record, save_record
from gainroute.experiments.study import study_of
from gainroute.experiments.summary import summarise
from gainroute.io.run_folder import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_demo", "run_demo"]


def run_demo(out_dir: str | Path, *, seed: int = 0, progress: bool = True) -> dict[str, Any]:
    """Train, calibrate and route the digits, and write a report.

    `out_dir` gets ``report.html`` (self-contained), ``tradeoff.png`` and ``results.json``; in ``run`` a folder per
    party and one for the server, with the calibrated router, ready to serve; and the record, so that a second run
    trains nothing. Returns what ``results.json`` holds, a summary and a headline, for `print_demo`.
    """
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    config = load_config("digits")
    with _bars(config) if progress else nullcontext(Progress()) as bars:
        record = _record(config, seed, out, bars)
        bars.start("routing and drawing", 3)
        study = study_of([record])
        bars.advance()
        results = summarise(study)
        results["headline"] = headline_of(results)
        results["seconds"] = {"training": round(sum(record.metadata.get("seconds", {}).values()), 1)}
        bars.advance()
        pictures = draw_demo(study, record)
        write_bytes(out / "tradeoff.png", encode(pictures["accuracy"][0], "png"))
        write_bytes(out / "report.html", demo_page(results, record, pictures).encode())
        bars.advance()
    results["seconds"]["all"] = round(time.perf_counter() - began, 1)
    results |= {"version": __version__, "files": ["report.html", "tradeoff.png", "results.json"]}
    write_bytes(out / "results.json", json.dumps(results, indent=1).encode())
    return results | {"folder": str(out)}


def _record(config: Config, seed: int, out: Path, bars: Progress) -> Record:
    """Read the record of an earlier run, or train; a record of another config or seed is not used."""
    path, folder = out / "record.npz", out / "run"
    try:
        kept = load_record(path)
    except NotAnArtifactError:
        kept = None
    wanted = json.loads(json.dumps(config.as_dict()))  # as in a record
    known = kept is not None and kept.seed == seed and kept.metadata.get("config") == wanted
    if kept is not None and known and RunFolder(folder).server.router.is_file():
        return kept
    try:
        from gainroute.experiments.runner import run_cell
        from gainroute.training.run import calibrate_run

        record = run_cell(config, seed, work_dir=out / "work", progress=bars, run_dir=folder)
        calibrate_run(folder, record.calibration, seed=seed, training=record.training)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("the demo", "all") from error
    save_record(record, path, bits=32)  # last: a record means that the run's folder is complete
    return record


def print_demo(results: Mapping[str, Any], console: Console) -> None:
    """Print the results of `run_demo`: accuracy by router and budget, what the budgets buy, and one sentence."""
    folder = Path(results["folder"]) if "folder" in results else Path()
    print_summary(
        results,
        console,
        title=TITLE,
        about=f"Handwritten digits, cut into {len(results['parties'])} quadrants, one per party. "
        f"{results['test_samples']} test images, {results['calibration_samples']} for calibration.",
        closing=f"{results['seconds']['all']:.0f} s. Beside the report: tradeoff.png, results.json, and run/, ready to "
        f"serve. Open\n{folder / 'report.html'}",
    )


# ---- progress -----------------------------------------------------------------------------------


@contextmanager
def _bars(config: Config) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description:<22}"), BarColumn(bar_width=36), TextColumn("{task.percentage:>3.0f} %")
    with Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:
        yield _BarPerKind(bars, {"local": 4, "defer": 4 * len(config.defer.alphas)})


class _BarPerKind(Progress):
    """One bar per kind of model: a bar per model would fill the screen, learning to defer alone has sixteen."""

    def __init__(self, bars: Any, models: Mapping[str, int]) -> None:
        self._bars, self._models = bars, models
        self._words = {"local": "local classifiers", "vfl": "strong route (VFL)", "defer": "learning to defer"}
        self._tasks: dict[str, Any] = {}
        self._kind = ""

    def start(self, name: str, total: int, done: int = 0) -> None:
        self._kind = name.partition(" ")[0]
        if self._kind not in self._tasks:
            whole = total * self._models.get(self._kind, 1)
            self._tasks[self._kind] = self._bars.add_task(self._words.get(self._kind, name), total=whole)
        self._bars.advance(self._tasks[self._kind], done)

    def advance(self, note: str = "") -> None:  # noqa: ARG002 (part of the protocol; these bars show no notes)
        self._bars.advance(self._tasks[self._kind], 1)
