"""A masked Round 1 compared with a plain one: the same router, parties and requests, 64 samples per request.

Each federation has four party processes and a coordinator on loopback, with mutual TLS, K = 10. The CPU time is that of
all five processes.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.rows import Row, interleaved, row
from benchmarks.serving_models import NAMES, PARTIES, SAMPLES, Stub, save_router
from benchmarks.serving_processes import Client, Pool, coordinator_config, party_config
from gainroute.federation.coordinator.masked import new_nonce
from gainroute.federation.masking import create_mask_key
from gainroute.federation.party.masked import MaskedRoundOne
from gainroute.federation.party.model import NO_ROWS
from gainroute.federation.party.settings import PrivacySettings
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.federation.transport.wire import POSTERIOR_ENCODING, write_answer

__all__ = ["run"]

BATCH, REQUESTS, TURNS = 64, 100, 9
CALLS = 500


def run() -> Iterator[Row]:
    """Measure everything; processes and files are removed afterwards."""
    home = Path("out/bench").resolve()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="masked-", dir=home) as name, ExitStack() as stack:
        folder = Path(name)
        keys = {party: create_mask_key(folder / f"{party}.key") for party in NAMES}
        router = folder / "router.safetensors"
        save_router(router, [Stub(i) for i in range(PARTIES)], 0.0, pooling="log-linear", pooled_only=True)
        pools: dict[str, Pool] = {}
        clients: dict[str, Client] = {}
        for kind in ("masked", "plain"):
            (folder / kind).mkdir()
            pools[kind] = stack.enter_context(Pool(folder / kind))
            clients[kind] = _federation(pools[kind], router, folder, keys if kind == "masked" else {})
        bodies = [_body(i) for i in range(REQUESTS)]
        given = {kind: _answers(client, bodies) for kind, client in clients.items()}
        same = [given["masked"][name] == given["plain"][name] for name in ("label", "escalated")]
        if not all(same):
            raise RuntimeError("the masked and the plain federation give different answers")
        masked, plain = interleaved([partial(clients[kind].latency, bodies) for kind in pools], TURNS)
        what = f"ms per Round-1 answer of {BATCH} samples, masked compared with plain"
        yield row(what, 1e3 * masked, 1e3 * plain, masked / plain, "<= 1.3")
        masked, plain = interleaved([partial(_cpu, pools[kind], clients[kind], bodies) for kind in pools], TURNS)
        yield row("  CPU ms of all processes", 1e3 * masked, 1e3 * plain, masked / plain, "<= 1.3")
        masked, plain = (1e6 * seconds / BATCH for seconds in _party_seconds(folder, keys))
        yield row("  CPU µs per sample and party to build the message", masked, plain, masked / plain)


def _federation(pool: Pool, router: Path, folder: Path, keys: dict[str, str]) -> Client:
    addresses = []
    for number, name in enumerate(NAMES):
        peers = "".join(f'{peer} = "{key}"\n' for peer, key in keys.items() if peer != name)
        more = f'[privacy]\nround1 = "masked"\nkey = "{folder / name}.key"\n[privacy.peers]\n{peers}' if keys else ""
        config = party_config(pool, name, "make_stub", more)
        line = pool.start("gainroute", "party", "--config", config, "--json", party=number)
        addresses.append(str(json.loads(line)["address"]))
    more = '[privacy]\nround1 = "masked"\n' if keys else ""
    config = coordinator_config(pool, "ours", router, "make_linear_fusion", addresses, more)
    url = pool.start("gainroute", "coordinator", "--config", config).removeprefix("listening on ")
    return Client(url, "/v2/models/gainroute/infer")


def _body(request: int) -> bytes:
    ids = [str((request * BATCH + i) % (SAMPLES // 2)) for i in range(BATCH)]
    wanted = [{"name": name} for name in ("label", "escalated")]
    return json.dumps(
        {"inputs": [{"name": "id", "shape": [BATCH], "datatype": "BYTES", "data": ids}], "outputs": wanted}
    ).encode()


def _answers(client: Client, bodies: list[bytes]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {"label": [], "escalated": []}
    for body in bodies:
        for output in json.loads(client.post(body))["outputs"]:
            found[output["name"]] += output["data"]
    return found


def _cpu(pool: Pool, client: Client, bodies: list[bytes]) -> float:
    """CPU seconds of a federation per request."""
    before = pool.cpu()
    client.latency(bodies)
    return (pool.cpu() - before) / len(bodies)


def _party_seconds(folder: Path, keys: dict[str, str]) -> tuple[float, float]:
    """CPU seconds that a party needs for the messages of 64 samples, masked and plain."""
    peers = {name: key for name, key in keys.items() if name != "a"}
    party = MaskedRoundOne("a", PrivacySettings(round1="masked", key=folder / "a.key", peers=peers))
    members = [pb.MaskPlan.Member(name=name, model="stub-0", weight=0.25) for name in NAMES]
    plan = pb.MaskPlan(members=members, eps=1e-6).SerializeToString()
    ids = [str(i) for i in range(BATCH)]
    values = Stub(0).posteriors(ids)
    request = pb.Request(round=pb.ROUND_POSTERIORS, model="stub-0", ids=ids, mask_plan=plan)

    def masked() -> float:
        begin = time.process_time()
        for _ in range(CALLS):
            request.mask_nonce = new_nonce()
            party.respond(party.admit("bench", request), request, values, NO_ROWS)
        return (time.process_time() - begin) / CALLS

    def plain() -> float:
        begin = time.process_time()
        for _ in range(CALLS):
            write_answer(request, values, NO_ROWS, POSTERIOR_ENCODING)
        return (time.process_time() - begin) / CALLS

    first, second = interleaved([masked, plain], TURNS)
    return first, second
