"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gainroute.errors import DataError, SettingError
from gainroute.routing.types import FloatArray

__all__ = [
    "CacheDir", "CheckClassOrder", "Classes", "Data", "DataDir", "DataFiles", "Device", "EngineOption",
    "IdColumn", "Json",
    "LabelColumn", "LabelFile", "Labels", "On", "PooledOnly", "Posteriors", "RecordsDir", "ReportDir", "RouterFile",
    "Run", "Utility", "Views", "number_or", "numbers", "read_utility",
]  # fmt: skip

Data = Annotated[
    Path | None,
    typer.Argument(
        metavar="DATA",
        help="An .npz file (arrays local_posteriors (M, N, K), labels, strong_prediction, and optionally "
        "strong_posterior, weak_prediction, sample_weight, present, ids, class_names) or a Parquet file (columns id, "
        "label, strong_prediction, and posterior_<party> for each party).",
    ),
]
DataFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="DATA...",
        help="An .npz or Parquet file as `gainroute fit` takes it, or many Parquet files: their folder, a pattern such "
        "as 'new/*.parquet', or their names.",
    ),
]
Posteriors = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE...",
        help="Instead of DATA: one Parquet file per party, joined by --on, such as --posteriors a.parquet b.parquet.",
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="With --posteriors: the Parquet file with the columns label and strong_prediction."
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="With --posteriors: the column that identifies a sample in every file, such as customer_id. Samples that "
        "are not in all files are counted and left out.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...",
        help="Names of the classes in the order of the posteriors' columns, if the file does not hold them.",
    ),
]
CheckClassOrder = Annotated[
    bool,
    typer.Option(
        "--check-class-order/--no-check-class-order",
        help="Refuse posteriors whose columns, by the labels, are in another order than the classes.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else there.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `gainroute train` wrote.")]
RouterFile = Annotated[Path, typer.Argument(metavar="ROUTER", help="A router that `gainroute fit` wrote.")]
Utility = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Value of each answer: a K × K table (.csv or .npy), rows the true class, columns the answer. By default "
        "every right answer is worth 1 and every wrong one 0.",
    ),
]

DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Holds the data files (modelnet40/points.npz, cifar-10-batches-bin, …); the digits need none.",
    ),
]
RecordsDir = Annotated[Path, typer.Option(metavar="FOLDER", help="Where the records are.")]
ReportDir = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where pages, tables and figures go.")]
CacheDir = Annotated[Path, typer.Option(metavar="FOLDER", help="Where fitted scores are kept; it may be deleted.")]
Device = Annotated[str, typer.Option(help="A torch device, such as cpu or cuda.")]
PooledOnly = Annotated[
    bool | None,
    typer.Option(
        "--pooled-only", help="Fit the router for a masked Round 1, which shows the server the pooled posterior only."
    ),
]
Views = Annotated[
    list[Path],
    typer.Option(
        metavar="FILE...",
        help="One file per party, named after the party: .npz with x (N, …) and optional ids, or Parquet with an id "
        "column, such as --views front.npz side.npz.",
    ),
]
LabelFile = Annotated[
    Path,
    typer.Option(
        metavar="FILE", help=".npz with labels (N,) and optional ids, or Parquet with an id and a label column."
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="local, or ray: the Ray cluster that RAY_ADDRESS names (without it, one on this machine). Its machines "
        "need gainroute and the same files; use it inside one organisation only.",
    ),
]
IdColumn = Annotated[str, typer.Option(help="The column of a Parquet file that identifies a sample.")]
LabelColumn = Annotated[str, typer.Option(help="The column of a Parquet file that is the label.")]


def number_or(text: str | None, name: str, words: Sequence[str]) -> Any:
    """Read a number, or one of a few words."""
    if text is None or text in words:
        return text
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"{name} is {text!r}; a number or one of {', '.join(words)} is needed") from None


def numbers(text: str, name: str, kind: type[float] = float, example: str = "0.1,0.2") -> list[Any]:
    """Read numbers separated by commas."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise SettingError(f"{name} is {text!r}; {what} separated by commas are needed, such as {example}") from None


def read_utility(path: Path | None) -> FloatArray | None:
    """Read a K × K table of numbers, with or without a header and a first column of class names."""
    if path is None:
        return None
    import numpy as np

    if not path.is_file():
        raise DataError(f"{path}: no such file; pass a .csv or .npy file with the utility, K × K")
    if path.suffix == ".npy":
        try:
            loaded = np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise DataError(f"{path} is not a .npy file of numbers ({error}); write it with numpy.save") from None
        return np.asarray(loaded, dtype=np.float64)
    with path.open(newline="", encoding="utf-8-sig") as opened:
        table = [row for row in csv.reader(opened) if any(cell.strip() for cell in row)]
    if table and not all(map(_is_number, table[0][1:])):
        table = table[1:]
    if table and not any(_is_number(row[0]) for row in table):
        table = [row[1:] for row in table]
    wrong = next((cell for row in table for cell in row if not _is_number(cell)), None)
    if wrong is not None or not table or len({len(row) for row in table}) > 1:
        found = (
            f"the entry {wrong!r}" if wrong is not None else f"rows of {sorted({len(row) for row in table})} entries"
        )
        raise DataError(
            f"{path} has {found}; a table of K × K numbers is needed, rows the true class, columns the answer "
            "(class names in the first row and column are allowed)"
        )
    return np.array([[float(cell) for cell in row] for row in table])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
