"""A federation forms across parties that each hold their own files: the result is that of training in one place."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gainroute._util.progress import Progress
from gainroute.cli import app
from gainroute.errors import DataError, InputError
from gainroute.federation.formation.federate import Formation
from gainroute.federation.formation.party_trainer import PartyTrainer
from gainroute.federation.formation.plan import FederationSettings, FormationPlan, LabelSettings, PartyAddress
from gainroute.federation.formation.pseudonyms import PseudonymTable
from gainroute.federation.formation.remote import TrainingStream
from gainroute.federation.formation.status import read_status
from gainroute.federation.party.process import PartyNode
from gainroute.federation.party.settings import (
    AgreementSettings,
    AuditSettings,
    PartySettings,
    SourceSettings,
    TrainingSettings,
)
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import Identity
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.pki.signatures import Trust, TrustSettings, create_key
from gainroute.federation.transport.base import PartyAgreementError, PartyRefusedError
from gainroute.io.views import PartyView
from gainroute.routing.artifacts import load
from gainroute.training.prepare import split_rows
from gainroute.training.run import fit_router, train_run
from research.tapped import Case, Samples, form

NAMES = ("lab", "ward", "clinic")
EPOCHS = 2


class Organisations:
    """Three parties with a folder of raw files each: ids in different orders, some held by one of them only."""

    def __init__(self, folder: Path, samples: int = 180) -> None:
        self.folder, rng = folder, np.random.default_rng(7)
        self.signing_key: Path | None = None
        self.authority = Authority.create(folder / "ca")
        self.labels = rng.integers(0, 3, samples)
        self.ids = np.array([f"patient-{i:04d}" for i in range(samples)])
        self.views = {
            name: rng.normal(size=(samples, 5)).astype(np.float32) + self.labels[:, None] * (1 + place)
            for place, name in enumerate(NAMES)
        }
        for place, name in enumerate(NAMES):
            home = folder / name
            order = rng.permutation(samples)
            alien = np.array([f"{name}-only-{i}" for i in range(5 + place)])
            ids = np.concatenate([self.ids[order], alien])
            x = np.concatenate([self.views[name][order], rng.normal(size=(len(alien), 5)).astype(np.float32)])
            home.mkdir()
            np.savez(home / "views.npz", ids=ids, x=x)
        np.savez(folder / "ward" / "labels.npz", ids=self.ids, labels=np.array(["a", "b", "c"])[self.labels])

    def party(self, name: str) -> PartySettings:
        home = self.folder / name
        return PartySettings(
            name=name,
            coordinators=("hub",),
            tls=self.authority.issue(Identity("party", name), home),
            source=SourceSettings(run=home / "models"),
            listen="127.0.0.1:0",
            audit=AuditSettings(path=home / "audit.jsonl"),
            agreement=AgreementSettings(escalation_share=0.0, burst=0),
            training=TrainingSettings(
                coordinators=("hub",),
                views=home / "views.npz",
                labels=home / "labels.npz" if name == "ward" else None,
                folder=home / "training",
                signing_key=self.signing_key,
            ),
            trust=None if self.signing_key is None else TrustSettings(signers=(self.signing_key.with_suffix(".pub"),)),
        )

    def federation(self, nodes: dict[str, PartyNode], **plan: object) -> FederationSettings:
        labels = plan.pop("labels", LabelSettings(holder="ward"))
        return FederationSettings(
            name="trial",
            out=self.folder / "hub",
            tls=self.authority.issue(Identity("coordinator", "hub"), self.folder / "hub"),
            party=tuple(PartyAddress(name=name, address=node.address) for name, node in nodes.items()),
            labels=labels,
            training=FormationPlan(epochs=EPOCHS, local_epochs=EPOCHS, **plan),
        )


async def formed(
    organisations: Organisations, version: str = "v1", *, models_of: str | None = None, **plan: object
) -> tuple[Formation, dict]:
    nodes = {name: PartyNode(organisations.party(name)) for name in NAMES}
    for node in nodes.values():
        await node.start()
    try:
        settings = organisations.federation(nodes, **plan)
        formation = Formation(settings, version, Progress(), wait=60, models_of=models_of)
        results = await formation.run()
        await require_agreement(formation)
        return formation, results
    finally:
        for node in nodes.values():
            await node.stop(1)


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """A federation that has formed, which tests may only read: the organisations, the formation and its results."""
    organisations = Organisations(tmp_path_factory.mktemp("trial"))
    return organisations, *asyncio.run(asyncio.wait_for(formed(organisations), 300))


class StoppedError(Exception):
    pass


def aligned_and_split(organisations: Organisations, version: str = "v1", **plan: object) -> None:
    """Form a federation up to where training would begin."""

    async def stop(_: Formation) -> None:
        raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Formation, "_local", stop)
        with pytest.raises(StoppedError):
            asyncio.run(asyncio.wait_for(formed(organisations, version, **plan), 300))


async def require_agreement(formation: Formation) -> None:
    """While the federation forms, embeddings are given; afterwards, none without Round 1 and beyond the share."""
    ids = (formation._work / "samples.txt").read_text().split("\n")[:3]
    models = formation._state["done"]["deploy"]["models"]
    async with formation._serving() as connections:
        for connection in connections:
            ask = {"model": models[connection.name], "request_id": "r"}
            await connection.posteriors(ids, **ask)
            with pytest.raises(PartyAgreementError):
                await connection.embeddings(ids, codec="float32", **ask)


def test_a_federation_equals_training_in_one_place(trial, tmp_path):
    organisations, formation, results = trial
    table = PseudonymTable.load(organisations.folder / "lab" / "training" / "trial" / "aligned.npz")
    rows = [organisations.ids.tolist().index(name) for name in table.ids]
    one_place = tmp_path / "one-place"
    one_place.mkdir()
    for name, view in organisations.views.items():
        np.savez(one_place / f"{name}.npz", ids=np.array(table.pseudonyms), x=view[rows])
    labels = np.array(["a", "b", "c"])[organisations.labels[rows]]
    np.savez(one_place / "labels.npz", ids=np.array(table.pseudonyms), labels=labels)
    trained = train_run(
        [one_place / f"{name}.npz" for name in NAMES], one_place / "labels.npz", tmp_path / "run", epochs=EPOCHS,
        local_epochs=EPOCHS, threads=1,
    )  # fmt: skip
    run = formation.run_folder
    assert run.server.head.read_bytes() == trained.folder.server.head.read_bytes()
    assert run.server.masked_head.read_bytes() == trained.folder.server.masked_head.read_bytes()
    for name in NAMES:
        served = organisations.folder / name / "models" / "trial-v1"
        for file in ("local.safetensors", "encoder.safetensors", "party.json"):
            assert (served / file).read_bytes() == (trained.folder.party(name).path / file).read_bytes()
    ours, theirs = load(run.server.router), load(trained.folder.server.router)
    assert ours.provenance_ == theirs.provenance_
    assert ours.threshold_ == theirs.threshold_
    posteriors = trained.test.local_posteriors
    np.testing.assert_array_equal(ours.route(posteriors).score, theirs.route(posteriors).score)
    assert results["strong_accuracy"] == trained.test.strong_accuracy
    assert results["weak_accuracy"] == trained.test.weak_accuracy
    assert formation.trained_run().metadata["logistic_regression"] == trained.metadata["logistic_regression"]


@pytest.mark.slow
def test_new_data_recalibrate_the_models_that_are_there(tmp_path):
    organisations = Organisations(tmp_path)
    first, _ = asyncio.run(asyncio.wait_for(formed(organisations), 300))
    before = first._state["done"]
    for name in NAMES:
        held = np.load(tmp_path / name / "views.npz")
        x = np.random.default_rng(1).normal(size=(30, 5)).astype(np.float32)
        ids = np.array([f"patient-new-{i}" for i in range(30)])
        np.savez(tmp_path / name / "views.npz", ids=np.r_[held["ids"][9:], ids], x=np.r_[held["x"][9:], x])
    ids, labels = np.r_[organisations.ids, ids], np.r_[np.array(["a", "b", "c"])[organisations.labels], ["a"] * 30]
    np.savez(tmp_path / "ward" / "labels.npz", ids=ids, labels=labels)

    with pytest.raises(DataError, match="v9 is not complete"):
        asyncio.run(asyncio.wait_for(formed(organisations, "v2", models_of="v9"), 300))
    assert not (tmp_path / "hub" / "v2").exists()
    second, results = asyncio.run(asyncio.wait_for(formed(organisations, "v2", models_of="v1"), 300))
    done, (train, *held_out) = second._state["done"], second._rows
    assert done["deploy"]["models"] == before["deploy"]["models"]
    assert done["strong"] == before["strong"]
    known, samples = ((f._work / "samples.txt").read_text().split("\n") for f in (first, second))
    trained = {known[row] for row in first._rows[0].tolist()}
    assert {samples[row] for row in train.tolist()} <= trained
    assert trained.isdisjoint(samples[row] for row in np.concatenate(held_out).tolist())
    assert len(held_out[0]) + len(held_out[1]) == len(samples) - len(train)
    assert results["test_samples"] == len(held_out[1]) > 0
    assert [line["outcome"] for line in audit(tmp_path, "lab")].count("trained: epoch 1") == 1
    # A third version uses the models of the first, and still leaves out the samples that trained them.
    third, _ = asyncio.run(asyncio.wait_for(formed(organisations, "v3", models_of="v2"), 300))
    assert third._state["models_of"] == "v1"
    assert third._rows[0].tolist() == train.tolist()


def audit(tmp_path, name):
    return [json.loads(line) for line in (tmp_path / name / "audit.jsonl").read_text().splitlines()]


def asked_in_round_1(tmp_path, name):
    """How many samples a party was asked for while the router was calibrated."""
    lines = [line for line in audit(tmp_path, name) if line.get("round") == 1 and line["outcome"] == "answered"]
    return sum(line["count"] for line in lines if line["request_id"].startswith("calibrate-"))


def test_the_training_part_is_answered_in_round_1_as_well(trial):
    organisations, _, _ = trial
    assert asked_in_round_1(organisations.folder, "lab") == 180, "every aligned sample"


def test_a_party_records_training_in_few_lines_and_its_ids_stay(trial):
    organisations, formation, _ = trial
    lines = [line for line in audit(organisations.folder, "lab") if line["outcome"].startswith("trained: epoch")]
    status = read_status(formation.run_folder.path)
    assert status["overlaps"]["lab ∩ ward ∩ clinic"] == 180  # in the order of the settings
    assert status["overlaps"]["clinic"] == 187
    assert all("stage" not in party for party in status["parties"].values()), "nobody works any more"
    assert all(party["samples_per_second"] > 0 for party in status["parties"].values())
    train = formation._state["done"]["split"]["train"]
    assert [line["outcome"] for line in lines] == ["trained: epoch 1", "trained: epoch 2"]
    assert all(0 < line["count"] <= train and line["bytes_out"] > 0 for line in lines)
    kept = b"".join(path.read_bytes() for path in (organisations.folder / "hub").rglob("*") if path.is_file())
    assert b"patient-" not in kept, "the coordinator keeps a real id"


def same_as_tapped(organisations, formation, case):
    """The federation in one process that the study of privacy attacks answers as the real one.

    Posteriors differ in the last bit, because all samples are answered in one batch.
    """
    table = PseudonymTable.load(organisations.folder / "lab" / "training" / "trial" / "aligned.npz")
    rows = [organisations.ids.tolist().index(name) for name in table.ids]
    views = tuple(PartyView(name, None, view[rows]) for name, view in organisations.views.items())
    tapped = form(Samples("t", views, organisations.labels[rows]), case, 0, epochs=EPOCHS, local_epochs=EPOCHS)
    test, answered = tapped.rows[2], formation._answers["test"]
    assert answered.labels.tolist() == tapped.labels[test].tolist()
    np.testing.assert_allclose(answered.local_posteriors, tapped.local[:, test], rtol=1e-5)
    np.testing.assert_allclose(answered.strong_posterior, tapped.strong[test], rtol=1e-5)
    return tapped


def test_without_gradients_encoders_are_trained_alone_and_sent_once(tmp_path):
    organisations = Organisations(tmp_path)
    organisations.signing_key = tmp_path / "signer.key"  # parties that serve signed versions only sign their own
    create_key(organisations.signing_key)
    formation, results = asyncio.run(asyncio.wait_for(formed(organisations, exchange="embeddings"), 300))
    assert results["strong_accuracy"] > 0.8
    trust = Trust([tmp_path / "signer.pub"])
    assert len(trust.entries(tmp_path / "lab" / "models" / "trial-v1")) == 3
    assert not any("epoch" in line["outcome"] for line in audit(tmp_path, "lab"))
    assert formation.run_folder.server.router.is_file()
    same_as_tapped(organisations, formation, Case(exchange="embeddings"))


def test_integer_labels_come_back_as_integers(tmp_path):
    organisations = Organisations(tmp_path)
    np.savez(tmp_path / "ward" / "labels.npz", ids=organisations.ids, labels=organisations.labels + 1)
    formation, _ = asyncio.run(asyncio.wait_for(formed(organisations), 300))
    router = load(formation.run_folder.server.router)
    posteriors = np.full((3, 1, 3), 1 / 3)
    assert router.route(posteriors).weak_prediction.tolist()[0] in (1, 2, 3)
    assert json.loads(formation.run_folder.description.read_text())["class_names"] == [1, 2, 3]


def test_private_labels_leave_the_holder_randomised_only_and_once(tmp_path):
    organisations = Organisations(tmp_path)
    labels = LabelSettings(holder="ward", access="private", epsilon=2.0)
    _, results = asyncio.run(asyncio.wait_for(formed(organisations, labels=labels), 300))
    split = np.load(tmp_path / "hub" / "v1" / "work" / "split.npz")
    table = PseudonymTable.load(tmp_path / "ward" / "training" / "trial" / "aligned.npz")
    true = organisations.labels[[organisations.ids.tolist().index(name) for name in table.ids]]
    agreement = (split["labels"] == true[split["a"]]).mean()
    assert 0.6 < agreement < 0.95  # e² / (e² + 2) = 0.787 of 101 samples
    drawn = np.load(tmp_path / "ward" / "training" / "trial" / "randomised-2-3.npz")
    assert drawn["pseudonyms"].tolist() == list(table.pseudonyms)
    *_, rows = split_rows(drawn["labels"], 0.3, 0.2, 0)
    assert [part.tolist() for part in rows] == [split[name].tolist() for name in "abc"], "split by true labels"
    aligned_and_split(organisations, "v2", labels=labels)
    with np.load(tmp_path / "hub" / "v2" / "work" / "split.npz") as again:
        assert again["labels"].tolist() == split["labels"].tolist()
    assert results["strong_accuracy"] > 0.6
    calibrated = len(split["b"]) + len(split["c"])
    assert asked_in_round_1(tmp_path, "lab") == calibrated, "none of the training part: a router would tell its labels"


@pytest.mark.parametrize("labels", [LabelSettings(holder="w"), LabelSettings(holder="w", access="private", epsilon=3)])
def test_a_holder_limits_epsilon_whatever_the_plan(tmp_path, labels):
    settings = TrainingSettings(labels=tmp_path / "labels.npz", max_epsilon=2.0)
    trainer = PartyTrainer("w", settings, tmp_path, lambda _: None)
    trainer._federation, trainer._plan, trainer._label_access = "trial", FormationPlan(), labels
    trainer._folder, trainer._table = tmp_path, PseudonymTable((), (), "")
    with pytest.raises(InputError, match=r"at most training.max_epsilon = 2"):
        trainer.work("split", {}, [])


def test_changed_settings_of_a_started_version_are_refused_with_the_remedy(tmp_path):
    tls = Authority.create(tmp_path / "ca").issue(Identity("coordinator", "hub"), tmp_path)

    def formation(**plan):
        parties = tuple(PartyAddress(name=name, address="127.0.0.1:1") for name in NAMES)
        more = {"labels": LabelSettings(holder="ward"), "training": FormationPlan(**plan)}
        return Formation(FederationSettings(name="t", out=tmp_path, tls=tls, party=parties, **more), "v1", Progress())

    formation()._claim()
    with pytest.raises(DataError, match="start the next version with --again"):
        formation(seed=1)._claim()


def test_a_party_translates_real_ids(tmp_path):
    names = tuple(f"{n:032x}" for n in range(3))
    table = PseudonymTable(("anna", "ben", "zoë"), names, "f")
    table.save(tmp_path / "training" / "trial" / "aligned.npz")
    (tmp_path / "party.toml").write_text(
        'name = "lab"\ncoordinators = ["hub"]\n[tls]\nca = "c"\ncertificate = "c"\nkey = "c"\n[source]\n'
        'run = "models"\n[training]\ncoordinators = ["hub"]\nviews = "views.npz"\n'
    )
    (tmp_path / "ids.txt").write_text("zoë\nanna\n", encoding="utf-8")
    words = ["party", "--config", str(tmp_path / "party.toml"), "--pseudonyms", str(tmp_path / "ids.txt")]
    assert CliRunner().invoke(app, words).stdout.splitlines() == [names[2], names[0]]
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout) == {"pseudonyms": [names[2], names[0]]}
    table.save(tmp_path / "training" / "other" / "aligned.npz")
    assert "in other, trial: name one" in CliRunner().invoke(app, words).output
    assert CliRunner().invoke(app, [*words, "--federation", "trial"]).stdout.splitlines() == [names[2], names[0]]


def test_a_coordinator_without_permission_does_not_train(tmp_path):
    organisations = Organisations(tmp_path)

    async def main():
        settings = organisations.party("lab")
        other = replace(settings, coordinators=("hub", "other"))
        node = PartyNode(other)
        await node.start()
        certificate = ReloadingCertificate(
            organisations.authority.issue(Identity("coordinator", "other"), tmp_path / "o")
        )
        stream = TrainingStream("lab", node.address, certificate, lambda *_: None)

        async def ask():
            await stream.open()
            await stream.call("open")

        with pytest.raises(PartyRefusedError, match="may not train"):
            await ask()
        await stream.close()
        await node.stop(1)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_changed_data_are_refused(tmp_path):
    organisations = Organisations(tmp_path)
    aligned_and_split(organisations)
    views = np.load(tmp_path / "lab" / "views.npz")
    np.savez(tmp_path / "lab" / "views.npz", ids=views["ids"], x=views["x"] + 1)
    with pytest.raises(PartyRefusedError, match="have changed since the alignment"):
        asyncio.run(asyncio.wait_for(formed(organisations), 300))


@pytest.mark.parametrize("change", ["shape", "nan", "large"])
def test_wrong_gradients_are_refused(tmp_path, change):
    trainer = PartyTrainer("lab", TrainingSettings(max_gradient=10.0), tmp_path, lambda _: None)
    trainer._federation, trainer._plan = "trial", FormationPlan()
    trainer._training, trainer._shape = object(), (2, 3)
    gradient = {"shape": np.zeros((2, 4)), "nan": np.full((2, 3), np.nan), "large": np.full((2, 3), 11.0)}[change]
    with pytest.raises(InputError, match="gradient"):
        trainer.work("gradient", {}, [gradient.astype(np.float32)])


def test_an_error_about_its_own_data_names_no_id_to_the_coordinator(tmp_path, caplog):
    organisations = Organisations(tmp_path)
    views = np.load(tmp_path / "lab" / "views.npz")
    twice = np.concatenate([views["ids"], views["ids"][:1]])
    np.savez(tmp_path / "lab" / "views.npz", ids=twice, x=np.concatenate([views["x"], views["x"][:1]]))
    with pytest.raises(PartyRefusedError, match="its log says why") as raised:
        asyncio.run(asyncio.wait_for(formed(organisations), 300))
    assert str(twice[0]) not in str(raised.value)
    assert any(str(twice[0]) in getattr(record, "reason", "") for record in caplog.records)


def test_a_class_that_is_too_small_is_told_to_the_holder_only(tmp_path, caplog):
    organisations = Organisations(tmp_path)
    labels = np.array(["a", "b", "c"])[organisations.labels]
    labels[0] = "r"
    np.savez(tmp_path / "ward" / "labels.npz", ids=organisations.ids, labels=labels)
    with pytest.raises(PartyRefusedError, match="its log says why"):
        asyncio.run(asyncio.wait_for(formed(organisations), 300))
    assert any("r 1" in getattr(record, "reason", "") for record in caplog.records)


def test_answers_reach_the_label_holder_unrounded_whatever_the_messages_of_training(tmp_path):
    organisations = Organisations(tmp_path)
    formation, results = asyncio.run(asyncio.wait_for(formed(organisations, messages="int8"), 300))
    router = load(formation.run_folder.server.router)
    tested = formation._answers["test"]
    decision = router.route(tested.local_posteriors)
    assert results["escalation_rate"] == np.mean(decision.escalate)
    made = formation.trained_run()
    again = fit_router(made.calibration, formation._class_names, budget=0.2, seed=0, training=made.training)
    assert router.threshold_ == again.threshold_
    tapped = same_as_tapped(organisations, formation, Case(messages="int8"))
    epochs = [line for line in audit(tmp_path, "lab") if line["outcome"].startswith("trained: epoch")]
    assert 3 * epochs[1]["bytes_in"] == tapped.results["bytes_down_per_epoch"], "bytes of three parties"
    assert 3 * epochs[1]["bytes_out"] == tapped.results["bytes_up_per_epoch"]


def test_randomised_labels_are_learned_for_fewer_epochs_unless_the_plan_names_them():
    assert [FormationPlan().route_settings(1000, 10, epsilon).vfl.epochs for epsilon in (None, 8.0, 3.0)] == [20, 20, 5]
    assert FormationPlan(epochs=12).route_settings(1000, 10, 3.0).vfl.epochs == 12
    settings = FormationPlan().route_settings(1000, 10, None)
    assert FormationPlan(settings=settings).route_settings(1000, 10, 3.0).vfl.epochs == 20
