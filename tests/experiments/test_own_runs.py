import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from synthetic_records import synthetic_record

import gainroute as gr
from gainroute.errors import DataError, LabelError, NotAnArtifactError
from gainroute.experiments import own
from gainroute.experiments.records import load_record
from gainroute.experiments.runner import answer_views, train_views
from gainroute.training.settings import RouteSettings, default_route_settings
from gainroute.training.trained_run import TrainedParty, load_parties


def _quick() -> RouteSettings:
    chosen = default_route_settings(67)
    return replace(
        chosen,
        local=replace(chosen.local, epochs=4, widths=(2, 2, 4, 4)),
        vfl=replace(chosen.vfl, epochs=8, width=2, latent=8, rate=1e-2),
        masked=replace(chosen.masked, epochs=1),
    )


def _files(root: Path, count: int = 120, seed: int = 0) -> tuple[list[Path], Path]:
    """An image view, a vector view and a table of unequal shapes, each telling something of the class."""
    root.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    ids = np.array([f"id{seed}-{i}" for i in range(count)])
    images = rng.normal(size=(count, 9, 9)) + y[:, None, None]
    vectors = rng.normal(size=(count, 4)) + 2 * y[:, None]
    vectors[::7, 1] = np.nan
    np.savez(root / "front.npz", x=images, ids=ids)
    order = rng.permutation(count)
    np.savez(root / "vitals.npz", x=vectors[order], ids=ids[order])
    colour = [None if i % 11 == 0 else ["red", "green", "blue"][k] for i, k in enumerate(y)]
    table = {"id": ids, "colour": colour, "size": rng.normal(size=count), "label": y}
    parquet.write_table(pa.table(table), root / "card.parquet")
    np.savez(root / "y.npz", labels=np.array(["ant", "bee", "cat"])[y], ids=ids)
    return [root / "front.npz", root / "vitals.npz", root / "card.parquet"], root / "y.npz"


def test_own_views_leave_party_folders_a_server_and_a_record_that_answer_new_data(tmp_path: Path) -> None:
    views, labels = _files(tmp_path / "old")
    out = tmp_path / "run"
    record = train_views(views, labels, out, settings=_quick())
    assert record.class_names == ("ant", "bee", "cat")
    assert record.party_names == ("front", "vitals", "card")
    assert (len(record.calibration), len(record.test)) == (17, 36)
    assert np.array_equal(load_record(out / "record.npz").test.strong_prediction, record.test.strong_prediction)
    body = json.loads((out / "parties" / "card" / "party.json").read_text())
    assert [column["name"] for column in body["preprocess"]["columns"]] == ["colour", "size"]
    assert sorted(file.name for file in (out / "server").iterdir()) == ["head.safetensors", "masked.safetensors"]

    parties = load_parties(out)
    ids = record.test.ids.tolist()
    for index, party in enumerate(parties):
        assert np.allclose(party.posteriors(ids), record.test.local_posteriors[index], atol=1e-5)
    assert len(parties[0].ids) == 120

    fresh_views, fresh_labels = _files(tmp_path / "new", 60, seed=1)
    split = answer_views(out, fresh_views[::-1], fresh_labels)
    assert len(split) == 60
    assert split.strong_accuracy > 0.6, "a third would be chance"


def test_a_run_with_its_own_split_sees_nothing_but_the_training_part(tmp_path: Path) -> None:
    views, labels = _files(tmp_path / "old")
    train_views(views, labels, tmp_path / "one", settings=_quick())
    with np.load(views[1]) as file:
        x, ids = file["x"].copy(), file["ids"]
    test = load_record(tmp_path / "one" / "record.npz").test.ids
    x[np.isin(ids, test)] += 1000.0
    np.savez(views[1], x=x, ids=ids)
    train_views(views, labels, tmp_path / "two", settings=_quick())
    one, two = ((tmp_path / run / "parties" / "vitals" / "party.json").read_text() for run in ("one", "two"))
    assert one == two, "the preprocessing must not know the test samples"


def test_what_cannot_be_trained_or_answered_is_said(tmp_path: Path) -> None:
    views, labels = _files(tmp_path / "old", 30)
    with pytest.raises(DataError, match="at least two, of different names"):
        train_views(views[:1], labels, tmp_path / "run", settings=_quick())
    with pytest.raises(NotAnArtifactError, match="a folder that `gainroute train` has written"):
        TrainedParty(tmp_path)
    train_views(views, labels, tmp_path / "run", settings=_quick())
    with pytest.raises(DataError, match="the run was trained on front, vitals, card"):
        answer_views(tmp_path / "run", views[:2], labels)
    with np.load(labels) as file:
        ids = file["ids"]
    np.savez(labels, labels=np.full(30, "dog"), ids=ids)
    with pytest.raises(LabelError, match="'dog' was not in training: the classes are ant, bee, cat"):
        answer_views(tmp_path / "run", views, labels)


def test_a_run_is_judged_by_the_answers_its_router_gives_on_both_routes() -> None:
    record = synthetic_record(0, alphas=())
    held, test = record.calibration, record.test
    names = np.array([f"class {name}" for name in record.class_names])
    router = gr.ExpectedGainRouter.paper(pooling="log-linear", blend="cv", classes=names.tolist())
    router.fit(held.local_posteriors, names[held.labels], strong_posterior=held.strong_posterior)
    assert router.blends_
    run = own._run_of(router, test)
    decision = router.route(test.local_posteriors)
    np.testing.assert_array_equal(run.weak_right, decision.weak_prediction == names[test.labels])
    strong = router.strong_answers(decision, test.strong_posterior)
    np.testing.assert_array_equal(run.strong_right, strong == names[test.labels])
    assert run.weak_right.mean() != test.weak_accuracy
