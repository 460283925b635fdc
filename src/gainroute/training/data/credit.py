"""UCI default of credit card clients, three parties: a lender, a credit bureau and a card processor.

The file is ``credit.csv``, or ``UCI_Credit_Card.csv``, or UCI's own spreadsheet saved as
``default of credit card clients.csv`` with both of its header lines. There is no official split: a fixed stratified
30 % is the test part.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gainroute.errors import DataError
from gainroute.training.data.columns import Holder, class_numbers, first_file, read_csv
from gainroute.training.data.dataset import Dataset, Part, required_folder
from gainroute.training.data.settings import DataSettings
from gainroute.training.data.splits import fixed_test_split

__all__ = ["PARTIES", "load_credit"]

PARTIES = (
    Holder("lender", numbers=("AGE",), amounts=("LIMIT_BAL",), categories=("SEX", "EDUCATION", "MARRIAGE")),
    # Months of delay from 1 on; −2, −1 and 0 mean unused, paid in full, and paid in part.
    Holder("credit-bureau", categories=tuple(f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6))),
    Holder("card-processor", amounts=tuple(f"{kind}_AMT{month}" for kind in ("BILL", "PAY") for month in range(1, 7))),
)
CLASSES = ("pays", "defaults")
_FILES = ("credit.csv", "UCI_Credit_Card.csv", "default of credit card clients.csv")
_REMEDY = "fetch UCI's default of credit card clients, or name another folder with --data-dir"


def load_credit(_settings: DataSettings, data_dir: Path | None) -> Dataset:
    """Load credit default."""
    path = first_file(required_folder("credit", data_dir), *_FILES, remedy=_REMEDY)
    table = read_csv(path, header="ID")
    names = list(table)
    table = {"SEX" if name == "GENDER" else name: values for name, values in table.items()}
    missing = [name for holder in PARTIES for name in holder.columns if name not in table]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; it has {', '.join(names)}: {_REMEDY}")
    labels = class_numbers(table[names[-1]], ("0", "1"), path)
    whole = Part(table["ID"].astype(np.int64), labels, tuple(holder.view(table) for holder in PARTIES))
    first, second = fixed_test_split(labels)
    return Dataset("credit", whole.take(first), whole.take(second), CLASSES, tuple(holder.name for holder in PARTIES))
