"""Tamper-evident audit trails: what was written is what is read, or the first line that is not is named."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gainroute.cli import app
from gainroute.errors import DataError
from gainroute.federation.audit_chain import AuditKey, key_path, read_head, read_key
from gainroute.federation.audit_trail import guess_key, heads, trail_files, verify
from gainroute.federation.coordinator.decision_log.store import audit, pseudonym
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.settings import LogSettings
from gainroute.federation.party.audit import AuditLog

ENTRY = {
    "coordinator": "main", "fingerprint": "ff", "request_id": "r", "round": 1, "model": "m", "count": 2, "unknown": 0,
    "outcome": "answered",
}  # fmt: skip


def verified(*paths, expected=None):
    known = heads(paths) if expected is None else expected
    return verify(trail_files(paths), read_key(guess_key(paths)), known)


def write(path, n, **how):
    log = AuditLog(path, party="lab", **how)
    for _ in range(n):
        log.write(**ENTRY)
    log.close()


def lines(path):
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


# ---- the chain ----------------------------------------------------------------------------------


def test_the_chain_goes_on_across_restarts_rotation_and_compression(path, tmp_path):
    for _ in range(3):
        write(path, 4, max_bytes=1000)
    files = [file for file in tmp_path.iterdir() if file.suffix not in (".key", ".head")]
    assert len(files) > 3
    found = verified(*files)
    assert (found.status, found.first, found.last, found.lines) == ("intact", 1, 12, 12)
    packed = files[0].with_name(f"{files[0].name}.gz")
    packed.write_bytes(gzip.compress(files[0].read_bytes()))
    files[0].unlink()
    assert verified(packed, *files[1:]).last == 12
    assert found.head == "{}:{}".format(*read_head(path))


def test_every_file_can_be_verified_by_itself(path, tmp_path):
    write(path, 12, max_bytes=1000)
    later = max(tmp_path.glob("audit.jsonl.2*"))
    found = verified(later)
    assert found.status == "intact"
    assert 1 < found.first < found.last < 12
    first = json.loads(lines(later)[0])
    assert first["party"] == "lab"
    assert len(first["prev"]) == 64


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_change_is_found_at_its_line(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("trail") / "audit.jsonl"
    write(path, 6)
    before = lines(path)
    at = data.draw(st.integers(0, 4), "line")
    changed = list(before)
    kind = data.draw(st.sampled_from(["byte", "remove", "swap", "insert", "copy"]), "kind")
    if kind == "byte":
        place = data.draw(st.integers(0, len(before[at]) - 2), "place")
        value = data.draw(st.integers(32, 126).filter(lambda v: v != before[at][place]), "value")
        changed[at] = before[at][:place] + bytes([value]) + before[at][place + 1 :]
    elif kind == "remove":
        del changed[at]
    elif kind == "swap":
        changed[at], changed[at + 1] = changed[at + 1], changed[at]
    elif kind == "insert":
        changed.insert(at + 1, b'{"time": "2026-01-01T00:00:00.000+00:00", "outcome": "answered"}\n')
    else:
        changed.insert(at + 1, before[at])
    path.write_bytes(b"".join(changed))
    found = verified(path)
    assert found.status == "broken"
    place = int(re.match(r".*?:(\d+): ", found.problem)[1])
    assert place in (at + 1, at + 2)


def test_a_forger_without_the_key_gets_nowhere(path):
    write(path, 3)
    other = AuditKey(b"x" * 32)
    assert verify([path], other).problem.startswith(f"{path}:1: it was changed, or written with another key")


def test_a_removed_end_is_noticed_by_the_head_that_was_kept(path):
    write(path, 5)
    head = read_head(path)
    path.write_bytes(b"".join(lines(path)[:3]))
    assert "the end is missing, 2 lines up to number 5" in verified(path).problem
    assert verified(path, expected={}).status == "intact"  # nothing else could tell
    assert verified(path, expected=dict([head])).status == "broken"
    write(path, 1)  # the party itself goes on after its head
    assert "number 6 follows number 3" in verified(path).problem
    assert verified(path, expected={2: "0" * 64}).problem.endswith("is not that of the head that was kept")


def test_a_removed_file_is_noticed(path, tmp_path):
    write(path, 12, max_bytes=1000)
    rotated = sorted(tmp_path.glob("audit.jsonl.2*"))
    rotated[1].unlink()
    assert "lines are missing, or were moved" in verified(rotated[0], *rotated[2:], path).problem
    assert verified(*rotated[2:], path).first > 1  # the oldest may be removed: it is said where they begin


def test_older_lines_are_not_chained_and_new_ones_continue_them(path):
    old = json.dumps({"time": "2026-01-01T00:00:00.000+00:00", **ENTRY})
    path.write_text(f"{old}\n{old}\n")
    assert verify([path], AuditKey(b"x" * 32)).status == "not chained"
    write(path, 2)
    found = verified(path)
    assert (found.status, found.unchained, found.first, found.last) == ("intact", 2, 1, 2)
    path.write_text(f"{old}\n{lines(path)[3].decode()}")
    assert "lines before number 2 are missing" in verified(path).problem
    path.write_bytes(path.read_bytes() + old.encode() + b"\n")


def test_lines_without_a_chain_after_it_are_named(path):
    write(path, 2)
    path.write_bytes(path.read_bytes() + b'{"outcome": "answered"}\n')
    assert verified(path).problem == f"{path}:3: it is not chained"


@pytest.mark.parametrize("cut", [2, 40, 200])
def test_a_crash_in_mid_line_is_repaired_visibly(path, cut, caplog):
    write(path, 3)
    path.write_bytes(path.read_bytes()[:-cut])  # without its head, as after a power failure
    path.with_name("audit.jsonl.head").unlink()
    assert verified(path).incomplete
    write(path, 1)
    found = verified(path)
    assert (found.status, found.torn, found.last) == ("intact", 1, 3)
    assert "ends with an incomplete line" in caplog.text
    torn = lines(path)
    torn[2] = torn[2].replace(b"t", b"T", 1)
    path.write_bytes(b"".join(torn))
    assert verified(path).problem == f"{path}:3: it is not chained"  # the incomplete line was changed afterwards
    del torn[2]
    path.write_bytes(b"".join(torn))
    assert "that it acknowledges is missing" in verified(path).problem


def test_a_line_that_lacks_only_its_end_is_complete(path):
    write(path, 2)
    path.write_bytes(path.read_bytes()[:-1])
    assert (verified(path).last, verified(path).incomplete) == (2, False)
    write(path, 1)
    assert (verified(path).last, verified(path).torn, verified(path).lines) == (3, 0, 3)


def test_only_the_owner_may_read_the_key_and_a_pipe_needs_none(path):
    write(path, 1)
    assert key_path(path).stat().st_mode & 0o777 == 0o600
    key_path(path).chmod(0o644)
    with pytest.raises(DataError, match="others may read it"):
        AuditLog(path)
    log = AuditLog(Path(os.devnull))
    log.write(**ENTRY)
    log.close()
    assert log.key is None
    with pytest.raises(DataError, match="no such key"):
        read_key(path.with_name("other.key"))


# ---- pseudonyms ---------------------------------------------------------------------------------


def test_pseudonyms_name_a_sample_for_the_key_and_for_nobody_else():
    key, other = AuditKey(b"a" * 32), AuditKey(b"b" * 32)
    named = key.pseudonyms(["7", "patient", "ü"])
    assert len(named) == 24
    assert all(key.names(sample, named) for sample in ("7", "patient", "ü"))
    assert not key.names("8", named)
    assert not other.names("7", named)
    assert not key.names("7", named[4:] + named[:4])  # only where a pseudonym begins
    assert key.pseudonyms([]) == ""


# ---- the coordinator's trail --------------------------------------------------------------------


def test_the_coordinators_audit_entries_are_chained(tmp_path):
    path = tmp_path / "log.sqlite"

    async def work(*actions):
        log = DecisionLog(LogSettings(path=path))
        for action in actions:
            await log.write(lambda c, a=action: audit(c, "admin:ops", "r", a, {"budget": 0.1}, {"budget": 0.2}))
        name = await log.write(lambda c: pseudonym(c, "patient"))
        await log.write(lambda c: audit(c, "admin:ops", "r", "delete", {"sample": name}, {"deleted": 1}))
        log.close()
        return log

    asyncio.run(work("budget", "threshold"))
    log = asyncio.run(work("router"))
    found = verified(path)
    assert (found.status, found.first, found.last) == ("intact", 1, 5)
    assert key_path(path).stat().st_mode & 0o777 == 0o600
    runner = CliRunner().invoke(app, ["audit", "find", "patient", str(path), "--json"])
    assert [line["number"] for line in json.loads(runner.output)["lines"]] == [3, 5]

    def change(statement):
        connection = log._engine._open()
        connection.execute(statement)
        connection.close()

    change("UPDATE audit SET who = 'admin:nobody' WHERE number = 2")
    assert verified(path).problem == f"{path}, audit entry 2: it was changed, or written with another key"
    change("UPDATE audit SET who = 'admin:ops' WHERE number = 2")
    assert verified(path).status == "intact"
    change("DELETE FROM audit WHERE number = 3")
    assert "audit entry 4: number 4 follows number 2" in verified(path).problem
    change("DELETE FROM audit WHERE number > 2")
    assert verified(path).status == "intact"
    number, chain = found.head.split(":")
    assert "the end is missing" in verified(path, expected={int(number): chain}).problem
    change("DELETE FROM audit WHERE number = 1")
    assert verified(path).status == "broken"


# ---- the command --------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def test_verify_prints_the_head_and_names_the_first_broken_line(path, tmp_path):
    write(path, 4)
    told = run("verify", *tmp_path.iterdir())  # as audit.jsonl* does: with key and head
    assert told.exit_code == 0
    head = re.search(r"lines 1 to 4: intact; head (4:[0-9a-f]{64})", told.output)[1]
    assert run("verify", path, "--head", head).exit_code == 0
    assert run("verify", path, "--head", "4").exit_code == 2
    path.write_bytes(path.read_bytes().replace(b'"count": 2', b'"count": 1', 1))
    told = run("verify", path, "--json")
    assert told.exit_code == 1
    assert json.loads(told.output)["status"] == "broken"
    assert f"BROKEN at {path}:1: it was changed" in run("verify", path).output
    assert run("verify", tmp_path / "none.jsonl", "--key", key_path(path)).exit_code == 2


def test_find_names_the_requests_about_a_sample(path):
    log = AuditLog(path)
    log.write(**ENTRY, samples=log.key.pseudonyms(["a", "b"]))
    log.write(**ENTRY | {"request_id": "second", "round": 2}, samples=log.key.pseudonyms(["b"]))
    log.close()
    found = json.loads(run("find", "b", path, "--json").output)["lines"]
    assert [(entry["request_id"], entry["round"]) for entry in found] == [("r", 1), ("second", 2)]
    shown = run("find", "b", path)
    assert "Round 2" in shown.output
    assert "second" in shown.output
    none = run("find", "c", path)
    assert none.exit_code == 1
    assert "no line names this sample" in none.output
