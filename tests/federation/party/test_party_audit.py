"""The audit log: one line before every answer, whatever happens to the file, the folder and the disk."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import socket
from pathlib import Path

import pytest
from party_helpers import MODEL, Federation, StubParty, connected, serving

from gainroute.federation.audit_chain import read_head, read_key
from gainroute.federation.audit_trail import guess_key, heads, verify
from gainroute.federation.party import audit
from gainroute.federation.party.audit import AuditLog
from gainroute.federation.transport.base import PartyUnavailableError

ENTRY = {
    "coordinator": "main", "fingerprint": "ff", "request_id": "r", "round": 1, "model": "m", "count": 3,
    "unknown": 1, "outcome": "answered",
}  # fmt: skip


@pytest.fixture(autouse=True)
def look_each_time(monkeypatch):
    monkeypatch.setattr(audit, "LOOK_SECONDS", 0.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def test_the_file_is_looked_for_ten_times_a_second(path, monkeypatch):
    monkeypatch.setattr(audit, "LOOK_SECONDS", 0.1)
    now = [1000.0]
    log = AuditLog(path, clock=lambda: now[0])
    write(log, "a")
    aside = path.with_name("audit.jsonl.1")
    path.rename(aside)
    write(log, "b")  # still written, to the renamed file
    now[0] += 0.1
    write(log, "c", "d")
    assert read_head(path)[0] == 3
    log.close()
    assert (names(aside), names(path)) == (["a", "b"], ["c", "d"])
    assert (verified(path, aside).last, read_head(path)[0]) == (4, 4)


def write(log, *names):
    for name in names:
        log.write(**ENTRY | {"request_id": name})


def names(path):
    return [json.loads(line)["request_id"] for line in path.read_text().splitlines()]


def verified(*paths):
    return verify(paths, read_key(guess_key(paths)), heads(paths))


def fail(number):
    def raise_it(*_args, **_more):
        raise OSError(number, os.strerror(number))

    return raise_it


# ---- rotation ---------------------------------------------------------------------------------------


def test_a_rotation_that_fails_closes_no_descriptor_of_anyone_else(path, monkeypatch, caplog):
    log = AuditLog(path, max_bytes=1)
    write(log, "a")
    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", fail(errno.EACCES))
        write(log, "b")
        live = [socket.socketpair() for _ in range(8)]  # they take the lowest free numbers
        write(log, "c", "d")
    for here, there in live:
        here.send(b"x")
        assert there.recv(1) == b"x"
        here.close()
        there.close()
    assert names(path) == ["a", "b", "c", "d"]  # nothing is lost meanwhile
    assert "rotating the audit log failed" in caplog.text
    write(log, *"efghij")
    log.close()
    rotated = sorted(path.parent.glob("audit.jsonl.2*"))
    assert verified(*rotated, path).problem == ""
    assert [name for file in [*rotated, path] for name in names(file)] == list("abcdefghij")
    assert rotated


def test_a_new_file_that_cannot_be_opened_refuses_until_it_can(path, monkeypatch):
    log = AuditLog(path, max_bytes=1)
    write(log, "a")
    opening = os.open
    with monkeypatch.context() as broken:
        broken.setattr(audit.os, "open", fail(errno.EMFILE))
        for _ in range(3):
            with pytest.raises(OSError, match="open files"):
                write(log, "refused")
    assert os.open is opening
    write(log, "b")
    log.close()
    assert names(path) == ["b"]


@pytest.mark.parametrize("how", ["rename", "rename and create", "copytruncate"])
def test_logrotate_needs_no_signal(path, how):
    log = AuditLog(path)
    write(log, "a", "b")
    aside = path.with_name("audit.jsonl.1")
    if how == "copytruncate":
        aside.write_bytes(path.read_bytes())
        os.truncate(path, 0)
    else:
        path.rename(aside)
        if how == "rename and create":
            path.touch(0o640)
    write(log, "c")
    log.close()
    assert names(aside) == ["a", "b"]
    assert names(path) == ["c"]
    assert verified(path, aside).last == 3


def test_only_files_of_its_own_rotation_are_removed(path):
    others = [path.with_name(f"audit.jsonl.{name}") for name in ("1", "gz", "20260101-notes", "backup")]
    for other in others:
        other.touch()
    log = AuditLog(path, max_bytes=1, keep=1)
    write(log, *"abcde")
    log.close()
    assert all(other.exists() for other in others)
    assert len(list(path.parent.iterdir())) == len(others) + 4  # with key and head


# ---- file, folder and disk --------------------------------------------------------------------------


def test_a_removed_file_is_created_again(path):
    log = AuditLog(path)
    write(log, "a")
    path.unlink()
    write(log, "b")
    log.close()
    assert names(path) == ["b"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_its_folder_nothing_is_written_until_it_is_back(tmp_path):
    folder = tmp_path / "mounted"
    folder.mkdir()
    log = AuditLog(folder / "audit.jsonl")
    write(log, "a")
    folder.rename(tmp_path / "unmounted")
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            write(log, "refused")
    assert not folder.exists()  # the place may be the mount point of a disk that is gone
    (tmp_path / "unmounted").rename(folder)
    write(log, "b")
    log.close()
    assert names(folder / "audit.jsonl") == ["a", "b"]


class ShortFile:
    """A file on a disk with room for a few bytes more."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.file.write(data[: self.room])
        self.room -= written
        return written

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_spoils_no_line_but_the_incomplete_one(path):
    log = AuditLog(path)
    write(log, "a")
    whole = log._file
    log._file = ShortFile(whole, room=30)
    for _ in range(3):
        with pytest.raises(OSError, match=r"bytes were written|No space left"):
            write(log, "refused")
    log._file = whole
    write(log, "b", "c")
    log.close()
    lines = path.read_text().splitlines()
    assert len(lines[1]) == 30
    assert (verified(path).torn, verified(path).last) == (1, 3)
    assert [json.loads(line)["request_id"] for line in (lines[0], *lines[2:])] == ["a", "b", "c"]


