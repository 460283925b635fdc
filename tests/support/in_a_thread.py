"""A coordinator over parties that answer from tables, served to a browser from a thread: its parties can be spoiled."""

from __future__ import annotations

import asyncio
import threading

import httpx
import numpy as np
import uvicorn
from fake_federation import ADMIN, CLASSES, IDS
from waiting import until

from gainroute.federation.coordinator.app import create_app
from gainroute.federation.coordinator.coordinator import Coordinator


class Served:
    """Between `with` and its end, at `url`."""

    def __init__(self, fed):
        self.fed = fed
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self):
        coordinator = Coordinator(self.fed.settings, self.fed.parties, load_strong=self.fed.load_strong)
        config = uvicorn.Config(create_app(coordinator), host="127.0.0.1", port=0, log_config=None, lifespan="on")
        self.server = uvicorn.Server(config)
        serving = asyncio.create_task(self.server.serve())
        await until(lambda: self.server.started or serving.done(), 60)
        if self.server.started:
            self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
            self.dashboard = f"{self.url}/#admin={ADMIN}"  # as `gainroute up` prints it
            self._ready.set()
        await serving

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self._thread.join(60)

    def answer(self, rounds=1, *, label=True):
        """Ask for every sample, and tell the truth about each."""
        for _ in range(rounds):
            body = {"inputs": [{"name": "id", "shape": [len(IDS)], "datatype": "BYTES", "data": IDS}]}
            reply = httpx.post(f"{self.url}/v2/models/gainroute/infer", json=body, timeout=60)
            assert reply.status_code == 200, reply.text
            names = next(o for o in reply.json()["outputs"] if o["name"] == "decision_id")["data"]
            if label:
                truth = self.fed.test.labels.tolist()
                told = [{"decision_id": d, "label": CLASSES[y]} for d, y in zip(names, truth, strict=True)]
                assert httpx.post(f"{self.url}/feedback", json={"feedback": told}, timeout=60).status_code == 200

    def status(self):
        return httpx.get(f"{self.url}/api/status", timeout=60).json()

    def spoil(self):
        """Have every party send embeddings that speak for another class."""

        def turned(values):
            return np.hstack([np.roll(values[:, :-1], 1, axis=1), values[:, -1:]])

        for party in self.fed.parties:
            party.change = (None, turned)
