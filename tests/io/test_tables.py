"""The one reader of `.npz` and Parquet files."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from gainroute.errors import DataError
from gainroute.io.ids import rows_by_id
from gainroute.io.tables import file_format, read_table, write_parquet


def test_the_first_bytes_decide_the_format_whatever_the_suffix(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    write_parquet(tmp_path / "b.npz", {"x": np.arange(3)})
    assert [file_format(tmp_path / name) for name in ("a.npz", "b.npz")] == ["npz", "parquet"]
    for name in ("a.npz", "b.npz"):
        assert read_table(tmp_path / name).array("x").tolist() == [0, 1, 2]


def test_both_formats_give_the_same_matrix_numbers_and_objects(tmp_path: Path) -> None:
    arrays = {"p": np.array([[0.1, 0.9], [0.5, 0.5]], np.float32), "n": np.array([1.0, 2.0]), "t": np.array(["a", "ß"])}
    np.savez(tmp_path / "a.npz", **arrays)
    write_parquet(tmp_path / "a.parquet", arrays)
    for table in (read_table(tmp_path / "a.npz"), read_table(tmp_path / "a.parquet")):
        matrix, present = table.matrix("p")
        np.testing.assert_array_equal(matrix, arrays["p"])
        assert present.all()
        assert table.numbers("n").tolist() == [1, 2]
        assert table.objects("t") == ["a", "ß"]
        assert (table.is_list("p"), table.is_number("n"), table.is_number("t")) == (True, True, False)
        assert table.take([1]).objects("t") == ["ß"]


def test_null_is_none_in_an_array_and_nan_in_numbers_and_lists(tmp_path: Path) -> None:
    lists = pa.array([[1.0, 2.0], None], pa.list_(pa.float32()))
    parquet.write_table(
        pa.table({"p": lists, "n": [1, None], "none": pa.array([None, None], pa.list_(pa.int8()))}), tmp_path / "a"
    )
    table = read_table(tmp_path / "a")
    matrix, present = table.matrix("p")
    assert (matrix.dtype, present.tolist()) == (np.float32, [True, False])
    assert np.isnan(matrix[1]).all()
    assert table.array("n").tolist() == [1, None]
    np.testing.assert_array_equal(table.numbers("n"), [1, np.nan])
    assert table.matrix("none")[0].shape == (2, 0)


def test_only_the_named_arrays_are_read_and_all_names_are_reported(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), secret=np.array([None], dtype=object))
    table = read_table(tmp_path / "a.npz", only=("x", "y"))
    assert list(table) == ["x"]
    with pytest.raises(DataError, match=r"has no 'y'; it has x, secret: add it"):
        table.require("x", "y", remedy="add it")
    with pytest.raises(DataError, match="secret is an object array, and reading one could run code"):
        read_table(tmp_path / "a.npz")


def test_a_missing_or_repeated_id_is_named_with_its_file() -> None:
    assert rows_by_id(["a", "b"], "f") == {"a": 0, "b": 1}
    with pytest.raises(DataError, match=r"f: key 'a' occurs more than once \(2 rows repeat an id\)"):
        rows_by_id(["a", "b", "a", "a"], "f", "key")
    with pytest.raises(DataError, match=r"f: id is null in 2 row"):
        rows_by_id([None, "b", None], "f")
