"""`gainroute up` refuses what it cannot serve before anything starts; tests/system/test_up.py starts it."""

from __future__ import annotations

import socket

import numpy as np
import pytest
from made_once import made_once
from typer.testing import CliRunner
from up_helpers import tiny_run

from gainroute.cli import app


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_once(tmp_path_factory, "tiny", tiny_run) / "run"


def test_views_that_do_not_fit_the_run_are_refused_before_anything_starts(run, tmp_path):
    def refused(**views):
        for name, arrays in views.items():
            np.savez(tmp_path / f"{name}.npz", **arrays)
        files = [word for name in views for word in ("--views", str(tmp_path / f"{name}.npz"))]
        done = CliRunner().invoke(app, ["up", str(run), *files])
        assert done.exit_code == 2, done.output
        return done.stderr

    x = np.zeros((5, 4))
    assert "the run was trained on left, right" in refused(left={"x": x})
    assert "give ids to all views" in refused(left={"x": x, "ids": np.arange(5)}, right={"x": x})
    assert "left 5 without ids, right 4 without ids" in refused(left={"x": x}, right={"x": x[:4]})


def test_an_invalid_run_or_option_is_reported_before_anything_starts(run, tmp_path, monkeypatch):
    def refused(*args):
        done = CliRunner().invoke(app, ["up", *map(str, args)])
        assert done.exit_code == 2, done.output
        return done.stderr

    monkeypatch.chdir(tmp_path)
    assert "gainroute demo" in refused()
    assert "no run.json" in refused(tmp_path)
    assert "budget is 7" in refused(run, "--budget", 7)
    assert "port is 70000" in refused(run, "--port", 70000)
    assert "grpc_port is 70000" in refused(run, "--grpc-port", 70000)
    assert "HTTP and gRPC need a port each" in refused(run, "--port", 8080, "--grpc-port", 8080)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "name another --port" in refused(run, "--port", taken.getsockname()[1])
        assert "name another --grpc-port" in refused(run, "--port", 0, "--grpc-port", taken.getsockname()[1])
    half = tmp_path / "half"
    (half / "server").mkdir(parents=True)
    (half / "run.json").write_text((run / "run.json").read_text())
    assert "lacks server/router.safetensors" in refused(half)
    (half / "run.json").write_text("{")
    assert "cannot be read" in refused(half)
