"""Ports for servers that tests start as processes."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"


def free_ports(count):
    """Return ports below the ephemeral range, which no client takes."""
    found = []
    for port in random.sample(range(30000, 32000), 100):
        with socket.socket() as trial:
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"of 100 ports only {len(found)} are free; {count} are needed")
