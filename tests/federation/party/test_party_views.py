"""Views by sample id: .npz, Parquet, SQLite; missing samples are reported by position."""

from __future__ import annotations

import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gainroute.errors import DataError, SettingError
from gainroute.federation.party.database_views import DatabaseViews
from gainroute.federation.party.file_views import FileViews
from gainroute.federation.party.settings import ViewSettings
from gainroute.federation.party.views import open_views, view_sources


def test_npz_by_text_in_the_order_asked(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    np.savez(tmp_path / "v.npz", ids=np.array([10, 20, 30]), x=x)
    store = open_views(ViewSettings(path=tmp_path / "v.npz"))
    found = store.fetch(["30", "x", "10", "010", "30"])
    assert found.positions.tolist() == [0, 2, 4]
    np.testing.assert_array_equal(found.raw, x[[2, 0, 2]])
    nothing = store.fetch(["x"])
    assert nothing.positions.tolist() == []
    assert nothing.raw.shape == (0, 2, 2)


def test_a_changed_file_is_read_again(tmp_path):
    np.savez(tmp_path / "v.npz", ids=np.array(["a"]), x=np.zeros((1, 2)))
    store = FileViews(tmp_path / "v.npz")
    np.savez(tmp_path / "w.npz", ids=np.array(["a", "b"]), x=np.ones((2, 2)))
    (tmp_path / "w.npz").replace(tmp_path / "v.npz")
    assert store.fetch(["b"]).positions.tolist() == [0]


def test_parquet_columns_with_gaps(tmp_path):
    table = pa.table({"customer": ["a", "b"], "age": [3, None], "city": ["x", "y"]})
    pq.write_table(table, tmp_path / "v.parquet")
    found = FileViews(tmp_path / "v.parquet", "customer").fetch(["b", "c", "a"])
    assert found.positions.tolist() == [0, 2]
    assert found.raw["age"].tolist() == [None, 3]
    assert found.raw["city"].tolist() == ["y", "x"]


def test_a_view_file_without_ids_is_refused(tmp_path):
    np.savez(tmp_path / "v.npz", x=np.zeros((1, 2)))
    with pytest.raises(DataError, match="no ids"):
        FileViews(tmp_path / "v.npz")


@pytest.fixture
def database(tmp_path):
    with sqlite3.connect(tmp_path / "v.db") as connection:
        connection.execute("create table people (id integer primary key, age real, city text, score numeric)")
        connection.execute("create table named (id text primary key, age real)")
        rows = [(i, float(i), f"c{i}" if i % 2 else None, i / 2) for i in range(2000)]
        connection.executemany("insert into people values (?, ?, ?, ?)", rows)
        connection.executemany(
            "insert into named values (?, ?)", [("007", 1.0), ("7", 2.0), ("x'; drop table named", 3.0)]
        )
    connection.close()
    return f"sqlite:///{tmp_path / 'v.db'}"


def test_sql_by_whole_number(database):
    store = DatabaseViews(database, "people")
    found = store.fetch(["5", "x", "4", "05", "-1", "99999999999999999999", "1e3", "५"])
    assert found.positions.tolist() == [0, 2]
    assert found.raw["age"].tolist() == [5.0, 4.0]
    assert found.raw["city"].tolist() == ["c5", None]
    assert found.raw["score"].tolist() == [2.5, 2.0]
    many = store.fetch([str(i) for i in range(2500)])
    assert len(many.positions) == 2000
    np.testing.assert_array_equal(many.raw["age"], np.arange(2000.0))
    assert store.fetch(["none"]).positions.tolist() == []
    store.close()


def test_sql_by_text_with_nothing_escaped_by_hand(database):
    store = DatabaseViews(database, "named", columns=("age",))
    found = store.fetch(["7", "x'; drop table named", "007", "a\0b", "07"])
    assert found.positions.tolist() == [0, 1, 2]
    assert found.raw["age"].tolist() == [2.0, 3.0, 1.0]
    store.close()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"table": "nobody"}, "no table 'nobody'"),
        ({"table": "people", "id_column": "no"}, "no column 'no'"),
        ({"table": "people", "columns": ("no",)}, "no column 'no'"),
        ({"table": "people", "id_column": "age"}, "text or whole numbers"),
        ({"url": "nonsense", "table": "people"}, "check views.url"),
        ({"url": "postgresql+psycopg://u:secret@127.0.0.1:1/x", "table": "t"}, "check views.url"),
    ],
)
def test_a_database_error_has_the_reason_and_no_password(database, how, told):
    with pytest.raises(DataError, match=told) as caught:
        DatabaseViews(**{"url": database, **how})
    assert "secret" not in str(caught.value)


def test_a_registered_source_is_selected_by_its_name_and_gets_the_settings(monkeypatch, tmp_path):
    monkeypatch.setattr(view_sources, "_registered", {})
    view_sources.register("archive", lambda settings: settings)
    settings = ViewSettings(source="archive", url="archive://here", path=tmp_path)
    assert open_views(settings) is settings
    assert open_views(ViewSettings()) is None
    with pytest.raises(SettingError, match="view source is 'none'; allowed are 'file', 'database', 'archive'"):
        open_views(ViewSettings(source="none"))
    with pytest.raises(SettingError, match=r"views\.path is missing"):
        open_views(ViewSettings(source="file"))
