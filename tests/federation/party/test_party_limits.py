"""Quota and audit: a compromised coordinator cannot drain a party unseen."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from party_helpers import MODEL, Federation, StubParty, connected, serving
from waiting import until

from gainroute.errors import SettingError
from gainroute.federation.party import audit, request_audit
from gainroute.federation.party.audit import AuditLog
from gainroute.federation.party.quota import Quota
from gainroute.federation.party.request_audit import RequestAudit
from gainroute.federation.party.settings import AuditSettings, QuotaSettings
from gainroute.federation.pki.access import Caller
from gainroute.federation.transport.base import PartyRefusedError, PartyUnavailableError
from gainroute.federation.transport.proto import party_pb2 as pb


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)


def run(main):
    return asyncio.run(asyncio.wait_for(main, 30))


ENTRY = {
    "coordinator": "main", "fingerprint": "ff", "request_id": "r", "round": 1, "model": "m", "count": 3,
    "unknown": 1, "outcome": "answered",
}  # fmt: skip


def test_an_allowance_holds_one_minute_and_refills_steadily():
    now = [0.0]
    quota = Quota(60, 0, lambda: now[0])
    assert quota.take("x", 1, 60) is None
    assert quota.take("x", 1, 1).retry_after == pytest.approx(1.0)
    now[0] = 10.0
    assert quota.take("x", 1, 11).retry_after == pytest.approx(1.0)
    assert quota.take("x", 1, 10) is None
    now[0] = 1000.0
    assert quota.take("x", 1, 61).retry_after is None
    assert quota.take("x", 1, 60) is None
    assert quota.take("x", 1, 1).retry_after == pytest.approx(1.0)


def test_rounds_and_coordinators_are_charged_apart():
    quota = Quota(10, 5, lambda: 0.0)
    assert quota.take("x", 1, 10) is None
    assert quota.take("x", 2, 5) is None
    assert quota.take("y", 1, 10) is None
    over = quota.take("x", 1, 1)
    assert over.retry_after == pytest.approx(6.0)
    assert "10 samples per minute" in over.message
    never = quota.take("y", 2, 6)
    assert never.retry_after is None
    assert Quota(0, 0).take("x", 1, 10**9) is None


def test_refused_requests_have_an_allowance_too():
    now = [0.0]
    quota = Quota(0, 0, lambda: now[0], refusals_per_minute=6)
    assert quota.barred("x") is None
    for _ in range(5):
        quota.refused("x")
    assert quota.barred("x") is None
    quota.refused("x")
    over = quota.barred("x")
    assert over.retry_after == pytest.approx(10.0)
    assert "6 refused requests per minute" in over.message
    assert quota.barred("y") is None
    quota.refused("x")  # requests refused for this reason cost nothing: the wait does not grow
    assert quota.barred("x").retry_after == pytest.approx(10.0)
    now[0] = 10.0
    assert quota.barred("x") is None
    unlimited = Quota(0, 0, lambda: 0.0)
    unlimited.refused("x")
    assert unlimited.barred("x") is None


def test_a_flood_of_refused_requests_fills_no_disk_and_is_still_accounted_for(federation, caplog):
    settings = federation.settings()
    hostile = "\x01\u20ac\U0001f600" * 100

    async def main():
        async with serving(settings, StubParty()) as node, connected(federation, node) as connection:
            await connection.describe()
            session = connection._session
            node._service._quota._used._clock = lambda: 0.0  # no allowance refills
            codes = []
            for _ in range(2000):
                ask = pb.Request(round=1, model=hostile, request_id=hostile, ids=["1", "2"])
                codes.append((await session.request(ask)).failure.code)
            with pytest.raises(PartyUnavailableError, match="600 refused requests per minute"):
                await connection.posteriors([1], model=MODEL, request_id="r")
            return codes

    codes = run(main())
    assert codes == [pb.Failure.CODE_UNKNOWN_MODEL] * 600 + [pb.Failure.CODE_QUOTA] * 1400
    lines = settings.audit.path.read_text().splitlines()
    assert max(map(len, lines)) < 2048
    assert len(lines) < 100
    found = [json.loads(line) for line in lines]
    assert sum(entry.get("requests", 1) for entry in found) == 2001
    assert sum(entry["count"] for entry in found) == 4001
    more = [entry for entry in found if "requests" in entry]
    assert {entry["outcome"] for entry in more} == {"unknown_model", "quota"}
    assert all(entry["seconds"] >= 0 and entry["coordinator"] == "main" for entry in more)
    assert sum(record.message.startswith("refused") for record in caplog.records) == len(lines)


def test_counted_refusals_are_written_when_the_interval_ends_and_again_if_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(request_audit, "REFUSAL_SECONDS", 0.01)
    monkeypatch.setattr(audit, "LOOK_SECONDS", 0.0)
    folder = tmp_path / "log"
    folder.mkdir()
    path = folder / "audit.jsonl"
    log = AuditLog(path)
    requests = RequestAudit(log, lambda: 0.0)
    caller = Caller("main", "ff")

    async def main():
        for _ in range(request_audit.REFUSALS + 7):
            assert requests.refused(caller, pb.Request(ids=["1"]), "invalid", "why")
        folder.rename(tmp_path / "gone")
        await until(lambda: requests._unrecorded)
        (tmp_path / "gone").rename(folder)
        await until(lambda: "requests" in path.read_text())

    run(main())
    requests.close()
    log.close()
    *_, last = (json.loads(line) for line in path.read_text().splitlines())
    assert (last["outcome"], last["requests"], last["count"]) == ("invalid", 7, 7)


def test_a_used_up_quota_is_reported_to_the_coordinator_and_audited(federation):
    settings = federation.settings(quota=QuotaSettings(samples_per_minute=5, embeddings_per_minute=2))

    async def main():
        async with serving(settings, StubParty()) as node, connected(federation, node) as connection:
            ask = {"model": MODEL, "request_id": "r7"}
            await connection.posteriors([1, 2, "nobody"], **ask)
            with pytest.raises(PartyUnavailableError, match=r"5 samples per minute.*again in"):
                await connection.posteriors([1, 2, 3], **ask)
            with pytest.raises(PartyRefusedError, match="ask for fewer"):
                await connection.posteriors(list(range(6)), **ask)
            await connection.embeddings([1, 2], codec="int8", **ask)
            with pytest.raises(PartyUnavailableError, match="2 embeddings per minute"):
                await connection.embeddings([1], codec="int8", **ask)

    run(main())
    lines = [json.loads(line) for line in (settings.audit.path).read_text().splitlines()]
    assert [(e["round"], e["count"], e["unknown"], e["outcome"]) for e in lines] == [
        (1, 3, 1, "answered"), (1, 3, 0, "quota"), (1, 6, 0, "too_large"), (2, 2, 0, "answered"), (2, 1, 0, "quota"),
    ]  # fmt: skip
    assert {(e["coordinator"], e["model"], e["request_id"]) for e in lines} == {("main", MODEL, "r7")}
    assert all(len(e["fingerprint"]) == 64 and e["time"].endswith("+00:00") for e in lines)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=20), st.integers(0, 2), st.integers(0, 10**6), st.floats(0, 4e9))
def test_a_line_is_json_whatever_a_coordinator_calls_things(text, round_, count, moment):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "audit.jsonl"
        log = AuditLog(path, clock=lambda: moment)
        log.write(**ENTRY | {"request_id": text, "model": text, "outcome": text, "round": round_, "count": count})
        log.close()
        (line,) = path.read_bytes().split(b"\n")[:-1]
    found = json.loads(line)
    assert (found["request_id"], found["model"], found["outcome"]) == (text, text, text)
    assert (found["round"], found["count"], found["coordinator"]) == (round_, count, "main")
    assert abs(moment - datetime.fromisoformat(found["time"]).timestamp()) < 0.002
    assert len(found["time"]) == len("2026-01-01T00:00:00.000+00:00")


def test_the_audit_log_is_appended_to_and_put_aside_by_size(tmp_path):
    path = tmp_path / "audit.jsonl"
    for _ in range(2):
        log = AuditLog(path, max_bytes=900)
        for _ in range(2):
            log.write(**ENTRY)
        log.close()
        log.close()
    files = [file for file in tmp_path.iterdir() if file.suffix not in (".key", ".head")]
    assert sum(len(file.read_text().splitlines()) for file in files) == 4
    assert len(files) == 2
    assert (path.stat().st_mode & 0o777) == 0o600


def test_nothing_is_deleted_unless_asked_for(tmp_path):
    def fill(folder, **how):
        folder.mkdir()
        log = AuditLog(folder / "a", max_bytes=1, **how)
        for _ in range(6):
            log.write(**ENTRY)
        log.close()
        return len(list(folder.iterdir())) - 2  # key and head

    assert fill(tmp_path / "all", sync=True) == 6
    assert fill(tmp_path / "two", keep=2) == 3


def test_what_cannot_be_written_down_is_not_answered(federation):
    """A full disk under the log."""
    full = AuditSettings(path=Path("/dev/full"))

    async def main():
        settings = federation.settings(audit=full)
        async with serving(settings, StubParty()) as node, connected(federation, node) as connection:
            for _ in range(2):
                with pytest.raises(PartyUnavailableError, match="audit log cannot be written"):
                    await connection.posteriors([1], model=MODEL, request_id="r")

    run(main())


def test_an_audit_log_without_a_folder_is_an_error_at_start(federation, tmp_path):
    settings = federation.settings()
    with pytest.raises(SettingError, match="a folder that exists"):
        AuditLog(tmp_path / "none/audit.jsonl")
    with pytest.raises(SettingError, match="max_bytes 0"):
        AuditLog(tmp_path / "a", max_bytes=0)
    assert replace(settings, workers=2).workers == 2
