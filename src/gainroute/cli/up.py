"""`gainroute up`: a whole federation on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gainroute.cli._output import guarded
from gainroute.errors import MissingExtraError

if TYPE_CHECKING:
    from gainroute.federation.local import Served

__all__ = ["register", "up"]

NEEDED = {"fastapi", "starlette", "uvicorn", "prometheus_client", "grpc", "cryptography", "google", "tomli"}


@guarded
def up(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A folder that `gainroute demo` or `gainroute train` left.")
    ] = Path("out/demo/run"),
    port: Annotated[int, typer.Option("--port", "-p", help="Of the coordinator; 0 takes a free one.")] = 8080,
    budget: Annotated[
        float | None,
        typer.Option("--budget", "-b", show_default=False, help="Share of samples to escalate, not the router's own."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout when it is ready.")] = False,
) -> None:
    """Serve a run on this machine: a process for each party and a coordinator with a dashboard.

    They listen on loopback alone and talk by mutual TLS; certificates and logs are in a private temporary folder that
    goes with them. Ctrl-C stops everything.
    """
    from gainroute.federation import local as federation

    def ready(served: Served) -> None:
        if json:
            from json import dumps

            typer.echo(dumps(served.to_json()))
        else:
            _welcome(run, served)

    try:
        federation.up(run, port=port, budget=budget, ready=ready, say=lambda text: typer.echo(text, err=True))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in NEEDED:
            raise
        raise MissingExtraError("serving", "serve") from error


def _welcome(run: Path, served: Served) -> None:
    data = ",".join(f'"{i}"' for i in served.example_ids[:2])
    body = f'{{"inputs":[{{"name":"id","shape":[2],"datatype":"BYTES","data":[{data}]}}]}}'
    typer.echo(f"\n{run} is served. Open the dashboard:\n\n    {served.url}/\n")
    for party in served.parties:
        typer.echo(f"    party {party.name}: {party.address}, pid {party.pid}")
    if len(served.example_ids) > 1:
        typer.echo(f"\nAsk it something:\n\n    curl -s {served.url}/v2/models/{served.model}/infer -d '{body}'")
    typer.echo("\nCtrl-C stops everything.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up", short_help="Serve a run on this machine, with a dashboard.")(up)
