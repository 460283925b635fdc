"""Where answers come from: precomputed columns, the object of a factory, and a trained run."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from party_helpers import StubParty

from gainroute.errors import DataError, SettingError
from gainroute.federation.party.database_views import DatabaseViews
from gainroute.federation.party.file_views import FileViews
from gainroute.federation.party.settings import PartySettings, SourceSettings, TrainingSettings
from gainroute.federation.party.sources import open_source
from gainroute.federation.pki.certificates import CertificateFiles
from gainroute.federation.pki.signatures import Trust, TrustSettings, create_key, load_key, sign, signer_name
from gainroute.io.party_answers import read_columns, write_columns
from gainroute.io.run_folder import PartyFolder, hash_version_folder

NAMES = ["cat", "dog", "fox"]


def columns(path, seed=0, **how):
    party = StubParty(5, seed)
    write_columns(path, party.ids, party.p, party.e, NAMES, **how)
    return party


# ---- precomputed ------------------------------------------------------------------------------------


def test_precomputed_columns_answer_by_id(tmp_path):
    party = columns(tmp_path / "a.npz", model_hash="m1")
    found = open_source(SourceSettings(columns=tmp_path / "a.npz"), "a").scan()
    version = found["m1"]
    assert version.immediate
    assert version.classes == tuple(NAMES)
    np.testing.assert_array_equal(version.posteriors(["2", "0"]), party.p[[2, 0]])
    given = np.asarray(version.embeddings(["x", "4"]))
    assert np.isnan(given[0]).all()
    np.testing.assert_array_equal(given[1], party.e[4])


def test_a_folder_of_columns_is_a_folder_of_versions_and_is_looked_through_again(tmp_path):
    columns(tmp_path / "a.npz", model_hash="m1")
    source = open_source(SourceSettings(columns=tmp_path), "a")
    first = source.scan()
    assert set(first) == {"m1"}
    columns(tmp_path / "b.npz", seed=1)
    (tmp_path / "broken.npz").write_bytes(b"half copied")
    second = source.scan()
    assert len(second) == 2
    assert second["m1"] is first["m1"], "what has not changed is not loaded again"
    (tmp_path / "a.npz").unlink()
    assert set(source.scan()) == set(second) - {"m1"}


def test_without_a_hash_of_its_own_a_file_is_named_by_its_content(tmp_path):
    columns(tmp_path / "a.npz")
    columns(tmp_path / "b.npz", seed=1)
    first, second = (open_source(SourceSettings(columns=tmp_path / n), "a").scan() for n in ("a.npz", "b.npz"))
    assert len(next(iter(first))) == 64
    assert set(first) != set(second)


@pytest.mark.parametrize("lists", [True, False])
def test_parquet_columns(tmp_path, lists):
    party = StubParty(4)
    table = {"id": ["a", "b", "c", "d"], "embedding": pa.array(party.e.tolist(), pa.list_(pa.float32()))}
    if lists:
        table["posterior"] = pa.array(party.p.tolist(), pa.list_(pa.float32()))
    else:
        table |= {f"posterior_{name}": party.p[:, i] for i, name in enumerate(NAMES)}
    metadata = {"model_hash": "m2"} | ({"class_names": json.dumps(NAMES)} if lists else {})
    pq.write_table(pa.table(table).replace_schema_metadata(metadata), tmp_path / "a.parquet")
    version = open_source(SourceSettings(columns=tmp_path / "a.parquet"), "a").scan()["m2"]
    assert version.classes == tuple(NAMES)
    np.testing.assert_array_equal(version.posteriors(["d", "a"]), party.p[[3, 0]])
    np.testing.assert_array_equal(version.embeddings(["b"]), party.e[[1]])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"embeddings": None}, "no embeddings"),
        ({"ids": np.array([1, 1, 2, 3, 4])}, "more than once"),
        ({"ids": np.array([1.5, 2, 3, 4, 5])}, "text or whole numbers"),
        ({"posteriors": np.ones((5, 3))}, "sum"),
        ({"posteriors": np.full((4, 3), 1 / 3)}, "5 ids"),
        ({"embeddings": np.full((5, 2), np.nan)}, "NaN"),
        ({"embeddings": np.zeros(5)}, r"\(N, d\)"),
        ({"class_names": np.array(["x", "y"])}, "classes"),
    ],
)
def test_invalid_columns_are_refused(tmp_path, change, told):
    party = StubParty(5)
    arrays = {"ids": np.arange(5), "posteriors": party.p, "embeddings": party.e, "class_names": np.array(NAMES)}
    arrays = {name: value for name, value in (arrays | change).items() if value is not None}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=told):
        read_columns(tmp_path / "a.npz")


def test_precomputed_columns_need_no_torch(tmp_path):
    columns(tmp_path / "a.npz", model_hash="m1")
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom pathlib import Path\n"
        "from gainroute.federation.party.process import run_party\n"
        "from gainroute.federation.party.settings import SourceSettings\n"
        "from gainroute.federation.party.sources import open_source\n"
        f"print(list(open_source(SourceSettings(columns=Path({str(tmp_path)!r})), 'a').scan()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['m1']"


# ---- anybody's object -------------------------------------------------------------------------------


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("party_of_mine")
    monkeypatch.setitem(sys.modules, "party_of_mine", made)
    return made


def test_a_factory_gives_any_object_of_the_protocol(module):
    party = StubParty()
    module.make = lambda: party
    with_settings = SourceSettings(factory="party_of_mine:make", classes=tuple(NAMES), dimension=6, hash="m1")
    version = open_source(with_settings, "a").scan()["m1"]
    np.testing.assert_array_equal(version.posteriors(["3"]), party.p[[3]])
    party.class_names, party.dimension, party.model_hash = NAMES, 6, "m2"
    assert set(open_source(SourceSettings(factory="party_of_mine:make"), "a").scan()) == {"m2"}


def test_a_factory_makes_a_version_of_each_folder(module, tmp_path):
    def make(folder):
        party = StubParty(seed=int((folder / "seed").read_text()))
        party.class_names, party.dimension = NAMES, 6
        return party

    module.make = make
    for seed in (1, 2):
        (tmp_path / f"v{seed}").mkdir()
        (tmp_path / f"v{seed}/seed").write_text(str(seed))
    (tmp_path / "v3").mkdir()  # not whole yet
    source = open_source(SourceSettings(factory="party_of_mine:make", models=tmp_path), "a")
    found = source.scan()
    assert set(found) == {hash_version_folder(tmp_path / "v1"), hash_version_folder(tmp_path / "v2")}
    (tmp_path / "v3/seed").write_text("3")
    assert len(source.scan()) == 3


def test_a_factory_is_handed_the_views(module, tmp_path):
    np.savez(tmp_path / "v.npz", ids=np.array(["s1"]), x=np.ones((1, 2)))

    def make(views):
        party = StubParty()
        del party.ids  # so that it is asked with the text as it is
        party.posteriors = lambda ids: np.full((len(ids), 3), views.fetch(ids).raw.sum() / 6)
        return party

    module.make = make
    settings = SourceSettings(factory="party_of_mine:make", classes=tuple(NAMES), dimension=6, hash="m")
    version = open_source(settings, "a", FileViews(tmp_path / "v.npz")).scan()["m"]
    np.testing.assert_allclose(version.posteriors(["s1"]), 1 / 3)


@pytest.mark.parametrize("spec", ["nowhere:make", "party_of_mine:none", "party_of_mine", "party_of_mine:text"])
def test_a_factory_that_cannot_be_loaded_is_an_error(module, spec):
    module.text = "no function"
    with pytest.raises(SettingError, match=r"source\.factory"):
        open_source(SourceSettings(factory=spec), "a")


@pytest.mark.parametrize("lacks", ["class_names", "dimension", "model_hash", "embeddings"])
def test_an_object_without_a_complete_description_is_skipped(module, lacks, caplog):
    party = types.SimpleNamespace(
        class_names=NAMES, dimension=6, model_hash="m", posteriors=lambda ids: ids, embeddings=lambda ids: ids
    )
    delattr(party, lacks)
    module.make = lambda: party
    assert open_source(SourceSettings(factory="party_of_mine:make"), "a").scan() == {}
    assert lacks in caplog.records[0].reason


# ---- a folder that training left --------------------------------------------------------------------


def trained(folder, seed=0, columns=False):
    import torch

    from gainroute.training.models.build import ModelSpec, build_model, save_model

    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    for name, kind, options in (
        ("local", "local-mlp", {"features": 2, "outputs": 3}),
        ("encoder", "mlp-encoder", {"features": 2, "width": 1}),
    ):
        spec = ModelSpec(kind, options)
        save_model(build_model(spec).eval(), spec, folder / f"{name}.safetensors")
    means = [{"name": n, "categories": None, "mean": 1.0, "deviation": 2.0, "gaps": False} for n in ("x0", "x1")]
    body = {"name": "a", "class_names": NAMES, "preprocess": {"kind": "table", "columns": means}}
    (folder / "party.json").write_text(json.dumps(body))
    x = np.array([[1.0, 3.0], [5.0, 7.0]], np.float32)
    if not columns:
        np.savez(folder / "views.npz", ids=np.array([11, 12]), x=(x - 1) / 2)
    return x


def test_a_trained_folder_serves_its_views_and_others_alike(tmp_path):
    x = trained(tmp_path / "run")
    own = next(iter(open_source(SourceSettings(run=tmp_path / "run"), "a").scan().values()))
    assert own.model.hash == PartyFolder(tmp_path / "run").model_hash()
    assert own.model.dimension == 8
    given = np.asarray(own.posteriors(["12", "none", "11"]))
    np.testing.assert_allclose(given[[0, 2]].sum(axis=1), 1, rtol=1e-5)
    assert np.isnan(given[1]).all()

    np.savez(tmp_path / "raw.npz", ids=np.array(["11", "12"]), x=x)
    with sqlite3.connect(tmp_path / "v.db") as connection:
        connection.execute("create table v (id integer, x0 real, x1 real)")
        connection.executemany("insert into v values (?, ?, ?)", [(11, 1.0, 3.0), (12, 5.0, 7.0)])
    connection.close()
    sql = DatabaseViews(f"sqlite:///{tmp_path / 'v.db'}", "v")
    for store in (FileViews(tmp_path / "raw.npz"), sql):
        other = next(iter(open_source(SourceSettings(run=tmp_path / "run"), "a", store).scan().values()))
        np.testing.assert_allclose(other.posteriors(["12", "none", "11"]), given, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(other.embeddings(["11"])), np.asarray(own.embeddings(["11"])), rtol=1e-6)
        assert np.isnan(np.asarray(other.posteriors(["none"]))).all()
    sql.close()


def test_versions_are_found_as_party_folders_and_as_whole_runs(tmp_path):
    trained(tmp_path / "v1", seed=1)
    trained(tmp_path / "v2/parties/a", seed=2)
    trained(tmp_path / "v2/parties/b", seed=3)
    source = open_source(SourceSettings(run=tmp_path), "a")
    assert set(source.scan()) == {
        PartyFolder(tmp_path / "v1").model_hash(),
        PartyFolder(tmp_path / "v2/parties/a").model_hash(),
    }
    trained(tmp_path / ".copying", seed=4)
    assert len(source.scan()) == 2
    (tmp_path / ".copying").rename(tmp_path / "v3")
    assert len(source.scan()) == 3


def test_new_views_do_not_make_a_new_version(tmp_path):
    trained(tmp_path / "run")
    source = open_source(SourceSettings(run=tmp_path / "run"), "a")
    before = source.scan()
    np.savez(tmp_path / "run/views.npz", ids=np.array([11, 12, 13]), x=np.zeros((3, 2), np.float32))
    after = source.scan()
    assert set(after) == set(before)
    (version,) = after.values()
    assert np.isfinite(np.asarray(version.posteriors(["13"]))).all()


# ---- signed versions --------------------------------------------------------------------------------


@pytest.fixture
def signer(tmp_path):
    create_key(tmp_path / "keys" / "signer.key")
    return load_key(tmp_path / "keys" / "signer.key")


@pytest.mark.parametrize("kind", ["run", "columns", "factory"])
def test_only_versions_of_a_trusted_signer_are_served(module, tmp_path, signer, kind):
    models = tmp_path / "models"
    models.mkdir()
    if kind == "columns":
        place = altered = models / "a.npz"
        columns(place, model_hash="m")
        settings = SourceSettings(columns=models)
    else:
        place = models / "v1"
        trained(place)
        altered = place / "local.safetensors"
        settings = SourceSettings(run=models)
    if kind == "factory":
        module.make = lambda folder: StubParty(seed=len((folder / "local.safetensors").read_bytes()))
        settings = SourceSettings(factory="party_of_mine:make", models=models, classes=tuple(NAMES), dimension=6)
    expected = set(open_source(settings, "a").scan())
    assert len(expected) == 1
    source = open_source(settings, "a", trust=Trust([signer_name(signer)]))
    assert source.scan() == {}, "not signed"
    sign(place, signer)
    (version,) = source.scan().values()
    assert {version.model.hash} == expected
    body = altered.read_bytes()
    altered.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    assert source.scan() == {}, "altered"


def test_a_model_exchanged_between_check_and_load_is_not_served(tmp_path, signer, monkeypatch):
    from gainroute.training import trained_run

    trained(tmp_path / "run", seed=1)
    genuine = next(iter(open_source(SourceSettings(run=tmp_path / "run"), "a").scan().values()))
    expected = np.asarray(genuine.posteriors(["11"]))
    sign(tmp_path / "run", signer)
    trained(tmp_path / "evil", seed=2)
    load = trained_run.load_model

    def exchange_then_load(path):
        for file in ("local.safetensors", "encoder.safetensors"):
            (tmp_path / "run" / file).write_bytes((tmp_path / "evil" / file).read_bytes())
        return load(path)

    monkeypatch.setattr(trained_run, "load_model", exchange_then_load)
    trust = Trust([signer_name(signer)])
    (version,) = open_source(SourceSettings(run=tmp_path / "run"), "a", trust=trust).scan().values()
    assert version.model.hash == genuine.model.hash
    np.testing.assert_array_equal(version.posteriors(["11"]), expected)


def test_a_party_that_trains_and_trusts_needs_a_key_to_sign_with(tmp_path, signer):
    how = {
        "name": "a", "coordinators": ("c",), "source": SourceSettings(run=tmp_path),
        "tls": CertificateFiles(tmp_path, tmp_path, tmp_path), "trust": TrustSettings(signers=(tmp_path / "s.pub",)),
    }  # fmt: skip
    trains = {"coordinators": ("c",), "views": tmp_path / "v.npz"}
    with pytest.raises(SettingError, match=r"training\.signing_key"):
        PartySettings(**how, training=TrainingSettings(**trains))
    assert PartySettings(**how, training=TrainingSettings(**trains, signing_key=tmp_path / "k")).trust