def test_a_line_cut_off_by_a_crash_spoils_no_other(path):
    log = AuditLog(path)
    write(log, "a")
    log.close()
    with path.open("a") as file:
        file.write('{"time": "20')
    assert verified(path).incomplete
    log = AuditLog(path)
    write(log, "b")
    log.close()
    lines = path.read_text().splitlines()
    assert [json.loads(line)["request_id"] for line in (lines[0], lines[2])] == ["a", "b"]
    assert json.loads(lines[2])["torn"] == hashlib.sha256(b'{"time": "20').hexdigest()
    assert (verified(path).torn, verified(path).last, verified(path).incomplete) == (1, 2, False)
    with pytest.raises(OSError, match="closed"):
        write(log, "late")


def test_a_party_refuses_while_its_audit_log_cannot_be_written_and_recovers(tmp_path, caplog):
    federation = Federation(tmp_path)
    settings = federation.settings()
    folder = settings.audit.path.parent
    ask = {"model": MODEL, "request_id": "r"}

    async def main():
        async with serving(settings, StubParty()) as node, connected(federation, node) as connection:
            await connection.posteriors([1], **ask)
            folder.rename(tmp_path / "gone")
            for _ in range(3):
                with pytest.raises(PartyUnavailableError, match="audit log cannot be written"):
                    await connection.posteriors([1], **ask)
            (tmp_path / "gone").rename(folder)
            return await connection.posteriors([2], **ask)

    reply = asyncio.run(asyncio.wait_for(main(), 30))
    assert reply.values.shape == (1, 3)
    assert names(settings.audit.path) == ["r", "r"]
    said = [record.message for record in caplog.records if "audit log" in record.message]
    assert len(said) == 2  # one line when it fails, one when it works again, whatever number was refused
    assert said[0].startswith("the audit log cannot be written")
    assert said[1].startswith("the audit log can be written again")
