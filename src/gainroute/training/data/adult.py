"""UCI Adult, three parties: what an employer, a registry office and a bank know tells whether an income is high.

The files are ``adult.data`` and ``adult.test`` as UCI distributes them (in the data folder, or in ``adult/`` there),
with their official split; or one table with a header, ``adult.csv``, of which a fixed stratified 30 % is the test part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gainroute.errors import DataError
from gainroute.training.data.columns import Holder, class_numbers, first_file, read_csv
from gainroute.training.data.dataset import Dataset, Part, required_folder
from gainroute.training.data.settings import DataSettings
from gainroute.training.data.splits import fixed_test_split

__all__ = ["PARTIES", "load_adult"]

# The weight of a row in the census, fnlwgt, tells nothing about a person, and no party holds it.
PARTIES = (
    Holder(
        "employer",
        numbers=("education-num", "hours-per-week"),
        categories=("workclass", "education", "occupation"),
    ),
    Holder(
        "registry-office",
        numbers=("age",),
        categories=("marital-status", "relationship", "race", "sex", "native-country"),
    ),
    Holder("bank", amounts=("capital-gain", "capital-loss")),
)
CLASSES = ("<=50K", ">50K")
_NAMES = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
_REMEDY = "fetch UCI Adult, or name another folder with --data-dir"


def load_adult(_settings: DataSettings, data_dir: Path | None) -> Dataset:
    """Load Adult from the official files, or from a table with a header."""
    folder = required_folder("adult", data_dir)
    path = first_file(folder, "adult/adult.data", "adult.data", "adult.csv", remedy=_REMEDY)
    names = tuple(holder.name for holder in PARTIES)
    if path.suffix == ".csv":
        whole = _part(path, read_csv(path), 0)
        first, second = fixed_test_split(whole.labels)
        return Dataset("adult", whole.take(first), whole.take(second), CLASSES, names)
    train = _part(path, read_csv(path, _NAMES), 0)
    beside = first_file(path.parent, "adult.test", remedy="the test part of UCI Adult has to lie beside adult.data")
    test = _part(beside, read_csv(beside, _NAMES), len(train))
    return Dataset("adult", train, test, CLASSES, names)


def _part(path: Path, read: dict[str, Any], first_id: int) -> Part:
    # Some copies write "marital.status" or "marital_status"; the label is the last column, whatever it is called.
    table = {name.lower().replace(".", "-").replace("_", "-"): values for name, values in read.items()}
    missing = [name for holder in PARTIES for name in holder.columns if name not in table]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; it has {', '.join(read)}: {_REMEDY}")
    income = np.char.rstrip(list(read.values())[-1], ".")  # adult.test ends its labels with a dot
    labels = class_numbers(income, CLASSES, path)
    return Part(first_id + np.arange(len(labels)), labels, tuple(holder.view(table) for holder in PARTIES))
