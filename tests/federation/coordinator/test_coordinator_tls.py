"""The front door's socket: a certificate that is replaced without a restart, and answers that leave at once."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from urllib.parse import urlsplit

import pytest
from fake_federation import federation
from waiting import until

from gainroute.federation.coordinator.server import _bind, serve
from gainroute.federation.coordinator.settings import FusionSettings
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import Identity


@pytest.fixture
def pairs(tmp_path):
    """Two certificates with their keys, and the place that the settings name."""
    authority = Authority.create(tmp_path / "ca")
    made = [authority.issue(Identity("coordinator", name), tmp_path / name) for name in ("first", "second")]
    return made, tmp_path / "door.crt", tmp_path / "door.key"


def test_a_new_certificate_is_shown_without_a_restart(tmp_path, pairs, caplog):
    (first, second), certificate, key = pairs
    shutil.copy(first.certificate, certificate)
    shutil.copy(first.key, key)
    fed = federation(tmp_path)
    fusion = FusionSettings(factory="fake_federation:make_fusion")
    door = {"port": 0, "certificate": certificate, "key": key}
    settings = fed.having(server=door, fusion=fusion).settings
    by_name = {party.name: party for party in fed.parties}

    async def shown(address):
        return await asyncio.to_thread(ssl.get_server_certificate, (address.hostname, address.port), timeout=5)

    async def work():
        ready = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(settings, connect=lambda p, _: by_name[p.name], on_ready=ready.set_result))
        address = urlsplit(await ready)
        try:
            assert address.scheme == "https"
            before = await shown(address)
            shutil.copy(second.certificate, certificate)  # not yet its key: a pair that does not fit is not taken
            await until(lambda: "the earlier one stays" in caplog.text)
            between = await shown(address)
            shutil.copy(second.key, key)

            async def replaced():
                found = await shown(address)
                return found if found != before else None

            return before, between, await until(replaced, 10)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    before, between, after = asyncio.run(work())
    assert before.split() == first.certificate.read_text().split()
    assert between == before
    assert after.split() == second.certificate.read_text().split()


def test_small_answers_are_not_held_back(tmp_path):
    """Without it, a client that acknowledges late waits 40 ms for the second part of every answer."""

    async def work():
        accepted = asyncio.get_running_loop().create_future()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport):
                found = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                accepted.set_result(found)
                transport.close()

        listening = _bind(federation(tmp_path).having(server={"port": 0}).settings)
        server = await asyncio.get_running_loop().create_server(Protocol, sock=listening)
        _, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            return await accepted
        finally:
            writer.close()
            server.close()

    assert asyncio.run(work()) != 0
