"""A federation in one process: parties that answer from tables, by model version, and misbehave when told to."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from synthetic import World, world

import gainroute as gr
from gainroute.federation.coordinator.app import create_app
from gainroute.federation.coordinator.client_settings import TokenSettings
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.server import serve
from gainroute.federation.coordinator.settings import (
    CoordinatorSettings,
    FusionSettings,
    LogSettings,
    PartyEndpoint,
    RoundSettings,
    RouterSettings,
    ServerSettings,
)
from gainroute.federation.coordinator.strong_source import StrongSource, from_function, load_strong_source
from gainroute.federation.coordinator.tokens import hash_token
from gainroute.federation.transport.base import ModelDescription, PartyDescription, PartyRefusedError, Reply

K, M, N = 4, 3, 120
CLASSES = ("ant", "bee", "cat", "dog")
NAMES = ("a", "b", "c")
BYTES = (20.0, 20.0, 20.0)  # of an embedding: K + 1 numbers
IDS = [f"s{i}" for i in range(N)]
ADMIN = "the admin's token"


@dataclass
class FakeParty:
    """A `PartyConnection`; `models` maps a hash to posteriors (N, K) and embeddings (N, d)."""

    name: str
    models: dict[str, tuple[Any, Any]]
    classes: tuple[str, ...] = CLASSES
    codecs: tuple[str, ...] = ("float32",)
    lacks: set[str] = field(default_factory=set)
    delay: tuple[float, float] = (0.0, 0.0)
    gate: asyncio.Event | None = None  # Round 1 is answered once it is set
    error: tuple[Exception | None, Exception | None] = (None, None)
    change: tuple[Any, Any] = (None, None)
    down: Exception | None = None
    calls: list[tuple[int, int, str, str]] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=lambda: {name: i for i, name in enumerate(IDS)})
    dimension: int | None = None

    async def describe(self) -> PartyDescription:
        if self.down is not None:
            raise self.down
        models = tuple(ModelDescription(h, self.dimension or tables[1].shape[1]) for h, tables in self.models.items())
        return PartyDescription(self.name, self.classes, models, self.codecs)

    async def posteriors(self, ids, *, model, request_id):
        return await self._answer(0, ids, model, request_id)

    async def embeddings(self, ids, *, model, codec, request_id):
        assert codec == "float32"
        return await self._answer(1, ids, model, request_id)

    async def _answer(self, number, ids, model, request_id):
        self.calls.append((number + 1, len(ids), model, request_id))
        await asyncio.sleep(self.delay[number])
        if self.gate is not None and number == 0:
            await self.gate.wait()
        if self.down is not None or self.error[number] is not None:
            raise self.down or self.error[number]
        if model not in self.models:
            raise PartyRefusedError(self.name, f"does not have {model}")
        table = self.models[model][number]
        values = np.full((len(ids), table.shape[1]), np.nan, np.float32)
        there = [i for i, name in enumerate(ids) if name in self.rows and name not in self.lacks]
        values[there] = table[[self.rows[ids[i]] for i in there]]
        if self.change[number] is not None:
            values = self.change[number](values)
        missing = np.flatnonzero(np.isnan(values).all(axis=1)).tolist()
        sent, shape = np.delete(values, missing, axis=0), (len(ids), table.shape[1])
        size = len(there) * table.shape[1] * 4
        return Reply.checked(self.name, sent, shape, size, posterior=number == 0, missing=missing)

    async def close(self) -> None: ...


class TableParty:
    """The same tables as a `gr.Party`, for `gr.predict_two_round`."""

    def __init__(self, party: FakeParty, model: str) -> None:
        self.party, self.model = party, model

    def _rows(self, ids, number):
        table = self.party.models[self.model][number].astype(np.float32)
        values = np.full((len(ids), table.shape[1]), np.nan, np.float32)
        there = [i for i, name in enumerate(ids) if name in self.party.rows and name not in self.party.lacks]
        values[there] = table[[self.party.rows[ids[i]] for i in there]]
        return values

    def posteriors(self, ids):
        return self._rows(ids, 0)

    def embeddings(self, ids):
        return self._rows(ids, 1)


def fuse_for(tag: float):
    """Sum what the embeddings carry; refuse those of another version: their last value is its tag."""

    def fuse(embeddings):
        if len(embeddings[0]) and not np.allclose([e[:, -1] for e in embeddings], tag) and len(embeddings[0]) != 2:
            raise ValueError("embeddings of another version")
        total = np.abs(np.sum([e[:, :-1] for e in embeddings], axis=0)) + 1e-9
        return total / total.sum(axis=1, keepdims=True)

    def masked(embeddings, present):
        return fuse([e for e, there in zip(embeddings, present, strict=True) if there])

    fuse.masked = masked
    return fuse


def make_fusion():
    """For `fusion.factory = "fake_federation:make_fusion"`."""
    return fuse_for(1.0)


@dataclass
class Federation:
    folder: Path
    parties: list[FakeParty]
    test: World
    artifacts: dict[str, Path]
    routers: dict[str, gr.ExpectedGainRouter]
    fusions: dict[str, StrongSource]
    settings: CoordinatorSettings

    def offline(self, ids, version="one", router=None):
        """What the library says."""
        parties = [TableParty(p, f"{version}-{p.name}") for p in self.parties]
        return gr.predict_two_round(parties, self.fusions[version].fuse, router or self.routers[version], ids)

    def pooled(self, version="one"):
        """What Round 1 alone says of every sample, (N, K)."""
        return self.routers[version].route(self.test.local.astype(np.float32)).pooled

    def load_strong(self, settings: FusionSettings) -> StrongSource:
        name = settings.factory.partition(":")[2] if settings.factory else Path(settings.run or "").name
        return self.fusions[name] if name in self.fusions else load_strong_source(settings)

    def having(self, **sections: Any) -> Federation:
        """The same with other settings: having(rounds={"on_missing_party": "pool"})."""
        changed = {
            name: replace(getattr(self.settings, name), **part) if isinstance(part, dict) else part
            for name, part in sections.items()
        }
        return replace(self, settings=replace(self.settings, **changed))


def _knows(subset: tuple[int, ...], labels: Any) -> Any:
    """Which samples a subset answers as everyone does: most of its own classes, and half of the others."""
    share = np.where(np.isin(labels % M, subset), 0.97, 0.5)
    return np.random.default_rng(subset).random(len(labels)) < share


@functools.cache
def _fitted(
    name: str, lam: float, budget: float, classes: tuple[str, ...], subsets: tuple[tuple[int, ...], ...]
) -> tuple[gr.ExpectedGainRouter, bytes]:
    """Fit a router once per process; returns it and its artifact."""
    calibration = world(400, M, K, 0)
    labels, answers = (np.array(classes)[values] for values in (calibration.labels, calibration.strong))
    router = gr.ExpectedGainRouter(budget, classes=classes, threshold="calibration", lam=lam)
    router.fit(calibration.local, labels, answers)
    if subsets:
        by_subset = {s: np.where(_knows(s, calibration.labels), answers, np.roll(classes, 1)[0]) for s in subsets}
        router = gr.fit_subsets(router, calibration.local, labels, by_subset, party_bytes=BYTES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "router.safetensors"
        gr.save(router, path, provenance=gr.Provenance({party: f"{name}-{party}" for party in NAMES}, "float32"))
        return router, path.read_bytes()


def federation(
    folder: Path,
    budget: float = 0.3,
    classes: tuple[str, ...] = CLASSES,
    subsets: tuple[tuple[int, ...], ...] = (),
) -> Federation:
    """Two model versions side by side at three parties, each with a router, also for `subsets`, and a fusion."""
    test, other = world(N, M, K, 1), world(N, M, K, 2)
    parties = [FakeParty(name, {}, classes) for name in NAMES]
    artifacts, routers, fusions = {}, {}, {}
    for number, (name, local, strong) in enumerate(
        [("one", test.local, test.strong), ("two", other.local, other.strong)]
    ):
        for i, party in enumerate(parties):
            tag = np.full((N, 1), number + 1.0)
            party.models[f"{name}-{party.name}"] = (
                local[i].astype(np.float32), np.hstack([np.eye(K)[strong] / M, tag]).astype(np.float32),
            )  # fmt: skip
        router, artifact = _fitted(name, 1.0 + number, budget, tuple(classes), subsets)
        routers[name] = copy.deepcopy(router)
        artifacts[name] = folder / f"{name}.safetensors"
        artifacts[name].write_bytes(artifact)
        fusions[name] = from_function(fuse_for(number + 1.0), name)
    settings = CoordinatorSettings(
        server=ServerSettings(without_tokens=True),
        router=RouterSettings(artifact=artifacts["one"]),
        fusion=FusionSettings(factory="made:one"),
        party=tuple(PartyEndpoint(name=name, address=f"{name}:1") for name in NAMES),
        rounds=RoundSettings(one_seconds=30.0, two_seconds=30.0, health_seconds=0.05),
        log=LogSettings(path=folder / "log" / "decisions.sqlite", posteriors=True),
        tokens=TokenSettings(admin={"ops": hash_token(ADMIN)}),
    )
    return Federation(folder, parties, test, artifacts, routers, fusions, settings)


@dataclass
class Running:
    federation: Federation
    coordinator: Coordinator
    client: httpx.AsyncClient

    async def infer(self, ids, **more):
        body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": list(ids)}], **more}
        response = await self.client.post("/v2/models/gainroute/infer", json=body)
        await asyncio.sleep(0)  # answers are counted once they are on their way
        return response

    async def answers(self, ids):
        response = await self.infer(ids)
        assert response.status_code == 200, response.text
        return outputs(response.json())

    async def admin(self, path, body):
        return await self.client.post(f"/admin/{path}", json=body, headers={"Authorization": f"Bearer {ADMIN}"})

    async def status(self):
        return (await self.client.get("/api/status")).json()


def outputs(body):
    found = {o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in body["outputs"]}
    return found | {"version": body["model_version"]}


@contextlib.asynccontextmanager
async def serving(fed: Federation, **server: Any):
    """The URL of a coordinator that serves on a free port; `server` are settings of its section."""
    settings = fed.having(
        server={"port": 0, **server}, fusion=FusionSettings(factory="fake_federation:make_fusion")
    ).settings
    by_name = {party.name: party for party in fed.parties}
    ready = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(settings, connect=lambda p, _: by_name[p.name], on_ready=ready.set_result))
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield ready.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(fed: Federation):
    """A coordinator with its app, started."""
    coordinator = Coordinator(fed.settings, fed.parties, load_strong=fed.load_strong)
    await coordinator.start()
    transport = httpx.ASGITransport(create_app(coordinator, manage=False))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield Running(fed, coordinator, client)
    finally:
        await coordinator.stop()


def hold(fed: Federation) -> asyncio.Event:
    """Have the parties hold back their Round-1 answers until the event is set."""
    gate = asyncio.Event()
    for party in fed.parties:
        party.gate = gate
    return gate


def child_environment() -> dict[str, str]:
    """The environment of a process that imports this module and the same package as this one."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
