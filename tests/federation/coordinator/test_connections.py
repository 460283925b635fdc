"""What an unauthenticated connection may cost: bytes, seconds and places, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import tracemalloc
from urllib.parse import urlsplit

import pytest
from fake_federation import ADMIN, IDS, federation, hold, serving
from waiting import until

from gainroute.federation.coordinator.api.http import network_of
from gainroute.federation.coordinator.connections import RESERVED, most_connections
from gainroute.federation.coordinator.settings import ServerSettings
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import Identity

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HEADERS, URL = 4096, 512


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path)


@contextlib.asynccontextmanager
async def served(fed, **server):
    """The address of a coordinator that serves."""
    async with serving(fed, **{"max_header_bytes": HEADERS, "max_url_bytes": URL, **server}) as url:
        address = urlsplit(url)
        yield address.hostname, address.port


def run(work):
    return asyncio.run(asyncio.wait_for(work, 60))


async def answer(reader):
    """Status, error code and headers of one response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    size = int(head.split("content-length: ")[1].split("\r\n")[0])
    body = json.loads(await reader.readexactly(size))
    return int(head.split()[1]), body.get("code"), head


async def ask(address, path, *, body=b"", token=""):
    reader, writer = await asyncio.open_connection(*address)
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    writer.write((head + (f"Authorization: Bearer {token}\r\n" if token else "") + "\r\n").encode() + body)
    try:
        return (await answer(reader))[:2]
    finally:
        writer.close()


ENDLESS = {
    "one header": (LIVE + b"X-Long: ", b"a" * 65536),
    "many headers": (LIVE, b"A: b\r\n" * 10000),
    "folded": (LIVE + b"X-Long: ", b"a" * 1000 + b"\r\n "),
    "a trailer": (LIVE + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Long: ", b"a" * 65536),
    "a URL": (b"GET /", b"a" * 65536),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_endless_headers_are_refused_within_bounded_memory(fed, what):
    begin, more = ENDLESS[what]
    sent = 0

    async def flood(writer):
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            while sent < 2**26:
                writer.write(more)
                sent += len(more)
                await writer.drain()

    async def work():
        async with served(fed) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(begin)
            tracemalloc.start()
            try:
                flooding = asyncio.create_task(flood(writer))
                found = b""
                with contextlib.suppress(ConnectionError):
                    while got := await reader.read(65536):
                        found += got
                await flooding
                return found, tracemalloc.get_traced_memory()[1], await ask(address, "/v2/health/live")
            finally:
                tracemalloc.stop()
                writer.close()

    found, peak, after = run(work())
    status = {"a URL": b"HTTP/1.1 414 ", "folded": b"HTTP/1.1 4"}.get(what, b"HTTP/1.1 431 ")
    assert status in found or what == "a trailer", found[:300]  # the request before a trailer is answered already
    assert peak < 8 * 2**20, "the limit, and what one read returns, at both ends"
    assert after == (200, None)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /v2/health/live HTTP/1.1\r\n" + b"A: b\r\n" * 101, (431, "headers_too_large")),
        (b"GET /" + b"a" * URL + b" HTTP/1.1\r\n", (414, "url_too_long")),
        (LIVE + b"A: " + b"a" * HEADERS + b"\r\n", (431, "headers_too_large")),
        (b"\x16\x03\x01\x02\x00\x01", (400, "bad_request")),
        (LIVE + b"A: " + b"a" * (HEADERS - 200) + b"\r\n", (200, None)),
        (b"GET /v2/health/live HTTP/1.1\r\n" + b"A: b\r\n" * 100, (200, None)),
    ],
)
def test_a_request_is_refused_for_the_size_of_its_headers_only_beyond_the_limit(fed, head, expected):
    async def work():
        async with served(fed) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head + b"\r\n")
            status, code, headers = await answer(reader)
            writer.close()
            return (status, code), "connection: close" in headers

    found, closed = run(work())
    assert found == expected
    assert closed == (expected[0] != 200)


