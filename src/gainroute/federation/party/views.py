"""Where a party finds its views by sample id. A view never leaves the party."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gainroute._util.registry import Registry
from gainroute.federation.party.settings import ViewSettings
from gainroute.io.preprocess import Raw

__all__ = ["FoundViews", "ViewSource", "open_views", "view_sources"]


@dataclass(frozen=True)
class FoundViews:
    """The views of those requested samples that the party has.

    Attributes
    ----------
    positions
        (F,) positions among the requested ids, ascending.
    raw
        (F, …) array, or the columns of a table, in the same order.
    """

    positions: npt.NDArray[np.int64]
    raw: Raw


class ViewSource(Protocol):
    """Finds views by sample id."""

    def fetch(self, ids: Sequence[str]) -> FoundViews:
        """Return the views of those ids that exist. Ids are compared as text."""
        ...

    def close(self) -> None:
        """Release connections and files."""
        ...


# A view source of your own is one more entry: `@view_sources.register("name")` in this process, or an entry point in
# the group "gainroute.view_sources". `source = "name"` under [views] selects it; see
# examples/10_view_source_of_your_own.py.
view_sources: Registry[Callable[[ViewSettings], ViewSource]] = Registry(
    "gainroute.view_sources",
    "view source",
    {
        "file": "gainroute.federation.party.file_views:open_file_views",
        "database": "gainroute.federation.party.database_views:open_database_views",
    },
)


def open_views(settings: ViewSettings) -> ViewSource | None:
    """Return the view source that the settings select; None if they select none."""
    name = settings.source or ("file" if settings.path else "database" if settings.url else "")
    return view_sources.get(name)(settings) if name else None
