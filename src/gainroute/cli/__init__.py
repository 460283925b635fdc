"""The command line: parse, call the library, print, and map errors to exit codes. Nothing is computed here.

Exit codes: 0 success, 2 unusable input (one paragraph on stderr gives the cause and the remedy), 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gainroute.cli import (
    compare,
    coordinator,
    data,
    demo,
    evaluate,
    export,
    fit,
    party,
    plan,
    recalibrate,
    report,
    reproduce,
    route,
    train,
    up,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="gainroute",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from gainroute._version import __version__

        typer.echo(f"gainroute {__version__}")
        raise typer.Exit


@app.callback()
def gainroute(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Decide, sample by sample, whether the expensive answer is worth asking for.

    You have a cheap answer (the pooled posteriors of one or more parties) and an expensive one that is right more
    often. From labelled samples, gainroute learns where the expensive answer is expected to help, and spends a budget
    there. The usual order: fit a router on calibration data, plan the budget on other labelled data, route new data.

    New here? Run: gainroute demo
    """


# In the order of `gainroute --help`.
_COMMANDS = (
    fit, plan, route, compare, demo, reproduce, report, train, evaluate, data, up, coordinator, party, export,
    recalibrate,
)  # fmt: skip
for _command in _COMMANDS:
    _command.register(app)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # τ and λ must not fail on a terminal that cannot show them
            stream.reconfigure(errors="replace")
    app()
