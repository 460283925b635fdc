"""A federation serves while the next versions form, and is switched to them: no request fails."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack

import httpx
import numpy as np
import pytest
from by_hand import GAINROUTE, certify, gainroute, infer, new_token, outputs, tls
from sklearn.datasets import load_digits
from waiting import wait_until

from benchmarks.soak.federation import Process
from gainroute._util.settings import settings_text
from gainroute.io.tables import read_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAMES = ("top", "bottom")
MOST_REQUESTS, MOST_SECONDS = 20_000, 600
PAUSE = 0.02  # between requests, so that the load leaves the cores to those who train


def write_data(folder, rows):
    """Halves of the digits in these rows, and the labels of all."""
    digits = load_digits()
    ids = np.array([f"scan-{i:05d}" for i in range(len(digits.target))])
    for name, half in zip(NAMES, np.split(digits.images.astype(np.float32), 2, axis=1), strict=True):
        np.savez(folder / name / "views.npz", ids=ids[rows], x=half[rows])
    np.savez(folder / NAMES[0] / "labels.npz", ids=ids, labels=digits.target)


@pytest.fixture
def federation(tmp_path):
    """Two parties that run, and the settings of a hub."""
    gainroute("certs", "init", "--out", tmp_path / "ca")
    with ExitStack() as stack:
        rows = ""
        for name in (*NAMES, "hub"):
            (tmp_path / name).mkdir()
            certify(tmp_path / "ca", "coordinator" if name == "hub" else "party", name, tmp_path / name)
        write_data(tmp_path, np.arange(400))
        for name in NAMES:
            home, labels = tmp_path / name, 'labels = "labels.npz"\n' if name == NAMES[0] else ""
            (home / "party.toml").write_text(
                f'name = "{name}"\ncoordinators = ["hub"]\nlisten = "127.0.0.1:0"\n{tls(name)}[source]\n'
                f'run = "models"\n[training]\ncoordinators = ["hub"]\nviews = "views.npz"\n{labels}'
            )
            command = [*GAINROUTE, "party", "--config", str(home / "party.toml"), "--json"]
            process = Process(f"party {name}", command, home / "stderr")
            stack.callback(process.kill)
            process.begin()
            rows += f'[[party]]\nname = "{name}"\naddress = "{json.loads(process.ready())["address"]}"\n'
        (tmp_path / "hub" / "federation.toml").write_text(
            f'name = "digits"\nout = "out"\n{tls("hub")}{rows}[labels]\nholder = "{NAMES[0]}"\n'
            "[training]\nepochs = 3\nlocal_epochs = 2\n"
        )
        yield tmp_path, stack


def serve(version, stack):
    """Start a coordinator with the settings of a version, a free port and an admin token; its address and the token."""
    settings = tomllib.loads((version / "coordinator.toml").read_text())
    token, hashed = new_token()
    settings["server"]["port"] = 0
    settings["tokens"] = {"admin": {"operations": hashed}}
    settings["rounds"] = {"one_seconds": 60.0, "two_seconds": 60.0}  # training takes the cores
    home = version.parent.parent / "serving"
    home.mkdir()
    (home / "coordinator.toml").write_text(settings_text(settings))
    command = [*GAINROUTE, "coordinator", "--config", str(home / "coordinator.toml")]
    process = Process("the coordinator", command, home / "stderr")
    stack.callback(process.kill)
    process.begin()
    return process.ready().split()[-1], token


class Load(threading.Thread):
    """Asks for the same samples again and again; keeps which version answered, the classes, and what went wrong."""

    def __init__(self, url, ids):
        super().__init__(daemon=True)
        self._url, self._ids, self._end = url, ids, threading.Event()
        self.answers, self.wrong = [], []

    def run(self):
        deadline = time.monotonic() + MOST_SECONDS
        with httpx.Client(base_url=self._url, timeout=120) as http:
            for _ in range(MOST_REQUESTS):
                if self._end.wait(PAUSE) or time.monotonic() > deadline:
                    return
                try:
                    reply = infer(http, self._ids)
                    found = outputs(reply)
                except (AssertionError, httpx.HTTPError) as error:
                    self.wrong.append(repr(error))
                    continue
                if set(found["route"]) - {"round1", "round2"}:
                    self.wrong.append(found["route"])
                self.answers.append((reply.json()["model_version"], tuple(found["class"])))

    def more(self, count=3):
        """Wait for more answers, or for one that failed."""
        wanted = len(self.answers) + count
        wait_until(lambda: len(self.answers) >= wanted or self.wrong or not self.is_alive(), 120)

    def stop(self):
        self._end.set()
        self.join(130)


def test_versions_form_and_are_switched_under_load_without_a_failed_answer(federation):
    folder, stack = federation
    hub, out = folder / "hub", folder / "hub" / "out"
    gainroute("federate", hub / "federation.toml", "--json")
    url, token = serve(out / "v1", stack)
    samples = (out / "v1" / "work" / "samples.txt").read_text().split("\n")
    held_out = [samples[row] for row in read_table(out / "v1" / "work" / "split.npz").array("c").tolist()]
    load = Load(url, held_out[:8])
    load.start()
    stack.callback(load.stop)
    load.more()
    switched = []
    # New data each time: more samples, all that are asked for among them.
    for version, rows, how in (("v2", np.arange(450), "--again"), ("v3", np.arange(500), "--recalibrate")):
        write_data(folder, rows)
        before = len(load.answers)
        gainroute("federate", hub / "federation.toml", how, "--json")
        load.more()
        assert len(load.answers) > before, "nothing was asked for while the version formed"
        files = {"artifact": f"{version}/server/router.safetensors", "fusion": {"run": f"{version}/server"}}
        headers = {"Authorization": f"Bearer {token}"}
        at = len(load.answers)
        reply = httpx.post(f"{url}/admin/router", json=files, headers=headers, timeout=120)
        assert reply.status_code == 200, reply.text
        switched.append((at, len(load.answers), reply.json()["version"]))
        load.more()
    load.stop()
    assert load.wrong == []
    versions = [version for version, _ in load.answers]
    (first, second, second_name), (third, fourth, third_name) = switched
    assert len({versions[0], second_name, third_name}) == 3
    # One request may be in flight when the switch is answered.
    assert set(versions[:first]) == {versions[0]}
    assert set(versions[second + 1 : third]) == {second_name}
    assert set(versions[fourth + 1 :]) == {third_name}
    assert versions[-1] == third_name
    # Every version gives its own answers throughout.
    assert all(len({classes for name, classes in load.answers if name == version}) == 1 for version in set(versions))
