"""The party as a process: starting, answering, finding new versions, draining; and the commands around it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from party_helpers import QUICK, Federation, StubParty
from typer.testing import CliRunner
from waiting import until

from gainroute.cli import app
from gainroute.federation.transport.base import PartyRefusedError, PartyUnavailableError
from gainroute.federation.transport.grpc_client import GrpcConnection
from gainroute.io.party_answers import write_columns

NAMES = ["cat", "dog", "fox"]


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)


def write_config(federation, body):
    files = federation.files("party", "a")
    path = federation.folder / "party.toml"
    path.write_text(
        f'name = "a"\ncoordinators = ["main"]\nlisten = "127.0.0.1:0"\n{body}\n'
        f'[tls]\nca = "{files.ca}"\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
    )
    return path


class Process:
    """A party process, ended by its own id."""

    def __init__(self, config, folder):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GAINROUTE_")}
        self.log = (folder / "stderr").open("w+")
        command = [sys.executable, "-m", "gainroute", "party", "--config", str(config), "--json"]
        environment["PYTHONPATH"] = str(folder)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)
        line = self.process.stdout.readline()
        assert line, (folder / "stderr").read_text()
        self.told = json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()
        self.log.close()


GATED = """
import pathlib
import numpy as np
class Gated:
    class_names, dimension, model_hash = ["x", "y"], 2, "gated"
    def posteriors(self, ids):
        pathlib.Path(__file__).with_name("gate").read_bytes()  # a pipe: waits until it is written to
        return np.full((len(ids), 2), 0.5)
    def embeddings(self, ids):
        return np.zeros((len(ids), 2))
def make_party():
    return Gated()
"""


def opened(gate):
    """The writing end of a pipe, or None while there is no reader."""
    try:
        return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_sigterm_finishes_requests_in_flight_and_exits_with_0(federation):
    (federation.folder / "gated_party.py").write_text(GATED)
    os.mkfifo(gate := federation.folder / "gate")
    config = write_config(federation, '[source]\nfactory = "gated_party:make_party"')

    async def main(process):
        connection = GrpcConnection("a", process.told["address"], federation.files("coordinator", "main"), QUICK)
        told = await connection.describe()
        assert told.classes == ("x", "y")
        waiting = asyncio.ensure_future(connection.posteriors(["1"], model="gated", request_id="last"))
        pipe = await until(lambda: opened(gate))
        os.kill(process.told["pid"], signal.SIGTERM)
        await until(lambda: "draining" in (federation.folder / "stderr").read_text())
        os.close(pipe)
        reply = await asyncio.wait_for(waiting, 10)
        np.testing.assert_array_equal(reply.values, [[0.5, 0.5]])
        await connection.close()

    with Process(config, federation.folder) as process:
        assert process.told["name"] == "a"
        assert process.told["pid"] == process.process.pid
        asyncio.run(asyncio.wait_for(main(process), 30))
        assert process.process.wait(10) == 0
        process.log.seek(0)
        events = [json.loads(line) for line in process.log.read().splitlines()]
    assert [e["event"] for e in events if e["logger"] == "gainroute.federation.party.process"] == [
        "ready",
        "draining",
        "stopped",
    ]
    audit = [json.loads(line) for line in (federation.folder / "audit.jsonl").read_text().splitlines()]
    assert [(e["request_id"], e["outcome"]) for e in audit] == [("last", "answered")]


def test_versions_come_and_go_without_a_restart_and_kill_9_is_survived_by_the_coordinator(federation):
    old, new = StubParty(seed=1), StubParty(seed=2)
    models = federation.folder / "models"
    models.mkdir()
    write_columns(models / "old.npz", old.ids, old.p, old.e, NAMES, "old")
    config = write_config(federation, '[source]\ncolumns = "models"')

    async def main(process):
        connection = GrpcConnection("a", process.told["address"], federation.files("coordinator", "main"), QUICK)

        async def ask(model):
            return (await connection.posteriors([5], model=model, request_id="r")).values

        np.testing.assert_array_equal(await ask("old"), old.p[[5]])
        with pytest.raises(PartyRefusedError, match=r"'new'.*old"):
            await ask("new")
        write_columns(models / "new.npz", new.ids, new.p, new.e, NAMES, "new")
        os.kill(process.told["pid"], signal.SIGHUP)

        async def described():
            return "new" in [model.hash for model in (await connection.describe()).models]

        await until(described)
        for party, model in ((new, "new"), (old, "old")):
            np.testing.assert_array_equal(await ask(model), party.p[[5]])
        os.kill(process.told["pid"], signal.SIGKILL)
        await until(lambda: not connection.connected)
        with pytest.raises(PartyUnavailableError):
            await ask("new")
        await connection.close()

    with Process(config, federation.folder) as process:
        asyncio.run(asyncio.wait_for(main(process), 30))


def test_check_prints_what_would_be_served(federation):
    party = StubParty()
    write_columns(federation.folder / "a.npz", party.ids, party.p, party.e, NAMES, "m1")
    config = write_config(federation, '[source]\ncolumns = "a.npz"')
    done = CliRunner().invoke(app, ["party", "--config", str(config), "--check"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["models"] == [{"hash": "m1", "dimension": 6}]
    config.write_text(config.read_text().replace("coordinators", "coordinator"))
    done = CliRunner().invoke(app, ["party", "--config", str(config)])
    assert done.exit_code == 2
    assert "unknown key 'coordinator'" in done.stderr


def test_certificates_by_signing_request_and_renewal(tmp_path):
    def certs(*args, code=0):
        done = CliRunner().invoke(app, ["certs", *map(str, args)])
        assert done.exit_code == code, done.output
        return done

    ca, home = tmp_path / "ca", tmp_path / "party"
    certs("init", "--out", ca)
    certs("request", "party", "a", "--out", home)
    certs("sign", "party", "b", home / "a.csr", "--ca", ca, "--out", tmp_path / "x.crt", code=2)
    certs("sign", "party", "a", home / "a.csr", "--ca", ca, "--out", tmp_path / "a.crt", "--days", 10)
    certs("install", tmp_path / "a.crt", "--out", home)
    first = json.loads(certs("status", home, "--json").stdout)["certificates"][0]
    assert (first["role"], first["name"]) == ("party", "a")
    assert 9.9 < first["days_left"] < 10.1
    certs("status", home, "--warn-days", 30, code=1)
    old = (home / "a.key").read_bytes()
    certs("request", "party", "a", "--out", home)
    assert (home / "a.key").read_bytes() == old, "the key in use stays until its successor's certificate is there"
    certs("sign", "party", "a", home / "a.csr", "--ca", ca, "--out", tmp_path / "a.crt", "--days", 60)
    certs("install", tmp_path / "a.crt", "--out", home)
    assert (home / "a.key").read_bytes() != old
    assert json.loads(certs("status", home, "--json").stdout)["certificates"][0]["days_left"] > 59
    certs("install", tmp_path / "a.crt", "--out", tmp_path, code=2)
    certs("status", tmp_path / "empty", code=2)
    certs("issue", "coordinator", "main", "--ca", ca, "--out", tmp_path / "main")
    assert "main" in certs("status", tmp_path / "main").stdout
    certs("issue", "king", "main", "--ca", ca, "--out", tmp_path / "main", code=2)
