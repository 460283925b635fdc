"""The processes of the soak: parties and a coordinator, started by their commands, on loopback, with mutual TLS."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from benchmarks.soak.disk import disk_for
from benchmarks.soak.world import PARTIES, World
from gainroute.federation.coordinator.tokens import hash_token, new_token
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import Identity, read_certificate

__all__ = ["HONEST", "HOSTILE", "INFER", "MODEL_NAME", "Federation", "Process", "StartError"]

HOST = "127.0.0.1"
MODEL_NAME = "soak"
INFER = f"/v2/models/{MODEL_NAME}/infer"
COORDINATOR = "main"
HONEST = ("shop", "clinic")  # holders of tokens
HOSTILE = "mallory"
START_SECONDS = 90.0
STOP_SECONDS = 40.0
TAIL_BYTES = 1 << 16  # of an audit log
ROOT = Path(__file__).resolve().parents[2]


class StartError(RuntimeError):
    """A process did not start."""


@dataclass(eq=False)
class Process:
    """One command that can be killed and restarted; its stderr is kept in one file."""

    title: str
    command: list[str]
    log: Path
    running: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        """Id of the process that runs, or ran last."""
        assert self.running is not None  # noqa: S101 (started before anybody asks)
        return self.running.pid

    def begin(self) -> None:
        """Start the process."""
        environment = {name: text for name, text in os.environ.items() if not name.startswith("GAINROUTE_")}
        # The factory of the fusion is in this repository.
        found = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment |= {"PYTHONPATH": found, "OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"}
        with self.log.open("ab") as errors:
            self.running = subprocess.Popen(  # noqa: S603 (our own command)
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment, cwd=self.log.parent, start_new_session=True,
            )  # fmt: skip

    def ready(self, seconds: float = START_SECONDS) -> str:
        """Wait for the line that the process prints once it listens, and return it."""
        process = self.running
        assert process is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        late = threading.Timer(seconds, process.kill)  # readline has no deadline of its own
        late.start()
        try:
            line = process.stdout.readline()
        finally:
            late.cancel()
        if not line:
            code = process.wait()
            last = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            raise StartError(f"{self.title} did not start (exit code {code}): " + " | ".join(last))
        return line

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        if self.running is not None:
            self.running.kill()
            self.running.wait()
            self._let_go()

    def freeze(self) -> None:
        """Send SIGSTOP, and wait until the process has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        while Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)

    def wake(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> int:
        """Send SIGTERM, then SIGKILL if needed; return the exit code."""
        if self.running is None:
            return 0
        self.running.terminate()
        try:
            code = self.running.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.running.kill()
            code = self.running.wait()
        self._let_go()
        return code

    def _let_go(self) -> None:
        if self.running is not None and self.running.stdout is not None:
            self.running.stdout.close()

    def resident_bytes(self) -> int | None:
        """Resident memory (VmRSS); None while the process does not run."""
        try:
            text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        found = [line.split()[1] for line in text.splitlines() if line.startswith("VmRSS:")]
        return int(found[0]) * 1024 if found else None


class Federation:
    """Three parties and a coordinator in a folder. All processes are ended on exit, also after an error.

    Parameters
    ----------
    folder
        Folder for certificates, settings, data and logs.
    world
        What is served.
    """

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        ports = _free_ports(len(PARTIES) + 1)
        self.port = ports[-1]
        self.ports = dict(zip(PARTIES, ports, strict=False))
        self.tokens = {holder: new_token() for holder in (*HONEST, HOSTILE)}
        self.log = folder / "coordinator" / "log" / "decisions.sqlite"
        self.log.parent.mkdir(parents=True)
        self.disk = disk_for(self.log.parent)
        gainroute = [sys.executable, "-m", "gainroute"]
        _run([*gainroute, "certs", "init", "--out", "ca"], folder)
        self.parties: dict[str, Process] = {}
        for index, (name, port) in enumerate(self.ports.items()):
            home = folder / name
            home.mkdir()
            world.write_columns(index, home / "answers.npz")
            _run([*gainroute, "certs", "issue", "party", name, "--ca", "ca", "--out", name], folder)
            (home / "party.toml").write_text(_party_settings(name, port), encoding="utf-8")
            command = [*gainroute, "party", "--config", str(home / "party.toml"), "--json"]
            self.parties[name] = Process(f"party {name}", command, home / "stderr")
        home = folder / "coordinator"
        _run([*gainroute, "certs", "issue", "coordinator", COORDINATOR, "--ca", "ca", "--out", str(home)], folder)
        settings = _coordinator_settings(self.port, self.ports, self.tokens, world.artifact)
        (home / "coordinator.toml").write_text(settings, encoding="utf-8")
        command = [*gainroute, "coordinator", "--config", str(home / "coordinator.toml"), "--log-level", "warning"]
        self.coordinator = Process("the coordinator", command, home / "stderr")

    def __enter__(self) -> Federation:  # noqa: PYI034 (Self is newer than Python 3.10)
        try:
            for party in self.parties.values():
                party.begin()
            for party in self.parties.values():
                party.ready()
            self.coordinator.begin()
            self.coordinator.ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self.disk.close()

    def stop(self) -> dict[str, int]:
        """Send SIGTERM to all, the coordinator first; return exit codes by title."""
        return {process.title: process.stop() for process in (self.coordinator, *self.parties.values())}

    def hostile(self, seed: int, out: Path) -> Process:
        """Return the hostile client, not started yet; it writes its counts to `out`."""
        options = {
            "host": HOST,
            "port": self.port,
            "path": INFER,
            "token": self.tokens[HOSTILE],
            "seed": seed,
            "out": out,
        }
        words = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "benchmarks.soak.hostile", *words]
        return Process("the hostile client", command, self.folder / "hostile.stderr")

    # ---- certificates ---------------------------------------------------------------------------

    def rotate(self, party: str) -> tuple[str, str]:
        """Replace the certificates of a party and of the coordinator; return both new fingerprints."""
        authority = Authority.load(self.folder / "ca")
        ours = authority.issue(Identity("party", party), self.folder / party)
        theirs = authority.issue(Identity("coordinator", COORDINATOR), self.folder / "coordinator")
        first, second = (read_certificate(files.certificate.read_bytes()).fingerprint for files in (ours, theirs))
        return first, second

    def in_use(self, party: str, certificates: tuple[str, str]) -> bool:
        """Whether the party presents its certificate, and has answered a coordinator that presented the other one."""
        ours, theirs = certificates
        audit = self.folder / party / "audit.jsonl"
        try:
            with audit.open("rb") as file:
                file.seek(max(0, audit.stat().st_size - TAIL_BYTES))
                return theirs.encode() in file.read() and self._presented(party) == ours
        except OSError:  # it does not run, or begins another file
            return False

    def _presented(self, party: str) -> str:
        home = self.folder / "coordinator"
        context = ssl.create_default_context(cafile=str(home / "ca.crt"))
        context.load_cert_chain(home / f"{COORDINATOR}.crt", home / f"{COORDINATOR}.key")
        context.set_alpn_protocols(["h2"])
        name = Identity("party", party).dns
        with (
            socket.create_connection((HOST, self.ports[party]), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=name) as secure,
        ):
            return sha256(secure.getpeercert(binary_form=True) or b"").hexdigest()

    def _end(self) -> None:
        for process in (self.coordinator, *self.parties.values()):
            process.kill()


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 (our own)
    if done.returncode:
        raise StartError(f"{' '.join(command[1:])} failed: {done.stderr.strip() or done.stdout.strip()}")


