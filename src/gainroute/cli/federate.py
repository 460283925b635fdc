"""`gainroute federate`: form a federation across organisations: align, train, calibrate, deploy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from gainroute.cli import _options as opt
from gainroute.cli._command import needing, notes
from gainroute.cli._output import console, print_json, table
from gainroute.cli.sign import SignKey, read_key, sign_written
from gainroute.errors import SettingError

__all__ = ["federate"]


def federate(
    config: Annotated[
        Path, typer.Argument(metavar="FILE", help="federation.toml; see deploy/federation.example.toml.")
    ],
    status: Annotated[bool, typer.Option("--status", help="Show how far the run is, and stop.")] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Start the next version: align, train and calibrate anew, with today's data."),
    ] = False,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate", help="Start the next version with the models of the newest: align and calibrate only."
        ),
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for a party that is away, before the run stops.")] = 60.0,
    sign_key: SignKey = None,
    json: opt.Json = False,
) -> None:
    """Form a federation with running parties: align ids privately, train both routes, calibrate a router, deploy.

    No view, encoder or real id leaves a party. An interrupted run is resumed by the command without --again or
    --recalibrate. The result is a
    folder with the coordinator's part of the models, the router, coordinator.toml to serve it, and a report.
    """
    from gainroute._util.progress import show_progress

    with notes() as warnings, needing("forming a federation", "all"):
        from gainroute.experiments.pages.headline import print_summary
        from gainroute.experiments.run_report import report_run
        from gainroute.federation.formation.federate import Formation
        from gainroute.federation.formation.plan import load_federation_settings
        from gainroute.federation.formation.status import newest_version, read_status

        settings = load_federation_settings(config)
        newest = newest_version(settings.out)
        if again and recalibrate:
            raise SettingError("--again trains new models and --recalibrate keeps them: give one of the two")
        if recalibrate and not newest:
            raise SettingError(f"--recalibrate needs a version, and {settings.out} has none: leave it out to train one")
        version = f"v{newest + 1 if again or recalibrate or not newest else newest}"
        if status:
            _show_status(read_status(settings.out / version), json=json)
            return
        key = None if sign_key is None else read_key(sign_key)  # first: an unusable key costs no training
        with show_progress() as progress:
            formation = Formation(settings, version, progress, wait, f"v{newest}" if recalibrate else None)
            results: dict[str, Any] = asyncio.run(formation.run())
            if key is not None:
                sign_written(settings.out / version, key)
            trained = formation.trained_run()
            report = None if trained is None else report_run(trained, progress)
    folder = settings.out / version
    if json:
        results |= {key: read_status(folder)[key] for key in ("overlaps", "parties")}
        print_json(results | {"folder": str(folder), "version": version, "warnings": warnings})
        return
    if report is not None:
        print_summary(
            report,
            console(),
            title=f"{len(report['parties'])} parties: {', '.join(report['parties'])}",
            about=f"{report['class_count']} classes, {report['test_samples']:,} test samples, "
            f"{report['calibration_samples']:,} for calibration.",
            closing=f"Open {folder / 'report.html'}",
        )
    else:
        shown = table("on the test part", "")
        for name, value in results.items():
            shown.add_row(name.replace("_", " "), f"{value:.1%}" if isinstance(value, float) else f"{value:,}")
        console().print(shown)
    typer.echo(f"Serve it: gainroute coordinator --config {folder / 'coordinator.toml'}")


def _show_status(status: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(status)
        return
    stages = table("stage", "state")
    for stage, state in status["stages"].items():
        stages.add_row(stage, state)
    console().print(stages)
    if "progress" in status:
        now = status["progress"]
        typer.echo(f"{now['stage']}: {now['done']} of {now['total']} {now['note']}")
    parties = table("party", "works on", "samples per second", "MB up", "MB down")
    for name, party in status["parties"].items():
        doing = f"{party['stage']} {party['done']}/{party['total']}" if "stage" in party else "–"
        up, down = (f"{party.get(key, 0) / 1e6:.2f}" for key in ("bytes_up", "bytes_down"))
        pace = party.get("samples_per_second")
        parties.add_row(name, doing, "–" if pace is None else f"{pace:,.0f}", up, down)
    console().print(parties)
    if "overlaps" in status:
        held = table("held by", "samples")
        for group, count in status["overlaps"].items():
            held.add_row(group, f"{count:,}")
        console().print(held)
    if "waiting_for" in status:
        typer.echo(f"waiting for party {status['waiting_for']}")
