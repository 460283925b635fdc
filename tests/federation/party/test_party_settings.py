"""A party's settings: from a file and the environment. Unknown keys are errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from gainroute._util.settings import parse_settings
from gainroute.errors import SettingError
from gainroute.federation.party.settings import PREFIX, PartySettings, load_party_settings

LEAST = """
name = "a"
coordinators = ["main"]
[tls]
ca = "ca.crt"
certificate = "a.crt"
key = "/etc/a.key"
[source]
columns = "answers.npz"
"""


def parse(text, folder=None, environment=None):
    return parse_settings(PartySettings, text, folder=folder, prefix=PREFIX, environment=environment)


def test_paths_start_at_the_folder_of_the_file(tmp_path):
    (tmp_path / "party.toml").write_text(LEAST)
    found = load_party_settings(tmp_path / "party.toml", {})
    assert found.tls.ca == tmp_path / "ca.crt"
    assert found.tls.key == Path("/etc/a.key")
    assert found.source.columns == tmp_path / "answers.npz"
    assert found.audit.path == tmp_path / "audit.jsonl"
    assert found.quota.samples_per_minute > 0


def test_the_environment_goes_over_the_file():
    environment = {
        "GAINROUTE_PARTY_LISTEN": "0.0.0.0:1",
        "GAINROUTE_PARTY_COORDINATORS": "x, y",
        "GAINROUTE_PARTY_QUOTA_SAMPLES_PER_MINUTE": "7",
        "GAINROUTE_PARTY_REFLECTION": "true",
        "GAINROUTE_PARTY_DRAIN_SECONDS": "1.5",
        "GAINROUTE_PARTY_DENY_LIST": "denied.txt",
        "HOME": "/root",
    }
    found = parse(LEAST, folder=Path("/etc/g"), environment=environment)
    assert found.listen == "0.0.0.0:1"
    assert found.coordinators == ("x", "y")
    assert found.quota.samples_per_minute == 7
    assert found.reflection is True
    assert found.drain_seconds == 1.5
    assert found.deny_list == Path("/etc/g/denied.txt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('name = "a"\nnam = 1', "unknown key 'nam'"),
        ("", "'name' is missing"),
        ('name = 3', "of type str"),
        ('name = "a"\nworkers = "two"', "of type int"),
        ('name = "a"\nworkers = true', "of type int"),
        ('name = "a"\nworkers = 0', "at least 1"),
        ('name = "a"\ncodecs = ["zip"]', "float32, float16, int8"),
        ('name = "a"\nlog_level = "loud"', "'debug', 'info'"),
        ('name = "a"\nmax_message_bytes = 5', "max_message_bytes is 5"),
        ('name = "a"\nquota = 5', "it has to be a table"),
        ('name = "a"\nquota = {samples_per_minute = -1}', "samples_per_minute is -1"),
        ('name = "a"\nviews = {url = "sqlite://"}', "give both or neither"),
        ('name = "a"\nviews = {path = "v.npz"}', "needs no views"),
        ('name = "a', "not valid TOML"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_an_error_with_a_remedy(change, message):
    with pytest.raises(SettingError, match=message):
        parse(LEAST.replace('name = "a"', change), environment={})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "exactly one of run, onnx, factory, columns"),
        ('columns = "a"\nrun = "b"', "run, columns; exactly one"),
        ('run = "b"\nmodels = "c"', "belong to source.factory"),
        ('run = "b"\nclasses = ["x", "y"]', "states its classes itself"),
    ],
)
def test_exactly_one_source_is_needed(source, message):
    with pytest.raises(SettingError, match=message):
        parse(LEAST.replace('columns = "answers.npz"', source), environment={})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "GAINROUTE_PARTY_LISTN",
            "x",
            "is set, but is not a setting; known are GAINROUTE_PARTY_AGREEMENT_BURST",
        ),
        ("GAINROUTE_PARTY_QUOTA_X", "x", "GAINROUTE_PARTY_QUOTA_SAMPLES_PER_MINUTE"),
        ("GAINROUTE_PARTY_QUOTA", "x", "is not a setting"),
        ("GAINROUTE_PARTY_WORKERS", "two", "of type int"),
        ("GAINROUTE_PARTY_REFLECTION", "yes", "allowed are true, false, 1 and 0"),
        ("GAINROUTE_PARTY_COORDINATORS", "", "coordinators is empty"),
    ],
)
def test_an_unknown_or_invalid_variable_is_an_error(key, value, message):
    with pytest.raises(SettingError, match=message):
        parse(LEAST, environment={key: value})


def test_a_file_that_is_not_there_points_to_the_example(tmp_path):
    with pytest.raises(SettingError, match=r"party\.example\.toml"):
        load_party_settings(tmp_path / "none.toml", {})


def test_the_example_is_valid():
    example = Path(__file__).parents[3] / "deploy/party.example.toml"
    assert load_party_settings(example, {}).coordinators
