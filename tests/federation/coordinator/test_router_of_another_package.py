"""The coordinator serves a router that another package offers as it serves those of this package."""

from __future__ import annotations

import asyncio

import fake_package
import numpy as np
from fake_federation import CLASSES, IDS, NAMES, K, M, federation, running
from synthetic import world

import gainroute as gr
from gainroute.routing.routers import ROUTERS


def test_a_router_of_another_package_is_served(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(fake_package.install_parts(tmp_path))
    fed, data, names = federation(tmp_path), world(400, M, K, 0), np.array(CLASSES)
    router = ROUTERS.get("their-margin")(0.3, classes=CLASSES, threshold="calibration")
    router.fit(data.local, names[data.labels], names[data.strong])
    models = {party: f"one-{party}" for party in NAMES}
    gr.save(router, fed.artifacts["one"], provenance=gr.Provenance(models, "float32"))

    async def work():
        async with running(fed) as up:
            return await up.answers(IDS)

    found, expected = asyncio.run(work()), fed.offline(IDS, router=router)
    assert expected.escalated.any()
    np.testing.assert_array_equal(found["escalated"], expected.escalated)
    np.testing.assert_allclose(found["score"], expected.score, atol=1e-6)
