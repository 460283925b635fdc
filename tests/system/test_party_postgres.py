"""Views in PostgreSQL, against a real server. Run by name (`make test-system`): pytest does not collect it by itself.

See `benchmarks.postgres_server` for what it needs.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import sqlalchemy as sa
from party_helpers import CLASSES, DIMENSION, Federation, StubParty, connected

from benchmarks.postgres_server import postgres_server
from gainroute.errors import DataError
from gainroute.federation.party.database_views import DatabaseViews
from gainroute.federation.party.model import version_of
from gainroute.federation.party.process import PartyNode
from gainroute.federation.party.sources import source_of
from gainroute.federation.transport.base import PartyUnavailableError


@pytest.fixture(scope="module")
def server():
    with postgres_server("fsync=off") as running:
        yield running


@pytest.fixture(scope="module")
def url(server):
    engine = sa.create_engine(server.url)
    with engine.begin() as connection:
        for statement in (
            "create schema clinic",
            "create table clinic.features (patient text primary key, age float8, ward varchar(9), dose numeric)",
            "create table numbered (id bigint primary key, age real)",
        ):
            connection.execute(sa.text(statement))
        rows = [{"p": f"p{i}", "a": float(i), "w": f"w{i % 3}" if i % 2 else None, "d": i / 4} for i in range(1500)]
        connection.execute(sa.text("insert into clinic.features values (:p, :a, :w, :d)"), rows)
        connection.execute(sa.text("insert into numbered values (:i, :a)"), [{"i": i, "a": i} for i in range(9)])
    engine.dispose()
    return server.url


def test_text_ids_in_a_schema(url):
    store = DatabaseViews(url, "clinic.features", "patient")
    found = store.fetch(["p3", "nobody", "p2", "p3", "x'; drop table numbered; --", "a\0b"])
    assert found.positions.tolist() == [0, 2, 3]
    assert found.raw["age"].tolist() == [3.0, 2.0, 3.0]
    assert found.raw["ward"].tolist() == ["w0", None, "w0"]
    assert found.raw["dose"].tolist() == [0.75, 0.5, 0.75]
    many = store.fetch([f"p{i}" for i in range(2000)])
    np.testing.assert_array_equal(many.raw["age"], np.arange(1500.0))
    store.close()


def test_whole_number_ids(url):
    store = DatabaseViews(url, "numbered")
    assert store.fetch(["8", "08", "9", "99999999999999999999", "x"]).positions.tolist() == [0]
    store.close()
    with pytest.raises(DataError, match="no table"):
        DatabaseViews(url, "clinic.nothing")


def test_a_party_answers_from_its_database_and_says_when_that_is_away(server, url, tmp_path):
    """Last of this file: it stops the database."""
    store = DatabaseViews(url, "numbered")

    class FromDatabase(StubParty):
        def __init__(self):
            super().__init__()
            del self.ids

        def posteriors(self, ids):
            found = store.fetch(ids)
            rows = np.full((len(ids), len(CLASSES)), np.nan)
            rows[found.positions] = self.p[found.raw["age"].astype(int)]
            return rows

    party = FromDatabase()
    federation = Federation(tmp_path)

    async def main():
        node = PartyNode(federation.settings(), source=source_of(version_of(party, "m1", CLASSES, DIMENSION)))
        await node.start()
        async with connected(federation, node) as connection:
            reply = await connection.posteriors(["4", "x"], model="m1", request_id="r")
            np.testing.assert_array_equal(reply.values[0], party.p[4])
            assert np.isnan(reply.values[1]).all()
            server.stop()
            with pytest.raises(PartyUnavailableError, match="OperationalError"):
                await connection.posteriors(["4"], model="m1", request_id="r")
        await node.stop(1)

    asyncio.run(asyncio.wait_for(main(), 120))
    store.close()
