"""Data sets by the name that a config gives them.

A data set of your own is one more entry: `@datasets.register("name")` in this process, or an entry point in the group
"gainroute.datasets". `source = "name"` under [data] selects it; see examples/09_data_set_of_your_own.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from gainroute._util.registry import Registry
from gainroute.errors import SettingError
from gainroute.training.data.dataset import Dataset, DatasetLoader
from gainroute.training.data.settings import DataSettings

__all__ = ["datasets", "download_dataset", "load_dataset"]

datasets: Registry[DatasetLoader] = Registry(
    "gainroute.datasets",
    "data set",
    {
        "digits": "gainroute.training.data.digits:load_digits",
        "modelnet40": "gainroute.training.data.modelnet:load_modelnet40",
        "cifar10": "gainroute.training.data.cifar:cifar10",
        "cifar100": "gainroute.training.data.cifar:cifar100",
        "adult": "gainroute.training.data.adult:load_adult",
        "credit": "gainroute.training.data.credit:load_credit",
        "ccv": "gainroute.training.data.multiview:load_ccv",
        "leaves100": "gainroute.training.data.multiview:load_leaves100",
    },
)


def load_dataset(settings: DataSettings | str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set with its official split.

    Parameters
    ----------
    settings
        The settings, or the name of a data set for the default ones.
    data_dir
        The folder that holds the files of all data sets; the digits need none.

    Examples
    --------
    >>> digits = load_dataset("digits")
    >>> len(digits.train), len(digits.test), digits.party_names[0]
    (1258, 539, 'top-left')
    """
    if isinstance(settings, str):
        settings = DataSettings(source=settings)
    return datasets.get(settings.source)(settings, None if data_dir is None else Path(data_dir))


def download_dataset(source: str, data_dir: str | os.PathLike[str] | None) -> None:
    """Download the files of a data set into a folder, unless they are there."""
    download = getattr(datasets.get(source), "download", None)
    if download is None:
        raise SettingError(f"{source} has no download; leave --download out")
    if data_dir is None:
        raise SettingError(f"{source} is downloaded into a folder; name it with --data-dir")
    download(Path(data_dir))
