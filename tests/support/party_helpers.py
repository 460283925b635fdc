"""Parties over real sockets and real TLS, for tests: new certificates, stub models, port 0."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from grpc import aio

from gainroute.federation.party.model import version_of
from gainroute.federation.party.process import PartyNode
from gainroute.federation.party.settings import AuditSettings, PartySettings, QuotaSettings, SourceSettings
from gainroute.federation.party.sources import source_of
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import CertificateFiles, Identity
from gainroute.federation.pki.credentials import ReloadingCertificate
from gainroute.federation.transport.grpc_client import ClientOptions, GrpcConnection
from gainroute.federation.transport.in_process import InProcessConnection
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.proto import party_pb2_grpc

CLASSES = ("cat", "dog", "fox")
DIMENSION = 6
MODEL = "m1"
QUICK = ClientOptions(connect_timeout=5, first_backoff=0.02, longest_backoff=0.1, look_seconds=0.05)


class StubParty:
    """Deterministic answers for the ids 0 … n − 1, by whole number."""

    def __init__(self, n: int = 50, seed: int = 0, *, classes: int = len(CLASSES), dimension: int = DIMENSION) -> None:
        rng = np.random.default_rng(seed)
        self.ids = list(range(n))
        self.p = rng.dirichlet(np.ones(classes), size=n).astype(np.float32)
        self.e = rng.normal(size=(n, dimension)).astype(np.float32)
        self.calls = 0

    def posteriors(self, ids: Any) -> Any:
        self.calls += 1
        return self.p[ids]

    def embeddings(self, ids: Any) -> Any:
        return self.e[ids]


class GatedParty(StubParty):
    """Posteriors wait until the gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def posteriors(self, ids: Any) -> Any:
        self.entered.set()
        assert self.gate.wait(60)
        return super().posteriors(ids)


@dataclass
class Federation:
    """An authority, and the certificate files it issues."""

    folder: Path
    authority: Authority = field(init=False)

    def __post_init__(self) -> None:
        self.authority = Authority.create(self.folder / "ca")

    def files(self, role: str, name: str, **how: Any) -> CertificateFiles:
        return self.authority.issue(Identity(role, name), self.folder / f"{role}-{name}", **how)

    def settings(self, name: str = "a", **how: Any) -> PartySettings:
        files = self.files("party", name)
        home = files.certificate.parent
        made = PartySettings(
            name=name,
            coordinators=("main",),
            listen="127.0.0.1:0",
            tls=files,
            source=SourceSettings(columns=home / "unused.npz"),
            quota=QuotaSettings(samples_per_minute=0, embeddings_per_minute=0),
            audit=AuditSettings(path=home / "audit.jsonl"),
            drain_seconds=5.0,
        )
        return replace(made, **how)


def versions(parties: Any) -> Any:
    """Model versions of one party, or of several by hash."""
    by_hash = parties if isinstance(parties, dict) else {MODEL: parties}
    return [version_of(party, model, CLASSES, DIMENSION) for model, party in by_hash.items()]


@asynccontextmanager
async def serving(settings: PartySettings, parties: Any) -> Any:
    """A party that listens on loopback."""
    node = PartyNode(settings, source=source_of(*versions(parties)))
    await node.start()
    try:
        yield node
    finally:
        await node.stop(0.2)


@asynccontextmanager
async def connected(federation: Federation, node: PartyNode, name: str = "a", options: ClientOptions = QUICK) -> Any:
    connection = GrpcConnection(name, node.address, federation.files("coordinator", "main"), options)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def link(transport: str, federation: Federation, parties: Any, *, name: str = "a", **how: Any) -> Any:
    """A connection to a party: in process, or over gRPC with mutual TLS."""
    if transport == "in-process":
        connection = InProcessConnection(name, versions(parties))
        yield connection
        await connection.close()
        return
    settings = federation.settings(name, **how)
    async with serving(settings, parties) as node, connected(federation, node, name) as connection:
        yield connection


class FaultyParty(party_pb2_grpc.PartyServicer):
    """Follows the protocol, and sends the messages given to it: `describe`, and `answer(request)`."""

    def __init__(self, describe: pb.DescribeReply, answer: Any) -> None:
        self.describe, self.answer = describe, answer

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.describe

    async def Stream(self, requests: Any, context: Any) -> Any:  # noqa: N802
        async for request in requests:
            if not request.cancel:
                response = self.answer(request)
                response.correlation = response.correlation or request.correlation
                yield response


@asynccontextmanager
async def serving_faulty(federation: Federation, faulty: Any, name: str = "a") -> Any:
    """The address of a party that sends what it likes, with a valid certificate."""
    files = federation.files("party", name)
    server = aio.server(options=[("grpc.max_send_message_length", -1)])
    add = (
        party_pb2_grpc.add_PartyServicer_to_server
        if isinstance(faulty, party_pb2_grpc.PartyServicer)
        else party_pb2_grpc.add_TrainingServicer_to_server
    )
    add(faulty, server)
    port = server.add_secure_port("127.0.0.1:0", ReloadingCertificate(files).server())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
