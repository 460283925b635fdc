"""The decision log in PostgreSQL, against a real server: one coordinator, several, kills and restarts.

Run by name (`make test-system`): pytest does not collect it by itself. `benchmarks.postgres_server` says what it needs.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace

import httpx
import numpy as np
import psycopg
import pytest
from fake_federation import ADMIN, IDS, N, child_environment, federation, outputs, running
from typer.testing import CliRunner
from waiting import until, wait_until

import gainroute as gr
from benchmarks.postgres_server import postgres_server
from gainroute._util.hashing import hash_contents
from gainroute._util.settings import settings_text
from gainroute.cli import app
from gainroute.control.budget import BudgetController
from gainroute.errors import ArtifactVersionError, DataError, SettingError
from gainroute.federation.coordinator.decision_log.postgres import PostgresDatabase
from gainroute.federation.coordinator.decision_log.postgres_schema import MIGRATIONS, day_of, migrate
from gainroute.federation.coordinator.decision_log.reading import read_decisions
from gainroute.federation.coordinator.decision_log.retention import Retention
from gainroute.federation.coordinator.decision_log.store import audit, get_state, put_state
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.errors import LogFailedError
from gainroute.federation.coordinator.monitoring.alarms import DriftAlarm
from gainroute.federation.coordinator.settings import ControllerSettings, DriftSettings, LogSettings

HEADERS = {"Authorization": f"Bearer {ADMIN}"}
names = itertools.count()


@pytest.fixture(scope="module")
def server():
    with postgres_server("fsync=off") as running_server:
        yield running_server


@pytest.fixture
def url(server):
    return server.create(f"log{next(names)}")


@pytest.fixture(params=["sqlite", "postgres"])
def log_settings(request, tmp_path):
    found = {"path": tmp_path / "log.sqlite"}
    if request.param == "postgres":
        found["url"] = request.getfixturevalue("url")
    return LogSettings(**found)


@pytest.fixture
def fed(tmp_path, url):
    (tmp_path / "log").mkdir()
    return federation(tmp_path).having(log={"url": url}, drift={"seconds": 0.05})


# ---- what both engines promise ------------------------------------------------------------------


def test_one_bad_row_does_not_take_others_down(log_settings):
    async def work():
        log = DecisionLog(log_settings)
        queued = threading.Event()  # so that the jobs that follow are committed together

        def bad(connection):
            connection.execute("INSERT INTO state VALUES (NULL, NULL, 0)")

        jobs = [log._submit(w, alone=False) for w in (
            lambda _: queued.wait(10) and None, lambda c: put_state(c, "a", 1), bad, lambda c: put_state(c, "b", 1),
        )]  # fmt: skip
        queued.set()
        found = await asyncio.gather(*jobs, return_exceptions=True)
        kept = get_state(log.place, ("a", "b"))
        log.close()
        return [type(result).__name__ for result in found], kept

    found, kept = asyncio.run(work())
    assert found == ["NoneType", "NoneType", "LogFailedError", "NoneType"]
    assert kept == {"a": 1, "b": 1}


def test_decision_numbers_never_come_twice(log_settings):
    log = DecisionLog(log_settings)
    taken = [log.numbers(1000) for _ in range(50)]
    log.close()
    assert all(len(a) == 1000 and b[0] > a[-1] for a, b in itertools.pairwise(taken))


def test_the_same_rows_answers_and_pages_from_both(tmp_path, url):
    """Everything that reads the log reads the same from either."""

    async def work(fed):
        async with running(fed) as up:
            found = await up.answers([*IDS, "nobody", "a\0b"])
            ids = [str(name) for name in found["decision_id"]]
            told = {"feedback": [{"decision_id": name, "label": "bee"} for name in ids[:40]]}
            labelled = await up.client.post("/feedback", json=told)
            deleted = await up.client.delete("/admin/decisions", params={"sample_id": "s50"}, headers=HEADERS)
            gone = await up.client.delete("/admin/decisions", params={"sample_id": "a\0b"}, headers=HEADERS)
            pages = [await up.client.get(page, headers=HEADERS) for page in (
                "/api/decisions?limit=500", f"/api/decisions/{ids[3]}/explanation", "/admin/audit",
            )]  # fmt: skip
            status = await up.status()
            path = fed.artifacts["one"]
            read = read_decisions(up.coordinator.log.place, gr.load(path), hash_contents(path), trusted=("",))
        assert [r.status_code for r in pages] == [200] * 3
        assert len(labelled.json()["accepted"]) == 40
        rows = pages[0].json()["decisions"]
        for row in [*rows, explanation := pages[1].json()]:
            for name in ("decision_id", "request_id", "time", "latency_ms"):
                row.pop(name)
        actions = [(entry["action"], entry["after"]) for entry in pages[2].json()["audit"]]
        arrays = [read.decisions.local_posteriors, read.decisions.probability, read.labelled, read.escalated]
        return (rows, explanation, actions, deleted.json(), gone.json(), status["feedback"]), arrays

    (tmp_path / "log").mkdir()
    fed = federation(tmp_path)
    file, database = (asyncio.run(work(f)) for f in (fed, fed.having(log={"url": url})))
    assert file[0] == database[0]
    assert file[0][3:5] == ({"deleted": 1}, {"deleted": 1})
    for one, other in zip(file[1], database[1], strict=True):
        np.testing.assert_array_equal(one, other)


# ---- the database -------------------------------------------------------------------------------


def test_two_that_start_at_once_migrate_once_and_a_newer_log_is_refused(url, tmp_path):
    database = PostgresDatabase(url)

    def start(_):
        with database.connect() as connection:
            return migrate(connection, str(database))

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(start, range(4))) == [0, 0, 0, len(MIGRATIONS)]
    later = (*MIGRATIONS, "CREATE TABLE more (x INTEGER)")
    with database.connect() as connection:
        with pytest.raises(psycopg.Error):
            migrate(connection, "", (*later, "CREATE TABLE half (x INTEGER); CREATE TABLE more (x INTEGER)"))
        assert connection.execute("SELECT to_regclass('half')").fetchone() == (None,), "whole or not at all"
        assert migrate(connection, "", later) == 1
    with pytest.raises(ArtifactVersionError, match="schema version"):
        DecisionLog(LogSettings(path=tmp_path / "x.sqlite", url=url))


def test_every_coordinator_has_a_slot_and_one_that_stops_leaves_it(url, tmp_path, caplog):
    settings = LogSettings(path=tmp_path / "x.sqlite", url=url, coordinators=2)
    one, two = DecisionLog(settings), DecisionLog(settings)
    assert (one.slot, two.slot) == (0, 1)
    assert {f"{number:016x}"[-2:] for number in two.numbers(3)} == {"01"}, "the id names the coordinator"
    with pytest.raises(DataError, match="2 coordinators write it already"):
        DecisionLog(settings)
    one.close()
    again = DecisionLog(replace(settings, coordinators=3))
    assert again.slot == 0
    assert "coordinators is 3 here, and 2 at" in caplog.text
    for log in (two, again):
        log.close()
    with pytest.raises(SettingError, match="not the key"):
        DecisionLog(LogSettings(path=tmp_path / "y.sqlite", url=url))


def test_no_error_shows_a_password(url, tmp_path):
    secret = url.replace("party@", "nobody:se%63ret@")
    settings = LogSettings(path=tmp_path / "x.sqlite", url=secret)
    with pytest.raises(DataError) as found:
        DecisionLog(settings)
    texts = [repr(settings), str(found.value), str(PostgresDatabase(secret))]
    with pytest.raises(SettingError) as found:
        LogSettings(url="postgres://u:secret@h/d")
    with pytest.raises(SettingError) as unreadable:
        PostgresDatabase("postgresql+psycopg://u:secret@h:x:y/d%zz")
    for text in (*texts, str(found.value), str(unreadable.value)):
        assert "secret" not in text
        assert "se%63ret" not in text


def test_retention_drops_days(fed, url, server):
    async def work():
        async with running(fed) as up:
            found = await up.answers(IDS)
            await up.client.post("/feedback", json={"decision_id": str(found["decision_id"][0]), "label": "bee"})
            log = up.coordinator.log
            today = day_of(time.time())
            before = days(server, url)
            await Retention(log, 30.0).run()
            assert days(server, url) == before
            await log.write(lambda c: c.drop_before(time.time()))
            return today, before, days(server, url), await up.answers(IDS[:3])

    today, before, after, answered = asyncio.run(work())
    assert before == [today - 1, today, today + 1]
    assert after == [today, today + 1]
    assert len(answered["label"]) == 3


def days(server, url):
    query = "SELECT right(inhrelid::regclass::text, 8) FROM pg_inherits WHERE inhparent = 'decisions'::regclass"
    with server.connect(url) as connection:
        found = [text for (text,) in connection.execute(query) if text.isdigit()]
    return sorted(int(np.datetime64(f"{t[:4]}-{t[4:6]}-{t[6:]}").astype(int)) for t in found)


def test_a_file_moves_into_the_database_and_back(tmp_path, url):
    """Ids, labels, the audit trail and the controller's state survive; commands for files read the copy."""
    fed = federation(tmp_path).having(controller=ControllerSettings(explore=0.0))
    moved = fed.having(log={"url": url})
    config = tmp_path / "c.toml"
    config.write_text(settings_text({
        "router": {"artifact": "one.safetensors"}, "fusion": {"factory": "fake_federation:make_fusion"},
        "party": [{"name": "a", "address": "a:1"}], "server": {"without_tokens": True},
        "log": {"url": url, "key": tmp_path / "log" / "decisions.sqlite.key"},
    }))  # fmt: skip

    async def use(fed, label=None):
        async with running(fed) as up:
            before = up.coordinator.deployment.control.controller.samples
            found = await up.answers(IDS)
            if label is None:
                await up.admin("budget", {"budget": 0.25})
            else:
                told = await up.client.post("/feedback", json={"decision_id": label, "label": "bee"})
                assert told.json()["accepted"] == [label]
            return before, str(found["decision_id"][0])

    def copy(*arguments):
        told = CliRunner().invoke(app, ["copy-log", "--config", str(config), *map(str, arguments)])
        assert told.exit_code == 0, told.output
        return told.output

    _, name = asyncio.run(use(fed))
    file = fed.settings.log.path
    text = config.read_text()
    config.write_text(text.replace("decisions.sqlite.key", "another.key"))
    wrong = CliRunner().invoke(app, ["copy-log", "--config", str(config), "--from", str(file)])
    assert (wrong.exit_code, "name the key of this file" in wrong.output) == (2, True)
    config.write_text(text)
    assert "120 decisions" in copy("--from", file)
    again = CliRunner().invoke(app, ["copy-log", "--config", str(config), "--from", str(file)])
    assert (again.exit_code, "name an empty database" in again.output) == (2, True)
    before, _ = asyncio.run(use(moved, label=name))
    assert before == 0, "the budget was changed after the last sample"
    assert "240 decisions" in copy("--to", tmp_path / "copy.sqlite")
    verified = CliRunner().invoke(app, ["audit", "verify", str(tmp_path / "copy.sqlite"), "--key", f"{file}.key"])
    assert verified.exit_code == 0, verified.output
    assert get_state(tmp_path / "copy.sqlite", ("controller",))["controller"]["state"]["samples"] == N
    back = fed.having(log={"path": tmp_path / "copy.sqlite", "key": tmp_path / "log" / "decisions.sqlite.key"})
    assert asyncio.run(use(back, label=name))[0] == N, "the controller goes on"


