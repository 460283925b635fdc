"""Who is answered over gRPC. Being signed by the authority is not enough."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta, timezone

import grpc
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from grpc import aio
from party_helpers import MODEL, QUICK, Federation, StubParty, connected, serving
from waiting import until

from gainroute.errors import SettingError
from gainroute.federation.pki.certificates import Identity, read_certificate
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.base import PartyError, PartyRefusedError, PartyUnavailableError
from gainroute.federation.transport.grpc_client import GrpcConnection
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.proto import party_pb2_grpc


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)


def run(main):
    return asyncio.run(asyncio.wait_for(main, 30))


async def raw(address, credentials, party="a"):
    """Call with plain gRPC; return the status codes of Describe, Stream and health."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    options = [("grpc.ssl_target_name_override", Identity("party", party).dns)]
    async with aio.secure_channel(address, credentials, options=options) as channel:
        stub = party_pb2_grpc.PartyStub(channel)

        async def stream():
            call = stub.Stream(timeout=5)
            await call.write(pb.Request(correlation=1, round=1, model=MODEL, ids=["1"]))
            response = await call.read()
            if response is aio.EOF:
                raise aio.AioRpcError(await call.code(), await call.initial_metadata(), await call.trailing_metadata())
            call.cancel()

        async def describe():
            await stub.Describe(pb.DescribeRequest(), timeout=5)

        async def health():
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)

        return [await status(call()) for call in (describe, stream, health)]


async def status(call):
    try:
        await call
    except aio.AioRpcError as error:
        return error.code().name
    return "OK"


