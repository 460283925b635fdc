"""`gainroute data`: the benchmarks' data, fetched, checked or converted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gainroute.cli._command import Command
from gainroute.cli._options import Json
from gainroute.cli._output import print_json
from gainroute.errors import SettingError

__all__ = ["cifar10", "cifar100", "data", "modelnet40"]

data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Prepare the benchmarks' data.")


@data.command(cls=Command, short_help="Points from the official OFF meshes.")
def modelnet40(
    tree: Annotated[
        Path,
        typer.Argument(
            metavar="TREE", help="The folder that the official archive unpacks to, with one folder per class."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Gets modelnet40/points.npz; later --data-dir.")
    ],
    image_size: Annotated[
        int, typer.Option(help="Width and height of the views in pixels; decides how many points a mesh needs.")
    ] = 32,
    workers: Annotated[int, typer.Option(help="Number of processes.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    json: Json = False,
) -> None:
    """Sample points from the official tree of OFF meshes; an interrupted run resumes."""
    from gainroute._util.progress import show_progress
    from gainroute.training.data.meshes import build_points, points_needed

    if image_size < 1 or workers < 1:
        raise SettingError(f"--image-size {image_size}, --workers {workers}: both must be 1 or more")
    count = points_needed(image_size)
    path = out / "modelnet40" / "points.npz"
    with show_progress() as progress:
        build_points(tree, path, count=count, seed=seed, workers=workers, progress=progress)
    if json:
        print_json({"file": str(path), "points_a_mesh": count})
    else:
        typer.echo(f"{count:,} points per mesh in\n{path}\nnext: gainroute reproduce modelnet40 --data-dir {out}")


CifarDir = Annotated[
    Path, typer.Option("--data-dir", metavar="FOLDER", help="Where the official files are, or are fetched to.")
]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch the official archive if it is not there, and verify it.")
]


@data.command(cls=Command, short_help="Fetch or check CIFAR-10.")
def cifar10(data_dir: CifarDir, download: Download = False, json: Json = False) -> None:
    """Fetch CIFAR-10, or check what is there against the official checksums."""
    _cifar("cifar10", data_dir, download, json)


@data.command(cls=Command, short_help="Fetch or check CIFAR-100.")
def cifar100(data_dir: CifarDir, download: Download = False, json: Json = False) -> None:
    """Fetch CIFAR-100, or check what is there against the official checksums."""
    _cifar("cifar100", data_dir, download, json)


def _cifar(source: str, data_dir: Path, download: bool, json: bool) -> None:
    from gainroute.training.data.registry import download_dataset, load_dataset

    if download:
        download_dataset(source, data_dir)
    found = load_dataset(source, data_dir)
    train, test = len(found.train), len(found.test)
    if json:
        counts = {"train": train, "test": test, "classes": found.classes}
        print_json({"dataset": source, "folder": str(data_dir), **counts})
    else:
        typer.echo(
            f"{source}: {train:,} training and {test:,} test images, checksums verified\n"
            f"next: gainroute reproduce {source} --data-dir {data_dir}"
        )
