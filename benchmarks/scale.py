"""One and two coordinators, with the decision log in an SQLite file and in PostgreSQL.

Everything runs on one machine: four party processes with stub models, mutual TLS, K = 10, 20 % escalated, posteriors
logged, and a PostgreSQL server with its default settings, whose data lie among temporary files. Two coordinators get
half of the connections each, as from a balancer. All answers are durable before they leave.

On a machine with few cores the parties, the clients and the database compete with the coordinators: CPU time per sample
tells more about many machines than samples per second.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.postgres_server import PostgresServer, postgres_server, program
from benchmarks.rows import Row, interleaved, row
from benchmarks.serving_models import NAMES, PARTIES, SAMPLES, Stub, save_router
from benchmarks.serving_processes import Client, Pool, coordinator_config, party_config

__all__ = ["run"]

SINGLES, SINGLE_TURNS = 50, 5
BATCH, REQUESTS, TURNS, CONCURRENCY = 64, 96, 5, 16


def run() -> Iterator[Row]:
    """Measure everything; processes and files are removed afterwards."""
    if program("postgres") is None:
        yield row("no PostgreSQL server is installed: apt-get install postgresql", None, None, None)
        return
    home = Path("out/bench").resolve()
    home.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="scale-", dir=home) as name,
        postgres_server() as server,
        Pool(Path(name)) as pool,
    ):
        yield from _compare(pool, server)


def _compare(pool: Pool, server: PostgresServer) -> Iterator[Row]:
    router = pool.folder / "router.safetensors"
    save_router(router, [Stub(i) for i in range(PARTIES)], 0.2)
    addresses = []
    for number, name in enumerate(NAMES):
        config = party_config(pool, name, "make_stub")
        line = pool.start("gainroute", "party", "--config", config, "--json", party=number)
        addresses.append(str(json.loads(line)["address"]))
    key = pool.folder / "audit.key"
    shared = f'url = "{server.create("scale")}"\nkey = "{key}"\n'
    starts = (("file", ""), ("one", shared), ("two", shared))
    file, one, two = (_coordinator(pool, home, router, addresses, log) for home, log in starts)

    single = [_body(i, 1) for i in range(SINGLES)]
    for client in (file, one, two):
        client.latency(single)  # warm
    database, plain = (1e3 * s for s in interleaved([partial(c.latency, single) for c in (one, file)], SINGLE_TURNS))
    yield row("ms per answer, concurrency 1: PostgreSQL, SQLite", database, plain, database / plain)
    bodies = [_body(i, BATCH) for i in range(REQUESTS)]
    kinds = ([file], [one], [one, two])
    for clients in kinds:
        _seconds(clients, bodies)
    speed = [REQUESTS * BATCH / s for s in interleaved([partial(_seconds, c, bodies) for c in kinds], TURNS)]
    what = f"samples per second, {BATCH} per request, concurrency {CONCURRENCY}"
    yield row(f"{what}: PostgreSQL, SQLite", speed[1], speed[0], speed[1] / speed[0])
    yield row("  two coordinators on PostgreSQL, one", speed[2], speed[1], speed[2] / speed[1])
    yield row("  two coordinators on PostgreSQL, one on SQLite", speed[2], speed[0], speed[2] / speed[0])
    processes = (pool.cpu, server.cpu)
    spent = interleaved([partial(_cpu, cpu, c, bodies) for c in kinds[:2] for cpu in processes], TURNS)
    plain, _, ours, servers = (1e6 * seconds / (REQUESTS * BATCH) for seconds in spent)
    yield row("  CPU µs per sample of coordinator and parties: PostgreSQL, SQLite", ours, plain, ours / plain)
    yield row("  and of the database", servers, None, None)


def _coordinator(pool: Pool, home: str, router: Path, addresses: Sequence[str], log: str) -> Client:
    config = coordinator_config(pool, home, router, "make_linear_fusion", addresses, "[controller]\n")
    config.write_text(config.read_text().replace("[log]\n", f"[log]\n{log}", 1))
    url = pool.start("gainroute", "coordinator", "--config", config).removeprefix("listening on ")
    return Client(url, "/v2/models/gainroute/infer")


def _body(request: int, size: int) -> bytes:
    ids = [str((request * size + i) % SAMPLES) for i in range(size)]
    return json.dumps({"inputs": [{"name": "id", "shape": [size], "datatype": "BYTES", "data": ids}]}).encode()


def _seconds(clients: Sequence[Client], bodies: Sequence[bytes]) -> float:
    """Seconds until all are answered, with an equal share of requests and connections for each coordinator."""
    share = len(clients)
    begin = time.perf_counter()
    with ThreadPoolExecutor(share) as threads:
        jobs = [threads.submit(c.at_once, bodies[i::share], CONCURRENCY // share) for i, c in enumerate(clients)]
        for job in jobs:
            job.result()
    return time.perf_counter() - begin


def _cpu(used: Callable[[], float], clients: Sequence[Client], bodies: Sequence[bytes]) -> float:
    """CPU seconds that some processes use while these requests are answered."""
    before = used()
    _seconds(clients, bodies)
    return used() - before
