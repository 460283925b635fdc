"""A router as a function from Arrow data to Arrow data."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import world

import gainroute as gr
from gainroute.errors import DataError, InputError, PosteriorError, ShapeError
from gainroute.io.decisions import save_decision
from gainroute.io.posteriors import for_router, load_outcomes

M, K, NAMES = 3, 4, ["ant", "bee", "cat", "dog"]
CALIBRATION, NEW = world(400, M, K, 0), world(3000, M, K, 1)
ABSENT = np.random.default_rng(0).random((M, 3000)) < 0.05


def fitted(**settings: Any) -> Any:
    names = settings.get("classes")
    truth = CALIBRATION.labels if names is None else np.array(names)[CALIBRATION.labels]
    return gr.ExpectedGainRouter(**settings).fit(CALIBRATION.local, truth, truth)


ROUTER = fitted()


def lists(local: np.ndarray, absent: np.ndarray | None = None, kind: Any = None) -> dict[str, Any]:
    found = {}
    for i, posterior in enumerate(local.astype(np.float32)):
        rows = [None if absent is not None and absent[i, n] else p.tolist() for n, p in enumerate(posterior)]
        found[f"posterior_{i}"] = pa.array(rows, type=kind or pa.list_(pa.float32()))
    return found


def numbers(local: np.ndarray, names: list[str], absent: np.ndarray | None = None) -> dict[str, Any]:
    gaps = np.zeros(local.shape[:2], dtype=bool) if absent is None else absent
    return {
        f"posterior_{i}_{name}": pa.array(local[i, :, k], mask=gaps[i])
        for i in range(len(local))
        for k, name in enumerate(names)
    }


FORMS = {
    "lists": lambda: lists(NEW.local),
    "lists of one size": lambda: lists(NEW.local, kind=pa.list_(pa.float32(), K)),
    "absent parties": lambda: lists(NEW.local, ABSENT),
    "numbers": lambda: numbers(NEW.local, ["0", "1", "2", "3"], ABSENT),
    "names in another order": lambda: numbers(NEW.local[..., ::-1], NAMES[::-1]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [3000, 700])
def test_it_decides_as_one_file_does(tmp_path: Path, form: str, rows: int) -> None:
    router = fitted(classes=NAMES) if "names" in form else ROUTER
    table = pa.table({"id": [f"s{i}" for i in range(3000)], **FORMS[form]()})
    pq.write_table(table, tmp_path / "new.parquet")
    known, _ = for_router(router, load_outcomes(tmp_path / "new.parquet"))
    decision = router.route(known.local_posteriors, present=known.present)
    save_decision(decision, tmp_path / "d.parquet", known.ids)
    whole = pq.read_table(tmp_path / "d.parquet")
    route = gr.ArrowRouter(router)
    pieces = [route(table.slice(first, rows)) for first in range(0, 3000, rows)]
    assert all(piece.schema == whole.schema for piece in pieces)
    joined = pa.concat_tables(pieces)
    for name in ("id", "escalate", "weak_prediction", "incomplete"):
        assert joined[name].equals(whole[name]), name
    for name in ("score", "pooled", "calibrated", "threshold"):
        assert_close(joined[name], whole[name], exactly=rows == 3000)


def assert_close(one: Any, two: Any, exactly: bool) -> None:
    a, b = (np.array(column.to_pylist(), dtype=float) for column in (one, two))
    if exactly:
        np.testing.assert_array_equal(a, b)
    else:
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_a_batch_gives_a_batch_also_after_pickling_and_without_rows() -> None:
    route = pickle.loads(pickle.dumps(gr.ArrowRouter(ROUTER, columns=["score"])))  # noqa: S301 (our own)
    table = pa.table({"other": pa.array(range(3000)), **lists(NEW.local)})
    batch = table.combine_chunks().to_batches()[0]
    routed = route(batch)
    assert isinstance(routed, pa.RecordBatch)
    assert routed.schema.names == ["escalate", "score", "incomplete"]
    assert routed.equals(gr.ArrowRouter(ROUTER)(batch).select(["escalate", "score", "incomplete"]))
    assert route(batch.slice(0, 0)).schema == routed.schema
    assert gr.ArrowRouter(fitted(classes=NAMES))(table.slice(0, 0)).schema.field("weak_prediction").type == pa.string()


def test_a_piece_in_which_nobody_answered_is_answered_by_none() -> None:
    columns = lists(NEW.local, np.ones((M, 3000), dtype=bool))
    routed = gr.ArrowRouter(fitted(classes=NAMES))(pa.table(columns)).to_pydict()
    assert set(routed["weak_prediction"]) == {None}
    assert set(routed["incomplete"]) == {True}
    assert set(routed["escalate"]) == {False}


@pytest.mark.parametrize(
    ("ids", "written"),
    [
        (pa.array([1, 2], pa.int8()), pa.array([1, 2])),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"])),
        (pa.array(["a", "b"], pa.large_string()), pa.array(["a", "b"])),
        (pa.array([0.5, 1.5], pa.float32()), pa.array([0.5, 1.5])),
        (pa.array([0, 1], pa.date32()), pa.array(["1970-01-01", "1970-01-02"])),
        (pa.array([True, False]), pa.array([True, False])),
        (pa.array([b"a", b"b"]), pa.array([b"a", b"b"])),
    ],
)
def test_ids_are_written_as_those_of_one_file(tmp_path: Path, ids: Any, written: Any) -> None:
    table = pa.table({"id": ids, **lists(NEW.local[:, :2])})
    found = gr.ArrowRouter(ROUTER)(table)["id"]
    assert found.combine_chunks().equals(written)
    pq.write_table(table, tmp_path / "new.parquet")
    known = load_outcomes(tmp_path / "new.parquet")
    save_decision(ROUTER.route(known.local_posteriors), tmp_path / "d.parquet", known.ids)
    assert pq.read_table(tmp_path / "d.parquet")["id"].combine_chunks().equals(written)


def test_a_weak_answer_of_one_s_own_is_read() -> None:
    own = np.zeros(400, dtype=int)
    router = gr.ExpectedGainRouter().fit(CALIBRATION.local, CALIBRATION.labels, CALIBRATION.strong, weak_prediction=own)
    route = gr.ArrowRouter(router)
    table = pa.table({**lists(NEW.local), "weak_prediction": pa.array(NEW.labels)})
    assert route(table)["weak_prediction"].to_pylist() == NEW.labels.tolist()
    with pytest.raises(DataError, match="has no weak_prediction"):
        route(table.drop_columns("weak_prediction"))


def test_integers_that_could_be_names_or_columns_are_refused_whatever_a_piece_holds() -> None:
    names = np.array(["1", "2", "3", "4"])
    own = names[CALIBRATION.labels]
    router = gr.ExpectedGainRouter(classes=names).fit(CALIBRATION.local, own, own, weak_prediction=own)
    table = pa.table({**lists(NEW.local[:, :2]), "weak_prediction": [0, 1]})
    with pytest.raises(
        DataError, match=r"could be class names \(1, 2, 3, 4\) or column numbers 0 … 3; write them as text"
    ):
        gr.ArrowRouter(router)(table)


def test_bad_input_is_named() -> None:
    route = gr.ArrowRouter(ROUTER)
    spoiled = NEW.local.copy()
    spoiled[1, 2017] = 0.1
    good = lists(NEW.local)
    with pytest.raises(PosteriorError, match=r"the batch: local_posteriors: party 1, row 2017 sums to 0.4"):
        route(pa.table(lists(spoiled)))
    with pytest.raises(ShapeError, match="comes from 2 part"):
        route(pa.table(good).drop_columns("posterior_1").slice(0, 0))
    with pytest.raises(DataError, match=r"has no column posterior_<party>; it has x"):
        route(pa.table({"x": [1]}))
    with pytest.raises(DataError, match=r"id is null in 1 row\(s\), the first is row 1"):
        route(pa.table({"id": ["a", None], **lists(NEW.local[:, :2])}))
    ragged = lists(NEW.local[:, :2]) | {"posterior_1": pa.array([[0.5, 0.5, 0, 0], [1.0]])}
    with pytest.raises(DataError, match=r"lists of posterior_1 have 1, 4 entries, row 1 is the first to differ"):
        route(pa.table(ragged))
    with pytest.raises(InputError, match=r'a dict was passed; .* batch_format="pyarrow" with Ray Data'):
        route({"posterior_0": [1]})
    with pytest.raises(gr.errors.NotFittedError):
        gr.ArrowRouter(gr.ExpectedGainRouter())
