"""Parties over real sockets and real TLS, for tests: certificates made on the spot, stub models, port 0."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gainroute.federation.party.process import PartyNode
from gainroute.federation.party.settings import AuditSettings, PartySettings, QuotaSettings, SourceSettings, TlsSettings
from gainroute.federation.party.sources import source_of, version_of
from gainroute.federation.pki.authority import Authority
from gainroute.federation.pki.certificates import CertificateFiles, Identity
from gainroute.federation.transport.base import ModelDescription, PartyDescription
from gainroute.federation.transport.grpc_client import ClientOptions, GrpcConnection
from gainroute.federation.transport.in_process import InProcessConnection

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


class SlowParty(StubParty):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def posteriors(self, ids: Any) -> Any:
        time.sleep(self.seconds)
        return super().posteriors(ids)


@dataclass
class Federation:
    """An authority, and the files of whoever is asked for."""

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
            tls=TlsSettings(ca=files.ca, certificate=files.certificate, key=files.key),
            source=SourceSettings(columns=home / "unused.npz"),
            quota=QuotaSettings(samples_per_minute=0, embeddings_per_minute=0),
            audit=AuditSettings(path=home / "audit.jsonl"),
            drain_seconds=5.0,
        )
        return replace(made, **how)


def source(parties: dict[str, Any], classes: Any = CLASSES, dimension: int = DIMENSION) -> Any:
    return source_of(*(version_of(party, model, classes, dimension) for model, party in parties.items()))


@asynccontextmanager
async def serving(settings: PartySettings, parties: Any) -> Any:
    """A party process's inside, listening on loopback."""
    given = source(parties if isinstance(parties, dict) else {MODEL: parties}) if parties is not None else None
    node = PartyNode(settings, source=given)
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
    by_hash = parties if isinstance(parties, dict) else {MODEL: parties}
    if transport == "in-process":
        models = tuple(ModelDescription(model, DIMENSION) for model in by_hash)
        description = PartyDescription(name, CLASSES, models, ("float32", "float16", "int8"))
        connection = InProcessConnection(name, by_hash, description)
        yield connection
        await connection.close()
        return
    settings = federation.settings(name, **how)
    async with serving(settings, by_hash) as node, connected(federation, node, name) as connection:
        yield connection


async def eventually(test: Any, seconds: float = 10.0) -> None:
    """Wait until `test()` holds, for a bounded time."""
    until = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < until, "it did not come to that in time"
        await asyncio.sleep(0.02)
