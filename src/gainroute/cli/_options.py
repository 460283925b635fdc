"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from gainroute.errors import DataError, SettingError
from gainroute.routing.types import FloatArray

__all__ = [
    "CacheDir",
    "CheckClassOrder",
    "Classes",
    "Data",
    "DataDir",
    "Device",
    "FilesCommand",
    "IdColumn",
    "Json",
    "LabelColumn",
    "LabelFile",
    "Labels",
    "ManyCommand",
    "On",
    "Posteriors",
    "RecordsDir",
    "ReportDir",
    "RouterFile",
    "Utility",
    "Views",
    "number_or",
    "numbers",
    "read_utility",
    "whole_numbers",
]

Data = Annotated[
    Path | None,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="An .npz file (arrays local_posteriors (M, N, K), labels, strong_prediction, and optionally "
        "strong_posterior, weak_prediction, sample_weight, present, ids, class_names) or a Parquet file (columns id, "
        "label, strong_prediction, and posterior_<party> for each party).",
    ),
]
Posteriors = Annotated[
    list[Path] | None,
    typer.Option(
        "--posteriors",
        metavar="FILE...",
        show_default=False,
        help="Instead of DATA: one Parquet file per party, joined by --on, such as --posteriors a.parquet b.parquet.",
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        show_default=False,
        help="With --posteriors: the Parquet file with the columns label and strong_prediction.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="COLUMN",
        show_default=False,
        help="With --posteriors: the column that identifies a sample in every file, such as customer_id. Samples that "
        "are not in all files are counted and left out.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        "--classes",
        metavar="A,B,...",
        show_default=False,
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
RouterFile = Annotated[Path, typer.Argument(metavar="ROUTER", help="A router that `gainroute fit` wrote.")]
Utility = Annotated[
    Path | None,
    typer.Option(
        "--utility",
        metavar="FILE",
        show_default=False,
        help="Value of each answer: a K × K table (.csv or .npy), rows the true class, columns the answer. By default "
        "every right answer is worth 1 and every wrong one 0.",
    ),
]

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        show_default=False,
        help="Holds the data files (modelnet40/points.npz, cifar-10-batches-bin, …); the digits need none.",
    ),
]
RecordsDir = Annotated[Path, typer.Option("--records-dir", metavar="FOLDER", help="Where the records are.")]
ReportDir = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where pages, tables and figures go.")]
CacheDir = Annotated[
    Path, typer.Option("--cache-dir", metavar="FOLDER", help="Where fitted scores are kept; it may be deleted.")
]
Device = Annotated[str, typer.Option("--device", help="A torch device, such as cpu or cuda.")]
Views = Annotated[
    list[Path],
    typer.Option(
        "--views",
        metavar="FILE...",
        show_default=False,
        help="One file per party, named after the party: .npz with x (N, …) and optional ids, or Parquet with an id "
        "column, such as --views front.npz side.npz.",
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
IdColumn = Annotated[str, typer.Option("--id-column", help="The column of a Parquet file that identifies a sample.")]
LabelColumn = Annotated[str, typer.Option("--label-column", help="The column of a Parquet file that is the label.")]


class ManyCommand(TyperCommand):
    """A command whose options `many` take every value that follows them, up to the next option."""

    many: ClassVar[tuple[str, ...]] = ("--seeds", "--views", "--router", "--kind")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values, which is how options with several values are parsed."""
        spread: list[str] = []
        taking: str | None = None
        for i, arg in enumerate(args):
            if arg == "--":
                spread += args[i:]
                break
            if arg in self.many:
                taking = arg
                if i + 1 == len(args) or args[i + 1].startswith("-"):
                    spread.append(arg)  # no value follows: the parser reports it
            elif taking is not None and not arg.startswith("-"):
                spread += [taking, arg]
            else:
                taking = None
                spread.append(arg)
        return super().parse_args(ctx, spread)


class FilesCommand(ManyCommand):
    """A command whose `--posteriors` takes all the files that follow it."""

    many = ("--posteriors",)


def number_or(text: str | None, name: str, words: Sequence[str]) -> Any:
    """Read a number, or one of a few words."""
    if text is None or text in words:
        return text
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"{name} is {text!r}; a number or one of {', '.join(words)} is needed") from None


def numbers(text: str, name: str) -> list[float]:
    """Read numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"{name} is {text!r}; numbers separated by commas are needed, such as 0.1,0.2") from None


def whole_numbers(text: str, name: str) -> list[int]:
    """Read whole numbers separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(
            f"{name} is {text!r}; whole numbers separated by commas are needed, such as 512,512"
        ) from None


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