# ---- several coordinators -----------------------------------------------------------------------


def test_what_one_is_told_reaches_the_other(fed):
    fed = fed.having(controller=ControllerSettings(explore=0.0))

    async def work():
        async with AsyncExitStack() as stack:
            one, two = [await stack.enter_async_context(running(fed)) for _ in range(2)]
            found = await one.answers(IDS)
            name = str(found["decision_id"][2])
            explained = await two.client.get(f"/api/decisions/{name}/explanation", headers=HEADERS)
            labelled = await two.client.post("/feedback", json={"decision_id": name, "label": "bee"})
            assert (explained.status_code, labelled.json()["accepted"]) == (200, [name])

            await one.admin("budget", {"budget": 0.05})
            await until(lambda: two.coordinator.deployment.point.budget == 0.05)
            assert two.coordinator.deployment.control.controller.budget == 0.05

            switch = {"artifact": "two.safetensors", "fusion": {"run": "two"}}
            assert (await two.admin("router", switch)).status_code == 200
            await until(lambda: one.coordinator.deployment.hash == two.coordinator.deployment.hash)
            assert one.coordinator.deployment.point.budget == 0.05
            assert (await one.answers(IDS))["version"] == two.coordinator.deployment.name
            assert (await one.admin("router", {"rollback": True})).status_code == 200
            await until(lambda: two.coordinator.deployment.hash == one.coordinator.deployment.hash)

            # A change that has not arrived yet is not overwritten.
            async with two.coordinator.monitor.lock:
                await one.admin("budget", {"budget": 0.1})
                refused = await two.admin("threshold", {"threshold": 0.5})
            assert (refused.status_code, "another coordinator" in refused.json()["error"]) == (409, True)
            await until(lambda: two.coordinator.deployment.point.budget == 0.1)

            await one.answers(IDS)
            await two.answers(IDS)
            together = await until(lambda: counted(one, 2 * N))
            assert (together["slots"], together["bound"] > 0) == (2, True)

            entries = (await two.client.get("/admin/audit", headers=HEADERS)).json()["audit"]
            assert [e["action"] for e in entries] == ["budget", "rollback", "router", "budget"]

    asyncio.run(work())


