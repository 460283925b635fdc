"""`gainroute up`, real processes with mutual TLS: new views, a masked Round 1, dead parties, models it cannot serve."""

from __future__ import annotations

import os
import shutil
import signal

import grpc
import httpx
import numpy as np
import pytest
from by_hand import outputs
from grpc_health.v1 import health_pb2, health_pb2_grpc
from made_once import made_once
from typer.testing import CliRunner
from up_helpers import Up, alive, tiny_run
from waiting import wait_until

import gainroute as gr
from gainroute.cli import app


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_once(tmp_path_factory, "tiny", tiny_run) / "run"


def test_it_answers_tells_of_a_dead_party_and_leaves_nothing_behind(run, tmp_path):
    with Up(run, tmp_path, "--budget", "0.5", "--grpc-port", "0") as served:
        told = served.told
        with grpc.insecure_channel(told["grpc_address"]) as channel:
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.SERVING
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


def test_a_run_trained_for_it_is_served_with_a_masked_round_one(tmp_path):
    run = tiny_run(tmp_path, ("left", "middle", "right"), "--pooled-only")
    with Up(run, tmp_path, "--masked") as served:
        ids = served.told["example_ids"]
        found = outputs(served.ask(ids))
        assert set(found["route"]) == {"round1", "round2"}
        assert httpx.get(f"{served.url}/api/status").json()["policy"]["round1"] == "masked"
    rows = [int(name[1:]) for name in ids]
    views = {name: np.load(tmp_path / f"{name}.npz")["x"][rows] for name in ("left", "middle", "right")}
    opened = gr.open_run(run)
    assert opened.router.pooled_only
    expected = opened.predict(views)
    same = np.array(found["escalated"]) == expected.escalated  # the controller moves the threshold a little
    assert same.mean() > 0.9
    assert (np.array(found["class"])[same] == expected.prediction[same]).all()
    assert np.abs(np.array(found["score"]) - expected.score).max() < 1e-3


def test_new_views_are_served_by_id_or_numbered(run, tmp_path):
    rng = np.random.default_rng(5)
    y = np.arange(60) % 3
    new = {name: rng.normal(size=(60, 4)) + y[:, None] for name in ("left", "right")}
    for name, x in new.items():
        np.savez(tmp_path / f"{name}.npz", x=x)
    expected = gr.open_run(run).predict(new)
    files = [str(tmp_path / f"{name}.npz") for name in ("right", "left")]
    with Up(run, tmp_path, "--views", *files) as served:
        assert served.told["example_ids"] == [str(i) for i in range(60)]
        answered = outputs(served.ask(served.told["example_ids"]))
        np.testing.assert_allclose(answered["score"], expected.score, rtol=1e-4, atol=1e-5)
        same = np.array(answered["escalated"]) == expected.escalated  # the budget controller moves the threshold
        assert same.mean() > 0.8
        answers = np.reshape(answered["probabilities"], (60, 3))
        np.testing.assert_allclose(answers[same], expected.probabilities[same], atol=1e-6)


def test_killed_outright_it_takes_its_processes_along(run, tmp_path):
    with Up(run, tmp_path) as served:
        pids = [p["pid"] for p in served.told["parties"]]
        os.kill(served.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(alive, pids)), 30)

        def gone():
            try:
                httpx.get(f"{served.url}/v2/health/live")
            except httpx.TransportError:
                return True
            return False

        wait_until(gone, 30)


def test_a_router_of_other_models_is_refused_with_the_reason(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    shutil.copy(other / "parties/left/local.safetensors", other / "parties/right/local.safetensors")
    done = CliRunner().invoke(app, ["up", str(other), "--port", "0"])
    assert done.exit_code == 2, done.output
    assert "the coordinator cannot start" in done.stderr
    assert "party 'right'" in done.stderr
