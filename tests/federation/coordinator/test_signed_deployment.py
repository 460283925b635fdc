"""With [trust] signers, a coordinator loads only what they signed: at the start and by admin calls."""

from __future__ import annotations

import asyncio
import shutil

import numpy as np
import pytest
from fake_federation import ADMIN, IDS, K, federation, running

from gainroute.errors import SettingError, SignatureError
from gainroute.federation.coordinator import deployment as deployment_module
from gainroute.federation.coordinator.settings import FusionSettings, load_coordinator_settings
from gainroute.federation.coordinator.strong_source import load_strong_source
from gainroute.federation.pki.signatures import Trust, TrustSettings, create_key, load_key, sign, sign_run

AS_ADMIN = {"Authorization": f"Bearer {ADMIN}"}


@pytest.fixture
def key(tmp_path):
    create_key(tmp_path / "signer.key")
    return load_key(tmp_path / "signer.key")


@pytest.fixture
def fed(tmp_path, key):
    made = federation(tmp_path).having(trust=TrustSettings(signers=(tmp_path / "signer.pub",)))
    sign(made.artifacts["one"], key)
    return made


def start(fed):
    async def work():
        async with running(fed) as up:
            return up.coordinator.deployment.hash

    return asyncio.run(work())


def test_a_signed_router_is_served(fed):
    async def work():
        async with running(fed) as up:
            return await up.answers(IDS)

    assert len(asyncio.run(work())["label"]) == len(IDS)


def test_an_unsigned_or_altered_router_is_refused_before_it_is_parsed(fed, monkeypatch):
    monkeypatch.setattr(deployment_module, "load", lambda _: pytest.fail("parsed"))
    artifact = fed.artifacts["one"]
    shutil.copyfile(fed.artifacts["two"], artifact)
    with pytest.raises(SignatureError, match=r"altered|were signed"):
        start(fed)
    artifact.with_name(f"{artifact.name}.sig").unlink()
    with pytest.raises(SignatureError, match="is not signed"):
        start(fed)


def test_a_file_exchanged_between_check_and_load_is_not_loaded(fed, monkeypatch):
    """The attacker replaces the artifact at the last moment: what was verified is what is loaded."""
    genuine, load = deployment_module.hash_contents(fed.artifacts["one"]), deployment_module.load

    def exchange_then_load(path):
        shutil.copyfile(fed.artifacts["two"], fed.artifacts["one"])
        return load(path)

    monkeypatch.setattr(deployment_module, "load", exchange_then_load)
    assert start(fed) == genuine


@pytest.mark.parametrize("call", ["router", "shadow"])
def test_an_admin_token_does_not_suffice_to_switch_to_an_unsigned_router(fed, key, call):
    body = {"artifact": "two.safetensors"}
    if call == "router":
        body["fusion"] = {"run": "two"}
    else:  # a shadow router has to read the messages of the router in use
        shutil.copyfile(fed.artifacts["one"], fed.artifacts["two"])

    async def work():
        async with running(fed) as up:
            before = up.coordinator.deployment.hash
            refused = await up.client.post(f"/admin/{call}", json=body, headers=AS_ADMIN)
            assert refused.status_code == 422, refused.text
            assert "is not signed" in refused.json()["error"]
            assert up.coordinator.deployment.hash == before
            sign(fed.artifacts["two"], key)
            allowed = await up.client.post(f"/admin/{call}", json=body, headers=AS_ADMIN)
            assert "sign" not in allowed.text
            return before, up.coordinator.deployment.hash

    before, after = asyncio.run(work())
    assert (before != after) is (call == "router")


def test_precomputed_strong_posteriors_are_checked_too(tmp_path, key):
    path, trust = tmp_path / "strong.npz", Trust([tmp_path / "signer.pub"])
    np.savez(path, ids=np.array(IDS), strong_posterior=np.full((len(IDS), K), 1 / K))
    with pytest.raises(SignatureError, match="is not signed"):
        load_strong_source(FusionSettings(strong=path), trust)
    sign(path, key)
    assert load_strong_source(FusionSettings(strong=path), trust).hash == deployment_module.hash_contents(path)


@pytest.mark.parametrize("alone", [False, True])
def test_heads_and_the_order_of_the_parties_are_checked(tmp_path, key, alone):
    """In a run, or as a copy of its server's folder, which does not name the parties."""
    from gainroute.io.run_folder import RunFolder
    from gainroute.training.models.build import ModelSpec, build_model, save_model

    run = RunFolder(tmp_path / "run")
    spec = ModelSpec("fusion", {"dimensions": [8, 8], "latent": 4, "classes": 3})
    for path in (run.server.head, run.server.masked_head, run.server.router):
        save_model(build_model(spec), spec, path)
    run.description.write_text('{"party_names": ["a", "b"], "class_names": [0, 1, 2]}')
    sign_run(run.path, key)
    folder, trust = run.server.path, Trust([tmp_path / "signer.pub"])
    if alone:
        folder = shutil.copytree(run.server.path, tmp_path / "copy")
    found = load_strong_source(FusionSettings(run=folder), trust)
    assert found.hash == run.server.model_hash()
    assert found.party_names == (None if alone else ("a", "b"))
    run.server.router.write_text("recalibrated, and signed on its own")
    assert load_strong_source(FusionSettings(run=folder), trust).hash == found.hash
    if not alone:
        text = run.description.read_text()
        run.description.write_text(text.replace('"a", "b"', '"b", "a"'))
        with pytest.raises(SignatureError, match=r"run.json was altered"):
            load_strong_source(FusionSettings(run=folder), trust)
        run.description.write_text(text)
    save_model(build_model(spec), spec, folder / "head.safetensors")
    with pytest.raises(SignatureError, match=r"head.safetensors was altered"):
        load_strong_source(FusionSettings(run=folder), trust)


def test_signers_are_settings_relative_to_the_file_or_from_the_environment(tmp_path, key):
    file = tmp_path / "coordinator.toml"
    server = "[server]\nwithout_tokens = true\n"
    base = f'{server}[router]\nartifact = "r"\n[fusion]\nrun = "s"\n[[party]]\nname = "a"\naddress = "a:1"\n'
    file.write_text(f'{base}[trust]\nsigners = ["signer.pub", "{(tmp_path / "signer.pub").read_text().strip()}"]\n')
    trust = load_coordinator_settings(file, {}).trust
    assert trust is not None
    assert len(Trust(trust.signers)._keys) == 1
    file.write_text(base)
    assert load_coordinator_settings(file, {}).trust is None
    given = load_coordinator_settings(file, {"GAINROUTE_COORDINATOR_TRUST_SIGNERS": "signer.pub"}).trust
    assert given is not None
    assert given.signers == (tmp_path / "signer.pub",)
    with pytest.raises(SettingError, match="signers is empty"):
        load_coordinator_settings(file, {"GAINROUTE_COORDINATOR_TRUST_SIGNERS": ""})