async def counted(up, samples):
    together = (await up.status())["together"]
    return together if together["samples"] >= samples else None


def test_a_change_that_cannot_be_applied_takes_the_other_out(fed, monkeypatch):
    async def work():
        async with running(fed) as one, running(fed) as two:
            load = two.coordinator.operator._load
            monkeypatch.setattr(two.coordinator.operator, "_load", fails)
            await one.admin("router", {"artifact": "two.safetensors", "fusion": {"run": "two"}})
            await until(lambda: "could not be applied" in two.coordinator.not_ready())
            monkeypatch.setattr(two.coordinator.operator, "_load", load)
            await until(lambda: not two.coordinator.not_ready())
            assert two.coordinator.deployment.hash == one.coordinator.deployment.hash

    def fails(_):
        raise DataError("no such file here")

    asyncio.run(work())


def test_an_alarm_of_one_stands_at_all_until_it_is_reset_at_any(fed):
    fed = fed.having(drift=DriftSettings(seconds=0.05, protect=True))

    async def work():
        async with running(fed) as one, running(fed) as two:
            drift = one.coordinator.monitor.drift
            await one.answers(IDS)
            async with one.coordinator.monitor.lock:
                drift._own = {"collaboration": DriftAlarm(1.0, "it hurts")}
                drift._protection = 0.7
                drift._note_alarms = lambda *_: False
                drift._settings = DriftSettings(seconds=0.05)  # so that it does not find out otherwise
                await drift.save()
            await until(lambda: two.coordinator.deployment.floor == 0.7)
            assert [alarm["name"] for alarm in (await two.status())["alarms"]] == ["collaboration"]
            reset = await two.admin("drift", {"reset": True})
            assert "it hurts" in reset.json()["reset"]["collaboration"]
            await until(lambda: not drift.alarms and one.coordinator.deployment.floor is None)
            assert two.coordinator.deployment.floor is None

    asyncio.run(work())


