"""`gainroute demo`: the whole pipeline on data that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gainroute.cli._command import needing, notes
from gainroute.cli._options import Json
from gainroute.cli._output import console, print_json

__all__ = ["demo"]


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the report and the figures go.")
    ] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.")] = 0,
    json: Json = False,
) -> None:
    """Train, calibrate and route handwritten digits, each cut into four quadrants, one per party.

    Needs no data and no download, takes about a minute, and writes a report with figures.
    """
    with notes() as warnings:
        with needing("the demo", "all"):
            from gainroute.experiments.demo import print_demo, run_demo
        results = run_demo(out, seed=seed, progress=True)
    if json:
        print_json(results | {"warnings": warnings})
    else:
        print_demo(results, console())
