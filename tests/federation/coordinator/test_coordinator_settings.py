"""Settings from file and environment; every key is known, or it is an error that names those that are."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from gainroute._util.settings import parse_settings as parse
from gainroute.errors import SettingError
from gainroute.federation.coordinator.settings import PREFIX, CapSettings, ControllerSettings, CoordinatorSettings
from gainroute.federation.coordinator.settings import load_coordinator_settings as load_settings
from gainroute.federation.coordinator.tokens import hash_token

ROOT = Path(__file__).parents[3]
SMALL = """
[router]
artifact = "router.safetensors"
[fusion]
run = "run/server"
[[party]]
name = "a"
address = "a.example:7001"
"""
HASH = hash_token("x")


def parse_settings(text, folder, environment=None):
    given = {"GAINROUTE_COORDINATOR_SERVER_WITHOUT_TOKENS": "true"} | (environment or {})
    return parse(CoordinatorSettings, text, folder=folder, prefix=PREFIX, environment=given)


def test_the_example_is_valid_and_paths_are_relative_to_it():
    found = load_settings(ROOT / "deploy/coordinator.example.toml", {})
    assert found.router.artifact.parent == ROOT / "deploy"
    assert len(found.party) == 3


def test_the_example_shows_every_setting_of_the_controller():
    text = (ROOT / "deploy/coordinator.example.toml").read_text()
    assert parse_settings(text, Path()).controller is None  # off unless present
    start = text.index("# [controller]")
    section = text[start : text.index("[fusion]", start)].replace("\n# ", "\n").removeprefix("# ")
    found = parse_settings(SMALL + section, Path()).controller
    assert found == ControllerSettings(budget=0.2, step=0.0256, cap=CapSettings(rate=50.0, burst=200.0))
    shown = {line.partition(" =")[0] for line in section.splitlines() if " = " in line}
    assert shown == {f.name for kind in (ControllerSettings, CapSettings) for f in fields(kind)} - {"cap"}


def test_a_bare_section_or_the_environment_turns_the_controller_on():
    assert parse_settings(SMALL + "[controller]", Path()).controller == ControllerSettings()
    environment = {"GAINROUTE_COORDINATOR_CONTROLLER_EXPLORE": "0.02"}
    assert parse_settings(SMALL, Path(), environment).controller == ControllerSettings(explore=0.02)
    assert parse_settings(SMALL + "[controller]\nbudget = 0.4", Path()).budget == 0.4
    assert parse_settings(SMALL.replace("[fusion]", "budget = 0.1\n[fusion]") + "[controller]", Path()).budget == 0.1


def test_defaults_and_the_environment_over_the_file():
    environment = {
        "GAINROUTE_COORDINATOR_SERVER_PORT": "9000",
        "GAINROUTE_COORDINATOR_ROUNDS_ON_MISSING_PARTY": "pool",
        "GAINROUTE_COORDINATOR_LOG_POSTERIORS": "false",
        "GAINROUTE_COORDINATOR_ROUTER_BUDGET": "0.1",
        "GAINROUTE_COORDINATOR_LOG_PATH": "/var/lib/x.sqlite",
        "GAINROUTE_COORDINATOR_TOKENS_ADMIN": HASH,
        "HOME": "/root",
    }
    found = parse_settings(SMALL + "[server]\nport = 1\n", Path("/etc/g"), environment)
    assert found.server.port == 9000
    assert found.rounds.on_missing_party == "pool"
    assert found.log.posteriors is False
    assert found.router.budget == 0.1
    assert found.log.path == Path("/var/lib/x.sqlite")
    assert found.fusion.run == Path("/etc/g/run/server")
    assert found.tokens.admin == {"environment": HASH}
    assert found.open_access


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[server]\nprt = 1", "server: unknown key 'prt'; the keys here are host, port, grpc_port, model"),
        ("[sever]\nport = 1", "unknown key 'sever'; the keys here are router, fusion, party"),
        ("[server]\nport = 'x'", "server: port is 'x'; it has to be of type int"),
        ("[server]\nport = true", "has to be of type int"),
        ("[server]\nport = 70000", "0 … 65535 are allowed"),
        ("server = 3", "it has to be a table"),
        ("[server]\ncertificate = 'x.pem'", "certificate and key belong together"),
        ("[rounds]\non_missing_party = 'guess'", "allowed are 'refuse', 'pool'"),
        ("[rounds]\none_seconds = 0", "0.001 or more is needed"),
        ("[batching]\nmax_queued = 3", "a full batch must fit in"),
        ("[log]\non_failure = 'shrug'", "allowed are 'refuse', 'answer'"),
        ("[tokens.admin]\nops = 'my secret'", "tokens.admin.ops is not a hash"),
        ("[tokens]\nadmin = 'my secret'", "has to be a table of texts by name"),
        ("[server]\nhost = '0.0.0.0'", "is reachable by others; add \\[tokens.client\\]"),
        ("[[party]]\nname = 'a'\naddress = 'x:1'", "the names \\['a', 'a'\\] repeat"),
        ("[[party]]\nname = 'a b'\naddress = 'x:1'", "a name without space"),
        ("[[party]]\nname = 'b'", "key 'address' is missing"),
        ("[controller]\nexploration = 0.1", "controller: unknown key 'exploration'; the keys here are budget, explore"),
        ("[controller]\nbudget = 2", "controller: budget is 2.0; a share in"),
        ("[controller]\nexplore = -0.1", "controller: explore is -0.1; a share in"),
        ("[controller]\nexplore = 'some'", "controller: explore is 'some'; it has to be of type float"),
        ("[controller]\nstep = 0", "controller: step is 0.0; it lies in"),
        ("[controller]\nseed = -1", "controller: seed is -1; 0 or more is needed"),
        ("[controller]\ncap = 3", "controller: cap is 3; it has to be a table"),
        ("[controller.cap]\nrate = 3", "controller: cap: key 'burst' is missing"),
        ("[controller.cap]\nrate = 0\nburst = 1", "controller.cap: rate is 0.0; a number above 0"),
        ("[controller.cap]\nrate = 1\nburst = inf", "controller.cap: burst is inf; a number above 0"),
        ("[controller.cap]\nrate = 1\nburst = 1\nunit = 'kg'", "allowed are 'samples', 'bytes'"),
        ("[controller.cap]\nrate = 1\nburst = 1\nsize = 1", "controller: cap: unknown key 'size'"),
        ("[[", "not valid TOML"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_an_error_with_a_remedy(text, told):
    with pytest.raises(SettingError, match=told):
        parse_settings(f"{text}\n{SMALL}" if text.startswith("server") else SMALL + text, Path())


def test_a_coordinator_without_tokens_says_so_in_its_settings():
    with pytest.raises(SettingError, match=r"add \[tokens.client\] .* or set server.without_tokens = true"):
        parse_settings(SMALL, Path(), {"GAINROUTE_COORDINATOR_SERVER_WITHOUT_TOKENS": "false"})
    assert parse_settings(SMALL + "[server]\nwithout_tokens = true", Path()).open_access
    assert not parse_settings(SMALL + f"[tokens.client]\nshop = '{HASH}'", Path()).open_access


@pytest.mark.parametrize(
    "text",
    ["max_header_bytes = 10", "max_headers = 1", "max_connections = 0", "header_seconds = 0"],
)
def test_limits_that_would_refuse_every_client_are_refused(text):
    with pytest.raises(SettingError, match=text.partition(" ")[0]):
        parse_settings(f"{SMALL}[server]\n{text}", Path())


def test_a_token_in_the_clear_is_not_repeated():
    with pytest.raises(SettingError) as error:
        parse_settings(SMALL + "[tokens.client]\nshop = 'hunter2'", Path())
    assert "hunter2" not in str(error.value)


def test_a_default_path_starts_at_the_folder_and_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/x")
    found = parse_settings(SMALL.replace("router.safetensors", "~/router.safetensors"), Path("/etc/g"))
    assert found.log.path == Path("/etc/g/decisions.sqlite")
    assert found.router.artifact == Path("/home/x/router.safetensors")


def test_other_errors():
    with pytest.raises(SettingError, match="budget is given in \\[router\\] and in \\[controller\\]"):
        parse_settings(SMALL.replace("[fusion]", "budget = 0.1\n[fusion]") + "[controller]\nbudget = 0.1", Path())
    with pytest.raises(SettingError, match="key 'router' is missing"):
        parse_settings("", Path())
    with pytest.raises(SettingError, match="is not a setting; known are GAINROUTE_COORDINATOR_BATCHING_MAX_BATCH"):
        parse_settings(SMALL, Path(), {"GAINROUTE_COORDINATOR_SERVER_PROT": "1"})
    with pytest.raises(SettingError, match="has to be of type int"):
        parse_settings(SMALL, Path(), {"GAINROUTE_COORDINATOR_SERVER_PORT": "x"})
    with pytest.raises(SettingError, match="No such file"):
        load_settings("/nowhere.toml")
