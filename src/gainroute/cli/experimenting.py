"""The paper's benchmarks, and anybody's own views: `reproduce`, `report`, `train`, `evaluate`, `data`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from warnings import warn

import typer
from typer.core import TyperCommand

from gainroute.cli._options import Json
from gainroute.cli._output import budget_text, console, guarded, notes, percent, print_json, table
from gainroute.errors import DataError, GainrouteWarning, MissingExtraError, SettingError

__all__ = ["cifar10", "cifar100", "evaluate", "modelnet40", "register", "report", "reproduce", "train"]

NEEDED = {"torch", "sklearn", "matplotlib", "tomli"}
SEEDS = {"digits": 5, "modelnet40": 5, "cifar10": 3, "cifar100": 3}  # what our own figures are made of
CACHE = Path("out/cache")
OVERVIEW = (  # what a terminal has room for
    "test part", "seeds", "weak route", "expected gain at 20 %", "ours at 20 %", "ours against the paper at 20 %",
    "strong route", "oracle share",
)  # fmt: skip

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        show_default=False,
        help="Holds the data files (modelnet40/points.npz, cifar-10-batches-bin, …); the digits need none.",
    ),
]
Records = Annotated[Path, typer.Option("--records-dir", metavar="FOLDER", help="Where records are.")]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where pages, tables and figures go.")]
Device = Annotated[str, typer.Option("--device", help="A torch device, such as cpu or cuda.")]
CacheDir = Annotated[
    Path, typer.Option("--cache-dir", metavar="FOLDER", help="Where fitted scores are kept; it may be deleted.")
]
Views = Annotated[
    list[Path],
    typer.Option(
        "--views",
        metavar="FILE...",
        show_default=False,
        help="One file a party, whose name without its ending is the party's: .npz with x (N, …) and optional ids, or "
        "Parquet with an id column, such as --views front.npz side.npz.",
    ),
]
LabelFile = Annotated[
    Path,
    typer.Option(
        "--labels",
        metavar="FILE",
        show_default=False,
        help=".npz with labels (N,) and optional ids, or Parquet with an id and a label column.",
    ),
]
IdColumn = Annotated[str, typer.Option("--id-column", help="Of Parquet files: which column identifies a sample.")]
LabelColumn = Annotated[str, typer.Option("--label-column", help="Of Parquet files: which column is the label.")]


class ManyCommand(TyperCommand):
    """A command whose options `many` take everything that follows them, up to the next option."""

    many = ("--seeds", "--views", "--router", "--kind")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values, which is how options with several values are parsed."""
        spread: list[str] = []
        taking: str | None = None
        for i, arg in enumerate(args):
            if arg in self.many:
                taking = arg
                if i + 1 == len(args) or args[i + 1].startswith("-"):
                    spread.append(arg)  # nothing follows: the parser says so
            elif taking is not None and not arg.startswith("-"):
                spread += [taking, arg]
            else:
                taking = None
                spread.append(arg)
        return super().parse_args(ctx, spread)


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Name the remedy where an optional dependency is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in NEEDED:
            raise
        raise MissingExtraError(what, extra) from error


# ---- the paper's benchmarks ---------------------------------------------------------------------


