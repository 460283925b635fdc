"""One door to every data source that a config can name."""

from __future__ import annotations

import os
from pathlib import Path

from gainroute.errors import DataError, SettingError
from gainroute.training.data.dataset import Dataset
from gainroute.training.data.settings import SOURCES, DataSettings

__all__ = ["load_dataset"]


def load_dataset(settings: DataSettings | str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data source with its official split.

    Parameters
    ----------
    settings
        The settings, or the name of a source for the default ones.
    data_dir
        The folder that holds the files of all sources; the digits need none.

    Examples
    --------
    >>> digits = load_dataset("digits")
    >>> len(digits.train), len(digits.test), digits.party_names[0]
    (1258, 539, 'top-left')
    """
    if isinstance(settings, str):
        settings = DataSettings(source=settings)
    if settings.source not in SOURCES:
        raise SettingError(f"data source {settings.source!r} is unknown: one of {', '.join(SOURCES)}")
    if settings.source == "digits":
        from gainroute.training.data.digits import load_digits

        return load_digits(settings.augment.shift)
    if data_dir is None:
        raise DataError(f"{settings.source} is read from files: name their folder with --data-dir (data_dir=...)")
    if settings.source == "modelnet40":
        from gainroute.training.data.modelnet import load_modelnet40

        return load_modelnet40(Path(data_dir), settings)
    from gainroute.training.data.cifar import load_cifar

    return load_cifar(settings.source, Path(data_dir), settings.augment)
