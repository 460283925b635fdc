"""Posterior files: every form the issue lists, and every way they can be wrong."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gainroute as gr
from gainroute.errors import DataError, InputError, LabelError, MissingExtraError, ShapeError
from gainroute.io.posteriors import Outcomes, load_outcomes, save_outcomes

rng = np.random.default_rng(0)
LOCAL = rng.dirichlet([1, 1, 1], size=(2, 6))
LABELS = np.array([0, 1, 2, 0, 1, 2])
STRONG = np.array([0, 1, 2, 0, 1, -1])


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


# ---- npz ----------------------------------------------------------------------------------------


def test_an_npz_file_is_read_whole(tmp_path: Path) -> None:
    path = npz(
        tmp_path / "a.npz", local_posteriors=LOCAL, labels=LABELS, strong_prediction=STRONG, ids=np.arange(6),
        class_names=np.array(["a", "b", "c"]), sample_weight=np.ones(6), weak_prediction=LABELS, unknown=np.zeros(3),
    )  # fmt: skip
    read = load_outcomes(path)
    np.testing.assert_array_equal(read.local_posteriors, LOCAL)
    assert read.class_names is not None
    assert read.class_names.tolist() == ["a", "b", "c"]
    assert (len(read), read.party_names, read.present) == (6, ("party 0", "party 1"), None)


@pytest.mark.parametrize("form", ["npz", "columns", "given"])
def test_integer_labels_of_classes_named_by_integers_are_names(tmp_path: Path, form: str) -> None:
    names, labels = ["11", "12", "13"], LABELS + 11
    strong = np.where(STRONG < 0, -1, STRONG + 11)
    if form == "columns":
        columns = {f"posterior_{p}_{name}": LOCAL[i, :, k] for i, p in enumerate("ab") for k, name in enumerate(names)}
        read = load_outcomes(parquet(tmp_path / "a.parquet", **columns, label=labels, strong_prediction=strong))
    else:
        held = {"class_names": np.array(names)} if form == "npz" else {}
        path = npz(tmp_path / "a.npz", local_posteriors=LOCAL, labels=labels, strong_prediction=strong, **held)
        read = load_outcomes(path, class_names=None if held else names)
    assert read.class_names is not None
    assert read.class_names.tolist() == [11, 12, 13]
    known = read.in_labels(read.class_names, 3)
    assert known.labels is not None
    assert known.labels.tolist() == labels.tolist()
    text = read.in_labels(np.array(names), 3)  # a router whose classes are texts
    assert text.labels is not None
    assert text.labels.tolist() == [str(label) for label in labels]


def test_integers_that_could_be_names_or_columns_are_refused(tmp_path: Path) -> None:
    names = np.array(["1", "2", "3"])
    path = npz(tmp_path / "a.npz", local_posteriors=LOCAL, labels=np.array([1, 2, 1, 2, 1, 2]), class_names=names)
    with pytest.raises(DataError, match=r"class names \(1, 2, 3\) or column numbers 0 … 2; write them as text"):
        load_outcomes(path)
    path = npz(tmp_path / "b.npz", local_posteriors=LOCAL, labels=LABELS, class_names=names)
    known = load_outcomes(path).in_labels(names, 3)
    assert known.labels is not None
    assert known.labels.tolist() == [str(label + 1) for label in LABELS], "0 can only be a column"


def test_one_party_may_leave_out_the_first_axis(tmp_path: Path) -> None:
    assert load_outcomes(npz(tmp_path / "a.npz", local_posteriors=LOCAL[0])).local_posteriors.shape == (1, 6, 3)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), m=st.integers(1, 3), n=st.integers(1, 6), k=st.integers(2, 4))
def test_what_is_saved_is_what_is_loaded(tmp_path_factory: Any, data: Any, m: int, n: int, k: int) -> None:
    seed = data.draw(st.integers(0, 999))
    drawn = np.random.default_rng(seed)
    names = np.array([f"class {i}" for i in range(k)])
    strong = np.array([None if s < 0 else names[s] for s in drawn.integers(-1, k, size=n)], dtype=object)
    present = drawn.random((m, n)) < 0.7
    first = Outcomes(
        drawn.dirichlet(np.ones(k), size=(m, n)), labels=names[drawn.integers(k, size=n)], strong_prediction=strong,
        class_names=names, present=present, ids=np.arange(n),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("round") / "x.npz"
    save_outcomes(first, path)
    second = load_outcomes(path)
    np.testing.assert_array_equal(second.local_posteriors, first.local_posteriors)
    a, b = first.in_labels(None, k), second.in_labels(None, k)
    for field in ("labels", "strong_prediction", "ids", "present"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d / "no.npz", "no such file"),
        (lambda d: d, "is a folder"),
        (lambda d: _text(d / "a.csv", "x,y\n"), "neither .npz nor Parquet"),
        (lambda d: _text(d / "a.npz", "PK\x03\x04 cut off"), "not an .npz file, or truncated"),
        (lambda d: _text(d / "a.parquet", "PAR1 cut off"), "not a Parquet file, or truncated"),
        (lambda d: npz(d / "a.npz", posteriors=LOCAL, labels=LABELS), "it has posteriors, labels: add"),
        (lambda d: npz(d / "a.npz", local_posteriors=LOCAL, labels=np.array([None, 1], dtype=object)), "object array"),
        (lambda d: npz(d / "a.npz", local_posteriors=LOCAL, labels=LABELS[:3]), r"shape \(3,\) for 6 samples"),
    ],
)  # fmt: skip
def test_a_bad_file_is_named_with_its_remedy(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_outcomes(make(tmp_path))


def _text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_shapes_are_checked_and_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"a\.npz: local_posteriors has shape \(6,\)"):
        load_outcomes(npz(tmp_path / "a.npz", local_posteriors=LABELS.astype(float)))
    with pytest.raises(ShapeError, match="present has shape"):
        load_outcomes(npz(tmp_path / "a.npz", local_posteriors=LOCAL, present=np.ones((2, 5), dtype=bool)))


def test_what_a_file_does_not_tell_is_asked_for_by_name(tmp_path: Path) -> None:
    read = load_outcomes(npz(tmp_path / "a.npz", local_posteriors=LOCAL, ids=np.arange(6)))
    with pytest.raises(DataError, match=r"has no labels; it has local_posteriors, ids: add labels.*column 'label'"):
        read.require("labels")
    with pytest.raises(DataError, match=r"no strong_prediction \(or strong_posterior\)"):
        read.require("strong_prediction")


# ---- labels -------------------------------------------------------------------------------------


def test_names_and_column_numbers_mean_the_same() -> None:
    names = np.array(["a", "b", "c"])
    as_numbers = Outcomes(LOCAL, labels=LABELS, strong_prediction=STRONG, class_names=names).in_labels(names, 3)
    strong = np.array(["a", "b", "c", "a", "b", ""])
    as_names = Outcomes(LOCAL, labels=names[LABELS], strong_prediction=strong, class_names=names).in_labels(names, 3)
    for field in ("labels", "strong_prediction"):
        assert getattr(as_numbers, field).tolist() == getattr(as_names, field).tolist()
    assert as_names.strong_prediction is not None
    assert as_names.strong_prediction[-1] is None
    assert as_names.in_labels(None, 3).labels is not None


def test_a_file_without_names_takes_the_router_s(tmp_path: Path) -> None:
    names = np.array(["a", "b", "c"])
    assert Outcomes(LOCAL, labels=LABELS).in_labels(names, 3).labels.tolist() == list("abcabc")  # type: ignore[union-attr]
    assert Outcomes(LOCAL, labels=names[LABELS]).in_labels(names, 3).labels.tolist() == list("abcabc")  # type: ignore[union-attr]


def test_columns_in_another_order_than_the_router_s_are_matched_by_name() -> None:
    names, turned = np.array(["a", "b", "c"]), [2, 0, 1]
    strong = np.full((6, 3), 1 / 3)
    given = Outcomes(
        LOCAL[..., turned],
        labels=np.array([2]).repeat(6),
        strong_posterior=strong[:, turned],
        class_names=names[turned],
    )
    found = given.in_labels(names, 3)
    np.testing.assert_array_equal(found.local_posteriors, LOCAL)
    assert found.labels is not None
    assert found.labels.tolist() == ["b"] * 6  # column 2 of the file


def test_classes_that_contradict_the_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, local_posteriors=LOCAL, class_names=np.array(["a", "b", "c"]))
    with pytest.raises(
        DataError, match=r"holds class_names a, b, c, and the classes were given as c, b, a; .* leave out"
    ):
        load_outcomes(path, class_names=["c", "b", "a"])


def test_other_classes_than_the_router_s_are_refused() -> None:
    with pytest.raises(DataError, match="has the classes b, a, d, the router was fitted with a, b, c"):
        Outcomes(LOCAL, class_names=np.array(["b", "a", "d"])).in_labels(np.array(["a", "b", "c"]), 3)


def test_text_labels_need_class_names() -> None:
    with pytest.raises(DataError, match=r"labels holds text \(x, y.*--classes"):
        Outcomes(LOCAL, labels=np.array(list("xyxyxy"))).in_labels(None, 3)
    with pytest.raises(LabelError, match="is 'x'"):
        Outcomes(LOCAL, labels=np.array(list("xyxyxy")), class_names=np.array(list("abc"))).in_labels(None, 3)


def test_incomplete_samples_are_counted_and_left_out() -> None:
    present = np.ones((2, 6), dtype=bool)
    present[1, 2] = False
    with pytest.warns(gr.GainrouteWarning, match="1 of 6 samples"):
        left = Outcomes(LOCAL, labels=LABELS, present=present).complete()
    assert left.labels is not None
    assert left.labels.tolist() == [0, 1, 0, 1, 2]
    with pytest.raises(DataError, match="every one of the 6 samples lacks a party"):
        Outcomes(LOCAL, present=np.zeros((2, 6), dtype=bool)).complete()


# ---- Parquet, one file --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 3)])
def test_list_columns_fixed_or_not_with_null_for_an_absent_party(tmp_path: Path, kind: Any) -> None:
    lists = [None if i == 4 else p.tolist() for i, p in enumerate(LOCAL[1])]
    path = parquet(
        tmp_path / "a.parquet", id=list("abcdef"), label=LABELS, strong_prediction=[0, 1, 2, 0, 1, None],
        posterior_bank=pa.array(LOCAL[0].tolist(), kind), posterior_shop=pa.array(lists, kind),
    )  # fmt: skip
    read = load_outcomes(path)
    assert read.party_names == ("bank", "shop")
    assert read.present is not None
    assert np.argwhere(~read.present).tolist() == [[1, 4]]
    np.testing.assert_allclose(read.local_posteriors[read.present], LOCAL[read.present], atol=1e-7)
    assert read.strong_prediction is not None
    assert read.strong_prediction.tolist() == STRONG.tolist()
    assert read.ids is not None
    assert read.ids.tolist() == list("abcdef")


def test_class_columns_come_in_order_of_their_number_whatever_the_file_s(tmp_path: Path) -> None:
    columns = {f"posterior_north_bank_{k}": LOCAL[0, :, k] for k in (2, 0, 1)}
    columns |= {f"posterior_south_bank_{k}": LOCAL[1, :, k] for k in (1, 2, 0)}
    read = load_outcomes(parquet(tmp_path / "a.parquet", **columns))
    np.testing.assert_array_equal(read.local_posteriors, LOCAL)
    assert (read.party_names, read.class_names) == (("north_bank", "south_bank"), None)


def test_class_columns_may_carry_names_with_underscores(tmp_path: Path) -> None:
    names = ["not_fraud", "fraud", "who_knows"]
    columns = {f"posterior_{p}_{c}": LOCAL[i, :, k] for i, p in enumerate("ab") for k, c in enumerate(names)}
    read = load_outcomes(parquet(tmp_path / "a.parquet", label=np.array(names)[LABELS], **columns))
    np.testing.assert_array_equal(read.local_posteriors, LOCAL)
    assert read.party_names == ("a", "b")
    assert read.class_names is not None
    assert read.class_names.tolist() == names
    assert read.in_labels(None, 3).labels.tolist() == LABELS.tolist()  # type: ignore[union-attr]


def test_two_classes_need_one_number_a_party(tmp_path: Path) -> None:
    p = pa.array([0.2, 0.9, None])
    read = load_outcomes(parquet(tmp_path / "a.parquet", posterior_bank_a=p, posterior_bank_b=[0.5, 0.7, 0.1]))
    assert read.party_names == ("bank_a", "bank_b")
    np.testing.assert_allclose(read.local_posteriors[0, :2], [[0.8, 0.2], [0.1, 0.9]])
    assert read.present is not None
    assert read.present[0].tolist() == [True, True, False]


def test_named_numbers_that_sum_to_one_are_classes(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", posterior_bank_no=[0.2, 0.9], posterior_bank_yes=[0.8, 0.1])
    assert load_outcomes(path).party_names == ("bank",)
    swapped = load_outcomes(path, class_names=["yes", "no"])
    np.testing.assert_allclose(swapped.local_posteriors[0], [[0.8, 0.2], [0.1, 0.9]])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [0, 1]}, "has no column posterior_<party>; it has label"),
        ({"posterior_a": [[0.5, 0.5]], "posterior_b": [0.5]}, "one form for all parties"),
        ({"posterior_a": [[0.5, 0.5]], "posterior_b": [[0.2, 0.3, 0.5]]}, "differ in the number of classes"),
        ({"posterior_a": [[0.5, 0.5], [1.0]]}, "lists of posterior_a have 1, 2 entries"),
        ({"posterior_a": ["x"]}, "posteriors are numbers"),
        ({"posterior_a": [["x", "y"]]}, "one list of numbers per row"),
        ({"posterior_a": pa.array([None], pa.list_(pa.float32()))}, "no party answered any sample"),
        ({"posterior_a_0": [0.5, None], "posterior_a_1": [0.5, 0.5]}, "null for some classes only"),
        ({"posterior_a": [[0.5, 0.5]], "label": pa.array([None], pa.int64())}, "label is null in 1 row"),
        ({"posterior_a": [[0.5, 0.5]], "strong_posterior": pa.array([None], pa.list_(pa.int8()))}, "posterior is null"),
    ],
)  # fmt: skip
def test_a_bad_table_is_named_with_its_remedy(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_outcomes(parquet(tmp_path / "a.parquet", **columns))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "a.parquet", posterior_a=[[0.5, 0.5]])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"gainroute\[parquet\]"):
        load_outcomes(path)


# ---- Parquet, one file a party ------------------------------------------------------------------


def party_files(folder: Path) -> tuple[list[Path], Path]:
    ids = np.arange(6)
    a = parquet(folder / "bank.parquet", key=ids[::-1], posterior=LOCAL[0, ::-1].tolist())
    b = parquet(folder / "shop.parquet", key=ids[1:], **{f"posterior_{k}": LOCAL[1, 1:, k] for k in range(3)})
    return [a, b], parquet(folder / "y.parquet", key=ids[:5], label=LABELS[:5], strong_prediction=STRONG[:5])


def test_one_file_a_party_is_joined_by_id_and_the_unmatched_are_counted(tmp_path: Path) -> None:
    files, labels = party_files(tmp_path)
    with pytest.warns(
        gr.GainrouteWarning, match=r"1 of .*y\.parquet, 2 of .*bank\.parquet, 1 of .*shop\.parquet; 4 are in"
    ):
        read = load_outcomes(files, labels, "key")
    np.testing.assert_allclose(read.local_posteriors, LOCAL[:, 1:5])
    assert read.labels is not None
    assert read.ids is not None
    assert (read.party_names, read.labels.tolist(), read.ids.tolist()) == (("bank", "shop"), [1, 2, 0, 1], [1, 2, 3, 4])


def test_a_party_s_file_may_hold_one_number_of_any_name(tmp_path: Path) -> None:
    a = parquet(tmp_path / "a.parquet", key=["x", "y"], risk=[0.1, 0.6])
    read = load_outcomes([a], on="key")
    np.testing.assert_allclose(read.local_posteriors, [[[0.9, 0.1], [0.4, 0.6]]])


def test_joining_needs_a_column_and_parquet_files(tmp_path: Path) -> None:
    files, labels = party_files(tmp_path)
    with pytest.raises(DataError, match="nothing to join them by"):
        load_outcomes(files, labels)
    with pytest.raises(DataError, match="has no column 'customer'; it has key"):
        load_outcomes(files, labels, "customer")
    with pytest.raises(DataError, match="no file was given"):
        load_outcomes([], labels, "key")
    with pytest.raises(DataError, match="takes Parquet files"):
        load_outcomes([npz(tmp_path / "n.npz", local_posteriors=LOCAL)], labels, "key")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": [1, 2, 1], "p": [0.1, 0.2, 0.3]}, "key 1 occurs more than once"),
        ({"key": [1, None], "p": [0.1, 0.2]}, "key is null in 1 row"),
        ({"key": ["1"], "p": [0.1]}, "no key is in every file .*int64, such as 1.*string, such as '1'"),
        ({"key": [1], "posterior_a": [1.0], "posterior_b": [0.0]}, "has the classes a, b, 0, 1, 2 were expected"),
        ({"key": [1], "a": [1.0], "b": [0.0]}, "a party's file needs one list column"),
    ],
)
def test_a_bad_party_file_is_named_with_its_remedy(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    files, _ = party_files(tmp_path)
    bad = parquet(tmp_path / "bad.parquet", **columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gr.GainrouteWarning)  # samples that do not match are not the point here
        with pytest.raises(DataError, match=message):
            load_outcomes([files[1], bad], on="key")


def test_every_message_is_an_input_error() -> None:
    assert issubclass(DataError, InputError)
