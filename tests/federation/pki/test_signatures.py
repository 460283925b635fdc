"""Signatures of artifacts as attacks: what is not signed, signed by others, or altered is not loaded."""

from __future__ import annotations

import json
import stat

import pytest
from typer.testing import CliRunner

from gainroute.cli import app
from gainroute.errors import DataError, SettingError, SignatureError
from gainroute.federation.pki.signatures import Trust, create_key, load_key, sign, sign_run, signer_name, verified
from gainroute.io.run_folder import RunFolder, hash_version_folder


@pytest.fixture
def key(tmp_path):
    create_key(tmp_path / "signer.key")
    return load_key(tmp_path / "signer.key")


@pytest.fixture
def trust(key):
    return Trust([signer_name(key)])


@pytest.fixture
def router(tmp_path, key):
    path = tmp_path / "router.safetensors"
    path.write_bytes(b"a router")
    sign(path, key)
    return path


@pytest.fixture
def run(tmp_path):
    """The files of a run, which are only hashed and copied here."""
    folder = RunFolder(tmp_path / "run")
    for file in (folder.server.head, folder.server.masked_head, folder.server.router, *folder.party("a").files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    folder.description.write_text(json.dumps({"party_names": ["a", "b"], "class_names": ["x", "y"]}))
    (folder.path / "work").mkdir()
    (folder.path / "work" / "state.json").write_text("{}")
    return folder


def test_what_a_trusted_signer_signed_is_loaded_from_a_private_copy(router, trust):
    with verified(router, trust) as copy:
        assert copy != router
        assert copy.name == router.name
        assert copy.read_bytes() == b"a router"
        assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    assert not copy.exists()
    with verified(router, None) as same:
        assert same == router


def altered(router):
    router.write_bytes(b"A router")


def longer(router):
    router.write_bytes(b"a router, and more")


def gone(router):
    router.unlink()


def a_device(router):
    router.unlink()
    router.symlink_to("/dev/zero")


def unsigned(router):
    router.with_name("router.safetensors.sig").unlink()


def by_another(router):
    create_key(router.with_name("other.key"))
    sign(router, load_key(router.with_name("other.key")))


def under_a_stolen_name(router):
    """The signature of another key, under the name of a trusted one."""
    file = router.with_name("router.safetensors.sig")
    trusted = file.read_text().splitlines()[1]
    by_another(router)
    header, _, *rest = file.read_text().splitlines()
    file.write_text("\n".join([header, trusted, *rest]))


def of_another_file(router):
    other = router.with_name("other")
    other.write_bytes(b"A router")
    sign(other, load_key(router.with_name("signer.key")))
    router.with_name("router.safetensors.sig").write_bytes(other.with_name("other.sig").read_bytes())


def with_another_hash(router):
    """The hash of altered bytes, in a signature that does not cover it."""
    from gainroute._util.hashing import hash_contents

    file = router.with_name("router.safetensors.sig")
    before = hash_contents(router)
    altered(router)
    file.write_text(file.read_text().replace(before, hash_contents(router)))


def no_signature_line(router):
    file = router.with_name("router.safetensors.sig")
    file.write_text("\n".join(file.read_text().splitlines()[:-1]))


def nonsense(router):
    router.with_name("router.safetensors.sig").write_bytes(b"\xff\x00" * 100)


def endless(router):
    router.with_name("router.safetensors.sig").write_bytes(b"gainroute signature 1\n" * (1 << 17))


@pytest.mark.parametrize(
    ("attack", "told"),
    [
        (altered, "was altered after it was signed"),
        (longer, "has 18 bytes, but 8 bytes were signed"),
        (gone, "is missing, but 8 bytes were signed"),
        (a_device, "is missing, but 8 bytes were signed"),
        (unsigned, r"is not signed \(router.safetensors.sig is missing\)"),
        (by_another, "who is not among"),
        (under_a_stolen_name, "is not valid"),
        (of_another_file, "was altered after it was signed"),
        (with_another_hash, "is not valid"),
        (no_signature_line, "is not valid|not a signature"),
        (nonsense, "not a signature of this format"),
        (endless, "not a signature of this format"),
    ],
)
def test_an_attack_on_a_signed_file_is_refused(router, trust, attack, told):
    attack(router)
    with pytest.raises(SignatureError, match=told), verified(router, trust):
        pytest.fail("loaded")


def test_a_run_is_signed_as_a_whole_and_in_the_parts_that_are_copied_elsewhere(run, key, trust):
    written = sign_run(run.path, key)
    names = [file.relative_to(run.path).as_posix() for file in written]
    assert names == ["parties/a/run.sig", "server/router.safetensors.sig", "server/run.sig", "run.sig"]
    assert set(trust.entries(run.path)) == {
        "run.json", "server/head.safetensors", "server/masked.safetensors", "server/router.safetensors",
        "parties/a/party.json", "parties/a/local.safetensors", "parties/a/encoder.safetensors",
    }  # fmt: skip
    with verified(run.party("a").path, trust) as copy:
        assert {file.name for file in copy.iterdir()} == {
            "party.json", "local.safetensors", "encoder.safetensors", "views.npz",
        }  # fmt: skip
        run.party("a").views.write_text("new views")
        assert (copy / "views.npz").read_text() == "new views", "views change, and are not signed"


def test_a_file_of_a_run_cannot_be_altered_exchanged_or_added(run, key, trust):
    sign_run(run.path, key)
    head, masked = run.server.head, run.server.masked_head
    (run.server.path / "added.safetensors").write_text("x")
    with verified(run.server.path, trust) as copy:
        assert not (copy / "added.safetensors").exists()
    kept = head.read_text(), masked.read_text()
    masked.write_text("head.safetensors!!!"[: len(kept[1])])
    with pytest.raises(SignatureError, match="altered"), verified(run.path, trust):
        pytest.fail("loaded")
    masked.write_text(kept[1])
    head.unlink()
    with pytest.raises(SignatureError, match="is missing"), verified(run.path, trust):
        pytest.fail("loaded")


def test_a_signature_cannot_reach_outside_its_folder(tmp_path, key, trust):
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret").write_text("s")
    (folder / "model").write_text("s")
    lines = sign(folder, key).read_text().splitlines()[:-1]
    lines[-1] = lines[-1].replace(" model", " ../secret")
    text = "\n".join(lines).encode()
    (folder / "run.sig").write_bytes(text + b"\nsignature " + key.sign(text).hex().encode())
    with pytest.raises(SignatureError, match="does not read"), verified(folder, trust):
        pytest.fail("loaded")


def test_signing_does_not_change_the_hash_of_a_version(tmp_path, key):
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "model").write_text("m")
    before = hash_version_folder(tmp_path / "v1")
    sign(tmp_path / "v1", key)
    assert hash_version_folder(tmp_path / "v1") == before