def test_every_label_is_monitored_once_by_whoever_received_it(fed):
    async def watched(*coordinators):
        found = [(await up.status())["drift"].get("labels") for up in coordinators]
        return found if None not in found and sum(found) == 40 else None

    async def work():
        async with running(fed) as one, running(fed) as two:
            ids = [str(name) for name in (await one.answers(IDS))["decision_id"][:40]]
            for up, some in ((one, ids[:30]), (two, ids[30:]), (one, ids[25:35])):  # the last ones are corrections
                told = [{"decision_id": name, "label": "bee"} for name in some]
                assert not (await up.client.post("/feedback", json={"feedback": told})).json()["errors"]
            assert await until(lambda: watched(one, two)) == [30, 10]
        async with running(fed) as one, running(fed) as two:
            assert await until(lambda: watched(one, two)) == [30, 10], "each took over what its slot had"

    asyncio.run(work())


def test_a_shadow_router_is_that_of_all(fed):
    router = gr.load(fed.artifacts["one"])
    router.threshold_ += 0.01
    provenance = gr.Provenance({party.name: f"one-{party.name}" for party in fed.parties}, "float32")
    gr.save(router, fed.folder / "three.safetensors", provenance=provenance)

    async def follow():
        async with running(fed) as one, running(fed) as two:
            loaded = await one.admin("shadow", {"artifact": "three.safetensors"})
            assert loaded.status_code == 200, loaded.text
            await until(lambda: two.coordinator.monitor.shadow.shadow is not None)
            await two.answers(IDS)
            await until(lambda: two.coordinator.monitor.shadow.status()["samples"] == N)
            assert (await two.admin("shadow", {"drop": True})).status_code == 200
            await until(lambda: one.coordinator.monitor.shadow.shadow is None)

    asyncio.run(follow())


