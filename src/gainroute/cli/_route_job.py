"""`gainroute route` on many files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gainroute._util.engines import Engine
from gainroute.cli._loading import split_names
from gainroute.errors import DataError
from gainroute.routing.router import Router

__all__ = ["only_files", "route_job"]


def only_files(posteriors: Sequence[Path] | None, labels: Path | None, on: str | None) -> None:
    """Refuse options that join the files of parties."""
    given = {"--posteriors": posteriors, "--labels": labels, "--on": on}
    for name, value in given.items():
        if value:
            raise DataError(
                f"{name} was given with many files, or a folder as --out; only files that hold all parties are read in "
                "pieces: join them first, or give one file per party and a file as --out"
            )


def route_job(
    fitted: Router,
    router: Path,
    data: Sequence[Path],
    out: Path,
    classes: str | None,
    columns: str | None,
    engine: Engine,
) -> dict[str, Any]:
    """Route many files, with a progress bar, and return the counts."""
    from gainroute._util.hashing import hash_contents
    from gainroute._util.progress import show_progress
    from gainroute.io.arrow_router import ArrowRouter
    from gainroute.io.parquet_files import InputFiles
    from gainroute.io.parquet_job import route_files

    if not data:
        raise DataError(f"--out is the folder {out} and no data were given; name Parquet files, or their folder")
    route = ArrowRouter(fitted, class_names=split_names(classes), columns=split_names(columns))
    made_by = hash_contents(router)
    with show_progress() as progress:
        routed = route_files(route, made_by, InputFiles.find(data), out, engine=engine, progress=progress)
    return asdict(routed)
