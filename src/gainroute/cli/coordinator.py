"""`gainroute coordinator`: serve a federation over HTTP."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated

import typer

from gainroute.cli._command import needing
from gainroute.errors import SettingError

__all__ = ["coordinator"]


def coordinator(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A TOML file; see deploy/.")
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Draw a token, print it and its hash for the config, and stop.")
    ] = False,
    days: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --new-token: it expires after N days.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Answer clients in two rounds, asking the parties for embeddings only where the expected gain says so.

    Settings come from the file, overridden by GAINROUTE_COORDINATOR_<TABLE>_<KEY> in the environment. SIGTERM
    drains: requests in flight are answered, then the process stops.
    """
    with needing("the coordinator", "serve"):
        from gainroute.federation.coordinator.server import run_coordinator
        from gainroute.federation.coordinator.settings import load_coordinator_settings
        from gainroute.federation.coordinator.tokens import hash_token
        from gainroute.federation.coordinator.tokens import new_token as draw
        from gainroute.federation.logging import log_to_stderr
    if new_token:
        token = draw()
        until = "" if days is None else f" until {datetime.now(timezone.utc).date() + timedelta(days=days)}"
        typer.echo(f"token  {token}\nhash   {hash_token(token)}{until}")
        return
    if config is None:
        raise SettingError("--config is missing; name a TOML file, see deploy/coordinator.example.toml")
    if log_level not in ("debug", "info", "warning", "error"):
        raise SettingError(f"--log-level is {log_level!r}; debug, info, warning or error is needed")
    settings = load_coordinator_settings(config)
    log_to_stderr(log_level)
    run_coordinator(settings, on_ready=lambda url: typer.echo(f"listening on {url}"))
