"""`gainroute copy-log`: a decision log from a file into PostgreSQL, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gainroute.cli._command import needing
from gainroute.errors import SettingError

__all__ = ["copy_log"]


def copy_log(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="The coordinator's settings, with [log] url.")
    ],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="An SQLite file, into the empty database.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="A new SQLite file, from the database.")
    ] = None,
) -> None:
    """Copy a decision log between an SQLite file and the PostgreSQL database of the settings.

    Decisions keep their ids; labels, audit trail and saved state are copied with them. With --from, no coordinator may
    be running on the file. With --to, coordinators may be writing the database: the copy is of one moment.
    """
    with needing("copying a decision log", "serve"):
        from gainroute.federation.coordinator.decision_log.copying import copy_from_file, copy_to_file
        from gainroute.federation.coordinator.settings import load_coordinator_settings
    settings = load_coordinator_settings(config).log
    if not settings.url:
        raise SettingError(f"{config}: [log] url is not set; name the database there")
    if (source is None) == (target is None):
        raise SettingError("exactly one of --from and --to is needed")
    if source is not None:
        copied = copy_from_file(source, settings)
    elif target is not None:
        copied = copy_to_file(settings, target)
    typer.echo(f"{copied:,} decisions were copied")
