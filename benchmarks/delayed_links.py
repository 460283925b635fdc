"""One network namespace per process, joined by links with a delay and a rate, in user space.

`tc netem` is not in every kernel, so a relay passes the packets on: every namespace has one TUN device, and a packet
waits for its sender's line, for half of the round-trip time, and for its receiver's line. The relay holds the
namespaces by open files only, and ends when its stdin closes: they are gone once it and the processes in them are.

    python -m benchmarks.delayed_links 10.77.0.1 10.77.0.2 --round-trip 0.02 --rate 100e6
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import itertools
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

__all__ = ["NoNamespacesError", "linked_namespaces", "measure_link"]

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
DEVICE, MTU = "link0", 1500
BUFFER_SECONDS = 0.1  # of a line: a packet that would wait longer is dropped
TICK = 0.0005  # packets that are due within it are passed on together
START_SECONDS = 20.0
PROBE_BYTES = 4 << 20


class NoNamespacesError(RuntimeError):
    """Network namespaces cannot be made here; the text says why."""


@contextmanager
def linked_namespaces(addresses: Sequence[str], round_trip: float, rate: float) -> Iterator[dict[str, list[str]]]:
    """Yield, by address, the words before a command that run it in the namespace with that address.

    Parameters
    ----------
    addresses
        IPv4 addresses of one /24 network; they exist inside these namespaces only.
    round_trip
        Seconds from one namespace to another and back.
    rate
        Bits per second of every line, in each direction.
    """
    command = [sys.executable, "-m", "benchmarks.delayed_links", *addresses]
    command += ["--round-trip", str(round_trip), "--rate", str(rate)]
    relay = subprocess.Popen(  # noqa: S603 (our own command)
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert relay.stdin is not None  # noqa: S101 (for the type checker)
    assert relay.stdout is not None  # noqa: S101
    assert relay.stderr is not None  # noqa: S101
    late = threading.Timer(START_SECONDS, relay.kill)
    late.start()
    try:
        line = relay.stdout.readline()
        late.cancel()
        if not line:
            reason = relay.stderr.read().strip().splitlines() or ["it did not start in time"]
            raise NoNamespacesError(reason[-1])
        yield {address: ["nsenter", f"--net={path}"] for address, path in json.loads(line).items()}
    finally:
        late.cancel()
        relay.kill()
        relay.wait()
        for stream in (relay.stdin, relay.stdout, relay.stderr):
            stream.close()


# ---- the relay --------------------------------------------------------------------------------------


@dataclass
class _Line:
    """One direction of the line of a namespace: when it is free again."""

    rate: float
    free: float = 0.0

    def pass_on(self, arrives: float, size: int) -> float | None:
        """When a packet has left the line; None if its buffer is full."""
        begins = max(arrives, self.free)
        if begins - arrives > BUFFER_SECONDS:
            return None
        self.free = begins + 8 * size / self.rate
        return self.free


def _new_namespace(address: str) -> tuple[int, int]:
    """Enter a new network namespace, and return open files of it and of its TUN device."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH14x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    for words in (
        ["addr", "add", f"{address}/24", "dev", DEVICE], ["link", "set", DEVICE, "mtu", str(MTU), "up"],
        ["link", "set", "lo", "up"],
    ):  # fmt: skip
        subprocess.run(["ip", *words], check=True)  # noqa: S603, S607
    return os.open("/proc/self/ns/net", os.O_RDONLY), tun


def _relay(tuns: dict[bytes, int], round_trip: float, rate: float) -> None:
    """Pass packets on until stdin closes."""
    up = {tun: _Line(rate) for tun in tuns.values()}
    down = {tun: _Line(rate) for tun in tuns.values()}
    waiting: list[tuple[float, int, int, bytes]] = []
    number = itertools.count()
    stdin = sys.stdin.fileno()
    while True:
        timeout = max(TICK, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([stdin, *up], [], [], timeout)
        if stdin in ready:
            return
        now = time.monotonic()
        for source in ready:
            for packet in _packets(source):
                target = tuns.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                left = None if target is None else up[source].pass_on(now, len(packet))
                if target is None or left is None:
                    continue
                arrived = down[target].pass_on(left + round_trip / 2, len(packet))
                if arrived is not None:
                    heapq.heappush(waiting, (arrived, next(number), target, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(waiting)
            os.write(target, packet)


def _packets(tun: int) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield os.read(tun, 65536)


def main() -> None:
    """Make the namespaces, print their paths by address as JSON, and relay."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--round-trip", type=float, required=True)
    parser.add_argument("--rate", type=float, required=True)
    given = parser.parse_args()
    try:
        made = {address: _new_namespace(address) for address in given.addresses}
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"network namespaces with TUN devices cannot be made here ({error})")
    paths = {address: f"/proc/{os.getpid()}/fd/{namespace}" for address, (namespace, _) in made.items()}
    print(json.dumps(paths), flush=True)
    _relay({socket.inet_aton(address): tun for address, (_, tun) in made.items()}, given.round_trip, given.rate)


# ---- what the link really does ----------------------------------------------------------------------

_PROBE_SERVER = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    with server.accept()[0] as peer:
        peer.sendall(peer.recv(1))
        left = int(sys.argv[2])
        while left:
            left -= len(peer.recv(min(left, 1 << 16)))
        peer.sendall(b"x")
"""
_PROBE_CLIENT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[3])), timeout=30) as peer:
    began = time.monotonic()
    peer.sendall(b"x"); peer.recv(1)
    round_trip = time.monotonic() - began
    began = time.monotonic()
    peer.sendall(bytes(int(sys.argv[2]))); peer.recv(1)
    print(round_trip, 8 * int(sys.argv[2]) / (time.monotonic() - began))
"""


def measure_link(namespaces: dict[str, list[str]], server: str, client: str) -> tuple[float, float]:
    """Seconds of a round trip; bits per second of 4 MB over a new TCP connection, slow start and answer included."""
    words = [*namespaces[server], sys.executable, "-c", _PROBE_SERVER, server, str(PROBE_BYTES)]
    listening = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)  # noqa: S603 (our own command)
    try:
        assert listening.stdout is not None  # noqa: S101 (for the type checker)
        port = listening.stdout.readline().strip()
        words = [*namespaces[client], sys.executable, "-c", _PROBE_CLIENT, server, str(PROBE_BYTES), port]
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)  # noqa: S603
    finally:
        listening.kill()
        listening.communicate()
    round_trip, rate = map(float, done.stdout.split())
    return round_trip, rate


if __name__ == "__main__":
    main()
