import asyncio
import json
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import Tensor, nn

import gainroute as gr
import gainroute.training.run as run_module
from gainroute.errors import ArtifactError, DataError, LabelError, MissingExtraError, NotAnArtifactError, SettingError
from gainroute.experiments.pages import reports
from gainroute.experiments.run_report import evaluate_run, report_run
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.settings import (
    CoordinatorSettings,
    FusionSettings,
    LogSettings,
    PartyEndpoint,
    RouterSettings,
    ServerSettings,
)
from gainroute.federation.party.model import version_of
from gainroute.federation.transport.in_process import InProcessConnection
from gainroute.io.run_folder import RunFolder
from gainroute.routing import absent
from gainroute.routing.payload import round_trip
from gainroute.training.models.local import LocalCNN, LocalMLP
from gainroute.training.optimise import threads
from gainroute.training.prepare import read_aligned
from gainroute.training.run import TrainedRun, answer_views, load_calibrated_router, train_run
from gainroute.training.settings import RouteSettings, default_route_settings
from gainroute.training.trained_run import TrainedParty, load_fusion, load_parties


def _quick(epochs: int = 8) -> RouteSettings:
    """Small models; after one epoch they know nothing, which is enough where only their files and answers count."""
    chosen = default_route_settings(67)
    return replace(
        chosen,
        local=replace(chosen.local, epochs=(epochs + 1) // 2, widths=(2, 2, 4, 4)),
        vfl=replace(chosen.vfl, epochs=epochs, width=2, latent=8, rate=1e-2),
        masked=replace(chosen.masked, epochs=1),
    )


def _files(root: Path, count: int = 120, seed: int = 0) -> tuple[list[Path], Path]:
    """An image view, a vector view and a table of unequal shapes, each with some information about the class."""
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


@dataclass(frozen=True)
class _Trained:
    """A run, and the files it was trained on; tests read them, and change copies only."""

    views: list[Path]
    labels: Path
    run: TrainedRun

    @property
    def folder(self) -> Path:
        return self.run.folder.path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> _Trained:
    base = tmp_path_factory.mktemp("trained")
    views, labels = _files(base / "old")
    run = train_run(views, labels, base / "run", codec="int8", budget=0.4, settings=_quick())
    return _Trained(views, labels, run)


def test_a_run_has_party_folders_and_a_server_that_answer_new_data(made: _Trained, tmp_path: Path) -> None:
    trained, out = made.run, made.folder
    assert trained.class_names == ("ant", "bee", "cat")
    assert trained.party_names == ("front", "vitals", "card")
    assert (len(trained.calibration), len(trained.test)) == (17, 36)
    assert list(trained.test.defer) == ["1"]
    assert len(trained.test.subset_predictions) == 7
    body = json.loads((out / "parties" / "card" / "party.json").read_text())
    assert [column["name"] for column in body["preprocess"]["columns"]] == ["colour", "size"]
    names = sorted(file.name for file in (out / "server").iterdir())
    assert names == ["head.safetensors", "masked.safetensors", "router.safetensors"]
    parties, fusion = load_parties(out), load_fusion(out / "server")
    assert len(parties[0].ids) == 120
    fresh_views, fresh_labels = _files(tmp_path / "new", 60, seed=1)
    answers = answer_views(parties, fusion, fresh_views[::-1], fresh_labels)
    assert len(answers) == 60
    assert answers.strong_accuracy > 0.6, "a third would be chance"


def test_an_opened_run_answers_new_views_as_its_service_would(made: _Trained, tmp_path: Path) -> None:
    run = gr.open_run(made.folder)
    assert (run.party_names, run.class_names, run.codec) == (("front", "vitals", "card"), ("ant", "bee", "cat"), "int8")
    fresh, fresh_labels = _files(tmp_path / "new", 60, seed=1)
    ids, aligned, _ = read_aligned(fresh, fresh_labels)
    raw = {view.name: view.raw for view in aligned}
    answered = run.predict(raw)

    expected = answer_views(run.parties, run.fusion, fresh, fresh_labels, codec="int8")
    decision = run.router.route(expected.local_posteriors)
    both = run.router.answer(decision, expected.strong_posterior[decision.escalate])
    assert 0 < answered.escalated.sum() < len(ids)
    assert answered.prediction.tolist() == both.prediction.tolist(), "names of classes"
    assert answered.escalated.tolist() == decision.escalate.tolist()
    np.testing.assert_allclose(answered.probabilities, both.probabilities, atol=1e-6)
    dimensions = [party.dimension for party in run.parties]
    cost = gr.communication_cost(3, dimensions, float(answered.escalated.mean()), codec="int8")
    assert answered.bytes.mean() == pytest.approx(cost), "embeddings are counted as they are encoded"

    in_order = run.predict([raw["front"], raw["vitals"], _Frame(raw["card"])])
    np.testing.assert_array_equal(in_order.prediction, answered.prediction)


@pytest.mark.slow
def test_integer_labels_come_back_as_integers(tmp_path: Path) -> None:
    views, labels = _files(tmp_path / "old")
    ids = np.load(labels)["ids"]
    np.savez(labels, ids=ids, labels=np.arange(len(ids)) % 3 + 9)
    trained = train_run(views, labels, tmp_path / "run", settings=_quick())
    assert trained.class_names == RunFolder(tmp_path / "run").class_names == ("9", "10", "11")
    run = gr.open_run(tmp_path / "run")
    _, aligned, _ = read_aligned(views, labels)
    answered = run.predict({view.name: view.raw for view in aligned})
    assert answered.prediction.dtype.kind == "i"
    assert set(answered.prediction.tolist()) <= {9, 10, 11}
    assert (answered.prediction == np.load(labels)["labels"]).mean() > 0.6, "a third would be chance"
    assert run.class_names == tuple(map(str, run.router.classes.tolist()))
    assert evaluate_run(tmp_path / "run", views, labels)["weak"] > 0.5


class _Frame:
    """As much of a data frame as is looked at."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self._values, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._values[name]


def test_an_opened_run_says_which_views_it_needs(made: _Trained, tmp_path: Path) -> None:
    run = gr.open_run(made.folder)
    front, vitals = np.zeros((2, 9, 9)), np.zeros((2, 4))
    card = {"colour": np.array(["red", "blue"], dtype=object), "size": np.zeros(2)}
    for wrong, said in (
        ({"front": front, "vitals": vitals}, "front, vitals; one view per party is needed: front, vitals, card"),
        ([front, vitals], "2; one view per party"),
        ([front, vitals[:1], card], "front 2, vitals 1, card 2"),
        ([front, np.zeros(2), card], r"'vitals' has shape \(2,\)"),
        ([front, vitals, vitals], "column 'colour' is missing"),
    ):
        with pytest.raises(DataError, match=said):
            run.predict(wrong)
    with pytest.raises(NotAnArtifactError, match="not a run"):
        gr.open_run(tmp_path)


def test_opening_a_run_without_torch_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("gainroute.training.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r"opening a run .*gainroute\[torch\]"):
        gr.open_run(tmp_path)


class _BegunError(Exception):
    pass


@pytest.mark.parametrize(("asked", "openmp", "used"), [(None, "", 1), (2, "", 2), (None, "3", 3), (0, "", 3)])
def test_small_views_train_with_one_thread_unless_a_number_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int | None, openmp: str, used: int
) -> None:
    seen: list[int] = []

    def train(*_: object, **__: object) -> None:
        seen.append(torch.get_num_threads())
        raise _BegunError

    monkeypatch.setattr(run_module, "train_routes", train)
    monkeypatch.setenv("OMP_NUM_THREADS", openmp)
    views, labels = _files(tmp_path / "old")
    with threads(3):
        with pytest.raises(_BegunError):
            train_run(views, labels, tmp_path / "run", settings=_quick(), threads=asked)
        assert torch.get_num_threads() == 3, "as before"
    assert seen == [used]


def test_every_sample_is_answered_once_per_round_that_calibration_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[tuple[str, str, str]] = Counter()
    rows: Counter[str] = Counter()

    def counted(method: str) -> None:
        original = getattr(TrainedParty, method)

        def ask(self: TrainedParty, ids: list[str], /) -> object:
            asked.update((method, self.name, sample) for sample in ids)
            return original(self, ids)

        monkeypatch.setattr(TrainedParty, method, ask)

    def count_rows(model: type[nn.Module]) -> None:
        original = model.forward

        def forward(self: nn.Module, view: Tensor) -> Tensor:
            logits: Tensor = original(self, view)
            if not self.training and logits.shape[1] == 3:  # the nets that may defer have a fourth output
                rows[model.__name__] += len(view)
            return logits

        monkeypatch.setattr(model, "forward", forward)

    monkeypatch.setattr(reports, "encode", lambda *_: b"<svg/>")  # `test_figures` draws in earnest
    for method in ("posteriors", "embeddings"):
        counted(method)
    for model in (LocalCNN, LocalMLP):
        count_rows(model)
    views, labels = _files(tmp_path / "old")
    trained = train_run(views, labels, tmp_path / "run", codec="int8", settings=_quick(1))
    report_run(trained)
    held_out = [*trained.calibration.ids.tolist(), *trained.test.ids.tolist()]
    everything = np.load(labels)["ids"].tolist()
    assert asked == Counter(
        (method, party, sample)
        for method, samples in (("posteriors", everything), ("embeddings", held_out))
        for party in trained.party_names
        for sample in samples
    )
    assert rows == {"LocalCNN": len(everything), "LocalMLP": 2 * len(everything)}, "no local model runs once more"

    monkeypatch.undo()
    router, answers = load_calibrated_router(tmp_path / "run"), trained.calibration
    again = type(router)(router.budget, seed=0, classes=trained.class_names)
    names = np.array(trained.class_names)
    training = trained.training.posteriors, names[trained.training.labels]
    again.fit(
        answers.local_posteriors, names[answers.labels], strong_posterior=answers.strong_posterior, training=training
    )
    assert (router.threshold_, router.provenance_.codec) == (again.threshold_, "int8")
    parties, ids = load_parties(tmp_path / "run"), answers.ids.tolist()
    sent = [round_trip(party.embeddings(ids), "int8") for party in parties]
    assert np.array_equal(load_fusion(tmp_path / "run" / "server")(sent), answers.strong_posterior)


def test_a_router_is_refused_beside_other_models(made: _Trained, tmp_path: Path) -> None:
    run = shutil.copytree(made.folder, tmp_path / "run")
    assert load_calibrated_router(run).threshold_ is not None
    folder = run / "parties"
    shutil.copy(folder / "vitals" / "encoder.safetensors", folder / "card" / "encoder.safetensors")
    with pytest.raises(ArtifactError, match="calibrated with other models of card"):
        load_calibrated_router(run)


def test_a_run_with_its_own_split_sees_nothing_but_the_training_part(made: _Trained, tmp_path: Path) -> None:
    views, labels = _files(tmp_path / "old")
    with np.load(views[1]) as file:
        x, ids = file["x"].copy(), file["ids"]
    x[np.isin(ids, made.run.test.ids)] += 1000.0
    np.savez(views[1], x=x, ids=ids)
    train_run(views, labels, tmp_path / "run", settings=_quick(1))
    one, two = ((run / "parties" / "vitals" / "party.json").read_text() for run in (made.folder, tmp_path / "run"))
    assert one == two, "the preprocessing must not know the test samples"


def test_what_cannot_be_trained_or_answered_is_said(made: _Trained, tmp_path: Path) -> None:
    views, labels = _files(tmp_path / "new", 30, seed=1)
    with pytest.raises(DataError, match="at least two, of different names"):
        train_run(views[:1], labels, tmp_path / "run", settings=_quick())
    with pytest.raises(NotAnArtifactError, match="a folder that `gainroute train` has written"):
        TrainedParty(tmp_path)
    run = load_parties(made.folder), load_fusion(made.folder / "server")
    with pytest.raises(DataError, match="the run was trained on front, vitals, card"):
        answer_views(*run, views[:2], labels)
    with np.load(labels) as file:
        ids = file["ids"]
    np.savez(labels, labels=np.full(30, "dog"), ids=ids)
    with pytest.raises(LabelError, match="'dog' was not in training: the classes are ant, bee, cat"):
        answer_views(*run, views, labels)


def test_a_folder_that_holds_another_run_is_refused_unless_overwritten_and_nothing_stale_stays(
    made: _Trained, tmp_path: Path
) -> None:
    views, labels = made.views, made.labels
    out = shutil.copytree(made.folder, tmp_path / "run")
    (out / "results.json").write_text("{}")
    train_run(views, labels, out, settings=_quick(), budget=0.2)  # the same models
    with pytest.raises(DataError, match=r"holds another run, of other data or settings; .* --overwrite"):
        train_run(views[:2], labels, out, settings=_quick())
    assert (out / "parties" / "card").is_dir()
    before = set((out / "work").iterdir())
    train_run(views[:2], labels, out, settings=_quick(1), overwrite=True)
    assert sorted(folder.name for folder in (out / "parties").iterdir()) == ["front", "vitals"]
    assert not (out / "results.json").exists()
    assert {path.name for path in before & set((out / "work").iterdir())} == {"fingerprint"}


def test_a_run_on_a_device_that_is_not_there_does_not_start(tmp_path: Path) -> None:
    views, labels = _files(tmp_path / "old")
    with pytest.raises(SettingError, match="device is 'cuda:9'"):
        train_run(views, labels, tmp_path / "run", settings=_quick(), device="cuda:9")
    assert not (tmp_path / "run").exists()


class _Lacking:
    """A trained party without every other sample."""

    def __init__(self, party: TrainedParty) -> None:
        self._party = party

    def posteriors(self, ids: list[str]) -> np.ndarray:
        answers = np.array(self._party.posteriors(ids))
        answers[::2] = np.nan
        return answers

    def embeddings(self, ids: list[str]) -> np.ndarray:
        return np.asarray(self._party.embeddings(ids))


def test_a_run_is_calibrated_for_absent_parties_and_its_masked_head_answers(
    made: _Trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the library, and, answer for answer, in the service."""
    for module in (run_module, absent):
        monkeypatch.setattr(module, "FEWEST", 10)
    held = made.run.calibration
    router = run_module.fit_router(held, list(made.run.class_names), budget=0.9, seed=0)
    assert list(router.subset_routers_) == absent.calibrated_subsets(3)
    assert router.offers_ is not None
    parties, fusion = load_parties(made.folder), load_fusion(made.run.folder.server.path)
    ids = made.run.test.ids.tolist()
    found = gr.predict_two_round([parties[0], _Lacking(parties[1]), parties[2]], fusion, router, ids, codec="float32")
    lacks = np.arange(len(ids)) % 2 == 0
    rows = np.flatnonzero(found.escalated & lacks)
    assert len(rows)
    embeddings = [party.embeddings([ids[i] for i in rows]) for party in parties]
    expected = fusion.masked(embeddings, np.array([True, False, True]))
    np.testing.assert_allclose(found.probabilities[rows], expected, atol=1e-6)
    size = 4 * sum(e.shape[1] for e in (embeddings[0], embeddings[2]))
    np.testing.assert_array_equal(found.bytes[rows], 2 * 3 * 4 + size)

    codec = made.run.codec
    provenance = made.run.folder.provenance(codec)
    gr.save(router, tmp_path / "router.safetensors", provenance=provenance)
    serving = [parties[0], _Lacking(parties[1]), parties[2]]
    for partial in (False, True):
        decider = gr.PartialRouter(router) if partial else router
        known = gr.predict_two_round(serving, fusion, decider, ids, codec=codec)
        route, label, probabilities = asyncio.run(_served(made, serving, tmp_path, ids, partial=partial))
        np.testing.assert_array_equal(np.array(made.run.class_names)[label], known.prediction)
        np.testing.assert_allclose(probabilities, known.probabilities, atol=1e-6)
        assert [r.startswith("round2") for r in route] == known.escalated.tolist()
        assert all(("missing:vitals" in r) == lacks[i] for i, r in enumerate(route))


async def _served(
    made: _Trained, parties: list, folder: Path, ids: list[str], *, partial: bool
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Routes, answers and posteriors of a coordinator with the parties in its process."""
    names, run = made.run.party_names, made.run.folder
    models = run.provenance(made.run.codec).models
    settings = CoordinatorSettings(
        server=ServerSettings(without_tokens=True),
        router=RouterSettings(artifact=folder / "router.safetensors", partial=partial),
        fusion=FusionSettings(run=run.server.path),
        party=tuple(PartyEndpoint(name=name, address="127.0.0.1:1") for name in names),
        log=LogSettings(path=folder / f"log-{partial}.sqlite"),
    )
    connections = []
    for name, party, trained in zip(names, parties, load_parties(run.path), strict=True):
        version = version_of(party, models[name], made.run.class_names, trained.dimension)
        connections.append(InProcessConnection(name, [version]))
    coordinator = Coordinator(settings, connections)
    await coordinator.start()
    try:
        return await coordinator.infer(ids, "test", lambda o, _: (o.route, o.label, o.probabilities))
    finally:
        await coordinator.stop()
