"""The images are built, and a coordinator and two parties run in them: without root, on a read-only root.

Run by `make test-containers`, as root, with Debian's buildah, podman, runc and debootstrap. The base is made by
debootstrap from the mirror that apt uses; `GAINROUTE_ROOTFS` names a folder to keep it in. CONTRIBUTING.md says why CI
leaves it out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from by_hand import outputs
from onnx import TensorProto, helper, save
from ports import HOST, free_ports
from waiting import wait_until

import gainroute as gr
from gainroute.federation.coordinator.tokens import hash_token, new_token
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import Identity
from gainroute.io.run_folder import OnnxFolder

pytestmark = pytest.mark.containers

ROOT = Path(__file__).parents[2]
TOOLS = ("buildah", "podman", "runc", "debootstrap")
UID = 10001
PARTIES, CLASSES, WIDTH = ("left", "right"), ("ant", "bee", "cat"), 4
LEFT_OUT = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "dev",
)
# Limits that a container without further rights can set.
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
FUSION = """
import numpy as np

def make_fusion():
    weights = np.load("/etc/gainroute/weights.npy")

    def fuse(embeddings):
        logits = sum(embeddings) @ weights
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)

    return fuse
"""


def run(*command, cwd=None):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


class Containers:
    """Images and containers in a storage of their own, all of which is gone in the end."""

    def __init__(self, folder):
        self.folder, self._names = folder, []
        self._storage = ["--root", folder / "storage", "--runroot", folder / "run", "--storage-driver", "overlay"]

    def podman(self, *words):
        return run("podman", *self._storage, "--runtime", "runc", "--cgroup-manager", "cgroupfs", *words)

    def import_base(self, rootfs):
        archive = self.folder / "base.tar"
        left_out = [f"--exclude=./{name}/*" for name in LEFT_OUT]
        run("tar", "-C", rootfs, *left_out, "-cf", archive, ".")
        self.podman("import", archive, "localhost/base")
        archive.unlink()

    def build(self, target):
        arguments = {"BASE": "localhost/base", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
        given = [word for name, text in arguments.items() for word in ("--build-arg", f"{name}={text}")]
        # `--layers`: the second image shares all but its last lines with the first.
        run(
            "buildah", *self._storage, "bud", "--layers", "--isolation", "chroot", "--network", "host",
            "--format", "docker", "-v", f"{ROOT / 'out/wheels'}:/wheels:ro", *given,
            "-f", "deploy/Containerfile", "--target", target, "-t", f"gainroute-{target}", ".", cwd=ROOT,
        )  # fmt: skip

    def image(self, target):
        return json.loads(self.podman("image", "inspect", f"gainroute-{target}"))[0]

    def start(self, name, target, settings):
        """Start an image as it is, with its settings; its health checks are left to `healthy`."""
        self._names.append(name)
        self.podman(
            "run", "--detach", "--name", name, "--read-only", "--network", "host", "--cap-drop", "all",
            "--no-healthcheck", "--security-opt", "no-new-privileges", *LIMITS, "-v", f"{settings}:/etc/gainroute:ro",
            "-e", "PYTHONPATH=/etc/gainroute", f"gainroute-{target}",
        )  # fmt: skip

    def healthy(self, name, target):
        command = self.image(target)["Healthcheck"]["Test"][1:]
        words = ["podman", *self._storage, "--runtime", "runc", "--cgroup-manager", "cgroupfs", "exec", name, *command]
        return subprocess.run([str(word) for word in words], capture_output=True, check=False).returncode == 0

    def logs(self, name):
        return self.podman("logs", name)

    def stop(self):
        """Stop all, the coordinator first; returns exit codes by name."""
        codes = {}
        for name in reversed(self._names):
            self.podman("stop", "--time", "40", name)
            codes[name] = json.loads(self.podman("inspect", name))[0]["State"]["ExitCode"]
        return codes

    def close(self):
        for name in self._names:
            self.podman("rm", "--force", name)
        self.podman("rmi", "--all", "--force")


def rootfs(folder):
    """A Debian with python3, made once if `GAINROUTE_ROOTFS` names its place."""
    place = Path(os.environ.get("GAINROUTE_ROOTFS") or folder / "rootfs")
    if not (place / "usr/bin/python3").exists():
        mirror = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()[0]
        release = dict(
            line.split("=", 1) for line in Path("/etc/os-release").read_text(encoding="utf-8").split("\n") if line
        )
        run("debootstrap", "--variant=minbase", "--include=python3,python3-venv",
            release["VERSION_CODENAME"].strip('"'), place, mirror)  # fmt: skip
    return place


@pytest.fixture(scope="module")
def containers(tmp_path_factory):
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid():
        pytest.skip(f"needs root and Debian's {', '.join(TOOLS)}; missing: {', '.join(missing) or 'root'}")
    folder = tmp_path_factory.mktemp("containers")
    made = Containers(folder)
    made.import_base(rootfs(folder))
    run("make", "wheels", f"VENV={Path(sys.executable).parents[1]}", cwd=ROOT)
    for target in ("coordinator", "party"):
        made.build(target)
    yield made
    made.close()


@pytest.mark.parametrize("target", ["coordinator", "party"])
def test_an_image_has_no_compiler_no_pip_and_no_torch(containers, target):
    image = containers.image(target)
    assert image["Config"]["User"] == f"{UID}:{UID}"
    found = containers.podman(
        "run", "--rm", "--no-healthcheck", *LIMITS, "--network", "none", "--entrypoint", "sh", f"gainroute-{target}",
        "-c",
        "command -v cc gcc g++ ld pip; python3 -c 'import importlib.util as u; print(u.find_spec(\"torch\"))'",
    )  # fmt: skip
    assert found.split() == ["None"]
    print(f"gainroute-{target}: {image['Size'] / 1e6:.0f} MB")


# ---- a federation ------------------------------------------------------------------------------------------


def softmax(logits):
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def write_models(folder, weights):
    """Write local.onnx, the softmax of a linear model, and encoder.onnx, which returns the view."""
    folder.mkdir(parents=True)

    def value(name, width):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])

    table = helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.ravel().tolist())
    local = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Softmax", ["z"], ["y"], axis=1)]
    graphs = {
        "local": helper.make_graph(local, "local", [value("x", WIDTH)], [value("y", len(CLASSES))], [table]),
        "encoder": helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])], "encoder", [value("x", WIDTH)], [value("y", WIDTH)]
        ),
    }
    for name, graph in graphs.items():
        save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / f"{name}.onnx"
        )


@dataclass(frozen=True, eq=False)
class InProcess:
    """The answers of a party, by row."""

    local: np.ndarray
    views: np.ndarray

    def posteriors(self, rows):
        return self.local[rows]

    def embeddings(self, rows):
        return self.views[rows]


def write_federation(folder):
    """Write the folders of settings; returns the address, a client's token, ids, and what the answers have to be."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(WIDTH, len(CLASSES))).astype(np.float32)
    labels = rng.integers(len(CLASSES), size=800)
    views = (weights.T[labels] + rng.normal(scale=1.5, size=(2, 800, WIDTH))).astype(np.float32)
    local, strong = softmax(views @ weights), softmax(views.sum(axis=0) @ weights)
    ids = np.array([f"s{i}" for i in range(800)])
    token, (port, *ports) = new_token(), free_ports(3)
    authority = Authority.create(folder / "authority")
    hashes = {}
    for index, (name, at) in enumerate(zip(PARTIES, ports, strict=True)):
        home = folder / name
        write_models(home / "onnx", weights)
        hashes[name] = OnnxFolder(home / "onnx").model_hash()
        np.savez(home / "views.npz", ids=ids, x=views[index])
        authority.issue(Identity("party", name), home)
        (home / "party.toml").write_text(f"""
name = "{name}"
coordinators = ["main"]
listen = "{HOST}:{at}"
[tls]
ca = "ca.crt"
certificate = "{name}.crt"
key = "{name}.key"
[source]
onnx = "onnx"
classes = {json.dumps(CLASSES)}
[views]
path = "views.npz"
[audit]
path = "/var/lib/gainroute/audit.jsonl"
""")
    router = gr.ExpectedGainRouter(budget=0.3).fit(local[:, :400], labels[:400], strong_posterior=strong[:400])
    home = folder / "coordinator"
    authority.issue(Identity("coordinator", "main"), home)
    gr.save(router, home / "router.safetensors", provenance=gr.Provenance(hashes, "float32"))
    np.save(home / "weights.npy", weights)
    (home / "our_fusion.py").write_text(FUSION)
    rows = "".join(f'[[party]]\nname = "{n}"\naddress = "{HOST}:{p}"\n' for n, p in zip(PARTIES, ports, strict=True))
    (home / "coordinator.toml").write_text(f"""
[server]
port = {port}
[router]
artifact = "router.safetensors"
[fusion]
factory = "our_fusion:make_fusion"
{rows}
[tls]
ca = "ca.crt"
certificate = "main.crt"
key = "main.key"
[tokens.client]
shop = "{hash_token(token)}"
[log]
path = "/var/lib/gainroute/decisions.sqlite"
""")
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, UID, UID)  # keys are readable by their owner only
    parties = [InProcess(local[i], views[i]) for i in range(len(PARTIES))]
    expected = gr.predict_two_round(parties, lambda e: softmax(sum(e) @ weights), router, np.arange(400, 800))
    return f"http://{HOST}:{port}", token, ids[400:].tolist(), expected


