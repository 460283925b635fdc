"""Four organisations form a federation as processes, one of them is killed on the way, and the result is served."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from by_hand import certify, gainroute, tls
from sklearn.datasets import load_digits
from waiting import wait_until

NAMES = ("north-west", "north-east", "south-west", "south-east")


def write_files(folder):
    """One quadrant of the digits per party, with ids in different orders and some that others lack."""
    digits = load_digits()
    images = digits.images[:600].astype(np.float32)
    rng = np.random.default_rng(0)
    ids = np.array([f"scan-{i:05d}" for i in range(len(images))])
    for place, name in enumerate(NAMES):
        rows = rng.permutation(np.delete(np.arange(len(images)), [place, 10 + place]))
        top, left = 4 * (place // 2), 4 * (place % 2)
        (folder / name).mkdir()
        np.savez(folder / name / "views.npz", ids=ids[rows], x=images[rows, top : top + 4, left : left + 4])
    np.savez(folder / NAMES[0] / "labels.npz", ids=ids, labels=digits.target[:600])


class PartyProcess:
    def __init__(self, home, port=0):
        self.home = home
        text = (home / "party.toml").read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}")
        (home / "party.toml").write_text(text)
        self.log = (home / "stderr").open("a")
        command = [sys.executable, "-m", "gainroute", "party", "--config", str(home / "party.toml"), "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        assert line, (home / "stderr").read_text()
        self.address = json.loads(line)["address"]

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()
        self.log.close()


def write_settings(folder, name, labels):
    (folder / name / "party.toml").write_text(
        f'name = "{name}"\ncoordinators = ["hub"]\nlisten = "127.0.0.1:0"\n{tls(name)}\n[source]\nrun = "models"\n'
        f'[training]\ncoordinators = ["hub"]\nviews = "views.npz"\n{labels}'
    )


def start_federate(folder, log):
    command = [sys.executable, "-m", "gainroute", "federate", str(folder / "federation.toml"), "--json", "--wait", "60"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)


@pytest.fixture
def organisations(tmp_path):
    write_files(tmp_path)
    gainroute("certs", "init", "--out", tmp_path / "ca")
    (tmp_path / "hub").mkdir()
    certify(tmp_path / "ca", "coordinator", "hub", tmp_path / "hub")
    with ExitStack() as stack:
        parties = {}
        for name in NAMES:
            certify(tmp_path / "ca", "party", name, tmp_path / name)
            write_settings(tmp_path, name, 'labels = "labels.npz"\n' if name == NAMES[0] else "")
            parties[name] = PartyProcess(tmp_path / name)
            stack.callback(lambda name=name: parties[name].stop())
        rows = "".join(f'[[party]]\nname = "{n}"\naddress = "{p.address}"\n' for n, p in parties.items())
        (tmp_path / "hub" / "federation.toml").write_text(
            f'name = "digits"\nout = "out"\n{tls("hub")}\n{rows}\n[labels]\nholder = "{NAMES[0]}"\n'
            "[training]\nepochs = 6\nlocal_epochs = 3\n"
        )
        yield tmp_path, parties


def test_killed_processes_do_not_change_the_result(organisations):
    folder, parties = organisations
    hub, log = folder / "hub", (folder / "federate.log").open("w+")
    status = hub / "out" / "v1" / "work" / "status.json"

    def audit(name):
        path = folder / name / "audit.jsonl"
        return path.read_text() if path.is_file() else ""

    # The coordinator is killed after the second epoch of the strong route, then a party after the fourth.
    first = start_federate(hub, log)
    wait_until(lambda: "trained: epoch 2" in audit(NAMES[1]) or first.poll() is not None, 120)
    first.kill()
    first.wait(10)
    first.stdout.close()
    assert json.loads(status.read_text())["stages"]["strong"] == "running"
    second = start_federate(hub, log)
    wait_until(lambda: "trained: epoch 4" in audit(NAMES[1]) or second.poll() is not None, 120)
    victim = parties[NAMES[2]]
    victim.stop()
    parties[NAMES[2]] = PartyProcess(folder / NAMES[2], int(victim.address.rpartition(":")[2]))
    out, _ = second.communicate(timeout=300)
    log.seek(0)
    assert second.returncode == 0, log.read()
    results = json.loads(out)
    assert results["strong_accuracy"] > 0.5
    head = (hub / "out" / "v1" / "server" / "head.safetensors").read_bytes()
    encoder = (folder / NAMES[2] / "models" / "digits-v1" / "encoder.safetensors").read_bytes()

    # The next version, undisturbed and from the start, aligns the same samples and trains the same models.
    for name in NAMES:
        shutil.rmtree(folder / name / "training" / "digits" / "work")
    gainroute("sign", "key", "--out", folder / "signer.key")
    again = gainroute("federate", hub / "federation.toml", "--again", "--json", "--sign-key", folder / "signer.key")
    assert json.loads(again)["version"] == "v2"
    assert (hub / "out" / "v2" / "server" / "head.safetensors").read_bytes() == head
    assert (folder / NAMES[2] / "models" / "digits-v2" / "encoder.safetensors").read_bytes() == encoder
    assert "unaltered" in gainroute("sign", "verify", hub / "out" / "v2", "--signer", folder / "signer.pub")
    shown = gainroute("federate", hub / "federation.toml", "--status")
    assert "calibrate" in shown
    assert "north-east" in shown
    log.close()