def test_a_slot_that_was_taken_meanwhile_is_given_up_for_another(fed, url, server):
    """The session of a coordinator ends; before it is back, a third one has its slot."""
    fed = fed.having(controller=ControllerSettings(explore=0.0), rounds={"health_seconds": 0.05})

    async def work():
        async with running(fed) as one:
            await one.answers(IDS)
            log = one.coordinator.log
            end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
            with server.connect(url) as connection:
                connection.execute(end)
            async with running(fed) as other:
                assert other.coordinator.log.slot == 0
                counted = other.coordinator.deployment.control.controller.samples
                replies = []

                async def answered():
                    replies.append((await one.infer(IDS)).status_code)
                    return replies[-1] == 200

                await until(answered)
                assert set(replies[:-1]) <= {503}
                assert (log.slot, log.adopted) == (1, 1)
                return counted, one.coordinator.deployment.control.controller.samples

    assert asyncio.run(work()) == (N, N), "the state of slot 0 went to the other; slot 1 has counted from nothing"


# ---- processes ----------------------------------------------------------------------------------

SCRIPT = """
import sys, tempfile
from pathlib import Path
from fake_federation import federation
from gainroute.federation.coordinator.server import run_coordinator
from gainroute.federation.coordinator.settings import ControllerSettings, FusionSettings

folder = Path(sys.argv[1])
with tempfile.TemporaryDirectory() as own:  # all of them serve the router that the test has made
    fed = federation(Path(own)).having(router={"artifact": folder / "one.safetensors"})
for party in fed.parties:
    party.delay = (0.002, 0.002)
fusion = FusionSettings(factory="fake_federation:make_fusion")
controller = ControllerSettings(explore=0.02)
log = {"url": sys.argv[2], "coordinators": 3, "path": folder / "log" / "decisions.sqlite"}
settings = fed.having(server={"port": 0}, fusion=fusion, controller=controller, log=log).settings
by_name = {p.name: p for p in fed.parties}
run_coordinator(settings, connect=lambda p, _: by_name[p.name], on_ready=lambda url: print(url, flush=True))
"""


class Fleet:
    """Coordinators as processes, and clients that ask them in turn, as through a balancer that retries."""

    def __init__(self, folder, url):
        self.folder = folder
        self._arguments = [sys.executable, "-c", SCRIPT, str(folder), url]
        self.processes, self.urls = [], []
        self.acknowledged, self.retries = [], 0
        self._over = threading.Event()
        self._lock = threading.Lock()

    def start(self, n=1):
        """Start processes, and return them once they accept requests."""
        begun = [
            subprocess.Popen(self._arguments, stdout=subprocess.PIPE, text=True, env=child_environment())
            for _ in range(n)
        ]
        self.processes += begun
        self.urls += [process.stdout.readline().strip() for process in begun]
        return begun

    def load(self, clients=4):
        self._pool = ThreadPoolExecutor(clients)
        self._clients = [self._pool.submit(self._ask, number) for number in range(clients)]

    def _ask(self, number):
        ids = IDS[number * 20 : number * 20 + 20]
        body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}
        with httpx.Client(timeout=30) as client:
            while not self._over.is_set():
                for turn in itertools.count():
                    url = self.urls[(number + turn) % len(self.urls)]
                    try:
                        reply = client.post(f"{url}/v2/models/gainroute/infer", json=body)
                    except httpx.TransportError:
                        reply = None
                    if reply is not None and reply.status_code == 200:
                        break
                    assert reply is None or reply.status_code == 503, reply.text
                    with self._lock:
                        self.retries += 1
                    if self._over.wait(0.05):
                        return
                with self._lock:
                    self.acknowledged += outputs(reply.json())["decision_id"].tolist()

    def answered(self, more):
        wanted = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= wanted or self._failed(), 60)

    def _failed(self):
        return [done.result() for done in self._clients if done.done() and not self._over.is_set()]

    def end_load(self):
        self._over.set()
        for client in self._clients:
            client.result()
        self._pool.shutdown()

    def stop(self):
        self._over.set()
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


