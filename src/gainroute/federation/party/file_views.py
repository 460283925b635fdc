"""Views in a file: .npz or Parquet, held in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gainroute._util.files import file_state
from gainroute.errors import DataError, SettingError
from gainroute.federation.party.settings import ViewSettings
from gainroute.federation.party.views import FoundViews
from gainroute.io.ids import id_texts, rows_by_id
from gainroute.io.preprocess import Raw
from gainroute.io.views import read_view

__all__ = ["FileViews", "open_file_views"]


class FileViews:
    """Views in a file. A changed file is read again.

    Parameters
    ----------
    path
        .npz with `ids` and `x`, or Parquet with an id column.
    id_column
        Id column of a Parquet file.
    """

    def __init__(self, path: Path, id_column: str = "id") -> None:
        self._path, self._id_column = path, id_column
        self._state = file_state(path)
        self._rows, self._raw = self._read()

    def _read(self) -> tuple[dict[str, int], Raw]:
        view = read_view(self._path, id_column=self._id_column)
        if view.ids is None:
            raise DataError(f"{self._path} has no ids: add an array 'ids', one per sample")
        return rows_by_id(id_texts(view.ids.tolist()), str(self._path)), view.raw

    def fetch(self, ids: Sequence[str]) -> FoundViews:
        """Return the views of those ids that exist."""
        state = file_state(self._path)
        if state != self._state and None not in state:
            self._rows, self._raw = self._read()
            self._state = state
        found = [(position, self._rows[text]) for position, text in enumerate(ids) if text in self._rows]
        positions, rows = np.array(found, dtype=np.int64).reshape(-1, 2).T
        raw = self._raw
        taken = raw[rows] if isinstance(raw, np.ndarray) else {name: values[rows] for name, values in raw.items()}
        return FoundViews(positions, taken)

    def close(self) -> None:
        """Do nothing: no file is kept open."""


def open_file_views(settings: ViewSettings) -> FileViews:
    """Open the file at `path`."""
    if settings.path is None:
        raise SettingError("views.path is missing: name a .npz or Parquet file")
    return FileViews(settings.path, settings.id_column)