@guarded
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="modelnet40, cifar10, cifar100, digits, one of these with -paper, or a TOML file.",
        ),
    ],
    seeds: Annotated[
        list[int] | None,
        typer.Option(
            "--seeds",
            metavar="SEED...",
            show_default=False,
            help="Which seeds, one whole before the next begins, such as --seeds 0 1 2. Without it, those of our own "
            "figures: 0 to 4, of CIFAR 0 to 2, of a config of your own 0.",
        ),
    ] = None,
    data_dir: DataDir = None,
    work_dir: Annotated[
        Path, typer.Option("--work-dir", metavar="FOLDER", help="Where checkpoints are kept, to resume from.")
    ] = Path("out/work"),
    records_dir: Records = Path("records"),
    out: Out = Path("docs/results"),
    cache_dir: CacheDir = CACHE,
    device: Device = "cpu",
    download: Annotated[
        bool, typer.Option("--download", help="CIFAR: fetch the official archive into --data-dir first.")
    ] = False,
    json: Json = False,
) -> None:
    """Train what is missing, calibrate, route, and report all that the paper reports.

    A seed whose record is in --records-dir is not trained again, and one that was broken off is resumed. Then every
    page is rebuilt as by `gainroute report`.
    """
    from gainroute.cli._progress import telling

    with notes() as said, needing("training", "all"), telling() as told:
        from gainroute.experiments.config import load_config
        from gainroute.experiments.records import load_record
        from gainroute.experiments.report import build_report
        from gainroute.experiments.runner import check_records, run, summary

        config = load_config(experiment)
        extra = _comparison_pages()
        chosen = seeds if seeds is not None else list(range(SEEDS.get(config.name, 1)))
        check_records(config, chosen, records_dir)
        if download:
            _fetch(config.data.source, data_dir)
        found = {}
        for seed in chosen:
            told.say(f"{config.name}, seed {seed}")
            [path] = run(
                config, [seed], records_dir=records_dir, data_dir=data_dir, work_dir=work_dir, device=device,
                progress=told,
            )  # fmt: skip
            found[str(seed)] = summary(load_record(path))
            for regime, (weak, strong) in found[str(seed)].items():
                part = "clean" if regime == "0" else f"noise on {regime} classes"
                told.say(f"  {part}: weak route {weak:.1f} %, strong route {strong:.1f} %")
        built = build_report(records_dir, out, extra=extra, cache_dir=cache_dir, progress=told.say)
    if json:
        page = str(out / f"{config.name}.md")
        print_json({"experiment": config.name, "accuracy": found, "page": page, "warnings": said})
    else:
        _print_overview({config.name: built[config.name]}, out)


@guarded
def report(
    records_dir: Records = Path("records"),
    out: Out = Path("docs/results"),
    router: Annotated[
        list[str] | None,
        typer.Option(
            "--router",
            metavar="MODULE:CLASS...",
            show_default=False,
            help="Routers of your own, from a module in this folder or installed, added to every table with paired "
            "differences. Their code is run.",
        ),
    ] = None,
    cache_dir: CacheDir = CACHE,
    json: Json = False,
) -> None:
    """Rebuild every table and figure from records. Nothing is trained; torch is not needed."""
    import sys

    from gainroute.cli._progress import telling

    here = str(Path.cwd())
    if router and here not in sys.path:
        sys.path.insert(0, here)
    with notes() as said, needing("the report", "plots"), telling() as told:
        from gainroute.experiments.report import build_report

        extra = _comparison_pages()
        built = build_report(
            records_dir, out, routers=router or (), extra=extra, cache_dir=cache_dir, progress=told.say
        )
    if json:
        rows = [row for summary in built.values() for row in summary.get("versus_paper", ())]
        print_json({"datasets": built, "versus_paper": rows, "warnings": said})
    else:
        _print_overview(built, out)


def _comparison_pages() -> Any:
    from gainroute.experiments.checkout import NEEDS_CHECKOUT, comparison_pages

    found = comparison_pages()
    if found is None:
        warn(NEEDS_CHECKOUT, GainrouteWarning, stacklevel=2)
    return found


def _print_overview(built: dict[str, Any], out: Path) -> None:
    from gainroute.experiments.pages import tables

    overview = tables.overview_table(built)
    shown = table(
        "accuracy in %",
        "seeds",
        "weak",
        "paper at 20 %",
        "ours at 20 %",
        "ours over the paper",
        "strong",
        "oracle share",
    )
    for row in overview.rows:
        shown.add_row(*(row[overview.header.index(name)] for name in OVERVIEW))
    terminal = console()
    terminal.print(shown)
    terminal.print("Pages, tables and figures:")
    terminal.print(str(out / "README.md"), soft_wrap=True)


# ---- own views ----------------------------------------------------------------------------------