def test_a_coordinator_and_two_parties_answer_as_the_library_does(containers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    url, token, ids, expected = write_federation(folder)
    started = dict.fromkeys(PARTIES, "party") | {"coordinator": "coordinator"}
    for name, target in started.items():
        containers.start(name, target, folder / name)
        wait_until(lambda n=name, t=target: containers.healthy(n, t), 60)
    wait_until(lambda: httpx.get(f"{url}/v2/health/ready").status_code == 200, 30)
    body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}
    reply = httpx.post(
        f"{url}/v2/models/gainroute/infer", json=body, headers={"Authorization": f"Bearer {token}"}, timeout=30
    )
    assert reply.status_code == 200, containers.logs("coordinator")
    found = outputs(reply)
    assert set(found["route"]) == {"round1", "round2"}
    np.testing.assert_array_equal(found["escalated"], expected.escalated)
    np.testing.assert_array_equal(found["label"], expected.prediction)
    for name in started:
        lines = containers.podman("exec", name, "sh", "-c", "id -u; grep ' / ' /proc/1/mounts; cat /proc/1/status")
        assert lines.split()[0] == str(UID)
        assert any(" / " in line and line.split()[3].startswith("ro,") for line in lines.splitlines())
        status = dict(line.split(":\t", 1) for line in lines.splitlines() if ":\t" in line)
        assert status["Uid"].split() == [str(UID)] * 4
        assert int(status["CapEff"], 16) == 0
        assert status["NoNewPrivs"] == "1"
    assert containers.stop() == dict.fromkeys(started, 0), "SIGTERM drains"
