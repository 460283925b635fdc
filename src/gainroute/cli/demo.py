"""`gainroute demo`: the whole road on data that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gainroute.cli._options import Json
from gainroute.cli._output import console, guarded, notes, print_json
from gainroute.errors import MissingExtraError

__all__ = ["demo"]

NEEDED = {"torch", "sklearn", "matplotlib", "tomli"}


@guarded
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the report and the figures go.")
    ] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Of the split and of training.")] = 0,
    json: Json = False,
) -> None:
    """Train, calibrate and route handwritten digits, each cut into four quadrants, one a party.

    Needs no data and no download, takes about a minute, and writes a report with figures.
    """
    with notes() as said:
        try:
            from gainroute.experiments.demo import print_demo, run_demo
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in NEEDED:
                raise
            raise MissingExtraError("the demo", "all") from error
        results = run_demo(out, seed=seed, progress=True)
    if json:
        print_json(results | {"warnings": said})
    else:
        print_demo(results, console())
