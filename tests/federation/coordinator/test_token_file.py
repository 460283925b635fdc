"""Tokens that expire, are replaced and are revoked while the coordinator runs."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime, timedelta, timezone

import pytest
from fake_federation import federation, running
from typer.testing import CliRunner

from gainroute._util.settings import parse_settings
from gainroute.cli import app
from gainroute.errors import SettingError
from gainroute.federation.coordinator import tokens as tokens_module
from gainroute.federation.coordinator.client_settings import TokenSettings, TokenTables
from gainroute.federation.coordinator.live_tokens import LiveTokens
from gainroute.federation.coordinator.tokens import hash_token, parse_hashes

HASH = hash_token("x")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tokens.toml"
    write(path, client={"shop": hash_token("first")})
    return path


def write(path, **tables):
    lines = [
        line for role, held in tables.items() for line in (f"[{role}]", *(f'{n} = "{v}"' for n, v in held.items()))
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


def day(days):
    return str(datetime.now(timezone.utc).date() + timedelta(days=days))


def live(file, **more):
    """Tokens that are looked up in the file at every call."""
    clock = iter(range(0, 10**6, 10))
    return LiveTokens(TokenSettings(file=file, **more), clock=lambda: float(next(clock)))


def test_a_token_is_replaced_and_revoked_without_a_restart(file):
    tokens = live(file, admin={"ops": hash_token("ops")})

    def known():
        current = tokens.current()
        return [name for name in ("first", "second", "ops") if current.find(name) is not None]

    assert known() == ["first", "ops"]
    write(file, client={"shop": f"{hash_token('first')}, {hash_token('second')}"})
    assert known() == ["first", "second", "ops"]
    assert tokens.current().find("second") == tokens.current().find("first")  # one holder
    write(file, client={"shop": hash_token("second")})
    assert known() == ["second", "ops"]
    file.write_text("")
    assert known() == ["ops"]


def test_a_file_that_cannot_be_read_changes_nothing_and_is_reported(file, caplog):
    tokens = live(file)
    for text in ("[client", "[client]\nshop = 'my secret'", "[boss]\nx = 'y'", f"file = 'a'\n[client]\na = '{HASH}'"):
        file.write_text(text)
        with caplog.at_level(logging.ERROR, "gainroute.coordinator"):
            assert tokens.current().find("first") is not None
        assert "those before stay in force" in caplog.text
        assert "my secret" not in caplog.text
        caplog.clear()
    file.unlink()
    assert tokens.current().find("first") is not None
    with pytest.raises(SettingError, match=r"tokens\.toml cannot be read"):
        LiveTokens(TokenSettings(file=file))


def test_the_file_is_looked_at_once_a_second(file, monkeypatch):
    now, looked = [0.0], []
    tokens = LiveTokens(TokenSettings(file=file), clock=lambda: now[0])
    monkeypatch.setattr("gainroute.federation.coordinator.live_tokens.file_state", lambda *a: looked.append(a) or ())
    for now[0] in (0.1, 0.9, 1.1, 1.5, 2.0, 2.2):
        tokens.current()
    assert len(looked) == 2


def test_a_slow_hash_is_not_computed_again_when_the_file_changes(file, monkeypatch):
    slow = hash_token("o", slow=True)
    write(file, client={"old": slow})
    tokens = live(file)
    assert tokens.current().verify("o") is not None
    monkeypatch.setattr(tokens_module, "_scrypt", None)
    write(file, client={"old": slow, "shop": HASH})
    assert tokens.current().find("x") is not None
    assert tokens.current().find("o").holder == "old"
    assert not tokens.current().slow


def test_a_date_is_the_last_day_and_a_time_is_a_moment():
    found = parse_hashes(f"{HASH} until 2030-01-31, {HASH} until 2030-01-31T12:00Z, {HASH}", "x")
    assert [expires - 1896134400.0 for _, expires in found] == [0.0, -12 * 3600.0, float("inf")]
    for wrong in ("until", "until tomorrow", "until 2030-02-31"):
        with pytest.raises(SettingError, match="is not a"):
            parse_settings(TokenTables, f"[client]\nshop = '{HASH} {wrong}'")


def test_an_expired_token_is_refused_with_the_remedy_and_revocation_closes_the_door(tmp_path, file):
    write(file, client={"shop": f"{hash_token('old')} until {day(-1)}, {hash_token('new')} until {day(1)}"})
    fed = federation(tmp_path).having(tokens={"file": file})

    async def work():
        async with running(fed) as up:

            async def status(token):
                response = await up.client.get("/v2", headers={"Authorization": f"Bearer {token}"})
                return response.status_code, response.json().get("error", "")

            before = [await status(token) for token in ("old", "new")]
            unknown = (await up.client.get("/v2")).status_code  # a file of tokens closes the door
            write(file, client={})
            guard = up.client._transport.app._authenticator._tokens
            guard._due = time.monotonic()
            return before, unknown, await status("new")

    before, unknown, after = asyncio.run(work())
    assert before[0] == (401, "the token has expired; ask the operator for a new one")
    assert before[1] == (200, "")
    assert unknown == 401
    assert after == (401, "the token is not valid")


def test_a_new_token_is_drawn_with_its_last_day():
    out = CliRunner().invoke(app, ["coordinator", "--new-token", "--days", "90"]).output.split()
    assert out[3] == hash_token(out[1])
    assert out[4:] == ["until", day(90)]
    assert parse_hashes(" ".join(out[3:]), "x")[0][1] > time.time() + 89 * 86_400