def strange(federation, identity, usage=ExtendedKeyUsageOID.CLIENT_AUTH):
    """A certificate that the authority signed, but with an identity that our own code would not give it."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "main")]))
        .issuer_name(x509.load_pem_x509_certificate(federation.authority.pem).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if identity:
        names = [x509.UniformResourceIdentifier(uri) for uri in identity]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    pem = builder.sign(federation.authority._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return grpc.ssl_channel_credentials(federation.authority.pem, key.private_bytes(*plain), pem)


CALLERS = {
    "the coordinator named": "OK",
    "another coordinator": "PERMISSION_DENIED",
    "another party": "UNAVAILABLE",
    "another party, its certificate good for clients": "PERMISSION_DENIED",
    "a certificate without an identity": "PERMISSION_DENIED",
    "a certificate with two identities": "PERMISSION_DENIED",
    "an unknown role": "PERMISSION_DENIED",
    "expired": "UNAVAILABLE",
    "a foreign authority": "UNAVAILABLE",
    "no certificate": "UNAVAILABLE",
}


def credentials(who, federation, tmp_path):
    day = timedelta(days=1)
    main = "gainroute://coordinator/main"
    if who == "the coordinator named":
        return ReloadingCertificate(federation.files("coordinator", "main")).channel()
    if who == "another coordinator":
        return ReloadingCertificate(federation.files("coordinator", "other")).channel()
    if who == "another party":
        return ReloadingCertificate(federation.files("party", "b")).channel()
    if who == "another party, its certificate good for clients":
        return strange(federation, ["gainroute://party/main"])
    if who == "a certificate without an identity":
        return strange(federation, [])
    if who == "a certificate with two identities":
        return strange(federation, [main, "gainroute://party/b"])
    if who == "an unknown role":
        return strange(federation, ["gainroute://auditor/main"])
    if who == "expired":
        before = datetime.now(timezone.utc) - 2 * day
        return ReloadingCertificate(federation.files("coordinator", "main", days=1, now=before)).channel()
    if who == "a foreign authority":
        files = Federation(tmp_path / "foreign").files("coordinator", "main")
        return grpc.ssl_channel_credentials(
            federation.authority.pem, files.key.read_bytes(), files.certificate.read_bytes()
        )
    return grpc.ssl_channel_credentials(federation.authority.pem)


@pytest.mark.parametrize("who", CALLERS)
def test_only_the_coordinators_named_are_answered(who, federation, tmp_path):
    async def main():
        async with serving(federation.settings(), StubParty()) as node:
            return await raw(node.address, credentials(who, federation, tmp_path))

    assert run(main()) == [CALLERS[who]] * 3


def test_a_denied_certificate_is_cut_off_at_once_and_let_in_again(federation, tmp_path, caplog):
    denied = tmp_path / "denied.txt"
    denied.write_text("# nobody yet\n")
    files = federation.files("coordinator", "main")
    fingerprint = read_certificate(files.certificate.read_bytes()).fingerprint

    async def main():
        async with serving(federation.settings(deny_list=denied), StubParty()) as node:
            connection = GrpcConnection("a", node.address, files, QUICK)
            ask = {"model": MODEL, "request_id": "r"}
            await connection.posteriors([1], **ask)
            denied.write_text(f"{fingerprint.upper()}  # stolen\n")
            with pytest.raises(PartyRefusedError, match="deny-list"):
                await connection.posteriors([1], **ask)
            with pytest.raises(PartyRefusedError, match="deny-list"):
                await connection.describe()
            denied.write_text("not a fingerprint\n")  # a typing error lets nobody in
            await until(lambda: "not reloaded" in caplog.text)  # by the next attempt to reconnect
            with pytest.raises(PartyRefusedError, match="deny-list"):
                await connection.describe()
            denied.write_text("")
            await until(lambda: connection.connected)
            await connection.posteriors([1], **ask)
            await connection.close()

    run(main())
    lines = [json.loads(line) for line in (tmp_path / "party-a/audit.jsonl").read_text().splitlines()]
    assert [line["outcome"].partition(":")[0] for line in lines] == ["answered", "denied", "answered"]
    assert lines[1]["fingerprint"] == fingerprint


def test_a_certificate_that_ends_while_the_stream_stands_is_not_answered(federation):
    from gainroute.federation.pki.access import Access, AccessDeniedError

    info = read_certificate(federation.files("coordinator", "main", days=1).certificate.read_bytes())
    now = [datetime.now(timezone.utc)]
    access = Access(["main"], None, lambda: now[0])
    assert access.admit(info).name == "main"
    now[0] += timedelta(days=2)
    with pytest.raises(AccessDeniedError, match="expired"):
        access.admit(info)


def test_a_party_is_accepted_only_under_its_own_name(federation):
    async def main():
        async with serving(federation.settings("b"), StubParty()) as node:
            connection = GrpcConnection("a", node.address, federation.files("coordinator", "main"), QUICK)
            with pytest.raises(PartyRefusedError, match="certificate of party 'a'"):
                await connection.posteriors([1], model=MODEL, request_id="r")
            await connection.close()

    run(main())


@pytest.mark.parametrize("name", ["Hospital_A", "St. Mary’s ü", "UPPER", "x--y"])
def test_any_printable_name_will_do(federation, name):
    async def main():
        async with serving(federation.settings(name), StubParty()) as node:
            for asked in (name, name.lower() + "2"):
                connection = GrpcConnection(asked, node.address, federation.files("coordinator", "main"), QUICK)
                if asked == name:
                    assert (await connection.describe()).name == name
                else:
                    with pytest.raises(PartyRefusedError):
                        await connection.describe()
                await connection.close()

    run(main())


def test_a_party_of_a_foreign_authority_is_not_accepted(federation, tmp_path):
    foreign = Federation(tmp_path / "foreign")

    async def main():
        async with serving(foreign.settings(), StubParty()) as node:
            connection = GrpcConnection("a", node.address, federation.files("coordinator", "main"), QUICK)
            with pytest.raises(PartyError):
                await connection.describe()
            await connection.close()

    run(main())


def test_an_expired_certificate_of_the_coordinator_itself_is_reported(federation):
    before = datetime.now(timezone.utc) - timedelta(days=2)
    files = federation.files("coordinator", "main", days=1, now=before)

    async def main():
        connection = GrpcConnection("a", "127.0.0.1:1", files, QUICK)
        with pytest.raises(PartyUnavailableError, match=r"own certificate .* has expired"):
            await connection.describe()
        await connection.close()

    run(main())


def test_a_party_does_not_start_with_anothers_or_an_expired_certificate(federation):
    from dataclasses import replace

    from gainroute.federation.party.process import PartyNode

    settings = federation.settings("b")
    with pytest.raises(SettingError, match="certificate of party 'b', but this is party 'a'"):
        PartyNode(replace(settings, name="a"))
    federation.files("party", "b", days=1, now=datetime.now(timezone.utc) - timedelta(days=2))
    with pytest.raises(SettingError, match="expired"):
        PartyNode(settings)


def test_certificates_of_both_sides_rotate_under_load_without_one_failed_answer(federation):
    party = StubParty()

    async def main():
        async with serving(federation.settings(), party) as node, connected(federation, node) as connection:
            done, stop = [0], asyncio.Event()
            await connection.describe()
            before = connection.certificate_expires

            async def load():
                while not stop.is_set():
                    reply = await connection.posteriors([1], model=MODEL, request_id="r")
                    np.testing.assert_array_equal(reply.values, party.p[[1]])
                    done[0] += 1

            loads = [asyncio.ensure_future(load()) for _ in range(4)]
            try:
                for role, name in (("party", "a"), ("coordinator", "main")):
                    seen = connection._session
                    federation.files(role, name, days=400)  # key and certificate replaced in place
                    if role == "coordinator":
                        await until(lambda seen=seen: connection._session is not seen)
                mark = done[0]
                await until(lambda: done[0] > mark + 20)
                await connection.describe()
                assert connection.certificate_expires > before + timedelta(days=200)
            finally:
                stop.set()
                await asyncio.gather(*loads)

    run(main())
    lines = (federation.folder / "party-a/audit.jsonl").read_text().splitlines()
    assert len({json.loads(line)["fingerprint"] for line in lines}) == 2


def test_reflection_is_off_unless_asked_for(federation):
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async def services(reflection):
        async with serving(federation.settings(reflection=reflection), StubParty()) as node:
            options = [("grpc.ssl_target_name_override", Identity("party", "a").dns)]
            files = ReloadingCertificate(federation.files("coordinator", "main")).channel()
            async with aio.secure_channel(node.address, files, options=options) as channel:
                stub = reflection_pb2_grpc.ServerReflectionStub(channel)
                asked = reflection_pb2.ServerReflectionRequest(list_services="")

                async def ask():
                    yield asked

                try:
                    found = [reply async for reply in stub.ServerReflectionInfo(ask(), timeout=5)]
                except aio.AioRpcError as error:
                    return error.code().name
                return {service.name for service in found[0].list_services_response.service}

    assert run(services(reflection=False)) == "UNIMPLEMENTED"
    assert "gainroute.party.v1.Party" in run(services(reflection=True))
