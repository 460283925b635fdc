"""Decisions as columns of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import gainroute as gr
from gainroute.errors import SettingError
from gainroute.io.decisions import check_columns, save_decision


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_a_decision_is_written_whole(tmp_path: Path, suffix: str) -> None:
    drawn = np.random.default_rng(1)
    local = drawn.dirichlet([1, 1, 1], size=(2, 60))
    names = np.array(["a", "b", "c"])
    labels = names[drawn.integers(3, size=60)]
    router = gr.ConfidenceRouter(0.3, classes=names).fit(local, labels, labels)
    present = np.ones((2, 60), dtype=bool)
    present[:, 0] = False
    decision = router.route(local, present=present)
    path = tmp_path / f"d.{suffix}"
    save_decision(decision, path, np.arange(60) + 7)
    found: dict[str, Any]
    if suffix == "npz":
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name].tolist() for name in file.files}
        assert found.pop("ids")[0] == 7
    else:
        found = pq.read_table(path).to_pydict()
        assert found.pop("id")[0] == 7
        assert set(found.pop("threshold")) == {decision.threshold}
    assert found["escalate"] == decision.escalate.tolist()
    assert found["weak_prediction"][0] in ("", None)
    assert found["weak_prediction"][1:] == decision.weak_prediction.tolist()[1:]
    np.testing.assert_array_equal(found["calibrated"][1:], decision.calibrated[1:])
    assert not list(tmp_path.glob(".*"))


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    local = np.random.default_rng(1).dirichlet([1, 1, 1], size=(1, 60))
    decision = gr.ConfidenceRouter().fit(local, local[0].argmax(axis=1), local[0].argmax(axis=1)).route(local)
    save_decision(decision, tmp_path / "d.parquet", columns=["threshold", "score"])
    assert pq.read_schema(tmp_path / "d.parquet").names == ["id", "escalate", "score", "incomplete", "threshold"]
    with pytest.raises(SettingError, match=r"columns has 'scores'; allowed are escalate, score, "):
        check_columns(["scores"])
