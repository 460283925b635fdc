"""A full disk under the decision log of a running coordinator: refused or marked, never silently unlogged."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import httpx
import pytest
from waiting import wait_until

from benchmarks.soak.disk import UNSHARE, FileLimit, mountable
from benchmarks.soak.federation import HONEST, INFER, Federation, Process
from benchmarks.soak.world import make_world

MOUNT = 'mount -t tmpfs -o size=64m tmpfs "$0" && exec "$@"'


class LimitedFiles(FileLimit):
    """No file of the process may grow any further (EFBIG)."""

    def command(self, folder, command):
        return command


def write_all(file, size):
    for _ in range(size // 65536):
        os.write(file, b"x" * 65536)


class SmallDisk:
    """A disk of 64 megabytes that holds the log alone, and is filled to its last byte (ENOSPC)."""

    def command(self, folder, command):
        self.folder = folder
        return [*UNSHARE, "sh", "-c", MOUNT, str(folder), *command]

    def ballast(self, pid):
        return Path(f"/proc/{pid}/root{self.folder}/ballast")  # its mount is in no other process's view

    def fill(self, pid):
        file = os.open(self.ballast(pid), os.O_WRONLY | os.O_CREAT)
        try:
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                # A short write takes what is left, the next one fails; twice what there is must be enough.
                write_all(file, 1 << 27)
        finally:
            os.close(file)

    def make_room(self, pid):
        self.ballast(pid).unlink()


WAYS = [LimitedFiles, *([SmallDisk] if mountable() else [])]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    federation = Federation(folder, make_world(folder))
    try:
        for party in federation.parties.values():
            party.begin()
        for party in federation.parties.values():
            party.ready()
        yield federation
    finally:
        for party in federation.parties.values():
            party.kill()


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def disk(request):
    return request.param()


class Running:
    """A coordinator whose log lies on a disk that can be filled."""

    def __init__(self, federation, folder, disk, on_failure):
        self.disk, self.folder = disk, folder / "disk"
        self.folder.mkdir()
        home = federation.folder / "coordinator"
        text = (home / "coordinator.toml").read_text()
        log = f'path = "{self.folder}/decisions.sqlite"\non_failure = "{on_failure}"\n'
        config = home / f"{folder.name}.toml"
        config.write_text(text.replace('path = "log/decisions.sqlite"\n', log))
        self.headers = {"Authorization": f"Bearer {federation.tokens[HONEST[0]]}"}
        command = [*federation.coordinator.command[:3], "coordinator", "--config", str(config)]
        self.process = Process("the coordinator", disk.command(self.folder, command), folder / "stderr")

    def __enter__(self):
        self.process.begin()
        url = self.process.ready().split()[-1]
        self.http = httpx.Client(base_url=url, headers=self.headers, timeout=60)
        return self

    def __exit__(self, *_):
        self.http.close()
        self.process.kill()

    def fill(self):
        self.disk.fill(self.process.pid)

    def make_room(self):
        self.disk.make_room(self.process.pid)

    def ask(self, ids):
        body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": list(ids)}]}
        return self.http.post(INFER, json=body)

    def logged(self):
        """The latest 500 decision ids, oldest first."""
        rows = self.http.get(f"/api/decisions?limit={SHOWN}").json()["decisions"]
        return [row["decision_id"] for row in rows][::-1]

    def exhaust(self):
        """Ask until a row finds no room: a log may have set some aside before the disk was full."""
        written = []
        for _ in range(100):
            reply = self.ask(MANY)
            if reply.status_code != 200 or "degraded:unlogged" in outputs(reply)["route"]:
                return written
            written += outputs(reply)["decision_id"]
        pytest.fail("the log goes on growing on a full disk")

    def log_ok(self):
        return "gainroute_log_ok 1.0" in self.http.get("/metrics").text

    def log_fails(self):
        """What a request that is not written shows; one of the log's own small trials may find room in between."""
        reply = self.ask(MANY)
        assert reply.status_code == 503 or set(outputs(reply)["route"]) == {"degraded:unlogged"}
        return not self.log_ok()

    def ready(self):
        return self.http.get("/v2/health/ready").status_code == 200


def outputs(reply):
    assert reply.status_code == 200, reply.text
    return {output["name"]: output["data"] for output in reply.json()["outputs"]}


IDS = [f"s{i:04d}" for i in range(60)]
MANY = [f"s{i:04d}" for i in range(1000)]
WHOLE = {"round1", "round2"}
SHOWN = 500


def test_a_full_disk_refuses_until_there_is_room(federation, disk, tmp_path):
    with Running(federation, tmp_path, disk, "refuse") as running:
        before = outputs(running.ask(IDS))
        assert set(before["route"]) == WHOLE
        running.fill()
        written = before["decision_id"] + running.exhaust()
        for _ in range(3):
            refused = running.ask(MANY)
            assert refused.status_code == 503
            assert "the decision log" in refused.json()["error"]
        wait_until(lambda: running.log_fails() and not running.ready(), 60)
        assert running.logged() == written[-SHOWN:], "what was acknowledged is there, and nothing by halves"
        running.make_room()
        wait_until(running.ready, 60)
        after = outputs(running.ask(IDS))
        assert set(after["route"]) == WHOLE
        assert running.logged() == (written + after["decision_id"])[-SHOWN:]


def test_or_answers_and_marks_what_is_not_written_down(federation, disk, tmp_path):
    with Running(federation, tmp_path, disk, "answer") as running:
        before = outputs(running.ask(MANY))
        running.fill()
        written = before["decision_id"] + running.exhaust()
        for _ in range(3):
            found = outputs(running.ask(MANY))
            assert set(found["route"]) == {"degraded:unlogged"}
            assert (found["label"], found["escalated"]) == (before["label"], before["escalated"])
        assert running.ready(), "it answers"
        wait_until(running.log_fails, 60)
        assert running.logged() == written[-SHOWN:]
        running.make_room()
        wait_until(running.log_ok, 60)
        after = outputs(running.ask(IDS))
        assert set(after["route"]) == WHOLE
        assert running.logged() == (written + after["decision_id"])[-SHOWN:]
