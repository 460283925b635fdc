"""The coordinator over real sockets with mutual TLS: the same answers as in process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import httpx
import numpy as np
import pytest

pytest.importorskip("grpc")

from fake_federation import IDS, NAMES, K, M, TableParty, federation, outputs
from party_helpers import Federation
from party_helpers import PartyNode as Node
from waiting import until

from gainroute.federation.coordinator.app import create_app
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.server import certificate_days, connect_party
from gainroute.federation.coordinator.settings import CoordinatorTls, PartyEndpoint
from gainroute.federation.party.model import version_of
from gainroute.federation.party.sources import source_of


def test_answers_over_grpc_are_those_of_the_library_and_a_lost_party_comes_back(tmp_path):
    fed = federation(tmp_path)
    certificates = Federation(tmp_path / "certificates")
    files = certificates.files("coordinator", "main")
    tls = CoordinatorTls(ca=files.ca, certificate=files.certificate, key=files.key)

    def node(party, **how):
        served = TableParty(party, f"one-{party.name}")
        served.ids = IDS
        settings = certificates.settings(party.name, **how)
        return Node(settings, source=source_of(version_of(served, served.model, fed.parties[0].classes, K + 1)))

    async def work():
        nodes = [node(party) for party in fed.parties]
        for one in nodes:
            await one.start()
        async with AsyncExitStack() as stack:
            for one in nodes[1:]:
                stack.push_async_callback(one.stop, 0.2)
            table = tuple(PartyEndpoint(name=name, address=one.address) for name, one in zip(NAMES, nodes, strict=True))
            settings = fed.having(party=table, tls=tls, rounds={"one_seconds": 5.0, "two_seconds": 5.0}).settings
            connections = [connect_party(party, settings.tls) for party in settings.party]
            coordinator = Coordinator(
                settings, connections, load_strong=fed.load_strong,
                certificates=lambda: certificate_days(settings, connections),
            )  # fmt: skip
            await coordinator.start()
            stack.push_async_callback(coordinator.stop)
            transport = httpx.ASGITransport(create_app(coordinator, manage=False))
            client = await stack.enter_async_context(
                httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=30)
            )
            ids = [*IDS, "who?"]
            body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}

            async def ask():
                return await client.post("/v2/models/gainroute/infer", json=body)

            first = await ask()
            status = (await client.get("/api/status")).json()
            await nodes[0].stop(0.2)
            refused = await ask()
            again = node(fed.parties[0], listen=nodes[0].address)
            await again.start()
            stack.push_async_callback(again.stop, 0.2)
            await until(lambda: not coordinator.not_ready(), 10)
            return first, status, refused, await ask()

    first, status, refused, last = asyncio.run(work())
    ids = [*IDS, "who?"]
    expected = fed.offline(ids)
    assert (refused.status_code, refused.json()["code"]) == (503, "party_missing")
    assert "'a'" in refused.json()["error"]
    for response in (first, last):
        assert response.status_code == 200, response.text
        found = outputs(response.json())
        names = [fed.parties[0].classes[c] if c >= 0 else None for c in found["label"]]
        assert names == expected.prediction.tolist()
        np.testing.assert_array_equal(found["escalated"], expected.escalated)
        assert found["route"][-1] == "unknown"
    assert status["bytes"]["round1"] == len(IDS) * M * K * 4
    assert status["bytes"]["round2"] == expected.escalated.sum() * M * (K + 1) * 4
    assert {"coordinator", "party a", "party b", "party c"} <= set(status["certificates"])
    assert min(status["certificates"].values()) > 0
