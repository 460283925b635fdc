"""The gRPC front door beside HTTP in one process: its port, its certificate, SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading

import grpc
import httpx
import pytest
from fake_federation import IDS, N, child_environment, federation, running, serving
from grpc_front_door import grpc_door, infer_request, packed, tensors
from waiting import until, wait_until

from gainroute.errors import SettingError
from gainroute.federation.coordinator.grpc_door.proto import open_inference_pb2 as pb
from gainroute.federation.coordinator.grpc_door.server import GrpcDoor
from gainroute.federation.coordinator.grpc_door.service import SERVICE
from gainroute.federation.coordinator.server import serve
from gainroute.federation.coordinator.settings import FusionSettings, ServerSettings
from gainroute.federation.coordinator.tokens import hash_token
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import Identity

# Parties answer once there is a file "release"; the file "asked" says that they were asked.
SCRIPT = """
import asyncio
import logging
import sys
from pathlib import Path
from fake_federation import federation
from gainroute.federation.coordinator.server import run_coordinator
from gainroute.federation.coordinator.settings import FusionSettings

class Told(logging.Handler):
    def emit(self, record):
        if hasattr(record, "address"):
            print(record.address, flush=True)

log = logging.getLogger("gainroute.coordinator")
log.setLevel("INFO")
log.addHandler(Told())
folder = Path(sys.argv[1])

class Gate:
    async def wait(self):
        (folder / "asked").touch()
        while not (folder / "release").exists():
            await asyncio.sleep(0.01)

fed = federation(folder)
for party in fed.parties:
    party.gate = Gate()
fusion = FusionSettings(factory="fake_federation:make_fusion")
server, rounds = {"port": 0, "grpc_port": 0}, {"one_seconds": 30.0}
settings = fed.having(server=server, rounds=rounds, fusion=fusion).settings
by_name = {p.name: p for p in fed.parties}
run_coordinator(settings, connect=lambda p, _: by_name[p.name], on_ready=lambda url: print(url, flush=True))
print("stopped", flush=True)
"""


@contextlib.asynccontextmanager
async def served(fed, caplog, **server):
    """A coordinator that serves both, by its URL and the address of its gRPC server."""
    caplog.set_level("INFO", "gainroute.coordinator")
    async with serving(fed, **{"grpc_port": 0, **server}) as url:
        (address,) = [r.address for r in caplog.records if r.getMessage().startswith("gRPC is served")]
        yield url, address


def test_one_certificate_for_both_and_a_new_one_without_a_restart(tmp_path, caplog):
    authority = Authority.create(tmp_path / "ca")
    # Of the certificates that `gainroute certs` makes, only those of parties are for servers.
    first, second = (authority.issue(Identity("party", name), tmp_path / name) for name in ("first", "second"))
    certificate, key = tmp_path / "door.crt", tmp_path / "door.key"
    shutil.copy(first.certificate, certificate)
    shutil.copy(first.key, key)

    async def shown(address):
        host, _, port = address.rpartition(":")
        return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)), timeout=5)

    async def ask(address, name):
        credentials = grpc.ssl_channel_credentials(first.ca.read_bytes())
        own = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(address, credentials, options=own) as channel:
            reply = await channel.unary_unary(f"/{SERVICE}/ModelInfer")(
                infer_request(packed(b"s0", b"s1")).SerializeToString(),
                metadata=[("authorization", "Bearer c")], timeout=20,
            )  # fmt: skip
            return len(tensors(pb.InferReply.FromString(reply))["label"])

    async def work():
        fed = federation(tmp_path).having(tokens={"client": {"shop": hash_token("c")}})
        async with served(fed, caplog, certificate=certificate, key=key) as (url, address):
            assert url.startswith("https://")
            before = await shown(address)
            asked = await ask(address, Identity("party", "first").dns)
            shutil.copy(second.certificate, certificate)  # not yet its key: a pair that does not fit is not taken
            await until(lambda: "the earlier one stays" in caplog.text)
            between = await shown(address)
            shutil.copy(second.key, key)

            async def replaced():
                found = await shown(address)
                return found if found != before else None

            after = await until(replaced, 20)
            return before, between, after, asked, await ask(address, Identity("party", "second").dns)

    before, between, after, asked, again = asyncio.run(work())
    assert before.split() == first.certificate.read_text().split()
    assert between == before
    assert after.split() == second.certificate.read_text().split()
    assert asked == again == 2


def test_wrong_tokens_are_counted_together_with_those_over_http(tmp_path, caplog):
    async def work():
        tokens = {"client": {"shop": hash_token("c")}, "failures_per_minute": 2}
        async with served(federation(tmp_path).having(tokens=tokens), caplog) as (url, address):
            async with httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer junk"}) as client:
                statuses = [(await client.get("/v2")).status_code for _ in range(2)]
            async with grpc.aio.insecure_channel(address) as channel:
                junk = [("authorization", "Bearer junk")]
                with pytest.raises(grpc.aio.AioRpcError) as told:
                    await channel.unary_unary(f"/{SERVICE}/ServerMetadata")(b"", metadata=junk, timeout=20)
            return statuses, told.value.code()

    assert asyncio.run(work()) == ([401, 401], grpc.StatusCode.RESOURCE_EXHAUSTED)


def test_a_port_in_use_and_files_that_are_missing_fail_before_anything_is_loaded(tmp_path, caplog):
    async def work(**server):
        async with served(federation(tmp_path), caplog, **server):
            pytest.fail("it serves")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"cannot listen on 127.0.0.1:{port} for gRPC; choose another"):
            asyncio.run(work(grpc_port=port))
    with pytest.raises(SettingError, match=r"none\.key cannot be read"):
        asyncio.run(work(certificate=tmp_path / "none.crt", key=tmp_path / "none.key"))


@pytest.mark.parametrize("port", [-1, 65536, 8080])
def test_a_port_that_cannot_be_is_refused(port):
    with pytest.raises(SettingError, match=f"grpc_port is {port}"):
        ServerSettings(grpc_port=port)


def test_it_is_off_unless_configured(tmp_path, caplog):
    assert ServerSettings().grpc_port is None
    caplog.set_level("INFO", "gainroute.coordinator")

    async def work():
        fed = federation(tmp_path)
        by_name = {party.name: party for party in fed.parties}
        fusion = FusionSettings(factory="fake_federation:make_fusion")
        settings = fed.having(server={"port": 0}, fusion=fusion).settings
        ready = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(settings, connect=lambda p, _: by_name[p.name], on_ready=ready.set_result))
        await ready
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(work())
    assert "gRPC is served" not in caplog.text


def test_readiness_needs_both_front_doors(tmp_path):
    async def work():
        async with running(federation(tmp_path)) as up:
            async with grpc_door(up.coordinator):
                during = (await up.client.get("/v2/health/ready")).status_code
            model = await up.client.get("/v2/models/gainroute/ready")
            return during, (await up.client.get("/v2/health/ready")).status_code, model.json()["error"]

    assert asyncio.run(work()) == (200, 503, "the server for gRPC does not accept requests")


def test_a_front_door_that_was_never_opened_can_be_closed():
    async def work():
        await GrpcDoor(ServerSettings(grpc_port=0)).stop(None)

    asyncio.run(work())


@pytest.fixture
def process(tmp_path):
    """A coordinator as a process, and the address of its gRPC server."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment()) as started:
        address, _ = (started.stdout.readline().strip() for _ in range(2))
        yield started, address
        started.kill()


