"""`gainroute train`: both routes and a calibrated router from a user's own views."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gainroute.cli import _options as opt
from gainroute.cli._command import needing, notes
from gainroute.cli._output import console, print_json
from gainroute.cli.sign import SignKey, read_key, sign_written

__all__ = ["train"]


def train(
    views: opt.Views,
    labels: opt.LabelFile,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The run's folder.")],
    budget: Annotated[float, typer.Option(help="The share of samples that may be escalated, from 0 to 1.")] = 0.2,
    codec: Annotated[str, typer.Option(help="How embeddings are sent: float32, float16 or int8.")] = "float32",
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTY=KIND...",
            help="cnn (images) or mlp (features), instead of what the view's shape suggests, such as --kind front=mlp.",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of the strong route. Default: 20.")] = None,
    local_epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs of the local classifiers, of which a tenth of the training part chooses one. Default: 20."
        ),
    ] = None,
    local: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASSIFIER",
            help="A scikit-learn classifier as local model of every party, instead of a network, such as "
            "sklearn.linear_model:LogisticRegression or 'sklearn.svm:LinearSVC(C=0.1)'; or a function that makes one.",
        ),
    ] = None,
    fused: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASSIFIER",
            help="A scikit-learn classifier of the embeddings of all parties as fusion head, instead of a network.",
        ),
    ] = None,
    test: Annotated[float, typer.Option(help="The share of all samples that is held out to evaluate on.")] = 0.3,
    calibration: Annotated[float, typer.Option(help="The share of the rest that calibrates the router.")] = 0.2,
    id_column: opt.IdColumn = "id",
    label_column: opt.LabelColumn = "label",
    seed: Annotated[int, typer.Option(help="Seed of the splits and of training.")] = 0,
    device: opt.Device = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(help="Threads that torch computes with, 0 for its own choice. Default: one for small views."),
    ] = None,
    pooled_only: opt.PooledOnly = None,
    engine: opt.EngineOption = "local",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another run that the folder holds; it is refused otherwise.")
    ] = False,
    sign_key: SignKey = None,
    json: opt.Json = False,
) -> None:
    """Train both routes on your own views, calibrate a router, and evaluate it on a held-out part.

    Writes to --out a folder per party (its models, its views by id), one for the server (fusion head, router), the
    record, results.json and report.html. The command reads all views: run it where that is allowed.
    """
    from gainroute._util.progress import show_progress

    with notes() as warnings, needing("training", "all"), show_progress() as progress:
        from gainroute.experiments.pages.headline import print_summary
        from gainroute.experiments.run_report import report_run
        from gainroute.io.preprocess import parse_kinds
        from gainroute.training.run import train_run

        key = None if sign_key is None else read_key(sign_key)  # first: an unusable key costs no training
        trained = train_run(
            views, labels, out, budget=budget, codec=codec, seed=seed, test=test,
            calibration=calibration,
            id_column=id_column, label_column=label_column, kinds=parse_kinds(kind or []), epochs=epochs,
            local_epochs=local_epochs, local=local, fused=fused, device=device, progress=progress, overwrite=overwrite,
            threads=threads, pooled_only=bool(pooled_only), engine=engine,
        )  # fmt: skip
        if key is not None:
            sign_written(out, key)
        results = report_run(trained, progress)
    if json:
        print_json(results | {"warnings": warnings})
        return
    print_summary(
        results,
        console(),
        title=f"{len(results['parties'])} parties: {', '.join(results['parties'])}",
        about=f"{results['class_count']} classes, {results['test_samples']:,} test samples, "
        f"{results['calibration_samples']:,} for calibration.",
        closing=f"{results['seconds']['all']:.0f} s. Open\n{out / 'report.html'}",
    )
