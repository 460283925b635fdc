"""`gainroute up`: a tiny run, real processes, mutual TLS; nothing remains afterwards."""

from __future__ import annotations

import os
import signal
import socket

import httpx
import numpy as np
import pytest
from by_hand import outputs
from made_once import made_once
from typer.testing import CliRunner
from up_helpers import Up, alive, tiny_run
from waiting import wait_until

from gainroute.cli import app


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_once(tmp_path_factory, "tiny", tiny_run) / "run"


def test_it_answers_tells_of_a_dead_party_and_leaves_nothing_behind(run, tmp_path):
    with Up(run, tmp_path, "--budget", "0.5") as served:
        told = served.told
        assert [p["name"] for p in told["parties"]] == ["left", "right"]
        with np.load(run / "record.npz") as record:
            assert told["example_ids"] == record["test.ids"].tolist(), "samples that trained nothing"
            training = sorted({f"s{i}" for i in range(600)} - set(told["example_ids"]))
        answer = served.ask(told["example_ids"][:40])
        assert answer.status_code == 200, answer.text
        assert outputs(served.ask(training[:2]))["route"] == ["unknown"] * 2, "rows that trained are not served"
        status = httpx.get(f"{served.url}/api/status").json()
        assert status["operating_point"]["budget"] == 0.5
        assert [p["state"] for p in status["parties"]] == ["ok", "ok"]
        assert set(status["certificates"]) == {"coordinator", "party left", "party right"}

        page = httpx.get(f"{served.url}/")
        assert "'unsafe-inline'" not in page.headers["content-security-policy"]
        assert told["admin_token"] not in page.text, "any local user can fetch the page"
        assert httpx.get(f"{served.url}/dashboard/app.js").status_code == 200
        assert httpx.get(f"{served.url}/dashboard/__init__.py").status_code == 404
        change = {"json": {"budget": 0.1}, "headers": {"Authorization": f"Bearer {told['admin_token']}"}}
        assert httpx.post(f"{served.url}/admin/budget", **change).status_code == 200
        assert httpx.post(f"{served.url}/admin/budget", json={"budget": 1}).status_code == 401

        (folder,) = tmp_path.glob("gainroute-up-*")
        assert folder.stat().st_mode & 0o077 == 0, "keys lie there"
        pids = [p["pid"] for p in told["parties"]]
        os.kill(pids[1], signal.SIGKILL)
        wait_until(lambda: "party right" in served.errors.read_text(), 30)
        assert "It is not restarted, and without it requests are refused" in served.errors.read_text()
        wait_until(lambda: httpx.get(f"{served.url}/api/status").json()["parties"][1]["state"] == "unavailable", 30)
        assert served.ask(told["example_ids"][:2]).status_code == 503
        assert alive(pids[0])
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(30) == 0
    assert not any(map(alive, pids))
    assert not folder.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/v2/health/live")


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
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "name another --port" in refused(run, "--port", taken.getsockname()[1])
    half = tmp_path / "half"
    (half / "server").mkdir(parents=True)
    (half / "run.json").write_text((run / "run.json").read_text())
    assert "lacks server/router.safetensors" in refused(half)
    (half / "run.json").write_text("{")
    assert "cannot be read" in refused(half)
