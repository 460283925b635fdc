"""The service compared with a bare FastAPI endpoint with the same fan-out: latency, throughput, bytes, both routes.

Everything runs on loopback: four party processes, mutual TLS, K = 10, d = 512. The bare peer (`serving_bare.py`) gets
the same requests from the same client, over the same kind of connection, alternating with the coordinator. It only fans
out, averages and answers. The coordinator also routes, checks what parties send, authorises and audits every request at
the parties, keeps metrics, and answers only once the decision is on disk: the log is below ``out/bench``. The bars
refer to the bare peer as installed by `pip install fastapi uvicorn grpcio`; the same peer with the coordinator's event
loop and HTTP parser, uvloop and httptools, is shown as well.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import Row, interleaved, row, timed
from benchmarks.serving_models import CLASSES, DIMENSION, NAMES, PARTIES, SAMPLES, ResNetParty, Stub, save_router
from benchmarks.serving_processes import ADMIN, Client, Pool, coordinator_config, party_config, relays
from gainroute.routing.artifacts import load
from gainroute.routing.payload import communication_cost
from gainroute.routing.router import Router
from gainroute.routing.two_round import round_one

__all__ = ["run"]

INFER = "/v2/models/gainroute/infer"
PAIR = ("label", "probabilities")
FAST = "the bare peer with uvloop and httptools"
SINGLES, SINGLE_TURNS = 200, 9
MANY, BATCH, MANY_TURNS, CONCURRENCY = 320, 64, 7, 16
COUNTED = 40  # requests whose bytes are counted
ROUTED, ROUTED_TURNS, ROUTED_CONCURRENCY = 6, 3, 3


def run() -> Iterator[Row]:
    """Measure everything; processes and files are removed afterwards."""
    home = Path("out/bench").resolve()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="serving-", dir=home) as name:
        folder = Path(name)
        yield row("ms per synced write of a page, for reference", 1e3 * _flush(folder / "flush"), None, None)
        (folder / "stub").mkdir()
        with Pool(folder / "stub") as pool:
            yield from _stubs(pool)
        (folder / "resnet").mkdir()
        with Pool(folder / "resnet") as pool:
            yield from _resnet(pool)


def _flush(path: Path, times: int = 50) -> float:
    """Median seconds of one synced write."""
    found = []
    with path.open("wb", buffering=0) as file:
        file.write(bytes(1 << 20))
        os.fsync(file.fileno())
        for i in range(times):
            file.seek(4096 * i)
            begin = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            found.append(time.perf_counter() - begin)
    return float(np.median(found))


# ---- stub models ------------------------------------------------------------------------------------


def _stubs(pool: Pool) -> Iterator[Row]:
    addresses = [_party(pool, i, "make_stub") for i in range(PARTIES)]
    router = pool.folder / "router.safetensors"
    save_router(router, [Stub(i) for i in range(PARTIES)], 0.2)
    ours = _coordinator(pool, "ours", router, "make_linear_fusion", addresses)
    bare, fast = _bare(pool, "plain"), _bare(pool, "fast")
    _set_budget(ours, 0.0)
    yield from _against_bare(ours, bare, fast, router)
    with relays(addresses) as begun:
        counted = _coordinator(pool, "counted", router, "make_linear_fusion", [r.address for r in begun])
        for budget in (0.2, 1.0):
            _set_budget(counted, budget)
            counted.post(_v2(range(BATCH)))
            before, wire = _bytes(counted), sum(r.bytes for r in begun)
            escalated = [_escalated(counted.post(_v2(_ids(i, BATCH), ("escalated",)))) for i in range(COUNTED)]
            payload, samples = _bytes(counted) - before, COUNTED * BATCH
            wire = sum(r.bytes for r in begun) - wire
            rate = float(np.mean(escalated))
            due = communication_cost(CLASSES, [DIMENSION] * PARTIES, rate)
            paid = payload / samples
            yield row(f"payload bytes per sample, {rate:.0%} escalated, over communication_cost", paid, due, paid / due,
                      "<= 1.05")  # fmt: skip
            yield row("  with ids, framing and TLS, both directions", wire / samples, due, wire / samples / due)


def _against_bare(ours: Client, bare: Client, fast: Client, router: Path) -> Iterator[Row]:
    single = [_v2([i]) for i in range(SINGLES)]
    whole = [_v2([i], ()) for i in range(SINGLES)]
    plain = [_plain([i]) for i in range(SINGLES)]
    _same(ours, bare)
    for client, bodies in ((ours, single), (bare, plain), (fast, plain)):
        client.latency(bodies)  # warm
    routing = partial(_routing, load(router), [Stub(i).posteriors(["0"]) for i in range(PARTIES)])
    found = interleaved(
        [partial(ours.latency, single), partial(bare.latency, plain), partial(fast.latency, plain),
         partial(ours.latency, whole), routing],
        SINGLE_TURNS,
    )  # fmt: skip
    mine, other, hurried, all_outputs, spent = (1e3 * seconds for seconds in found)
    yield row("ms per Round-1 answer, concurrency 1", mine, other, mine / other, "<= 1.5")
    yield row(f"  {FAST}", mine, hurried, mine / hurried)
    yield row("  all outputs requested", all_outputs, other, all_outputs / other)
    yield row("  ms of it spent on routing (default router), as a share", spent, mine, spent / mine, "<= 0.03")
    many = [_v2(_ids(i, BATCH)) for i in range(MANY)]
    everything = [_v2(_ids(i, BATCH), ()) for i in range(MANY)]
    plain = [_plain(_ids(i, BATCH)) for i in range(MANY)]
    asked = ((ours, many), (bare, plain), (fast, plain), (ours, everything))
    for client, bodies in asked[:3]:
        client.at_once(bodies, CONCURRENCY)
    calls = [partial(client.at_once, bodies, CONCURRENCY) for client, bodies in asked]
    speed = [MANY * BATCH / seconds for seconds in interleaved(calls, MANY_TURNS)]
    what = f"samples per second, {BATCH} per request, concurrency {CONCURRENCY}"
    yield row(what, speed[0], speed[1], speed[0] / speed[1], ">= 0.8")
    yield row(f"  {FAST}", speed[0], speed[2], speed[0] / speed[2])
    yield row("  all outputs requested", speed[3], speed[1], speed[3] / speed[1])


def _routing(router: Router, sent: Sequence[Any]) -> float:
    """Median seconds from posteriors to decision for one sample."""
    return float(np.median([timed(partial(round_one, router, sent)) for _ in range(SINGLES)]))


def _same(ours: Client, bare: Client) -> None:
    """Check that both give the same answers."""
    ours.close()
    bare.close()
    ids = _ids(0, BATCH)
    found = {o["name"]: o["data"] for o in json.loads(ours.post(_v2(ids)))["outputs"]}
    other = json.loads(bare.post(_plain(ids)))
    if found["label"] != other["label"] or not np.allclose(found["probabilities"], other["probabilities"], atol=1e-6):
        raise RuntimeError("the coordinator and the bare endpoint give different answers")


# ---- ResNet-18 --------------------------------------------------------------------------------------


def _resnet(pool: Pool) -> Iterator[Row]:
    addresses = [_party(pool, i, "make_resnet") for i in range(PARTIES)]
    router = pool.folder / "router.safetensors"
    parties = [ResNetParty(i) for i in range(PARTIES)]
    save_router(router, parties, 0.2)
    asked = [str(i) for i in range(ROUTED * BATCH)]
    scores = load(router).route(np.stack([party.posteriors(asked) for party in parties])).score
    # Exactly a fifth of the samples, and all of them.
    thresholds: dict[float, float | str] = {0.2: float(np.quantile(scores, 0.8)), 1.0: "-inf"}
    served = _coordinator(pool, "routed", router, "make_resnet_fusion", addresses)
    bodies = [_v2(_ids(i, BATCH), ("escalated",)) for i in range(ROUTED)]
    rates: list[float] = []

    def routed(share: float) -> float:
        _set(served, "threshold", thresholds[share])
        return served.at_once(bodies, ROUTED_CONCURRENCY)

    for share in (0.2, 1.0):
        _set(served, "threshold", thresholds[share])
        rates.append(float(np.mean([_escalated(served.post(body)) for body in bodies])))
    if not (0.19 <= rates[0] <= 0.21 and rates[1] == 1.0):
        raise RuntimeError(f"{rates[0]:.1%} and {rates[1]:.1%} were escalated; 20 % and all are to be compared")
    seconds = interleaved([partial(routed, 0.2), partial(routed, 1.0)], ROUTED_TURNS)
    speed = [ROUTED * BATCH / s for s in seconds]
    what = f"samples per second with ResNet-18, {rates[0]:.0%} compared with {rates[1]:.0%} escalated"
    yield row(what, speed[0], speed[1], speed[0] / speed[1], ">= 3")


# ---- processes and bodies ---------------------------------------------------------------------------


def _party(pool: Pool, number: int, factory: str) -> str:
    config = party_config(pool, NAMES[number], factory)
    line = pool.start("gainroute", "party", "--config", config, "--json", party=number)
    return str(json.loads(line)["address"])


def _coordinator(pool: Pool, home: str, router: Path, fusion: str, addresses: Sequence[str]) -> Client:
    config = coordinator_config(pool, home, router, fusion, addresses)
    url = pool.start("gainroute", "coordinator", "--config", config).removeprefix("listening on ")
    return Client(url, INFER)


def _bare(pool: Pool, pace: str) -> Client:
    module = "benchmarks.serving_bare"
    homes = [pool.certificate("party", name, pace).ca.parent for name in NAMES]
    addresses = [pool.start(module, "party", pace, home, party=i) for i, home in enumerate(homes)]
    front = pool.certificate("coordinator", "bench", pace).ca.parent
    return Client(pool.start(module, "front", pace, front, *addresses), "/infer")


def _set_budget(client: Client, budget: float) -> None:
    _set(client, "budget", budget)


def _set(client: Client, what: str, value: float | str) -> None:
    """Change the budget or the threshold of a running coordinator."""
    client.close()
    client.post(json.dumps({what: value}).encode(), f"/admin/{what}", Authorization=f"Bearer {ADMIN}")


def _ids(request: int, n: int) -> list[int]:
    """Sample ids that were not used for calibration."""
    return [(request * n + i) % (SAMPLES // 2) for i in range(n)]


def _v2(ids: Sequence[int], outputs: Sequence[str] = PAIR) -> bytes:
    tensor = {"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": [str(i) for i in ids]}
    return json.dumps({"inputs": [tensor], "outputs": [{"name": name} for name in outputs]}).encode()


def _plain(ids: Sequence[int]) -> bytes:
    return json.dumps({"ids": [str(i) for i in ids]}).encode()


def _escalated(body: bytes) -> float:
    return float(np.mean(json.loads(body)["outputs"][0]["data"]))


def _bytes(client: Client) -> int:
    """Payload bytes received from the parties, in both rounds."""
    found = client.get("/api/status")
    return int(found["bytes"]["sent"])
