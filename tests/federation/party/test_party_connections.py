"""Connections that lead to no call are counted, and are in the audit log."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading

from party_helpers import Federation, StubParty, connected, serving
from waiting import until

from gainroute.federation.party import connections, process
from gainroute.federation.party.connections import UnusedConnections


def test_a_connection_without_a_call_is_counted_once_and_after_a_while():
    now = [0.0]
    unused = UnusedConnections(lambda: now[0])
    unused.began()
    unused.began()
    unused.called("ipv4:10.0.0.1:5")
    unused.called("ipv4:10.0.0.1:5")  # the same connection
    now[0] = connections.GRACE_SECONDS - 0.1
    assert unused.take() == 0
    now[0] = connections.GRACE_SECONDS
    assert unused.take() == 1
    assert unused.take() == 0


def test_the_first_call_of_every_connection_counts():
    unused = UnusedConnections(lambda: 0.0)
    for port in range(5):
        unused.began()
        unused.called(f"ipv4:10.0.0.1:{port}")
    unused.called("ipv4:10.0.0.1:9")  # without a beginning that we know of: nothing to take off
    unused._clock = lambda: 100.0
    assert unused.take() == 0


def test_many_connections_are_counted_in_bounded_memory():
    unused = UnusedConnections(lambda: 0.0)
    threads = [threading.Thread(target=lambda: [unused.began() for _ in range(connections.MOST)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(unused._begun) == connections.MOST
    unused._clock = lambda: 100.0
    assert unused.take() == 3 * connections.MOST
    for port in range(2 * connections.MOST):
        unused.called(f"ipv4:10.0.0.1:{port}")
    assert len(unused._callers) == connections.MOST


def test_refused_handshakes_are_in_the_audit_log(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "UNUSED_SECONDS", 0.05)
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.5)
    federation = Federation(tmp_path)
    settings = federation.settings()

    async def strangers(address):
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for _ in range(3):  # no certificate of their own
            try:
                reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            except ssl.SSLError:
                continue
            writer.write(b"x")
            await reader.read()
            writer.close()

    async def main():
        async with serving(settings, StubParty()) as node, connected(federation, node) as coordinator:
            await coordinator.describe()  # this connection is used
            await strangers(node.address)

            def counted():
                lines = [json.loads(line) for line in settings.audit.path.read_text().splitlines()]
                return sum(line["requests"] for line in lines if line["outcome"] == "no call") == 3

            await until(counted)

    asyncio.run(asyncio.wait_for(main(), 30))
