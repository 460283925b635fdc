from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from gainroute.errors import DataError, SettingError
from gainroute.io.features import fit_table
from gainroute.io.preprocess import ImagePreprocess, apply_preprocess, fit_preprocess, preprocess_from_json
from gainroute.io.views import SampleLabels, align, read_labels, read_view


def _table(path: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


def test_views_and_labels_are_put_in_one_order_by_id(tmp_path: Path) -> None:
    np.savez(tmp_path / "front.npz", x=np.array([[1.0], [2.0], [3.0]]), ids=np.array(["a", "b", "c"]))
    table = _table(tmp_path / "side.parquet", id=["c", "a", "b"], width=[30, 10, 20], label=["z", "x", "y"])
    np.savez(tmp_path / "y.npz", labels=np.array([7, 8, 9]), ids=np.array(["b", "c", "a"]))
    views = [read_view(tmp_path / "front.npz"), read_view(table)]
    ids, aligned, labels = align(views, read_labels(tmp_path / "y.npz"))
    assert ids.tolist() == ["b", "c", "a"]
    assert labels is not None
    assert labels.tolist() == [7, 8, 9]
    assert isinstance(aligned[0].raw, np.ndarray)
    assert aligned[0].raw[:, 0].tolist() == [2, 3, 1]
    assert not isinstance(aligned[1].raw, np.ndarray)
    assert list(aligned[1].raw) == ["width"], "neither id nor label becomes a feature"
    assert aligned[1].raw["width"].tolist() == [20, 30, 10]


def test_ids_that_do_not_align_are_reported_with_counts_and_examples(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 1)), ids=np.array([1, 2, 3]))
    np.savez(tmp_path / "b.npz", x=np.zeros((3, 1)), ids=np.array([1, 2, 9]))
    views = [read_view(tmp_path / "a.npz"), read_view(tmp_path / "b.npz")]
    with pytest.raises(DataError, match=r"'b' lacks 1 \(such as .*3.*\); view 'b' has 1 unknown"):
        align(views, SampleLabels(np.array([0, 1, 0]), np.array([1, 2, 3])))
    with pytest.raises(DataError, match="the labels has no ids while others have"):
        align(views, SampleLabels(np.array([0, 1, 0]), None))


def test_without_ids_lengths_must_agree(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 1)))
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 1)))
    views = [read_view(tmp_path / "a.npz"), read_view(tmp_path / "b.npz")]
    with pytest.raises(DataError, match="view 'a' 3, view 'b' 2"):
        align(views, None)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(3)}, "has no 'x'; it has y"),
        ({"x": np.zeros(3)}, r"x has shape \(3,\)"),
        ({"x": np.array([["a"]])}, "it has to be numbers"),
        ({"x": np.zeros((3, 1)), "ids": np.array([1, 1, 2])}, "id 1 occurs more than once"),
        ({"x": np.zeros((3, 1)), "ids": np.array([1, 2])}, "one id per sample"),
        ({"x": np.array([[None]], dtype=object)}, "x is an object array"),
    ],
)
def test_a_view_file_that_cannot_be_used_says_why(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "view.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_view(tmp_path / "view.npz")


def test_missing_foreign_and_damaged_files_are_named(tmp_path: Path) -> None:
    for name, message in (("none.npz", "no such file"), ("view.csv", "neither .npz nor Parquet")):
        (tmp_path / "view.csv").touch()
        with pytest.raises(DataError, match=message):
            read_view(tmp_path / name)
    for name, start in (("bad.npz", b"PK"), ("bad.parquet", b"PAR1")):
        (tmp_path / name).write_bytes(start + b" nonsense")
        with pytest.raises(DataError, match="or truncated"):
            read_view(tmp_path / name)
    with pytest.raises(DataError, match="has no column 'id'; it has key, value"):
        read_view(_table(tmp_path / "t.parquet", key=[1], value=[2]))
    with pytest.raises(DataError, match="'nest' is of type list"):
        read_view(_table(tmp_path / "n.parquet", id=[1], nest=[[2]]))


def test_a_table_becomes_standardised_numbers_categories_and_indicators() -> None:
    train = {
        "age": np.array([10.0, 20.0, np.nan, 30.0]),
        "town": np.array(["Rome", "Oslo", None, "Rome"], dtype=object),
        "member": np.array([True, False, True, True]),
        "constant": np.ones(4),
        "whole": np.array([1, None, 3, 2], dtype=object),
    }
    fitted = fit_table(train)
    assert [column.name for column in fitted.columns] == ["age", "town", "member", "whole"]
    features = fitted(train)
    assert features.shape == (4, 2 + 3 + 1 + 2)
    assert features[:, 0] == pytest.approx([-1.2247, 0, 0, 1.2247], abs=1e-3)
    assert features[:, 1].tolist() == [0, 0, 1, 0]
    assert features[:, 2:5].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    new = {**{name: values[:1] for name, values in train.items()}, "town": np.array(["Paris"], dtype=object)}
    assert fitted(new)[0, 2:5].tolist() == [0, 0, 0], "a category never seen is no category"
    assert preprocess_from_json(fitted.to_json()) == fitted


def test_a_missing_column_and_a_changed_type_are_errors() -> None:
    fitted = fit_table({"a": np.array([1.0, 2.0]), "b": np.array([1.0, 3.0])})
    with pytest.raises(DataError, match="column 'b' is missing"):
        fitted({"a": np.array([1.0])})
    with pytest.raises(DataError, match="fitted as numbers"):
        fitted({"a": np.array(["x"]), "b": np.array([1.0])})
    with pytest.raises(DataError, match="infinite"):
        fitted({"a": np.array([np.inf]), "b": np.array([1.0])})
    with pytest.raises(DataError, match="nothing to learn from"):
        fit_table({"a": np.ones(3)})


@pytest.mark.parametrize(("shape", "layout"), [((5, 3, 8, 8), "NCHW"), ((5, 8, 8, 3), "NHWC"), ((5, 8, 8), "NHW")])
def test_images_are_told_by_their_shape(shape: tuple[int, ...], layout: str) -> None:
    raw = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    fitted = fit_preprocess(raw)
    assert isinstance(fitted, ImagePreprocess)
    assert fitted.layout == layout
    ready = apply_preprocess(fitted, raw)
    assert ready.shape == (5, 1 if layout == "NHW" else 3, 8, 8)
    assert ready.mean() == pytest.approx(0, abs=1e-5)
    assert preprocess_from_json(fitted.to_json()) == fitted


def test_a_kind_can_be_overridden_and_an_unknown_one_is_refused() -> None:
    raw = np.random.default_rng(0).random((5, 2, 3))
    assert apply_preprocess(fit_preprocess(raw, "features"), raw).shape == (5, 6)
    with pytest.raises(SettingError, match="kind 'sound' is unknown"):
        fit_preprocess(raw, "sound")
    with pytest.raises(DataError, match="NaN"):
        fit_preprocess(np.full((2, 4, 4), np.nan))
