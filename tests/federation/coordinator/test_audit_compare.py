"""What a coordinator asked for and what a party answered, compared message by message."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import AsyncExitStack, closing

import pytest
from fake_federation import IDS, NAMES, K, TableParty, federation, hold, running
from party_helpers import Federation, connected
from party_helpers import PartyNode as Node
from typer.testing import CliRunner
from waiting import until

from gainroute.cli import app
from gainroute.errors import DataError, SettingError
from gainroute.federation.audit_compare import compare_audit
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.decision_log.retention import delete_old
from gainroute.federation.coordinator.decision_log.schema import MIGRATIONS, connect
from gainroute.federation.coordinator.decision_log.writer import ASKED, DecisionLog
from gainroute.federation.coordinator.errors import PartyMissingError
from gainroute.federation.coordinator.server import connect_party
from gainroute.federation.coordinator.settings import CoordinatorTls, LogSettings, PartyEndpoint
from gainroute.federation.party.audit import AuditLog
from gainroute.federation.party.model import version_of
from gainroute.federation.party.sources import source_of

LONG = "the same long id of a request, chosen by a client, " * 5


LINE = {
    "coordinator": "main", "fingerprint": "ff", "request_id": "", "round": 1, "model": "m", "count": 1, "unknown": 0,
    "outcome": "answered",
}  # fmt: skip


def counts(found, *kinds):
    return {kind: found.count(kind)[0] for kind in kinds or ("only coordinator", "only party", "differing")}


def test_every_message_is_matched_whatever_clients_call_their_requests(tmp_path):
    """Over gRPC: concurrent requests in batches, split messages, clients that leave, a party that is down."""
    fed = federation(tmp_path)
    certificates = Federation(tmp_path / "certificates")
    files = certificates.files("coordinator", "main")
    tls = CoordinatorTls(ca=files.ca, certificate=files.certificate, key=files.key)

    def node(party, **how):
        served = TableParty(party, f"one-{party.name}")
        served.ids = IDS
        settings = certificates.settings(party.name, max_samples=7, **how)
        return Node(settings, source=source_of(version_of(served, served.model, fed.parties[0].classes, K + 1)))

    async def work():
        async with AsyncExitStack() as stack:
            nodes = [node(party) for party in fed.parties]
            for one in nodes:
                await one.start()
                stack.push_async_callback(one.stop, 0.2)
            table = tuple(PartyEndpoint(name=name, address=one.address) for name, one in zip(NAMES, nodes, strict=True))
            settings = fed.having(party=table, tls=tls).settings
            connections = [connect_party(party, settings.tls) for party in settings.party]
            coordinator = Coordinator(settings, connections, load_strong=fed.load_strong)
            await coordinator.start()
            stack.push_async_callback(coordinator.stop)

            async def ask(start, n):
                return await coordinator.infer(IDS[start : start + n], LONG, lambda outcome, _: outcome.batch)

            asked = [asyncio.ensure_future(ask(i % 100, 1 + i % 9)) for i in range(300)]
            leaving = asyncio.ensure_future(ask(0, 3))
            await asyncio.sleep(0)
            leaving.cancel()
            batches = await asyncio.gather(*asked)
            async with connected(certificates, nodes[0], "a") as thief:
                await thief.posteriors(IDS[:5], model="one-a", request_id="stolen")
                await thief.embeddings(IDS[:50], model="one-a", codec="int8", request_id=f"{batches[0]},{LONG}")
            await nodes[2].stop(0.2)
            with pytest.raises(PartyMissingError):
                await ask(0, 2)
            return set(batches), nodes

    batches, nodes = asyncio.run(asyncio.wait_for(work(), 60))
    assert len(batches) > 1
    log = fed.settings.log.path
    found = {name: compare_audit(log, [one.settings.audit.path]) for name, one in zip(NAMES, nodes, strict=True)}
    assert {name: one.party for name, one in found.items()} == {name: name for name in NAMES}
    for name in ("b", "c"):
        assert found[name].agrees, found[name]
        assert found[name].coordinator == "main"
        assert batches <= {message.batch for message in found[name].messages if message.kind == "matched"}
    assert counts(found["b"], "unanswered") == {"unanswered": 0}
    assert counts(found["c"], "unanswered") == {"unanswered": 1}  # it was down
    assert not found["a"].agrees
    assert counts(found["a"])["only party"] >= 1
    (stolen,) = (m for m in found["a"].messages if m.batch == "stolen")
    assert (stolen.kind, stolen.asked, stolen.answered) == ("only party", None, 5)
    used = [m for m in found["a"].messages if m.batch.split("-")[0] == next(iter(batches)).split("-")[0]]
    assert sum(m.kind != "matched" for m in used) == 1  # a known batch id hides nothing: its count shows it
    told = CliRunner().invoke(app, ["audit", "compare", str(log), str(nodes[0].settings.audit.path)])
    assert told.exit_code == 1
    assert "only party: stolen, Round 1" in told.output
    assert "the two sides DIFFER" in told.output
    told = CliRunner().invoke(app, ["audit", "compare", str(log), str(nodes[1].settings.audit.path), "--json"])
    assert told.exit_code == 0
    shown = json.loads(told.output)
    assert shown["matched"]["messages"] == found["b"].count("matched")[0]
    assert shown["matched"]["samples"] == sum(m.answered for m in found["b"].messages)


def test_decisions_name_their_batch(tmp_path):
    fed = federation(tmp_path)

    async def work():
        async with running(fed) as up:
            await up.infer(IDS[:5])
            await up.infer(IDS[5:7])

    asyncio.run(work())
    with sqlite3.connect(fed.settings.log.path) as connection:
        rows = connection.execute("SELECT batch, count(*) FROM decisions GROUP BY batch ORDER BY min(seq)").fetchall()
        asked = connection.execute(
            "SELECT batch, samples, failed FROM asked WHERE round = 1 ORDER BY number"
        ).fetchall()
    connection.close()
    assert [n for _, n in rows] == [5, 2]  # each request alone: what was asked is written later
    assert asked == [(batch, n, "") for batch, n in rows]
    assert all(call[3].startswith(tuple(f"{batch}," for batch, _ in rows)) for call in fed.parties[0].calls)


def test_what_was_asked_is_written_even_if_no_decision_follows(tmp_path):
    fed = federation(tmp_path)
    fed.parties[1].error = (RuntimeError("down"), None)

    def asked():
        with sqlite3.connect(fed.settings.log.path) as connection:
            rows = connection.execute("SELECT round, samples, failed FROM asked ORDER BY number").fetchall()
        connection.close()
        return rows

    async def work():
        async with running(fed) as up:
            assert (await up.infer(IDS[:3])).status_code == 503
            await until(lambda: asked() == [(1, 3, '["b"]')])
            fed.parties[1].error = (None, None)
            gate = hold(fed)
            left = asyncio.ensure_future(up.coordinator.batcher.answer(IDS[:4], "r"))
            await until(lambda: len(fed.parties[0].calls) > 1)
            up.coordinator.batcher.close()  # stopped in the middle
            with pytest.raises(Exception, match="stopped before the answer"):
                await left
            gate.set()

    asyncio.run(asyncio.wait_for(work(), 30))
    assert asked()[-1] == (1, 4, '["a", "b", "c"]')


def test_decisions_say_what_was_asked_if_the_coordinator_was_killed_before_it_wrote_that(tmp_path):
    fed = federation(tmp_path)
    path = tmp_path / "audit.jsonl"

    async def work():
        async with running(fed) as up:
            audit = AuditLog(path, party="a")
            for at in range(0, 60, 12):
                await up.answers(IDS[at : at + 12])
            for round_, count, _, name in fed.parties[0].calls:
                audit.write(**LINE | {"round": round_, "count": count, "request_id": name})
            audit.close()

    asyncio.run(work())
    whole = compare_audit(fed.settings.log.path, [path])
    assert whole.agrees
    assert whole.count("matched", 1) == (5, 60)
    assert whole.count("matched", 2)[0] > 1
    with sqlite3.connect(fed.settings.log.path) as connection:
        connection.execute("DELETE FROM asked WHERE number > 2")
    connection.close()
    found = compare_audit(fed.settings.log.path, [path])
    assert (found.agrees, found.count("matched", 1), found.count("matched", 2)) == (
        True, whole.count("matched", 1), whole.count("matched", 2),
    )  # fmt: skip


# ---- how messages are compared ------------------------------------------------------------------


class Sides:
    """Both logs, written by hand; each message a second after the one before."""

    def __init__(self, folder):
        self.log, self.audit, self.now = folder / "log.sqlite", folder / "audit.jsonl", 1000.0
        self.asked, self.lines = [], []

    def message(self, batch, asked=None, answered=(), failed="", *, coordinator="main", outcome="answered", round_=1):
        self.now += 1
        if asked is not None:
            self.asked.append((batch, round_, self.now, asked, failed))
        for count in answered:
            more = {"coordinator": coordinator, "request_id": f"{batch},r1,r2", "round": round_, "count": count}
            self.lines.append((self.now, LINE | more | {"outcome": outcome}))

    def compare(self, **how):
        moment = [0.0]
        audit = AuditLog(self.audit, party="lab", clock=lambda: moment[0])
        for moment[0], entry in self.lines:
            audit.write(**entry)
        audit.close()
        DecisionLog(LogSettings(path=self.log)).close()
        with sqlite3.connect(self.log) as connection:
            connection.executemany(ASKED, self.asked)
        connection.close()
        return compare_audit(self.log, [self.audit], **how)


def test_each_way_in_which_the_sides_may_differ_has_its_name(tmp_path):
    sides = Sides(tmp_path)
    sides.message("m-1", 10, [7, 3])  # sent in two parts
    sides.message("m-1", 4, [4], round_=2)
    sides.message("lost", 5, [])
    sides.message("down", 5, [], '["lab"]')
    sides.message("late", 5, [5], '["lab"]')
    sides.message("elsewhere", 5, [5], '["other"]')
    sides.message("more", 5, [6])
    sides.message("unknown", None, [2])
    sides.message("refused", None, [2], outcome="quota")
    sides.message("other", None, [9], coordinator="backup")
    with pytest.raises(SettingError, match=r"backup, main; pass --coordinator"):
        sides.compare()
    found = compare_audit(sides.log, [sides.audit], coordinator="main")
    assert {m.batch: m.kind for m in found.messages if m.round == 1} == {
        "m-1": "matched", "lost": "only coordinator", "down": "unanswered", "late": "unanswered",
        "elsewhere": "matched", "more": "differing", "unknown": "only party", "refused": "only party",
    }  # fmt: skip
    assert found.count("matched", 1) == (2, 15)
    assert found.count("matched", 2) == (1, 4)
    assert found.count("only party") == (2, 2)
    assert (found.party, found.other_lines, found.agrees) == ("lab", 1, False)


def test_only_the_period_that_both_logs_cover_is_compared(tmp_path):
    sides = Sides(tmp_path)
    sides.message("old", None, [1])  # the log has been cut to its retention
    sides.message("m-1", 1, [1])
    sides.message("last", 1, [])
    found = sides.compare()
    assert ([m.batch for m in found.messages], found.outside) == (["m-1", "last"], 1)
    assert compare_audit(sides.log, [sides.audit], until=sides.now).agrees
    assert not compare_audit(sides.log, [sides.audit], since=0.0, until=sides.now).agrees


def test_logs_that_cannot_be_compared_are_refused(tmp_path):
    sides = Sides(tmp_path)
    sides.message("m-1", 1, [1])
    sides.compare()
    with pytest.raises(DataError, match="no such decision log"):
        compare_audit(tmp_path / "none.sqlite", [sides.audit])
    old = tmp_path / "old.sqlite"
    with sqlite3.connect(old) as connection:
        connection.executescript(MIGRATIONS[0])
    connection.close()
    with pytest.raises(DataError, match="older gainroute"):
        compare_audit(old, [sides.audit])


def test_retention_covers_what_was_asked(tmp_path):
    sides = Sides(tmp_path)
    sides.message("old", 1, [1])
    sides.message("new", 1, [1])
    sides.compare()
    with closing(connect(str(sides.log))) as connection:
        delete_old(connection, sides.now, 0.0)
        assert [row[0] for row in connection.execute("SELECT batch FROM asked")] == ["new"]
