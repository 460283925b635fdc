"""Certificates: role and name inside, made by signing request, refused where they do not fit."""

from __future__ import annotations

import stat
from datetime import datetime, timedelta, timezone

import pytest

from gainroute._util.files import write_bytes
from gainroute.errors import DataError, SettingError
from gainroute.federation.pki.authority import Authority, make_request
from gainroute.federation.pki.certificates import (
    CertificateFiles,
    Identity,
    key_matches,
    normal_fingerprint,
    read_certificate,
)
from gainroute.federation.pki.credentials import ReloadingCertificate


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority.create(tmp_path_factory.mktemp("ca"))


def test_role_and_name_are_in_the_certificate(authority):
    who = Identity("party", "hospital a/ü".replace("/", "-"))
    key, request = make_request(who)
    certificate = authority.sign(request, who, days=30)
    info = read_certificate(certificate)
    assert info.identity == who
    assert 29.9 < info.days_left() < 30.1
    assert len(info.fingerprint) == 64
    assert key_matches(certificate, key)
    assert b"PRIVATE" not in request


@pytest.mark.parametrize("name", ["a", "Hospital_A", "ü", "a b", "x--0", "a.b", "-", "n" * 64])
def test_different_names_are_different_host_names(name):
    others = {"A", "hospital_a", "u", "ab", "x--1", "a-b", "--"}
    assert Identity("party", name).dns not in {Identity("party", other).dns for other in others}
    assert Identity("party", name).dns != Identity("coordinator", name).dns
    assert Identity("party", name).dns.partition(".")[0].isascii()


@pytest.mark.parametrize("name", ["", "a/b", "n" * 65, "a\nb", " "])
def test_a_name_that_cannot_be_is_an_error(name):
    with pytest.raises(SettingError, match="1 to 64"):
        Identity("party", name)
    with pytest.raises(SettingError, match="'party', 'coordinator'"):
        Identity("admin", "a")


def test_only_whom_the_request_names_is_signed(authority):
    _, request = make_request(Identity("party", "a"))
    with pytest.raises(SettingError, match=r"names party 'a'.*party 'b'"):
        authority.sign(request, Identity("party", "b"))
    with pytest.raises(SettingError, match="coordinator 'a' was to be signed"):
        authority.sign(request, Identity("coordinator", "a"))
    with pytest.raises(DataError, match="certs request"):
        authority.sign(b"rubbish", Identity("party", "a"))


def test_an_authority_is_never_overwritten_and_its_key_is_private(tmp_path):
    Authority.create(tmp_path / "ca", passphrase=b"secret")
    assert stat.S_IMODE((tmp_path / "ca/ca.key").stat().st_mode) == 0o600
    with pytest.raises(SettingError, match="already"):
        Authority.create(tmp_path / "ca")
    with pytest.raises(DataError, match="passphrase"):
        Authority.load(tmp_path / "ca")
    Authority.load(tmp_path / "ca", b"secret")
    with pytest.raises(DataError, match="certs init"):
        Authority.load(tmp_path / "elsewhere")


def test_a_certificate_does_not_outlive_its_authority(tmp_path):
    old = datetime.now(timezone.utc) - timedelta(days=99)
    authority = Authority.create(tmp_path / "ca", days=100, now=old)
    who = Identity("party", "a")
    assert read_certificate(authority.sign(make_request(who)[1], who, days=90)).days_left() < 1.1
    gone = Authority.create(tmp_path / "gone", days=1, now=old)
    with pytest.raises(SettingError, match="expired"):
        gone.sign(make_request(who)[1], who)


def test_fingerprints_in_any_usual_spelling():
    digits = "ab" * 32
    colons = ":".join(["AB"] * 32)
    assert {normal_fingerprint(text) for text in (digits, colons, f"sha256:{digits}", f" SHA256={digits} ")} == {digits}
    with pytest.raises(SettingError, match="64 hexadecimal"):
        normal_fingerprint("ab:cd")


def test_changed_files_are_taken_and_a_pair_that_does_not_fit_is_not(authority, tmp_path):
    who = Identity("party", "a")
    files = authority.issue(who, tmp_path)
    loaded = ReloadingCertificate(files)
    first = loaded.info.fingerprint
    assert loaded.changed_configuration() is None
    key, request = make_request(who)
    write_bytes(files.certificate, authority.sign(request, who))  # the key has not come yet
    assert loaded.changed_configuration() is None
    assert loaded.info.fingerprint == first
    write_bytes(files.key, key, private=True)
    assert loaded.reload()
    assert loaded.info.fingerprint != first
    assert loaded.changed_configuration() is not None
    assert loaded.changed_configuration() is None
    files.key.unlink()
    assert not loaded.reload()


def test_a_file_that_is_not_a_certificate_is_an_error(authority, tmp_path):
    files = authority.issue(Identity("party", "a"), tmp_path)
    other = authority.issue(Identity("party", "b"), tmp_path / "b")
    with pytest.raises(DataError, match="is not the key of"):
        ReloadingCertificate(CertificateFiles(files.ca, files.certificate, other.key)).channel()
    with pytest.raises(DataError, match="cannot be read"):
        ReloadingCertificate(CertificateFiles(files.ca, tmp_path / "none.crt", files.key)).channel()
    (tmp_path / "text.crt").write_text("hello")
    with pytest.raises(DataError, match="not a PEM certificate"):
        ReloadingCertificate(CertificateFiles(files.ca, tmp_path / "text.crt", files.key)).channel()
