"""`gainroute reproduce`: the paper's benchmarks, from data to pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gainroute.cli import _options as opt
from gainroute.cli._command import needing, notes
from gainroute.cli._output import print_json
from gainroute.cli.report import CACHE, RECORDS, RESULTS, comparison_pages_or_note, print_overview

if TYPE_CHECKING:
    from gainroute._util.progress import Progress
    from gainroute.experiments.config import Config

__all__ = ["reproduce"]

# Those of the published results.
SEEDS = {"digits": 5, "modelnet40": 5, "cifar10": 5, "cifar100": 3, "adult": 5, "credit": 5, "ccv": 5, "leaves100": 5}


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="modelnet40, cifar10, cifar100, digits, one of these with -paper, adult, credit, ccv, leaves100, or a "
            "TOML file.",
        ),
    ],
    seeds: Annotated[
        list[int] | None,
        typer.Option(
            metavar="SEED...",
            help="Which seeds, such as --seeds 0 1 2; each is finished before the next begins. Default: the seeds of "
            "the published results (0 to 4, for CIFAR-100 0 to 2), or 0 for a config of your own.",
        ),
    ] = None,
    data_dir: opt.DataDir = None,
    work_dir: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where checkpoints are kept, to resume from.")
    ] = Path("out/work"),
    records_dir: opt.RecordsDir = RECORDS,
    out: opt.ReportDir = RESULTS,
    cache_dir: opt.CacheDir = CACHE,
    device: opt.Device = "cpu",
    processes: Annotated[
        int,
        typer.Option(min=1, help="How many seeds are trained side by side; with one thread each that uses cores best."),
    ] = 1,
    engine: opt.EngineOption = "local",
    download: Annotated[
        bool, typer.Option("--download", help="CIFAR: fetch the official archive into --data-dir first.")
    ] = False,
    json: opt.Json = False,
) -> None:
    """Train what is missing, calibrate, route, and report everything that the paper reports.

    A seed whose record is in --records-dir is not trained again; an interrupted seed is resumed. Then every page is
    rebuilt as by `gainroute report`.
    """
    from gainroute._util.progress import show_progress

    with notes() as warnings, needing("training", "all"), show_progress() as progress:
        from gainroute.experiments.config import load_config
        from gainroute.experiments.records import load_record
        from gainroute.experiments.report import build_report
        from gainroute.experiments.runner import check_records, summary
        from gainroute.training.data.registry import download_dataset

        config = load_config(experiment)
        extra = comparison_pages_or_note()
        chosen = seeds if seeds is not None else list(range(SEEDS.get(config.name, 1)))
        check_records(config, chosen, records_dir)
        if download:
            download_dataset(config.data.source, data_dir)
        folders = {"records_dir": records_dir, "data_dir": data_dir, "work_dir": work_dir, "device": device}
        found = {}
        for path in _records(config, chosen, folders, processes, engine, progress):
            record = load_record(path)
            found[str(record.seed)] = summary(record)
            for regime, (weak, strong) in found[str(record.seed)].items():
                part = "clean" if regime == "0" else f"noise on {regime} classes"
                progress.say(f"  {part}: weak route {weak:.1f} %, strong route {strong:.1f} %")
        built = build_report(records_dir, out, extra=extra, cache_dir=cache_dir, progress=progress.say)
    if json:
        page = str(out / f"{config.name}.md")
        print_json({"experiment": config.name, "accuracy": found, "page": page, "warnings": warnings})
    else:
        print_overview({config.name: built[config.name]}, out)


def _records(
    config: Config, seeds: list[int], folders: dict[str, Any], processes: int, engine: str, progress: Progress
) -> Iterator[Path]:
    """Train the seeds that have no record; one after the other with a bar per stage, or several at a time."""
    from gainroute._util.engines import choose_engine
    from gainroute.experiments.runner import run, run_seeds

    if engine == "local" and min(processes, len(seeds)) == 1:
        for seed in seeds:
            progress.say(f"{config.name}, seed {seed}")
            yield from run(config, [seed], **folders, progress=progress)
        return
    work = choose_engine(engine, processes)
    progress.start(f"{config.name}, {len(seeds)} seeds", len(seeds))
    for path in run_seeds(config, seeds, work, **folders):
        progress.advance(path.stem)
        progress.say(f"{config.name}, {path.stem}")
        yield path
