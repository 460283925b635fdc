"""How a schedule is carried out: on fake processes, without waiting."""

from __future__ import annotations

import math
import threading

import pytest

from benchmarks.soak import disturbances
from benchmarks.soak.disk import PRIVATE, FileLimit, disk_for, own_mounts
from benchmarks.soak.disturbances import Disturbances
from benchmarks.soak.federation import StartError
from benchmarks.soak.load import Load, Refused
from benchmarks.soak.schedule import CENTRE, Event, Schedule


class FakeProcess:
    pid = 1

    def __init__(self, title):
        self.title, self.calls = title, []

    def __getattr__(self, name):
        return lambda: self.calls.append(name)


class FakeFederation:
    """Records what is done to it; a full disk is noticed by a client at once."""

    def __init__(self, load):
        self.coordinator, self.parties, self.disk = FakeProcess(CENTRE), {"north": FakeProcess("party north")}, self
        self.load, self.calls, self.used = load, [], True

    def fill(self, pid):
        self.calls.append("fill")
        self.load.refused.append(Refused(math.inf, "503"))

    def make_room(self, pid):
        self.calls.append("make_room")

    def rotate(self, party):
        self.calls.append(f"rotate {party}")
        return "ours", "theirs"

    def in_use(self, party, certificates):
        return self.used


@pytest.fixture
def federation(monkeypatch):
    monkeypatch.setattr(disturbances, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(disturbances, "PATIENCE_SECONDS", 0.1)
    return FakeFederation(Load(1, [], []))


def carry_out(federation, parties=(), centre=()):
    made = Disturbances(federation, federation.load, Schedule(0, 0.0, 0.0, parties, centre), lambda _: None)
    made.run(0.0, lambda: None, 60.0)
    return made.happened


def test_each_kind_is_done_and_recorded(federation):
    north = [Event(0.0, "kill", "north"), Event(0.0, "freeze", "north")]
    centre = [Event(0.0, "fill", CENTRE), Event(0.0, "rotate", "north"), Event(0.0, "kill", CENTRE)]
    happened = carry_out(federation, north, centre)
    assert federation.parties["north"].calls == ["kill", "begin", "ready", "freeze", "wake"]
    assert federation.coordinator.calls == ["kill", "begin", "ready"]
    assert federation.calls == ["fill", "make_room", "rotate north"]
    assert {kind: len(downs) for kind, downs in vars(happened).items()} == dict.fromkeys(vars(happened), 1)
    assert all(down.gone <= down.begun <= down.back for downs in vars(happened).values() for down in downs)


def test_certificates_that_are_not_used_are_recorded_as_such(federation):
    federation.used = False
    assert carry_out(federation, centre=[Event(0.0, "rotate", "north")]).rotated[0].back == math.inf


def test_an_error_on_one_track_ends_the_other(federation):
    waiting = threading.Event()

    def ready():
        assert waiting.wait(60)
        raise StartError("it does not start")

    federation.coordinator.ready = ready
    federation.parties["north"].freeze = waiting.set
    with pytest.raises(StartError):
        carry_out(federation, [Event(0.0, "freeze", "north", 3600.0)], [Event(0.0, "kill", CENTRE)])
    assert federation.parties["north"].calls == ["wake"], "nobody is left frozen"


def test_without_mounts_of_its_own_a_soak_limits_files(monkeypatch, tmp_path):
    monkeypatch.delenv(PRIVATE, raising=False)
    assert isinstance(disk_for(tmp_path), FileLimit)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_mounts(["soak"]) is None, "there is no unshare"
    monkeypatch.setenv(PRIVATE, "1")
    assert own_mounts(["soak"]) is None, "it has them already"
