"""`python -m benchmarks.soak.hostile`: a client that means harm, at a bounded rate, from an address of its own.

It sends junk tokens, oversize headers and malformed requests, asks far beyond the quota of its own valid token, and
keeps connections open that never finish. SIGTERM ends it; it then writes how often each trick was answered how.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gainroute._util.files import write_bytes

__all__ = ["ADDRESS", "ALLOWED", "Hostile", "broken"]

ADDRESS = "127.0.0.2"  # loopback as well, on Linux
TIMEOUT_SECONDS = 10.0
PAUSE_SECONDS = 0.1  # between two single requests
BURST, BURST_SECONDS = 60, 5.0  # requests in a row, and the pause between two such rows
HALF_OPEN, SLOW = 300, 20  # connections kept open; one address may have 256
OPENED = 10  # new ones per tick
TICK_SECONDS = 0.5
LOST = "connection"  # refused, reset, or closed without an answer: also while the coordinator does not run

# The answers that each trick may get: 429 also because it has too many connections. Anything else, such as 200 for a
# junk token or 500, is a broken promise.
ALLOWED = {
    "junk token": {"401", "429"},
    "large headers": {"431", "429"},
    "malformed": {"400", "404", "413", "415", "429", "503"},
    "burst": {"200", "429", "503"},
    "half-open": {"408", "429"},
    "slow body": {"408", "429"},
}
MALFORMED = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'{"inputs": 7}', b'{"inputs": [{}]}',
    b'{"inputs": [{"name": "id", "shape": [2], "datatype": "BYTES", "data": ["s0001"]}]}',
    b'{"inputs": [{"name": "id", "shape": [-1], "datatype": "BYTES", "data": ["s0001"]}]}',
    b'{"inputs": [{"name": "id", "shape": [1e400], "datatype": "BYTES", "data": ["s0001"]}]}',
    b'{"inputs": [{"name": "id", "shape": [1], "datatype": "FP32", "data": [0.5]}]}',
    b'{"inputs": [{"name": "other", "shape": [1], "datatype": "BYTES", "data": ["s0001"]}]}',
    b'{"inputs": [{"name": "id", "shape": [1], "datatype": "BYTES", "data": [{"a": 1}]}]}',
]  # fmt: skip


def broken(found: dict[str, int]) -> list[str]:
    """Return the answers, given as ``trick: status``, that should not have been.

    Examples
    --------
    >>> broken({"junk token: 401": 30, "malformed: connection": 2, "junk token: 200": 1})
    ['junk token: 200']
    """
    return [what for what in found if not _allowed(*what.split(": "))]


def _allowed(trick: str, status: str) -> bool:
    return status == LOST or status in ALLOWED[trick]


@dataclass(eq=False)
class Hostile:
    """Three threads, until `stop` is set; `found` counts ``trick: status``."""

    host: str
    port: int
    path: str
    token: str
    seed: int = 0
    found: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Do harm until it is stopped."""
        threads = [threading.Thread(target=work) for work in (self._requests, self._bursts, self._linger)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _note(self, trick: str, status: str) -> None:
        with self._lock:
            self.found[f"{trick}: {status}"] += 1

    # ---- requests -------------------------------------------------------------------------------

    @contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        made = http.client.HTTPConnection(self.host, self.port, TIMEOUT_SECONDS, source_address=(ADDRESS, 0))
        try:
            yield made
        finally:
            made.close()

    def _post(self, trick: str, connection: http.client.HTTPConnection, body: bytes, **headers: str) -> bool:
        """Send a request and note its answer; whether there was one."""
        try:
            connection.request("POST", self.path, body, headers)
            reply = connection.getresponse()
            reply.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            self._note(trick, LOST)
            return False
        self._note(trick, str(reply.status))
        return True

    def _requests(self) -> None:
        rng = random.Random(self.seed)  # noqa: S311 (no secret)
        tricks: list[Callable[[random.Random, http.client.HTTPConnection], bool]] = [
            lambda rng, to: self._post("junk token", to, _body(rng, 1), Authorization=f"Bearer {rng.random()}"),
            lambda rng, to: self._post("large headers", to, b"", **{"X-Junk": "x" * rng.randint(40_000, 400_000)}),
            lambda rng, to: self._post("malformed", to, rng.choice(MALFORMED), Authorization=f"Bearer {self.token}"),
        ]
        while not self.stop.wait(PAUSE_SECONDS * rng.uniform(0.5, 1.5)):
            with self._connection() as connection:
                rng.choice(tricks)(rng, connection)

    def _bursts(self) -> None:
        rng = random.Random(self.seed + 1)  # noqa: S311
        while not self.stop.wait(BURST_SECONDS * rng.uniform(0.5, 1.5)):
            with self._connection() as connection:
                for _ in range(BURST):
                    body = _body(rng, 16)
                    if not self._post("burst", connection, body, Authorization=f"Bearer {self.token}"):
                        break

    # ---- connections that do not end ------------------------------------------------------------

    def _linger(self) -> None:
        """Keep connections open; the coordinator ends them, and others take their places."""
        head = f"POST {self.path} HTTP/1.1\r\nHost: {self.host}\r\n"
        slow = f"{head}Authorization: Bearer {self.token}\r\nContent-Length: 100000\r\n\r\n"
        pools: dict[str, tuple[bytes, int, list[socket.socket]]] = {
            "half-open": (head.encode(), HALF_OPEN, []),
            "slow body": (slow.encode(), SLOW, []),
        }
        while not self.stop.wait(TICK_SECONDS):
            for trick, (begin, most, held) in pools.items():
                for _ in range(min(OPENED, most - len(held))):
                    self._open(trick, begin, held)
                for one in list(held):
                    self._trickle(trick, one, held)
        for _, _, held in pools.values():
            for one in held:
                one.close()

    def _open(self, trick: str, begin: bytes, held: list[socket.socket]) -> None:
        try:
            made = socket.create_connection((self.host, self.port), TIMEOUT_SECONDS, (ADDRESS, 0))
        except OSError:
            self._note(trick, LOST)
            return
        made.setblocking(False)
        held.append(made)
        with suppress(OSError):  # refused already: the answer is read next
            made.send(begin)

    def _trickle(self, trick: str, one: socket.socket, held: list[socket.socket]) -> None:
        """Note how the coordinator has ended a connection; else send one more byte of a body."""
        try:
            data = one.recv(4096)
        except BlockingIOError:
            if trick == "slow body":
                with suppress(OSError):
                    one.send(b" ")
            return
        except OSError:
            data = b""
        self._note(trick, data[9:12].decode("latin-1") if data.startswith(b"HTTP/1.1 ") else LOST)
        held.remove(one)
        one.close()


def _body(rng: random.Random, most: int) -> bytes:
    ids = [f"s{rng.randrange(2000):04d}" for _ in range(rng.randint(1, most))]
    return json.dumps({"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}).encode()


def main() -> int:
    """Run from the command line, until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak.hostile", description="A hostile client.")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True, help="of the requests")
    parser.add_argument("--token", required=True, help="a valid token, whose quota is exceeded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the counts")
    given = parser.parse_args()
    hostile = Hostile(given.host, given.port, given.path, given.token, given.seed)
    signal.signal(signal.SIGTERM, lambda *_: hostile.stop.set())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    hostile.run()
    write_bytes(given.out, json.dumps(hostile.found).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