def test_large_bodies_small_chunks_and_pipelined_requests_still_pass(fed):
    ids = [f"{'x' * 900}{i}" for i in range(300)]
    tensor = {"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}
    body = json.dumps({"inputs": [tensor], "outputs": [{"name": "label"}]}).encode()
    post = b"POST /v2/models/gainroute/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"

    async def work():
        async with served(fed) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(post + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            found = [(await answer(reader))[0]]
            writer.write(post + b"Transfer-Encoding: chunked\r\n\r\n")
            small = body[:40_000]
            writer.write(b"".join(b"1\r\n%c\r\n" % byte for byte in small))
            writer.write(b"%x\r\n%b\r\n0\r\nAuthorization: none\r\n\r\n" % (len(body[40_000:]), body[40_000:]))
            found.append((await answer(reader))[0])
            writer.write((LIVE + b"\r\n") * 5)
            found += [(await answer(reader))[0] for _ in range(5)]
            writer.close()
            return found

    assert run(work()) == [200] * 7


def test_more_pipelined_requests_than_anyone_sends_end_the_connection(fed):
    async def work():
        async with served(fed) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write((LIVE + b"\r\n") * 200)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            return await ask(address, "/v2/health/live")

    assert run(work()) == (200, None)


INFER = b"POST /v2/models/gainroute/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"
SLOW = {
    "nothing sent": (b"", None),
    "half of the headers": (LIVE, (408, "timeout")),
    "half of the body": (INFER + b"{", (408, "timeout")),
    "the second request": (LIVE + b"\r\n" + LIVE, (200, None)),
    "idle": (LIVE + b"\r\n", (200, None)),
    "a body nobody asked for": (INFER.replace(b"/infer", b"/nowhere") + b"{", (404, "not_found")),
}


@pytest.mark.parametrize("what", SLOW)
def test_a_client_that_is_slow_or_silent_is_closed(fed, what):
    sent, expected = SLOW[what]

    async def work():
        # Long enough for a request that was sent whole to be read on a busy machine.
        limits = {"header_seconds": 1.0, "body_seconds": 1.0, "idle_seconds": 1.0}
        async with served(fed, **limits) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(sent)
            found = None if expected is None else (await answer(reader))[:2]
            with contextlib.suppress(ConnectionError):
                await reader.read()  # until the server closes
            writer.close()
            return found

    assert run(work()) == expected


@pytest.mark.parametrize("path", ["/v2/models/gainroute/infer", "/feedback", "/admin/budget"])
def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_error_of_ours(fed, caplog, path):
    async def work():
        caplog.set_level("INFO")
        async with served(fed) as address:
            _, writer = await asyncio.open_connection(*address)
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n"
            writer.write(f"{head}Authorization: Bearer {ADMIN}\r\n\r\n{{".encode())
            await writer.drain()
            writer.close()
            await until(lambda: f"POST {path} 4" in caplog.text or f"POST {path} 5" in caplog.text)

    run(work())
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL") or record.exc_info]


def test_a_client_that_does_not_read_its_answers_is_closed(fed):
    async def work():
        async with served(fed, body_seconds=0.2) as address:
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(client, address)

                async def send():
                    while True:
                        await loop.sock_sendall(client, b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 4)
                        await asyncio.sleep(0)

                with pytest.raises(ConnectionError):
                    await send()

    run(work())


def test_connections_per_address_are_capped_and_freed(fed):
    async def work():
        async with served(fed, max_connections_per_address=3) as address:
            held = [await asyncio.open_connection(*address) for _ in range(3)]
            reader, writer = await asyncio.open_connection(*address)
            refused = await answer(reader)
            assert await reader.read() == b""
            writer.close()
            held.pop()[1].close()

            async def free():
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    return await ask(address, "/v2/health/live") == (200, None)

            await until(free)
            for _, other in held:
                other.close()
            return refused[:2]

    assert run(work()) == (429, "too_many_connections")


def test_half_open_connections_do_not_keep_others_out(fed):
    async def work():
        async with served(fed, max_connections=4) as address:
            held = [await asyncio.open_connection(*address) for _ in range(4)]
            for _, writer in held:
                writer.write(LIVE)
            found = [await ask(address, "/v2/health/live") for _ in range(8)]
            for _, writer in held:
                writer.close()
            return found

    assert run(work()) == [(200, None)] * 8


def test_while_every_connection_is_answered_health_checks_and_admin_calls_get_in(fed):
    body = json.dumps({"inputs": [{"name": "id", "shape": [1], "datatype": "BYTES", "data": IDS[:1]}]}).encode()

    async def work():
        gate = hold(fed)
        for party in fed.parties:
            party.delay = (0.0, 0.0)
        async with served(fed, max_connections=2) as address:
            busy = [asyncio.create_task(ask(address, "/v2/models/gainroute/infer", body=body)) for _ in range(2)]
            await until(lambda: len(fed.parties[0].calls) > 0)
            health = await ask(address, "/v2/health/live")
            admin = await ask(address, "/admin/audit", token=ADMIN)
            other = await ask(address, "/api/status")
            gate.set()
            return health, admin, other, await asyncio.gather(*busy)

    fed = fed.having(batching={"max_wait_ms": 0.0})
    health, admin, other, busy = run(work())
    assert (health[0], admin[0], other) == (200, 200, (503, "busy"))
    assert busy == [(200, None)] * 2


def test_a_failed_tls_handshake_is_logged_and_a_silent_one_ends(fed, tmp_path, caplog):
    made = Authority.create(tmp_path / "ca").issue(Identity("coordinator", "main"), tmp_path / "main")
    door = {"certificate": made.certificate, "key": made.key, "header_seconds": 0.3}

    async def work():
        async with served(fed, **door) as address:
            silent, quiet = await asyncio.open_connection(*address)
            strict = ssl.create_default_context()
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection(*address, ssl=strict)
            await until(lambda: "the TLS handshake with 127.0.0.1 failed" in caplog.text)
            with contextlib.suppress(ConnectionError):
                assert await silent.read() == b""
            quiet.close()
            lenient = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            lenient.check_hostname, lenient.verify_mode = False, ssl.CERT_NONE
            reader, writer = await asyncio.open_connection(*address, ssl=lenient)
            writer.write(LIVE + b"\r\n")
            assert (await answer(reader))[0] == 200
            writer.write(LIVE + b"A: " + b"a" * HEADERS)
            refused = (await answer(reader))[:2]
            writer.close()
            return refused

    assert run(work()) == (431, "headers_too_large")


def test_connections_leave_descriptors_for_everything_else(monkeypatch, caplog):
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))
    assert most_connections(ServerSettings()) == 256 - 128 - RESERVED
    assert "this process may open 256 files only: 112 connections are accepted" in caplog.text
    monkeypatch.setattr("resource.getrlimit", lambda _: (-1, -1))
    assert most_connections(ServerSettings()) == most_connections(ServerSettings(grpc_port=0)) == 1024
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))
    assert most_connections(ServerSettings(grpc_port=0)) == 64 - RESERVED  # both front doors have as many


def test_addresses_of_one_network_share_a_limit():
    assert network_of("203.0.113.7") == network_of("::ffff:203.0.113.7") == "203.0.113.7"
    assert (
        network_of("2001:db8::1") == network_of("2001:db8::2%eth0") == "2001:db8::/64" != network_of("2001:db8:0:1::1")
    )