@guarded
def train(
    views: Views,
    labels: LabelFile,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", show_default=False, help="The run's folder.")],
    budget: Annotated[float, typer.Option(help="The share of samples that may be escalated, from 0 to 1.")] = 0.2,
    codec: Annotated[str, typer.Option(help="How embeddings travel: float32, float16 or int8.")] = "float32",
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="PARTY=KIND...",
            show_default=False,
            help="cnn (images) or mlp (features), where a view's shape shall not decide, such as --kind front=mlp.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(show_default=False, help="Of the strong route; 20 unless given.")
    ] = None,
    local_epochs: Annotated[
        int | None,
        typer.Option("--local-epochs", show_default=False, help="Of the local classifiers; 10 unless given."),
    ] = None,
    test: Annotated[float, typer.Option(help="The share of all samples that is held out to judge.")] = 0.3,
    calibration: Annotated[float, typer.Option(help="The share of the rest that calibrates the router.")] = 0.2,
    id_column: IdColumn = "id",
    label_column: LabelColumn = "label",
    seed: Annotated[int, typer.Option(help="Of the splits and of training.")] = 0,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Train both routes on your own views, calibrate a router, and judge it on a held-out part.

    Leaves in --out a folder for each party (its models, its views by id), one for the server (fusion head, router),
    the record, results.json and report.html. All views are read here: this is for whoever may read them.
    """
    from gainroute.cli._progress import telling

    with notes() as said, needing("training", "all"), telling() as told:
        from gainroute.experiments.own import kind_of, train_own
        from gainroute.experiments.pages.headline import print_summary

        results = train_own(
            views, labels, out, budget=budget, codec=codec, seed=seed, test=test,
            calibration=calibration,
            id_column=id_column, label_column=label_column, kinds=kind_of(kind or []), epochs=epochs,
            local_epochs=local_epochs, device=device, progress=told,
        )  # fmt: skip
    if json:
        print_json(results | {"warnings": said})
        return
    print_summary(
        results,
        console(),
        title=f"{len(results['parties'])} parties: {', '.join(results['parties'])}",
        about=f"{results['class_count']} classes, {results['test_samples']:,} test samples, "
        f"{results['calibration_samples']:,} for calibration.",
        closing=f"{results['seconds']['all']:.0f} s. Open\n{out / 'report.html'}",
    )


@guarded
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `gainroute train` left.")],
    views: Views,
    labels: LabelFile,
    id_column: IdColumn = "id",
    label_column: LabelColumn = "label",
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Apply a trained run to new labelled data: both routes, the router as deployed, and other budgets."""
    with notes() as said, needing("applying a trained run", "all"):
        from gainroute.experiments.own import evaluate_own

        results = evaluate_own(run, views, labels, id_column=id_column, label_column=label_column, device=device)
    if json:
        print_json(results | {"warnings": said})
        return
    terminal = console()
    point = results["deployed"]
    main = table("", "escalated", "Acc.", "bytes a sample")
    ends = results["budgets"]
    main.add_row("weak route", "0 %", percent(results["weak"]), f"{ends[0]['bytes']:,.0f}")
    deployed = f"routed, as deployed for {budget_text(point['budget'])}"
    main.add_row(deployed, percent(point["rate"]), percent(point["accuracy"]), f"{point['bytes']:,.0f}")
    main.add_row("strong route", "100 %", percent(results["strong"]), f"{ends[-1]['bytes']:,.0f}")
    terminal.print(f"{results['samples']:,} new samples, embeddings as {results['codec']}", style="bold")
    terminal.print(main)
    by_budget = table("budget", "Acc. at that rate", "EP", "NE", "rate its threshold gave", "Acc. there")
    for row in results["budgets"]:
        by_budget.add_row(
            budget_text(row["budget"]), percent(row["accuracy"]), percent(row["precision"]), percent(row["neutral"]),
            percent(row["rate_given"]), percent(row["accuracy_given"]),
        )  # fmt: skip
    terminal.print("What each budget buys", style="bold")
    terminal.print(by_budget)
    terminal.print(
        "EP: share of the escalated whose error is corrected. NE: share whose outcome does not change. A threshold is "
        "set on calibration data; where the rate it gave is far from the budget, the new data differ from those.",
        style="dim",
        soft_wrap=True,
    )


# ---- data ---------------------------------------------------------------------------------------


