"""The command line: parse, call the library, print, and map errors to exit codes. Nothing is computed here.

Exit codes: 0 success, 1 a check that failed (`audit`), 2 unusable input (one paragraph on stderr gives the cause and
the remedy), 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from gainroute.cli import (
    audit,
    compare,
    coordinator,
    copy_log,
    data,
    demo,
    evaluate,
    export,
    federate,
    fit,
    party,
    plan,
    recalibrate,
    report,
    reproduce,
    route,
    sign,
    train,
    up,
)  # fmt: skip
from gainroute.cli._command import Command, ResumableCommand

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
    """Decide, sample by sample, whether the strong answer is worth asking for.

    You have a weak answer (the pooled posteriors of one or more parties) and a strong one that costs more and is right
    more often. From labelled samples, gainroute learns where the strong answer is expected to help, and spends a budget
    there. The usual order: fit a router on calibration data, plan the budget on other labelled data, route new data.

    New here? Run: gainroute demo
    """


_COMMANDS: dict[Callable[..., None], str] = {  # in the order of `gainroute --help`
    fit.fit: "Fit a router on labelled calibration data.",
    plan.plan: "Show what each budget buys: table and figure.",
    route.route: "Decide which new samples to escalate.",
    route.explain: "Show why one sample is escalated or kept.",
    compare.compare: "Compare all routers on your own data.",
    demo.demo: "See it work, on data that come with the package.",
    reproduce.reproduce: "Run the paper's benchmarks, and report.",
    report.report: "Rebuild tables and figures from records.",
    train.train: "Train both routes on your own views.",
    evaluate.evaluate: "Apply a trained run to new data.",
    federate.federate: "Form a federation across organisations: align, train, deploy.",
    up.up: "Serve a run on this machine, with a dashboard.",
    coordinator.coordinator: "Serve a federation over HTTP.",
    party.party: "Serve one party, beside its own data.",
    export.export: "Export a trained run's parties as ONNX files.",
    recalibrate.recalibrate: "Refit a router from its decision log.",
    copy_log.copy_log: "Copy a decision log into PostgreSQL, and back.",
}
_RESUMABLE = (demo.demo, federate.federate, reproduce.reproduce, route.route, train.train)
for _command, _text in _COMMANDS.items():
    app.command(cls=ResumableCommand if _command in _RESUMABLE else Command, short_help=_text)(_command)
app.add_typer(data.data, name="data", short_help="Prepare the benchmarks' data.")
app.add_typer(party.certs, name="certs", short_help="Create and inspect certificates.")
app.add_typer(sign.sign, name="sign", short_help="Sign routers and runs, and verify signatures.")
app.add_typer(audit.audit, name="audit", short_help="Verify, search and compare audit trails.")


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # τ and λ must not fail on a terminal that cannot show them
            stream.reconfigure(errors="replace")
    app()
