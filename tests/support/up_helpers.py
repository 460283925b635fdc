"""A tiny run trained on the spot, and `gainroute up` on it as a process; for tests with and without a browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
from typer.testing import CliRunner

from gainroute.cli import app


def tiny_run(root, names=("left", "right"), *more):
    """Parties with four features each and three classes; a few epochs, so that Round 2 knows more than Round 1."""
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    ids = np.array([f"s{i}" for i in range(len(y))])
    for name in names:
        np.savez(root / f"{name}.npz", x=rng.normal(size=(len(y), 4)) + y[:, None], ids=ids)
    np.savez(root / "y.npz", labels=np.array(["ant", "bee", "cat"])[y], ids=ids)
    command = ["train", *more, "--labels", root / "y.npz"]
    for name in names:
        command += ["--views", root / f"{name}.npz"]
    command += ["--out", root / "run", "--epochs", 5, "--local-epochs", 2, "--test", 0.5]
    done = CliRunner().invoke(app, [str(word) for word in command])
    assert done.exit_code == 0, done.output
    return root / "run"


class Up:
    """`gainroute up` as a process, ended by its own id."""

    def __init__(self, run, folder, *more):
        self.errors = folder / "stderr"
        command = [sys.executable, "-m", "gainroute", "up", str(run), "--port", "0", "--json", *more]
        environment = os.environ | {"TMPDIR": str(folder), "GAINROUTE_PARTY_NAME": "somebody else"}
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
            )
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        self.told = json.loads(line)
        self.url = self.told["url"]
        self.dashboard = f"{self.url}/#admin={self.told['admin_token']}"  # as it is printed without --json

    def ask(self, ids):
        body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}
        return httpx.post(f"{self.url}/v2/models/{self.told['model']}/infer", json=body, timeout=30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            self.process.stdout.close()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
