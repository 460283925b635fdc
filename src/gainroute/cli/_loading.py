"""Read the files of a command into samples with the labels of a router."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gainroute._util.files import writable_folder
from gainroute.errors import DataError
from gainroute.io.posteriors import Outcomes, load_outcomes
from gainroute.routing.labels import Labels
from gainroute.routing.router import Router
from gainroute.routing.types import Decision, IntArray

__all__ = ["as_columns", "class_names", "folder_of", "read_data", "split_names", "strong_columns"]


def read_data(
    data: Path | None, posteriors: Sequence[Path] | None, labels: Path | None, on: str | None, classes: str | None
) -> Outcomes:
    """Read DATA, or the files of `--posteriors`."""
    names = split_names(classes)
    if data is not None and posteriors:
        raise DataError(f"both DATA ({data}) and --posteriors were given; give one of them")
    if data is not None:
        if labels is not None or on is not None:
            raise DataError(
                f"--labels and --on join the files of --posteriors; {data} is complete: leave them out, or pass "
                "the parties' files with --posteriors"
            )
        return load_outcomes(data, class_names=names)
    if not posteriors:
        raise DataError("no data were given; pass an .npz or Parquet file, or --posteriors with one file per party")
    return load_outcomes(list(posteriors), labels, on, class_names=names)


def split_names(text: str | None) -> list[str] | None:
    """Read names separated by commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


def as_columns(router: Router, values: Any, name: str) -> IntArray:
    """Labels of a fitted router → column numbers; −1 where there is no answer."""
    return Labels(router.n_classes_, router.classes).encode(values, name, missing=name != "labels")


def strong_columns(router: Router, outcomes: Outcomes, decision: Decision) -> IntArray:
    """Column numbers of the strong answers, blended with Round 1 or by utility if the router answers so."""
    if (router.blends_ or router.stages().utility is not None) and outcomes.strong_posterior is not None:
        answers = router.strong_answers(decision, outcomes.strong_posterior)
        return as_columns(router, answers, "strong_prediction")
    if outcomes.strong_prediction is not None:
        return as_columns(router, outcomes.strong_prediction, "strong_prediction")
    outcomes.require("strong_prediction")
    columns: IntArray = np.asarray(outcomes.strong_posterior).argmax(axis=1)
    return columns


def class_names(router: Router) -> list[str]:
    """Names of the classes, in column order."""
    names = range(router.n_classes_) if router.classes is None else router.classes.tolist()
    return [str(name) for name in names]


def folder_of(path: Path) -> Path:
    """Create the folder of a file, and return the file's path."""
    writable_folder(path.parent)
    return path
