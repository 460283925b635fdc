"""`gainroute export`: the parties of a trained run as ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gainroute.cli._command import needing
from gainroute.cli._options import Json
from gainroute.cli._output import print_json, print_table, table

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `gainroute train` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Gets one folder per party.")],
    json: Json = False,
) -> None:
    """Export the models of every party as ONNX files, so that it can serve them without torch.

    The answers of the exported models are compared with those of the run for all views in its folder: they agree within
    1e-5, or nothing is exported. A party serves its folder with `onnx = "FOLDER/party"` under [source].
    """
    with needing("exporting to ONNX", "all"):
        from gainroute.training.export import export_run

        exported = export_run(run, out)
    if json:
        print_json({"folder": str(out), "parties": exported})
        return
    rows = table("party", "samples compared", "largest difference")
    for name, body in exported.items():
        rows.add_row(name, f"{body['samples']:,}", f"{max(body['difference'].values()):.1e}")
    print_table(rows)
    typer.echo(f'{out} holds a folder per party, to be served by onnx = "…" under [source]')
