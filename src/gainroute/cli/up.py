"""`gainroute up`: a complete federation on this machine."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gainroute.cli._command import needing
from gainroute.cli._options import IdColumn

if TYPE_CHECKING:
    from gainroute.federation.local import LocalFederation

__all__ = ["up"]


def up(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A folder written by `gainroute demo` or `gainroute train`.")
    ] = Path("out/demo/run"),
    port: Annotated[int, typer.Option("--port", "-p", help="Port of the coordinator; 0 takes a free one.")] = 8080,
    grpc_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Serve gRPC as well, on this port; 0 takes a free one.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", "-b", help="Share of samples to escalate, if not the router's.")
    ] = None,
    views: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE...",
            help="New samples to serve, one file per party as in `gainroute train`. Default: the run's test part.",
        ),
    ] = None,
    id_column: IdColumn = "id",
    masked: Annotated[
        bool,
        typer.Option(
            "--masked", help="Mask Round 1; the run must have been trained with --pooled-only, by 3 parties or more."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout when it is ready.")] = False,
) -> None:
    """Serve a run on this machine: one process per party, and a coordinator with a dashboard.

    The parties answer for the samples of --views, or for the run's test part: never for the rows that trained them.

    They listen on loopback only and communicate by mutual TLS. Certificates and logs are in a private temporary folder
    that is removed at the end. Ctrl-C stops everything.
    """

    def ready(federation: LocalFederation) -> None:
        if json:
            typer.echo(dumps(asdict(federation)))
        else:
            _welcome(run, federation)

    with needing("serving", "serve"):
        from gainroute.federation import local

        local.up(
            run, port=port, grpc_port=grpc_port, budget=budget, views=views or (), id_column=id_column, masked=masked,
            ready=ready, say=lambda text: typer.echo(text, err=True),
        )  # fmt: skip


def _welcome(run: Path, federation: LocalFederation) -> None:
    ids = federation.example_ids[:2]
    typer.echo(
        f"\n{run} is served. Open the dashboard; with this link you can change the budget, so keep it private:\n"
    )
    typer.echo(f"    {federation.dashboard}\n")
    for party in federation.parties:
        typer.echo(f"    party {party.name}: {party.address}, pid {party.pid}")
    if federation.grpc_address is not None:
        typer.echo(f"    gRPC: {federation.grpc_address}")
    if len(ids) == 2:
        body = f'{{"inputs":[{{"name":"id","shape":[2],"datatype":"BYTES","data":["{ids[0]}","{ids[1]}"]}}]}}'
        url = f"{federation.url}/v2/models/{federation.model}/infer"
        typer.echo(f"\nSend a request:\n\n    curl -s {url} -d '{body}'")
    typer.echo("\nCtrl-C stops everything.")
