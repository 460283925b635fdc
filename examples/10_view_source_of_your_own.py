"""A view source of your own: a party whose views are in a CSV file.

Registered here for this process; an installed package uses an entry point in the group "gainroute.view_sources". In the
settings of `gainroute party`, `source = "csv"` and `path = "views.csv"` under [views] select it.
"""

import asyncio
import csv
import tempfile
from pathlib import Path

import numpy as np

from gainroute.federation.party.model import version_of
from gainroute.federation.party.settings import ViewSettings
from gainroute.federation.party.views import FoundViews, open_views, view_sources
from gainroute.federation.transport.in_process import InProcessConnection


@view_sources.register("csv")
class CsvViews:
    def __init__(self, settings):
        with settings.path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        self.views = {row.pop(settings.id_column): [float(value) for value in row.values()] for row in rows}

    def fetch(self, ids):
        positions = [i for i, sample in enumerate(ids) if sample in self.views]
        return FoundViews(np.array(positions, dtype=int), np.array([self.views[ids[i]] for i in positions]))

    def close(self): ...


class Clinic:
    """Any model: here, fever makes the class "ill" likely."""

    def __init__(self, views):
        self.views = views

    def posteriors(self, ids):
        found = self.views.fetch(ids)
        rows = np.full((len(ids), 2), np.nan)  # a row of NaN: the party does not have this sample
        ill = 1 / (1 + np.exp(38 - found.raw[:, 0]))
        rows[found.positions] = np.column_stack([1 - ill, ill])
        return rows

    embeddings = posteriors


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "views.csv"
    path.write_text("patient,temperature,pulse\nann,36.8,61\nben,39.5,88\n")
    views = open_views(ViewSettings(source="csv", path=path, id_column="patient"))
    party = InProcessConnection("clinic", [version_of(Clinic(views), "v1", ["healthy", "ill"], dimension=2)])
    reply = asyncio.run(party.posteriors(["ben", "eve", "ann"], model="v1", request_id="example"))
    for patient, row in zip(["ben", "eve", "ann"], reply.values, strict=True):
        print(patient, "is unknown here" if np.isnan(row).all() else f"is ill with probability {row[1]:.2f}")
