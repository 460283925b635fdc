"""The log: durable, migrated, bounded; and what happens when it cannot be written."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import sqlite3
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from fake_federation import ADMIN, IDS, N, federation, running
from waiting import until

import gainroute as gr
from gainroute._util.hashing import hash_contents
from gainroute.errors import ArtifactVersionError, DataError, SettingError
from gainroute.federation.audit_chain import AuditKey
from gainroute.federation.coordinator.decision_log.reading import read_decisions
from gainroute.federation.coordinator.decision_log.retention import DAY, Retention, check_clock, delete_old
from gainroute.federation.coordinator.decision_log.rows import insert_rows
from gainroute.federation.coordinator.decision_log.schema import COLUMNS, JOURNAL_PAGES, MIGRATIONS, connect, migrate
from gainroute.federation.coordinator.decision_log.store import delete_named, get_state, put_state
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.errors import LogFailedError
from gainroute.federation.coordinator.settings import LogSettings


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path)


def count(path, table="decisions"):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608


# ---- the file -------------------------------------------------------------------------------------------


def test_every_commit_is_on_disk_and_the_schema_is_versioned(tmp_path):
    log = DecisionLog(LogSettings(path=tmp_path / "new folder" / "log.sqlite"))
    found = [
        log._engine.connection.execute(f"PRAGMA {p}").fetchone()[0]
        for p in ("journal_mode", "synchronous", "user_version")
    ]
    log.close()
    assert found == ["wal", 2, len(MIGRATIONS)]


def test_the_journal_has_its_full_size_from_the_start_and_a_second_start_finds_every_row(tmp_path):
    path = tmp_path / "log.sqlite"
    journal = tmp_path / "log.sqlite-wal"
    log = DecisionLog(LogSettings(path=path))
    at_start = journal.stat().st_size

    async def write(names):
        for name in names:
            await log.write(lambda connection, name=name: put_state(connection, name, 1))

    asyncio.run(write(["a", "b"]))
    assert at_start > 4096 * JOURNAL_PAGES
    assert journal.stat().st_size == at_start
    # What a process that is killed leaves: the file and its journal, as they are now.
    copy = tmp_path / "copy.sqlite"
    shutil.copy(path, copy)
    shutil.copy(journal, tmp_path / "copy.sqlite-wal")
    log.close()
    DecisionLog(LogSettings(path=copy)).close()
    assert set(get_state(copy, ["a", "b", "c"])) == {"a", "b"}


def test_an_older_log_is_brought_up_to_date_and_a_newer_one_refused(tmp_path):
    path = str(tmp_path / "log.sqlite")
    later = (*MIGRATIONS, "ALTER TABLE decisions ADD COLUMN extra TEXT; CREATE TABLE more (x)")
    with closing(connect(path)) as connection:
        assert migrate(connection, path) == len(MIGRATIONS)
        connection.execute("INSERT INTO state VALUES ('kept', '1', 0)")
        assert migrate(connection, path, later) == 1
        assert migrate(connection, path, later) == 0
        assert connection.execute("SELECT name FROM state").fetchone() == ("kept",)
        broken = (*later, "CREATE TABLE half (x); CREATE TABLE more (x)")
        with pytest.raises(sqlite3.Error):
            migrate(connection, path, broken)
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        assert "half" not in names  # whole or not at all
    written = len(MIGRATIONS)
    with pytest.raises(ArtifactVersionError, match=f"schema version {written + 1}, this gainroute writes {written}"):
        DecisionLog(LogSettings(path=tmp_path / "log.sqlite"))


def test_a_log_of_version_1_keeps_its_rows_and_says_that_nothing_was_explored(fed):
    """Rows and feedback as the first version wrote them; read before and after a coordinator has opened the log."""
    path, artifact = fed.settings.log.path, fed.artifacts["one"]
    path.parent.mkdir()
    blob = np.full((3, 4), 0.25, "<f4").tobytes()
    with closing(connect(str(path))) as connection:
        migrate(connection, str(path), MIGRATIONS[:1])
        for seq in (1, 2):
            connection.execute(
                "INSERT INTO decisions (seq, sample_id, request_id, time, local, score, threshold, probability, route, "
                "label, weak_prediction, strong_prediction, router, bytes, latency) "
                "VALUES (?, 's1', 'r', 5.0, ?, 0.1, 0.3, ?, ?, 2, 2, ?, ?, 9, 0.5)",
                (seq, blob, seq - 1.0, f"round{seq}", 2 if seq == 2 else None, hash_contents(artifact)),
            )
        connection.execute("INSERT INTO feedback VALUES (2, 3, 6.0, 'client:shop')")

    def read():
        found = read_decisions(path, gr.load(artifact), hash_contents(artifact), trusted=("shop",))
        return found.decisions.probability.tolist(), found.labelled.tolist(), found.decisions.feedback_probability

    before = read()

    async def work():
        async with running(fed) as up:
            await up.answers(IDS[:5])
            told = await up.client.post("/feedback", json={"decision_id": f"{1:016x}", "label": "ant"})
            return told.json()["accepted"]

    assert asyncio.run(work()) == [f"{1:016x}"]
    assert before == ([0.0, 1.0], [False, True], None)
    assert read()[0][:2] == [0.0, 1.0]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        old = connection.execute(
            "SELECT explored, capped, threshold, strong_prediction FROM decisions LIMIT 2"
        ).fetchall()
        labels = connection.execute("SELECT label, who, probability FROM feedback ORDER BY seq").fetchall()
    assert old == [(None, 0, 0.3, None), (None, 0, 0.3, 2)]
    assert labels[1] == (3, "client:shop", None)
    assert count(path) == 7


def test_a_log_has_one_writer_and_is_a_log(tmp_path):
    log = DecisionLog(LogSettings(path=tmp_path / "log.sqlite"))
    with pytest.raises(SettingError, match="another coordinator writes"):
        DecisionLog(LogSettings(path=tmp_path / "log.sqlite"))
    log.close()
    (tmp_path / "text").write_text("this is not a database, however long the text may be made to be")
    with pytest.raises(DataError, match="cannot be opened"):
        DecisionLog(LogSettings(path=tmp_path / "text"))


def test_decision_numbers_never_come_twice(tmp_path):
    log = DecisionLog(LogSettings(path=tmp_path / "log.sqlite"))
    taken = [log.numbers(1000) for _ in range(50)]
    log.close()
    assert all(len(a) == 1000 and b[0] > a[-1] for a, b in itertools.pairwise(taken))
    assert taken[0][0] > 1e15


# ---- when it cannot be written --------------------------------------------------------------------------


def fill(up):
    async def work():
        last = None
        for _ in range(60):
            last = await up.infer(IDS)
            if last.status_code != 200 or "unlogged" in last.text:
                return last
        raise AssertionError("the disk never filled")

    return work()


def test_a_full_disk_refuses_and_answers_again_once_there_is_room(fed):
    async def work():
        # Seldom watched: a probe, which is one small row, may find room where decisions do not.
        async with running(fed.having(log={"max_bytes": 300_000}, rounds={"health_seconds": 60.0})) as up:
            full = await fill(up)
            ready = await up.client.get("/v2/health/ready")
            status = await up.status()
            held = count(fed.settings.log.path)
            gone = await up.coordinator.log.write(lambda c: c.execute("DELETE FROM decisions").rowcount)
            await until(lambda: not up.coordinator.not_ready())
            return full, ready, status, held, gone, await up.infer(IDS)

    full, ready, status, held, gone, after = asyncio.run(work())
    assert (full.status_code, full.json()["code"], full.headers["Retry-After"]) == (503, "log_failed", "5")
    assert "full" in full.json()["error"]
    assert ready.status_code == 503
    assert status["log"]["ok"] is False
    assert held == gone
    assert held % N == 0  # a request's decisions are there whole or not at all
    assert after.status_code == 200


def test_a_change_that_cannot_be_written_down_is_not_made(fed, monkeypatch):
    def fails(*_):
        raise sqlite3.OperationalError("database or disk is full")

    async def work():
        async with running(fed) as up:
            monkeypatch.setattr("gainroute.federation.coordinator.operator.put_state", fails)
            told = [await up.admin("budget", {"budget": 0.9}),
                    await up.admin("router", {"artifact": "two.safetensors", "fusion": {"run": "two"}})]  # fmt: skip
            return told, await up.status()

    told, status = asyncio.run(work())
    assert [(t.status_code, t.json()["code"]) for t in told] == [(503, "log_failed")] * 2
    assert status["operating_point"]["set_by"] == "artifact"
    assert status["router"]["previous"] is None


def test_or_it_answers_and_marks(fed):
    async def work():
        slow = {"health_seconds": 60.0}
        async with running(fed.having(log={"max_bytes": 300_000, "on_failure": "answer"}, rounds=slow)) as up:
            marked = await fill(up)
            fed.parties[0].lacks = {"s0"}
            more = await up.answers(["s0", "nobody", *IDS[1:]])
            return marked, more, await up.status(), (await up.client.get("/metrics")).text

    marked, more, status, metrics = asyncio.run(work())
    from fake_federation import outputs

    assert marked.status_code == 200
    found, expected = outputs(marked.json()), fed.offline(IDS)
    np.testing.assert_array_equal(found["escalated"], expected.escalated)
    assert set(found["route"]) == {"degraded:unlogged"}
    assert more["route"][:3].tolist() == [
        "degraded:missing:a+unlogged",
        "degraded:unknown+unlogged",
        "degraded:unlogged",
    ]
    assert status["degraded"]["by_reason"]["unlogged"] >= N
    assert "gainroute_log_failures_total 2.0" in metrics
    assert "gainroute_log_ok 0.0" in metrics


@pytest.mark.parametrize("n", [1, 7, 8, 63, 64, 65, 137])
def test_any_number_of_rows_is_written_whole_and_in_order(tmp_path, n):
    own = {"seq": list(range(n)), "sample_id": [f"s{i}" for i in range(n)], "strong": [None, *[b"s"] * (n - 1)]}
    shared = {"request_id": "r", "time": 1.0, "local": b"l", "pooled": b"p", "score": 0.5, "threshold": 0.1,
              "probability": 1.0, "route": "round1", "label": 2, "weak_prediction": 2, "router": "h", "bytes": 9,
              "latency": 0.1, "capped": 0, "batch": "b"}  # fmt: skip
    with closing(connect(str(tmp_path / "log.sqlite"))) as connection:
        migrate(connection, "log.sqlite")
        insert_rows(connection, shared | own)
        found = connection.execute(f"SELECT {','.join(COLUMNS)} FROM decisions ORDER BY rowid").fetchall()  # noqa: S608
    everywhere = shared | {"strong_prediction": None, "explored": None, "holder": None}
    assert found == [tuple(own[c][i] if c in own else everywhere[c] for c in COLUMNS) for i in range(n)]


def test_one_bad_row_does_not_take_others_down(tmp_path):
    async def work():
        log = DecisionLog(LogSettings(path=tmp_path / "log.sqlite"))

        def good(connection):
            connection.execute("INSERT INTO state VALUES (?, '1', 0)", (str(time.perf_counter_ns()),))

        def bad(connection):
            connection.execute("INSERT INTO state VALUES (NULL, NULL, 0)")

        queued = threading.Event()  # so that the jobs that follow are committed together
        jobs = [log._submit(w, alone=False) for w in (lambda _: queued.wait(10) and None, good, bad, good)]
        queued.set()
        found = await asyncio.gather(*jobs, return_exceptions=True)
        log.close()
        return found

    found = asyncio.run(work())
    assert [type(f).__name__ for f in found] == ["NoneType", "NoneType", "LogFailedError", "NoneType"]
    assert count(tmp_path / "log.sqlite", "state") == 2


# ---- the writer -----------------------------------------------------------------------------------------


def put(name):
    return lambda connection: put_state(connection, name, 1)


def test_a_write_waits_for_another_program_that_writes_and_the_event_loop_does_not(tmp_path):
    path = tmp_path / "log.sqlite"
    begun = threading.Event()

    async def work():
        log = DecisionLog(LogSettings(path=path))
        log._engine.connection.set_trace_callback(lambda statement: begun.set())
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = log._submit(put("a"), alone=False)
            await asyncio.to_thread(begun.wait, 10)
            returned = not waiting.done()
            other.execute("ROLLBACK")
        await waiting
        log.close()
        return returned

    assert asyncio.run(work())
    assert set(get_state(path, ["a"])) == {"a"}


def test_a_lone_request_is_written_in_the_event_loop_unless_that_would_wait(tmp_path):
    path = tmp_path / "log.sqlite"

    async def work():
        log = DecisionLog(LogSettings(path=path))
        at_once = log._submit(put("a"), alone=False, here=True).done()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            behind_a_program = log._submit(put("b"), alone=False, here=True)
            returned = not behind_a_program.done()
            other.execute("ROLLBACK")
        await behind_a_program
        (patience,) = log._engine.connection.execute("PRAGMA busy_timeout").fetchone()
        with log._turn:  # the writer's thread is at work
            behind_the_writer = log._submit(put("c"), alone=False, here=True)
            returned = returned and not behind_the_writer.done()
        await behind_the_writer
        log.close()
        return at_once, returned, patience

    assert asyncio.run(work()) == (True, True, 10_000)
    assert set(get_state(path, ["a", "b", "c"])) == {"a", "b", "c"}


def test_a_write_that_fails_is_reported_and_undone_and_does_not_affect_the_next(tmp_path):
    path = tmp_path / "log.sqlite"

    def bad(connection):
        put_state(connection, "half", 1)
        connection.execute("INSERT INTO state VALUES (NULL, NULL, 0)")

    async def work():
        log = DecisionLog(LogSettings(path=path))
        with pytest.raises(LogFailedError):
            await log._submit(bad, alone=False)
        error = log.error
        await log._submit(put("next"), alone=False)
        recovered = log.error
        log.close()
        return bool(error), recovered

    assert asyncio.run(work()) == (True, "")
    assert set(get_state(path, ["half", "next"])) == {"next"}


# ---- forgetting -----------------------------------------------------------------------------------------


def test_decisions_are_deleted_by_id_and_by_age_with_their_feedback(fed):
    admin = {"Authorization": f"Bearer {ADMIN}"}

    async def work():
        async with running(fed) as up:
            found = await up.answers(IDS)
            await up.answers(["s0"])
            name = found["decision_id"][5]
            await up.client.post("/feedback", json={"decision_id": str(name), "label": "bee"})
            one = await up.client.delete("/admin/decisions", params={"decision_id": name}, headers=admin)
            two = await up.client.delete("/admin/decisions", params={"sample_id": "s0"}, headers=admin)
            none = await up.client.delete("/admin/decisions", params={"decision_id": name}, headers=admin)
            both = await up.client.delete("/admin/decisions", headers=admin)
            open_door = await up.client.delete("/admin/decisions", params={"sample_id": "s1"})
            audit = (await up.client.get("/admin/audit", headers=admin)).json()["audit"]
            left = count(fed.settings.log.path)
            judged = count(fed.settings.log.path, "feedback")
            old = await up.coordinator.log.write(lambda c: delete_old(c, time.time() + 1, 0.0))
            return [one.json(), two.json(), none.json()], both, open_door, audit, left, judged, old

    told, both, open_door, audit, left, judged, old = asyncio.run(work())
    assert [t["deleted"] for t in told] == [1, 2, 0]
    assert both.status_code == 400
    assert open_door.status_code == 401
    assert (left, judged) == (N - 2, 0)
    assert audit[1]["action"] == "delete"
    assert "s0" not in str(audit[1]["before"].values())  # the audit proves it and does not tell it
    assert old == left
    assert count(fed.settings.log.path) == 0


def test_a_deleted_sample_is_in_none_of_the_files(fed):
    """Ids arrive in random order, so that pages of the index are split, which leaves copies behind."""
    rng = np.random.default_rng(3)
    folder, path = fed.settings.log.path.parent, fed.settings.log.path
    names = [f"patient-{number:012d}" for number in rng.permutation(8000) * 7919]
    gone = names[::4]
    row = dict.fromkeys(COLUMNS, None) | {
        "request_id": "r", "time": time.time(), "threshold": 0.0, "probability": 1.0, "route": "round1", "label": 0,
        "weak_prediction": 0, "router": "x", "bytes": 0, "latency": 0.0, "capped": 0,
    }  # fmt: skip
    insert = f"INSERT INTO decisions ({', '.join(COLUMNS)}) VALUES ({', '.join(':' + c for c in COLUMNS)})"  # noqa: S608

    def found():
        return {
            name.decode() for file in folder.iterdir() for name in re.findall(rb"patient-\d{12}", file.read_bytes())
        }

    async def work():
        async with running(fed) as up:
            write = up.coordinator.log.write
            for at in range(0, len(names), 40):
                part = [row | {"seq": seq, "sample_id": names[seq]} for seq in range(at, at + 40)]
                await write(lambda c, part=part: c.executemany(insert, part))
            before = found()
            await write(lambda c: [delete_named(c, None, name) for name in gone[1:]])
            admin = {"Authorization": f"Bearer {ADMIN}"}
            told = await up.client.delete("/admin/decisions", params={"sample_id": gone[0]}, headers=admin)
            assert told.json() == {"deleted": 1}
            return before, found(), (folder / f"{path.name}-wal").stat().st_size

    before, after, journal = asyncio.run(work())
    assert before >= set(gone)
    assert after.isdisjoint(gone)
    assert names[1] in after
    assert journal > 4096 * JOURNAL_PAGES, "it has its full size again"


def test_a_reader_that_prevents_erasing_is_noticed_and_it_is_done_later(tmp_path):
    log = DecisionLog(LogSettings(path=tmp_path / "log.sqlite"))
    log._engine.connection.execute("PRAGMA busy_timeout=1")

    async def work():
        await log.write(lambda c: put_state(c, "before", 1))
        with closing(sqlite3.connect(log.place)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM state").fetchall()
            await log.write(lambda c: put_state(c, "after", 1), erase=True)
            noticed = log.unerased
        await Retention(log, 0.0).run()
        return noticed, log.unerased

    try:
        assert asyncio.run(work()) == (True, False)
    finally:
        log.close()


def test_the_log_is_for_its_owner_only(tmp_path):
    path = tmp_path / "made" / "log.sqlite"
    was = os.umask(0o022)
    try:
        log = DecisionLog(LogSettings(path=path))
        modes = {file.name: file.stat().st_mode & 0o777 for file in (path.parent, *path.parent.iterdir())}
        log.close()
        assert modes.pop("made") == 0o700
        assert set(modes) == {f"log.sqlite{end}" for end in ("", "-wal", "-shm", ".lock", ".key")}
        assert set(modes.values()) == {0o600}
        for mode, then in ((0o644, 0o600), (0o640, 0o640)):  # as earlier versions made it; as an operator wants it
            path.chmod(mode)
            DecisionLog(LogSettings(path=path)).close()
            assert path.stat().st_mode & 0o777 == then
    finally:
        os.umask(was)


def test_another_name_of_the_file_is_no_way_around_the_lock(tmp_path):
    path = tmp_path / "log.sqlite"
    log = DecisionLog(LogSettings(path=path))
    try:
        (tmp_path / "link.sqlite").symlink_to(path)
        (tmp_path / "folder").symlink_to(tmp_path)
        for name in ("link.sqlite", "folder/log.sqlite", "folder/link.sqlite"):
            with pytest.raises(SettingError, match="another coordinator writes this decision log"):
                DecisionLog(LogSettings(path=tmp_path / name))
        (tmp_path / "hard.sqlite").hardlink_to(path)
        with pytest.raises(SettingError, match="hard links"):
            DecisionLog(LogSettings(path=tmp_path / "hard.sqlite"))
    finally:
        log.close()


@pytest.fixture
def dated(tmp_path):
    """A log of decisions made at given times, in days."""
    connection = connect(str(tmp_path / "dated.sqlite"))
    migrate(connection, "dated")
    connection.key = AuditKey(b"key")

    def fill(*days):
        for number, day in enumerate(days):
            connection.execute(
                "INSERT INTO decisions (seq, sample_id, request_id, time, threshold, probability, route, label, "
                "weak_prediction, router, bytes, latency) VALUES (?, 'x', 'r', ?, 0, 1, 'round1', 0, 0, 'x', 0, 0)",
                (number, day * DAY),
            )
        return connection

    yield fill
    connection.close()


def left(connection):
    return [seq for (seq,) in connection.execute("SELECT seq FROM decisions ORDER BY seq")]


def test_a_clock_that_jumps_forward_deletes_nothing_for_a_day(dated, caplog):
    connection = dated(1000, 1050, 1099)
    assert check_clock(connection, 1100 * DAY, 0.0, 90.0) == 0
    assert check_clock(connection, 1100 * DAY + 600, 600.0, 90.0) == 0
    held = check_clock(connection, 5000 * DAY, 600.0, 90.0)  # ten minutes later it is ten years later
    assert held == DAY
    assert "the clock has moved by +3899.99 days" in caplog.text
    (entry,) = connection.execute("SELECT who, action FROM audit").fetchall()
    assert entry == ("retention", "clock moved")
    assert check_clock(connection, 5000 * DAY + 600, 600.0, 90.0) == DAY - 600
    assert check_clock(connection, 1100 * DAY + 1800, 600.0, 90.0) == DAY, "it was corrected: a jump as well"
    assert check_clock(connection, 1101 * DAY + 1800, DAY, 90.0) == 0, "a day later it deletes again"
    assert delete_old(connection, 1101 * DAY, 90.0) == 1
    assert left(connection) == [1, 2]


def test_a_jump_while_it_was_stopped_is_noticed_and_an_ordinary_stop_is_none(dated):
    connection = dated(1000, 1050, 1099)
    assert check_clock(connection, 2000 * DAY, 0.0, 90.0) == DAY, "against the newest decision of an older log"
    assert check_clock(connection, 2000.9 * DAY, 0.0, 90.0) == DAY, "stopped for most of a day, which does not count"
    assert check_clock(connection, 2001.9 * DAY, DAY, 90.0) == 0
    assert check_clock(connection, 2008 * DAY, 0.0, 90.0) == 0, "a week off"


def test_after_a_jump_the_service_deletes_nothing(fed, monkeypatch):
    async def work():
        async with running(fed) as up:
            log = up.coordinator.log
            await up.answers(IDS)
            retention = Retention(log, 90.0)
            await retention.run()
            now = time.time()
            monkeypatch.setattr("gainroute.federation.coordinator.decision_log.retention.time.time", lambda: now + 1e9)
            await retention.run()
            return count(log.place)

    assert asyncio.run(work()) == N


def test_decisions_dated_by_a_wrong_clock_go_with_those_around_them(dated):
    # Old ones, with two of 2036 between them; a young one, one of 1970, a young one, and one more of 2036.
    connection = dated(900, 901, 5000, 5001, 902, 999, 0, 1000, 5002)
    assert delete_old(connection, 1000 * DAY, 90.0) == 5
    assert left(connection) == [5, 6, 7, 8]
    assert delete_old(connection, 1000 * DAY, 90.0) == 0
    assert delete_old(connection, 1100 * DAY, 90.0) == 3
    assert left(connection) == [8], "it goes with the next decision"


def test_what_is_older_than_the_log_shall_remember_goes(fed, monkeypatch):
    monkeypatch.setattr("gainroute.federation.coordinator.coordinator.RETENTION_SECONDS", 0.0)

    async def work():
        async with running(fed.having(log={"retention_days": 0.5 / 86400})) as up:
            await up.answers(IDS)
            await until(lambda: count(fed.settings.log.path) == 0)

    asyncio.run(work())
