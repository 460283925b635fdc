"""Processes of the serving benchmark, a client with a keep-alive connection, and a relay that counts bytes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

from typing_extensions import Self

from benchmarks.serving_models import NAMES, VARIABLE
from gainroute.federation.coordinator.tokens import hash_token
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import CertificateFiles, Identity

__all__ = ["ADMIN", "Client", "Pool", "Relay", "coordinator_config", "party_config"]

ROOT = Path(__file__).resolve().parents[1]
ADMIN = "the benchmark's own"
START_SECONDS, STOP_SECONDS, ANSWER_SECONDS = 120.0, 10.0, 60.0


class Pool:
    """Starts processes, and stops all of them at the end in any case.

    Parameters
    ----------
    folder
        Of their own: certificates, settings, logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = Authority.create(folder / "authority")
        self._begun: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are stopped on SIGTERM, too
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._begun):
            process.terminate()
        for process in reversed(self._begun):
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def certificate(self, role: str, name: str, home: str) -> CertificateFiles:
        """A certificate of the pool's own authority, in ``<home>/<name>``."""
        return self._authority.issue(Identity(role, name), self.folder / home / name)

    @property
    def pids(self) -> list[int]:
        """The processes in the order in which they were started."""
        return [process.pid for process in self._begun]

    def cpu(self, pids: Sequence[int] | None = None) -> float:
        """CPU seconds that the processes, or some of them, have used so far."""
        total = 0.0
        for pid in self.pids if pids is None else pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def start(self, *arguments: str | Path, party: int | None = None) -> str:
        """Start ``python -m …`` and return the first line it prints."""
        more = {} if party is None else {VARIABLE: str(party)}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        log = self.folder / f"process-{len(self._begun)}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603 (our own commands)
                [sys.executable, "-m", *map(str, arguments)], stdout=subprocess.PIPE, stderr=errors, cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE", **more},
                start_new_session=True, bufsize=0,
            )  # fmt: skip
        self._begun.append(process)
        output = cast("IO[bytes]", process.stdout)
        ready, _, _ = select.select([output], [], [], START_SECONDS)
        line = output.readline().decode().strip() if ready else ""
        if not line:
            raise RuntimeError(f"{' '.join(map(str, arguments))} did not start: {log.read_text()[-2000:]}")
        return line


def _tls(files: CertificateFiles) -> str:
    return f'[tls]\nca = "{files.ca}"\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'


def party_config(pool: Pool, name: str, factory: str, more: str = "") -> Path:
    """Settings of a party that answers from this package, without a quota; `more` are further tables."""
    files = pool.certificate("party", name, f"parties-{factory}")
    path = files.ca.parent / "party.toml"
    path.write_text(
        f'name = "{name}"\ncoordinators = ["bench"]\nlisten = "127.0.0.1:0"\n{_tls(files)}'
        f'[source]\nfactory = "benchmarks.serving_models:{factory}"\n'
        f"[quota]\nsamples_per_minute = 0\nembeddings_per_minute = 0\n{more}"
    )
    return path


def coordinator_config(
    pool: Pool,
    home: str,
    router: Path,
    fusion: str,
    addresses: Sequence[str],
    more: str = "",
    names: Sequence[str] = NAMES,
) -> Path:
    """Settings of a coordinator: defaults, with deadlines long enough for a busy machine; `more` are further tables."""
    files = pool.certificate("coordinator", "bench", home)
    rows = "".join(f'[[party]]\nname = "{n}"\naddress = "{a}"\n' for n, a in zip(names, addresses, strict=True))
    path = files.ca.parent / "coordinator.toml"
    path.write_text(
        f'[server]\nport = 0\nwithout_tokens = true\n[router]\nartifact = "{router}"\n'
        f'[fusion]\nfactory = "benchmarks.serving_models:{fusion}"\n{rows}{_tls(files)}'
        f"[rounds]\none_seconds = {ANSWER_SECONDS}\ntwo_seconds = {ANSWER_SECONDS}\n"
        f'[log]\npath = "decisions.sqlite"\nposteriors = true\n[tokens.admin]\nbench = "{hash_token(ADMIN)}"\n{more}'
    )
    return path


# ---- requests ---------------------------------------------------------------------------------------


class Client:
    """One keep-alive connection.

    Parameters
    ----------
    url
        Scheme, host and port.
    path
        Default path of requests.
    """

    def __init__(self, url: str, path: str) -> None:
        self.url, self.path = url, path
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS)

    def post(self, body: bytes, path: str | None = None, **headers: str) -> bytes:
        """Post, and return the body; any status but 200 is an error."""
        sent = {"Content-Type": "application/json", **headers}
        self._connection.request("POST", path or self.path, body, sent)
        return self._read()

    def get(self, path: str) -> Any:
        """Fetch JSON."""
        self._connection.request("GET", path)
        return json.loads(self._read())

    def _read(self) -> bytes:
        response = self._connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"{self.url}{self.path}: {response.status} {data[:500]!r}")
        return data

    def latency(self, bodies: Sequence[bytes]) -> float:
        """Median seconds per request, sequentially."""
        self.close()  # the server may have closed an idle connection; the next request opens a new one
        found = []
        for body in bodies:
            begin = time.perf_counter()
            self.post(body)
            found.append(time.perf_counter() - begin)
        return statistics.median(found)

    def at_once(self, bodies: Sequence[bytes], concurrency: int) -> float:
        """Seconds until all are answered, with a number of concurrent connections."""
        others = [Client(self.url, self.path) for _ in range(concurrency)]
        for client in others:
            client.post(bodies[0])

        def work(number: int) -> None:
            for body in bodies[number::concurrency]:
                others[number].post(body)

        try:
            with ThreadPoolExecutor(concurrency) as threads:
                begin = time.perf_counter()
                for done in [threads.submit(work, i) for i in range(concurrency)]:
                    done.result()
                return time.perf_counter() - begin
        finally:
            for client in others:
                client.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


# ---- counting ---------------------------------------------------------------------------------------


class Relay:
    """Forwards TCP to an address and counts bytes in both directions, with framing, TLS and ids.

    Parameters
    ----------
    target
        ``host:port``.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.bytes = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target)
                for one, other in ((near, far), (far, near)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._sockets.append(one)
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self.bytes += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close all connections."""
        for one in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextlib.contextmanager
def relays(targets: Sequence[str]) -> Iterator[list[Relay]]:
    """One relay per target, closed at the end."""
    begun = [Relay(target) for target in targets]
    try:
        yield begun
    finally:
        for relay in begun:
            relay.close()