def is_closed(address):
    """Whether new connections are refused."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return True
    return False


def test_sigterm_answers_calls_under_way_then_stops(process, tmp_path):
    coordinator, address = process
    message = infer_request(packed(*(name.encode() for name in IDS)), shape=[N]).SerializeToString()
    with grpc.insecure_channel(address) as channel:
        under_way = channel.unary_unary(f"/{SERVICE}/ModelInfer").future(message, timeout=60)
        wait_until((tmp_path / "asked").exists, 30)
        coordinator.send_signal(signal.SIGTERM)
        wait_until(lambda: is_closed(address), 30)
        (tmp_path / "release").touch()
        reply = pb.InferReply.FromString(under_way.result())
    assert coordinator.wait(timeout=20) == 0
    assert len(tensors(reply)["label"]) == N
    assert coordinator.stdout.read().strip() == "stopped"


def test_a_second_signal_does_not_wait_for_calls(process):
    coordinator, address = process
    done = threading.Event()

    def nothing():  # the message of the call does not come
        done.wait(60)
        yield from ()

    try:
        with grpc.insecure_channel(address) as channel:
            call = channel.stream_unary(f"/{SERVICE}/ModelInfer").future(nothing(), timeout=60)
            channel.unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=20)  # the call before has arrived, too
            coordinator.send_signal(signal.SIGTERM)
            wait_until(lambda: is_closed(address), 30)
            coordinator.send_signal(signal.SIGTERM)
            assert coordinator.wait(timeout=20) == 0  # less than the 30 s for which calls are waited for
            assert call.exception(timeout=20).code() is grpc.StatusCode.UNAVAILABLE
    finally:
        done.set()