def _free_ports(count: int) -> list[int]:
    """Return ports below the ephemeral range, so that no client takes one while its server is down."""
    found: list[int] = []
    for port in random.sample(range(20000, 30000), 200):  # another soak may run beside this one
        with socket.socket() as trial:
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise StartError(f"of 200 ports between 20000 and 30000 only {len(found)} are free; {count} are needed")


def _party_settings(name: str, port: int) -> str:
    return f"""
name = "{name}"
coordinators = ["{COORDINATOR}"]
listen = "{HOST}:{port}"
log_level = "warning"
[tls]
ca = "ca.crt"
certificate = "{name}.crt"
key = "{name}.key"
[source]
columns = "answers.npz"
[quota]
samples_per_minute = 0
embeddings_per_minute = 0
[audit]
path = "audit.jsonl"
"""


def _coordinator_settings(port: int, parties: dict[str, int], tokens: dict[str, str], artifact: Path) -> str:
    holders = "".join(f'{holder} = "{hash_token(token)}"\n' for holder, token in tokens.items())
    rows = "".join(f'[[party]]\nname = "{name}"\naddress = "{HOST}:{at}"\n' for name, at in parties.items())
    return f"""
[server]
host = "{HOST}"
port = {port}
model = "{MODEL_NAME}"
[router]
artifact = {json.dumps(str(artifact))}
[fusion]
factory = "benchmarks.soak.world:make_fusion"
{rows}
[tls]
ca = "ca.crt"
certificate = "{COORDINATOR}.crt"
key = "{COORDINATOR}.key"
[tokens.client]
{holders}
[[quota.holder]]
name = "{HOSTILE}"
requests_per_minute = 240
[rounds]
on_missing_party = "pool"
health_seconds = 1.0
[log]
path = "log/decisions.sqlite"
posteriors = true
"""
