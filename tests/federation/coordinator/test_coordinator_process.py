"""A coordinator as a process: SIGTERM drains, SIGKILL loses nothing that was acknowledged."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import numpy as np
import pytest
from fake_federation import IDS, N, child_environment, federation, outputs
from typer.testing import CliRunner

import gainroute as gr
from gainroute.cli import app

SCRIPT = """
import sys
from pathlib import Path
from fake_federation import federation
from gainroute.federation.coordinator.server import run_coordinator
from gainroute.federation.coordinator.settings import ControllerSettings, FusionSettings

folder = Path(sys.argv[1])
kept = {path: path.read_bytes() for path in folder.glob("*.safetensors")}
fed = federation(folder)
for path, artifact in kept.items():  # a restart finds the router that was there, to the last bit
    path.write_bytes(artifact)
for party in fed.parties:
    party.delay = (float(sys.argv[2]), 0.0)
fusion = FusionSettings(factory="fake_federation:make_fusion")
controller = ControllerSettings(explore=0.05, seed=int(sys.argv[3])) if len(sys.argv) > 3 else None
settings = fed.having(server={"port": 0}, fusion=fusion, controller=controller).settings
by_name = {p.name: p for p in fed.parties}
run_coordinator(settings, connect=lambda p, _: by_name[p.name], on_ready=lambda url: print(url, flush=True))
print("stopped", flush=True)
"""


@pytest.fixture
def start(tmp_path):
    begun = []

    def begin(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path), *(arguments or ["0"])],
            stdout=subprocess.PIPE, text=True, env=child_environment(),
        )  # fmt: skip
        begun.append(process)
        return process, process.stdout.readline().strip()

    yield begin
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def ask(url, ids=IDS):
    body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}
    return httpx.post(f"{url}/v2/models/gainroute/infer", json=body, timeout=20)


def test_sigterm_answers_what_is_under_way_then_stops(start):
    process, url = start("0.2")  # well below the time that a round may take
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(ask, url)
        for _ in range(200):
            if "gainroute_queue_samples 120" in httpx.get(f"{url}/metrics").text:
                break
        process.send_signal(signal.SIGTERM)
        assert under_way.result().status_code == 200
    assert process.wait(timeout=20) == 0
    assert process.stdout.read().strip() == "stopped"
    with pytest.raises(httpx.ConnectError):
        ask(url)


def test_sigkill_loses_no_acknowledged_decision_and_a_restart_goes_on(start, tmp_path):
    process, url = start()
    names = [name for _ in range(5) for name in outputs(ask(url).json())["decision_id"].tolist()]
    process.kill()
    process.wait()
    _, again = start()
    names += outputs(ask(again).json())["decision_id"].tolist()
    with closing(sqlite3.connect(tmp_path / "log" / "decisions.sqlite")) as connection:
        logged = {f"{seq:016x}" for (seq,) in connection.execute("SELECT seq FROM decisions")}
    assert len(set(names)) == 6 * N
    assert set(names) <= logged


def test_sigkill_does_not_make_the_budget_controller_forget(start, tmp_path):
    for _ in range(2):
        process, url = start("0", "7")
        for _ in range(4):
            assert ask(url).status_code == 200
        process.kill()
        process.wait()
    router = gr.load(tmp_path / "one.safetensors")
    unbroken = gr.BudgetController(router, explore=0.05, seed=7)
    local = np.array([p.models[f"one-{p.name}"][0] for p in federation(tmp_path).parties])
    expected = unbroken.route(np.tile(local, (1, 8, 1)))
    with closing(sqlite3.connect(tmp_path / "log" / "decisions.sqlite")) as connection:
        rows = connection.execute("SELECT threshold, probability, explored FROM decisions ORDER BY seq").fetchall()
    assert rows == list(zip(expected.thresholds, expected.probability, expected.explored, strict=True))
    assert unbroken.explored > 0


def test_the_command_says_what_is_wrong(tmp_path):
    run = CliRunner()
    told = run.invoke(app, ["coordinator"])
    assert told.exit_code == 2
    assert "--config is missing" in told.output
    (tmp_path / "c.toml").write_text("[sever]\nport = 1\n")
    told = run.invoke(app, ["coordinator", "--config", str(tmp_path / "c.toml")])
    assert told.exit_code == 2
    assert "unknown key 'sever'" in told.output
    told = run.invoke(app, ["coordinator", "--new-token"])
    assert told.exit_code == 0
    token, line = (text.split()[1] for text in told.output.splitlines())
    from gainroute.federation.coordinator.tokens import hash_token

    assert hash_token(token) == line