@pytest.fixture
def fleet(tmp_path, url):
    (tmp_path / "log").mkdir()
    federation(tmp_path)
    found = Fleet(tmp_path, url)
    yield found
    found.stop()


def check(fleet, server, url):
    """Nothing acknowledged is lost, and the budget is kept by all together."""
    with server.connect(url) as connection:
        logged = {f"{seq:016x}" for (seq,) in connection.execute("SELECT seq FROM decisions")}
        total, escalated = connection.execute(
            "SELECT count(*), count(*) FILTER (WHERE strong_prediction IS NOT NULL) FROM decisions"
        ).fetchone()
        slots = {seq & 255 for (seq,) in connection.execute("SELECT seq FROM decisions")}
    assert len(set(fleet.acknowledged)) == len(fleet.acknowledged)
    assert set(fleet.acknowledged) <= logged
    router = gr.load(fleet.folder / "one.safetensors")
    step = BudgetController(router).step
    constant = (1 + step) / step
    # A sample that was decided, and then refused or lost, is in the state of the controller only.
    assert abs(escalated - router.budget * total) <= len(slots) * constant + 20 * fleet.retries
    database = PostgresDatabase(url)
    kept = [row["state"] for row in get_state(database, (), ("controller",)).values()]
    database.close()
    assert len(kept) == len(slots)
    decided, wanted = (sum(state[name] for state in kept) for name in ("samples", "escalated"))
    assert decided >= total
    assert abs(wanted - router.budget * decided) <= len(slots) * constant
    return slots


def test_sigkill_of_one_of_two_under_load(fleet, server, url):
    first, _ = fleet.start(2)
    fleet.load()
    fleet.answered(600)
    first.kill()
    first.wait()
    fleet.answered(600)
    (third,) = fleet.start()
    fleet.urls = fleet.urls[1:]  # the balancer has noticed
    fleet.answered(600)
    fleet.end_load()
    assert third.poll() is None
    assert fleet.retries > 0
    assert check(fleet, server, url) == {0, 1}, "the third took over the slot of the first"


def test_the_database_crashes_under_load_and_restarts(fleet, server, url):
    """A commit that returns is durable, also where the database's default is that it need not be."""
    with server.connect() as connection:
        connection.execute(f"ALTER DATABASE {url.split('/')[3].partition('?')[0]} SET synchronous_commit = off")
    fleet.start(2)
    fleet.load()
    fleet.answered(600)
    server.stop(for_good=True)
    before = fleet.retries
    wait_until(lambda: fleet.retries > before + 4, 60)
    assert all(httpx.get(f"{url}/v2/health/ready").status_code == 503 for url in fleet.urls)
    server.start()
    fleet.answered(600)
    wait_until(lambda: all(httpx.get(f"{url}/v2/health/ready").status_code == 200 for url in fleet.urls), 30)
    fleet.end_load()
    check(fleet, server, url)


def test_audit_entries_of_several_are_one_chain(url, tmp_path):
    settings = LogSettings(path=tmp_path / "x.sqlite", url=url)

    async def work():
        logs = [DecisionLog(settings), DecisionLog(settings)]
        await asyncio.gather(*(
            log.write(lambda c, n=n: audit(c, "admin:ops", str(n), "budget", {}, {})) for n in range(10) for log in logs
        ))  # fmt: skip
        for log in logs:
            log.close()

    asyncio.run(work())
    with PostgresDatabase(url).connect() as connection:
        assert connection.execute("SELECT count(*), max(number) FROM audit").fetchone() == (20, 20)


def test_on_failure_answer_goes_on_without_the_database(fed, server, url):
    """Last of this file: it stops the database."""

    async def work():
        async with running(fed.having(log={"on_failure": "answer"})) as up:
            await up.answers(IDS)
            server.stop()
            marked = await up.answers(IDS)
            with pytest.raises(LogFailedError):
                await up.coordinator.log.write(lambda c: put_state(c, "x", 1))
            server.start()
            await until(lambda: not up.coordinator.log.error)
            return marked, await up.answers(IDS)

    marked, after = asyncio.run(work())
    assert set(marked["route"]) == {"degraded:unlogged"}
    assert set(after["route"]) == {"round1", "round2"}