def test_a_key_is_private_and_never_overwritten(tmp_path, key, monkeypatch):
    path = tmp_path / "signer.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(SettingError, match="never overwritten"):
        create_key(path)
    path.chmod(0o640)
    with pytest.raises(SettingError, match="chmod 600"):
        load_key(path)
    monkeypatch.setenv("GAINROUTE_SIGNING_PASSPHRASE", "a secret")
    create_key(tmp_path / "locked.key")
    assert load_key(tmp_path / "locked.key")
    monkeypatch.setenv("GAINROUTE_SIGNING_PASSPHRASE", "another")
    with pytest.raises(DataError, match="missing or wrong"):
        load_key(tmp_path / "locked.key")


def test_signers_are_keys_or_files_that_hold_one(tmp_path, router, key):
    for signer in (signer_name(key), tmp_path / "signer.pub"):
        with verified(router, Trust([signer])) as copy:
            assert copy.is_file()
    for wrong in (tmp_path / "none.pub", tmp_path / "signer.key", "ed25519:12"):
        with pytest.raises(SettingError, match="public key"):
            Trust([wrong])


def test_the_command_signs_and_verifies(tmp_path, run):
    def gainroute(*args):
        return CliRunner().invoke(app, ["sign", *map(str, args)])

    made = gainroute("key", "--out", tmp_path / "s.key")
    assert made.exit_code == 0
    signer = (tmp_path / "s.pub").read_text().strip()
    assert f'signers = ["{signer}"]' in made.output
    assert gainroute("run", run.path, "--key", tmp_path / "s.key").exit_code == 0
    told = gainroute("verify", run.path, run.server.router, "--signer", signer)
    assert told.exit_code == 0
    assert "7 files unaltered" in told.output
    assert gainroute("file", run.server.router, "--key", tmp_path / "s.key").exit_code == 0
    run.server.router.write_text("another")
    refused = gainroute("verify", run.server.router, "--signer", tmp_path / "s.pub")
    assert refused.exit_code == 2
    assert "were signed" in refused.output
