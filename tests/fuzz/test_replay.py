"""Inputs that the fuzzer kept, and those that once failed, are read or refused: no crash, no hang, no 500."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import gainroute as gr
from gainroute.errors import SettingError
from tests.fuzz import engine
from tests.fuzz.targets import TARGETS, Target

HERE = Path(__file__).parent


@pytest.fixture
def alarms():
    def hang(*_):
        raise engine.HangError

    before = signal.signal(signal.SIGVTALRM, hang)
    yield
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_are_read_or_refused(name, tmp_path, alarms):
    kept = [path for folder in ("corpus", "failures") for path in sorted((HERE / folder / name).glob("*"))]
    with TARGETS[name](tmp_path) as target:
        inputs = {f"seed {i}": seed for i, seed in enumerate(target.seeds)} | {p.name: p.read_bytes() for p in kept}
        found = {key: engine.attempt(target, data) for key, data in inputs.items()}
    assert {key: why for key, (_, why) in found.items() if why} == {}


def test_a_crash_a_hang_and_a_new_line_are_noticed(alarms, monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "HANG_SECONDS", 0.05)

    def run(data):
        if data == b"hang":
            while True:
                pass
        if data == b"crash":
            raise KeyError("x")
        return "read"

    target = Target([b""], lambda data, _: data, run)
    assert engine.attempt(target, b"") == ("read", "")
    assert engine.attempt(target, b"crash")[0] == "crash"
    assert engine.attempt(target, b"hang")[0] == "hang"
    lines = engine.Lines()
    with lines.watching():
        gr.Provenance({}, "float32")
        first = len(lines.seen)
        gr.Provenance({}, "float32")
        assert len(lines.seen) == first
        with pytest.raises(SettingError):
            gr.ExpectedGainRouter(budget=7)
        assert len(lines.seen) > first
