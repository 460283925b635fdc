"""What a sample costs at coordinator and parties: a linear model, fitted with 2 and 8 parties, checked with 32.

Every party is a process of its own with a stub model, all on this machine, over mutual TLS: their models cost nothing,
so that what is left is the service. Coordinators answer without escalating anything, or escalate everything, in
requests of 1 and of 64 samples. CPU time, not wall time: on a few cores 32 parties wait for each other.

For M parties, a request of n samples costs the coordinator, in each round, (a + b·M) + n·(c + d·M).
"""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.rows import Row, row
from benchmarks.serving_models import CLASSES, DIMENSION, MOST, SAMPLES, Stub, save_router
from benchmarks.serving_processes import Client, Pool, coordinator_config, party_config

__all__ = ["run"]

SIZES = (2, 8, MOST)
BATCHES = {1: 600, 64: 96}  # samples per request: number of requests
CONCURRENCY, TURNS, IDLE = 8, 3, 200
NEVER, ALWAYS = 2.0, -2.0  # thresholds
INFER = "/v2/models/gainroute/infer"

Cost = tuple[float, float]  # of the coordinator and of all parties, CPU µs per request
Key = tuple[int, int, bool]  # parties, samples per request, whether everything is escalated


@dataclass(frozen=True)
class Served:
    """A coordinator, by its number of parties and whether it escalates everything."""

    client: Client
    pid: int
    log: Path


def run() -> Iterator[Row]:
    """Measure everything; processes and files are removed afterwards."""
    home = Path("out/bench").resolve()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="costs-", dir=home) as name, Pool(Path(name)) as pool:
        names = [f"p{i:02d}" for i in range(MOST)]
        addresses = []
        for number, party in enumerate(names):
            config = party_config(pool, party, "make_stub")
            line = pool.start("gainroute", "party", "--config", config, "--json", party=number)
            addresses.append(str(json.loads(line)["address"]))
        parties = pool.pids
        served = {
            (size, always): _coordinator(pool, names[:size], addresses[:size], always=always)
            for size in SIZES
            for always in (False, True)
        }
        costs = _measure(pool, served, parties)
        yield from _model(costs)
        yield from _sizes(served)


def _coordinator(pool: Pool, names: Sequence[str], addresses: Sequence[str], *, always: bool) -> Served:
    home = f"{len(names)}-{'always' if always else 'never'}"
    router = pool.folder / f"{home}.safetensors"
    stubs = [Stub(i) for i in range(len(names))]
    save_router(router, stubs, 0.2, names, threshold=ALWAYS if always else NEVER)
    config = coordinator_config(pool, home, router, "make_linear_fusion", addresses, names=names)
    config.write_text(config.read_text().replace("posteriors = true", "posteriors = false"))
    url = pool.start("gainroute", "coordinator", "--config", config).removeprefix("listening on ")
    return Served(Client(url, INFER), pool.pids[-1], config.parent / "decisions.sqlite")


# ---- CPU ----------------------------------------------------------------------------------------


def _measure(pool: Pool, served: Mapping[tuple[int, bool], Served], parties: Sequence[int]) -> dict[Key, Cost]:
    """The median over a few turns, interleaved."""
    found: dict[Key, list[Cost]] = {}
    for _ in range(TURNS + 1):
        for (size, always), at in served.items():
            for batch, requests in BATCHES.items():
                bodies = [_body(i, batch) for i in range(requests)]
                before = pool.cpu([at.pid]), pool.cpu(parties)
                at.client.at_once(bodies, CONCURRENCY)
                spent = pool.cpu([at.pid]) - before[0], pool.cpu(parties) - before[1]
                each = 1e6 / (requests + CONCURRENCY)  # each connection sends one request first
                found.setdefault((size, batch, always), []).append((spent[0] * each, spent[1] * each))
    medians = {key: np.median(costs[1:], axis=0) for key, costs in found.items()}  # the first turn warms up
    return {key: (float(cost[0]), float(cost[1])) for key, cost in medians.items()}


def _body(request: int, size: int) -> bytes:
    ids = [str((request * size + i) % SAMPLES) for i in range(size)]
    return json.dumps({"inputs": [{"name": "id", "shape": [size], "datatype": "BYTES", "data": ids}]}).encode()


def _model(costs: Mapping[Key, Cost]) -> Iterator[Row]:
    fitted = [size for size in SIZES if size != MOST]
    least, most = min(BATCHES), max(BATCHES)

    def parts(size: int, holder: int, *, always: bool) -> tuple[float, float]:
        """Per request and per sample, of one number of parties."""
        one, many = costs[size, least, always][holder], costs[size, most, always][holder]
        each = (many - one) / (most - least)
        return one - least * each, each

    for holder, who in enumerate(("coordinator", "all parties together")):
        predicted = {}
        for part, unit in enumerate(("request", "sample")):
            lines = {}
            for always, what in ((False, "Round 1"), (True, "both rounds")):
                values = [parts(size, holder, always=always)[part] for size in fitted]
                slope = (values[1] - values[0]) / (fitted[1] - fitted[0])
                lines[always] = values[0] - slope * fitted[0], slope
                yield row(f"{who}, {what}: CPU µs per {unit}, without parties", lines[always][0], None, None)
                yield row("  and per party", slope, None, None)
            predicted[unit] = {always: base + slope * MOST for always, (base, slope) in lines.items()}
        for (size, batch, always), cost in costs.items():
            if size == MOST:
                expected = predicted["request"][always] + batch * predicted["sample"][always]
                what = f"{who}, {MOST} parties, {batch} per request, {'all' if always else 'none'} escalated"
                yield row(
                    f"{what}: CPU µs per request, measured and predicted",
                    cost[holder],
                    expected,
                    cost[holder] / expected,
                )


# ---- memory and disk ----------------------------------------------------------------------------


def _sizes(served: Mapping[tuple[int, bool], Served]) -> Iterator[Row]:
    resident = {size: _resident(served[size, True].pid) for size in SIZES}
    slope = (resident[MOST] - resident[SIZES[0]]) / (MOST - SIZES[0])
    yield row(f"MiB of a coordinator with {SIZES[0]} parties", resident[SIZES[0]], None, None)
    yield row("  and per further party", slope, None, None)
    at = served[SIZES[0], False]
    where = urlsplit(at.client.url)
    before = _resident(at.pid)
    idle = [socket.create_connection((where.hostname or "", where.port or 0)) for _ in range(IDLE)]
    for connection in idle:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.recv(4096)
    yield row("KiB of a coordinator per open connection", 1024 * (_resident(at.pid) - before) / IDLE, None, None)
    for connection in idle:
        connection.close()
    count, body = 4096, _body(0, 64)
    size = _on_disk(at.log)
    for _ in range(count // 64):
        at.client.post(body)
    yield row("bytes of the decision log per sample, without posteriors", (_on_disk(at.log) - size) / count, None, None)
    yield row("bytes from a party per sample: Round 1, both rounds", 4 * CLASSES, 4 * CLASSES + 4 * DIMENSION, None)


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def _on_disk(log: Path) -> int:
    """Bytes of an SQLite file, with what its write-ahead log still holds."""
    with contextlib.closing(sqlite3.connect(f"file:{log}?mode=ro", uri=True)) as connection:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * size)