def _fetch(source: str, data_dir: Path | None) -> None:
    if source not in ("cifar10", "cifar100"):
        remedy = {
            "digits": "the digits come with scikit-learn: leave --download out",
            "modelnet40": "fetch the official meshes and run `gainroute data modelnet40 TREE --out FOLDER`",
        }
        raise SettingError(f"--download is for CIFAR, not for {source}; {remedy[source]}")
    if data_dir is None:
        raise DataError(f"{source} is fetched into a folder: name it with --data-dir")
    from gainroute.training.data.cifar import download
    from gainroute.training.data.cifar_layout import LAYOUTS

    if not (data_dir / LAYOUTS[source].binary.folder).is_dir():
        download(source, data_dir)


@guarded
def modelnet40(
    tree: Annotated[
        Path, typer.Argument(metavar="TREE", help="The folder that the official archive unpacks to, a folder a class.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", show_default=False, help="Gets modelnet40/points.npz; later --data-dir."
        ),
    ],
    image_size: Annotated[
        int, typer.Option("--image-size", help="Pixels a side; clouds are as dense as it needs.")
    ] = 32,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    json: Json = False,
) -> None:
    """Sample points from the official tree of OFF meshes; a run that was broken off goes on where it stopped."""
    from gainroute.cli._progress import telling
    from gainroute.training.data.meshes import build_points, points_needed

    if image_size < 1 or workers < 1:
        raise SettingError(f"--image-size {image_size}, --workers {workers}: both have to be 1 or more")
    count = points_needed(image_size)
    path = out / "modelnet40" / "points.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with telling() as told:
        build_points(tree, path, count=count, seed=seed, workers=workers, progress=told)
    if json:
        print_json({"file": str(path), "points_a_mesh": count})
        return
    typer.echo(f"{count:,} points a mesh in\n{path}\nnext: gainroute reproduce modelnet40 --data-dir {out}")


def _cifar(source: str, data_dir: Path, download: bool, json: bool) -> None:
    from gainroute.training.data.cifar import load_cifar

    if download:
        _fetch(source, data_dir)
    data = load_cifar(source, data_dir)
    counts = {"train": len(data.train), "test": len(data.test), "classes": data.classes}
    if json:
        print_json({"dataset": source, "folder": str(data_dir), **counts})
        return
    typer.echo(
        f"{source}: {counts['train']:,} training and {counts['test']:,} test images, checksums right\n"
        f"next: gainroute reproduce {source} --data-dir {data_dir}"
    )


CifarDir = Annotated[
    Path,
    typer.Option("--data-dir", metavar="FOLDER", show_default=False, help="Where the official files are or shall be."),
]
Download = Annotated[bool, typer.Option("--download", help="Fetch the official archive, checked, if it is not there.")]


@guarded
def cifar10(data_dir: CifarDir, download: Download = False, json: Json = False) -> None:
    """Fetch CIFAR-10, or check what is there against the official checksums."""
    _cifar("cifar10", data_dir, download, json)


@guarded
def cifar100(data_dir: CifarDir, download: Download = False, json: Json = False) -> None:
    """Fetch CIFAR-100, or check what is there against the official checksums."""
    _cifar("cifar100", data_dir, download, json)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("reproduce", cls=ManyCommand, short_help="Run the paper's benchmarks, and report.")(reproduce)
    app.command("report", cls=ManyCommand, short_help="Rebuild tables and figures from records.")(report)
    app.command("train", cls=ManyCommand, short_help="Train both routes on your own views.")(train)
    app.command("evaluate", cls=ManyCommand, short_help="Apply a trained run to new data.")(evaluate)
    data = typer.Typer(name="data", no_args_is_help=True, rich_markup_mode=None, help="Get the benchmarks' data ready.")
    data.command("modelnet40", short_help="Points from the official OFF meshes.")(modelnet40)
    data.command("cifar10", short_help="Fetch or check CIFAR-10.")(cifar10)
    data.command("cifar100", short_help="Fetch or check CIFAR-100.")(cifar100)
    app.add_typer(data, short_help="Get the benchmarks' data ready.")
