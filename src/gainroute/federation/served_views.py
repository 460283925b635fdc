"""The samples that the parties of `gainroute up` answer for: new files of views, or the run's test part."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gainroute._util.files import write_npz
from gainroute.errors import DataError
from gainroute.io.ids import id_texts
from gainroute.io.run_folder import PartyFolder, RunFolder
from gainroute.io.tables import read_table
from gainroute.io.views import read_view

__all__ = ["PartyViews", "held_out_views", "new_views"]


@dataclass(frozen=True)
class PartyViews:
    """Where one party finds its views."""

    folder: Path | None = None  # with the party's models and the preprocessed views to serve; None for that of the run
    file: Path | None = None  # of raw views; None if the folder holds the views
    id_column: str = "id"  # of a Parquet file


def new_views(
    files: Sequence[str | os.PathLike[str]], parties: Sequence[str], private: Path, id_column: str = "id"
) -> tuple[tuple[PartyViews, ...], list[str]]:
    """Serve new files of views, one per party, named after the parties; returns also the ids that all of them have.

    Without any ids the rows are numbered from 0, as in training, in copies that go to the folder `private`.
    """
    by_name = {Path(file).stem: Path(file).resolve() for file in files}
    if sorted(Path(file).stem for file in files) != sorted(parties):
        found = ", ".join(Path(file).stem for file in files)
        raise DataError(f"views {found}; the run was trained on {', '.join(parties)}: name the files alike")
    read = {name: read_view(by_name[name], id_column=id_column) for name in parties}
    without = [name for name, view in read.items() if view.ids is None]
    if without and (len(without) < len(read) or len({len(view) for view in read.values()}) > 1):
        sizes = ", ".join(
            f"{name} {len(view)}{' without ids' if view.ids is None else ''}" for name, view in read.items()
        )
        raise DataError(
            f"samples per view: {sizes}; give ids to all views, or the same samples in the same order to all"
        )
    served, held = [], []
    for name, view in read.items():
        file, ids = by_name[name], np.arange(len(view)) if view.ids is None else view.ids
        if view.ids is None:
            file = private / f"{name}.npz"
            write_npz(file, {"ids": ids, "x": view.raw})
        served.append(PartyViews(file=file, id_column=id_column))
        held.append(id_texts(ids.tolist()))
    return tuple(served), _in_all(held)


def held_out_views(run: RunFolder, parties: Sequence[str], private: Path) -> tuple[tuple[PartyViews, ...], list[str]]:
    """Serve the test part of a run if a record says which samples these are, otherwise all that the parties have.

    `private` gets a copy of each party's folder, with the views to serve only. Returns also the ids, as `new_views`.
    """
    held = [_column(run.party(name).views, "ids") for name in parties]
    for record in (run.record, RunFolder(run.path.parent).record):  # the demo keeps its record beside the run
        test = set(_column(record, "test.ids")) & set.intersection(*map(set, held))
        if test:
            break
    else:
        return (PartyViews(),) * len(parties), _in_all([id_texts(ids) for ids in held])
    served = []
    for index, name in enumerate(parties):
        home, copy = run.party(name), PartyFolder(private / f"views-{index}")
        copy.path.mkdir()
        for source, target in zip(home.model_files, copy.model_files, strict=True):
            shutil.copyfile(source, target)
        table, rows = read_table(home.views), [row for row, sample in enumerate(held[index]) if sample in test]
        write_npz(copy.views, {key: table.array(key)[rows] for key in ("ids", "x")})
        served.append(PartyViews(folder=copy.path))
    return tuple(served), id_texts([sample for sample in _column(record, "test.ids") if sample in test])


def _in_all(held: Sequence[Sequence[str]]) -> list[str]:
    everywhere = set.intersection(*map(set, held))
    return [sample for sample in held[0] if sample in everywhere]


def _column(file: Path, key: str) -> list[Any]:
    if not file.is_file():
        return []
    table = read_table(file, only=(key,))
    return table.objects(key) if key in table else []
