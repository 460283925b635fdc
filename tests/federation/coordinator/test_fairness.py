"""One client does not starve the rest: turns, quotas, and feedback that does not hold up decisions."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import numpy as np
import pytest
from fake_federation import IDS, N, federation, hold, outputs, running
from waiting import until

from gainroute._util.allowance import Allowance
from gainroute.federation.coordinator.api.feedback import CHUNK
from gainroute.federation.coordinator.client_settings import ClientQuotaSettings, HolderQuota
from gainroute.federation.coordinator.decision_log.writer import DecisionLog
from gainroute.federation.coordinator.errors import TooLargeError, TooManyRequestsError
from gainroute.federation.coordinator.fair_queue import FairGate, FairQueue
from gainroute.federation.coordinator.holder_quotas import HolderQuotas
from gainroute.federation.coordinator.settings import LogSettings
from gainroute.federation.coordinator.tokens import hash_token

TOKENS = {"client": {"shop": hash_token("shop"), "rival": hash_token("rival")}}


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path).having(tokens=TOKENS)


def post(up, token, ids):
    body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": list(ids)}]}
    headers = {"Authorization": f"Bearer {token}"}
    return up.client.post("/v2/models/gainroute/infer", json=body, headers=headers)


# ---- turns ----------------------------------------------------------------------------------------------


def test_holders_share_by_cost_and_one_alone_gets_everything():
    queue = FairQueue()
    for i in range(6):
        queue.put("large", ("large", i), 100)
    for i in range(300):
        queue.put("small", ("small", i), 1)
    first = [queue.take() for _ in range(206)]
    assert [item[0] for item in first].count("small") == 203
    assert [item[1] for item in first if item[0] == "large"] == [0, 1, 2]
    queue = FairQueue()
    for i in range(5):
        queue.put("one", i, 10)
    assert queue.take(room=9) is None
    assert [queue.take(room=10) for _ in range(6)] == [0, 1, 2, 3, 4, None]
    assert queue.cost == 0
    for i in range(50):  # what one was served while nobody else waited is not held against it
        queue.put("one", i, 10)
        assert queue.take() == i
    queue.put("one", "a", 10)
    queue.put("new", "b", 10)
    queue.put("new", "c", 10)
    assert [queue.take() for _ in range(3)] == ["a", "b", "c"]


def test_a_gate_lets_the_holder_in_that_was_served_least_and_survives_cancellation():
    async def work():
        gate, order, leave = FairGate(1), [], asyncio.Event()

        async def enter(name, costs):
            async with gate.turn(costs):
                order.append(name)
                await leave.wait()

        tasks = [asyncio.ensure_future(enter("first", {"shop": 10}))]
        await until(lambda: order)
        for i in range(3):
            tasks.append(asyncio.ensure_future(enter(f"shop {i}", {"shop": 10})))
            await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(enter("both", {"shop": 10, "rival": 1})))
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.sleep(0)
        leave.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with gate.turn({"shop": 1}):  # the slot is free again
            return order

    assert asyncio.run(work()) == ["first", "shop 0", "both", "shop 2"]


def test_a_request_does_not_wait_for_the_backlog_of_another_client(fed):
    """Forty full batches are queued when the other client asks; it is in the next batch but one."""
    fed = fed.having(batching={"max_batch": N, "max_queued": 50 * N, "slots": 1})

    async def work():
        async with running(fed) as up:
            gate = hold(fed)
            done = []

            async def ask(name, token, ids):
                response = await post(up, token, ids)
                assert response.status_code == 200, response.text
                done.append(name)

            flood = [asyncio.ensure_future(ask("shop", "shop", IDS)) for _ in range(40)]
            await until(lambda: up.coordinator.batcher.in_flight == 40 * N)
            lone = asyncio.ensure_future(ask("rival", "rival", ["s0"]))
            await until(lambda: up.coordinator.batcher.in_flight == 40 * N + 1)
            gate.set()
            await asyncio.gather(lone, *flood)
            return done

    done = asyncio.run(work())
    assert len(done) == 41
    assert done.index("rival") <= 3


def test_a_full_queue_of_one_client_does_not_refuse_another(fed):
    fed = fed.having(batching={"max_batch": N, "max_queued": 4 * N})

    async def work():
        async with running(fed) as up:
            gate = hold(fed)
            flood = [asyncio.ensure_future(post(up, "shop", IDS)) for _ in range(6)]
            await until(lambda: sum(task.done() for task in flood) == 2)
            lone = [asyncio.ensure_future(post(up, "rival", IDS)) for _ in range(3)]
            await until(lone[2].done)
            gate.set()
            return [[r.status_code for r in await asyncio.gather(*some)] for some in (flood, lone)]

    flood, lone = asyncio.run(work())
    assert sorted(flood) == [200] * 4 + [503] * 2
    assert lone == [200, 200, 503]  # its equal share of the room


# ---- quotas ---------------------------------------------------------------------------------------------


def test_quotas_refill_by_the_minute_and_are_per_holder():
    clock = [0.0]
    settings = ClientQuotaSettings(
        requests_per_minute=2, samples_per_minute=60, holder=(HolderQuota(name="shop", requests_per_minute=0),)
    )
    quotas = HolderQuotas(settings, clock=lambda: clock[0])
    for _ in range(20):
        quotas.charge("shop")
    quotas.charge("rival", 60)
    with pytest.raises(TooManyRequestsError, match="quota of rival, 60 samples per minute, is used up") as error:
        quotas.charge("rival", 30)
    assert error.value.retry_after == 30
    with pytest.raises(TooManyRequestsError, match="2 requests per minute"):
        quotas.charge("rival", 1)
    clock[0] = 60.0
    quotas.charge("rival", 60)
    with pytest.raises(TooLargeError, match="61 samples in one request"):
        quotas.charge("shop", 61)
    assert quotas.escalations("rival", 1000) == 1000
    assert not quotas.limits_escalations


def test_an_allowance_forgets_the_key_unused_for_longest():
    allowance = Allowance(most=2, clock=lambda: 0.0)
    for key in ("a", "b", "a", "c"):
        allowance.take(key, 10)
    assert [allowance.left(key, 10) for key in "abc"] == [8, 10, 9]


def test_a_holder_beyond_its_quota_is_told_which_and_when(fed):
    fed = fed.having(quota={"holder": (HolderQuota(name="shop", samples_per_minute=N, requests_per_minute=3),)})

    async def work():
        async with running(fed) as up:
            asked = [await post(up, token, IDS) for token in ("shop", "shop", "rival", "rival")]
            body = {"decision_id": "0000000000000001", "label": "cat"}
            told = [
                await up.client.post("/feedback", json=body, headers={"Authorization": "Bearer shop"}) for _ in range(2)
            ]
            return asked, told

    asked, told = asyncio.run(work())
    assert [r.status_code for r in asked] == [200, 429, 200, 200]
    assert f"the quota of shop, {N} samples per minute" in asked[1].json()["error"]
    assert 50 <= int(asked[1].headers["Retry-After"]) <= 60
    assert [r.status_code for r in told] == [404, 429]
    assert "3 requests per minute" in told[1].json()["error"]


def test_without_escalations_left_the_round_1_answer_stays_and_is_marked(fed):
    limited = fed.having(quota={"escalations_per_minute": 5})

    async def work():
        async with running(limited) as up:
            shop, again, rival = [outputs((await post(up, t, IDS)).json()) for t in ("shop", "shop", "rival")]
            await until(lambda: up.coordinator.live.samples == 3 * N)  # counted once the answers are on their way
            text = (await up.client.get("/metrics", headers={"Authorization": "Bearer rival"})).text
            return shop, again, rival, text

    shop, again, rival, text = asyncio.run(work())
    expected = fed.offline(IDS)
    wanted = int(expected.escalated.sum())
    assert (shop["escalated"].sum(), again["escalated"].sum(), rival["escalated"].sum()) == (5, 0, 5)
    best = np.argsort(-np.where(expected.escalated, shop["score"], -np.inf))[:5]
    assert set(best) == set(np.flatnonzero(shop["escalated"]))
    marked = shop["route"] == "degraded:quota:escalations"
    assert marked.sum() == wanted - 5
    np.testing.assert_array_equal(shop["label"][marked], fed.pooled().argmax(axis=1)[marked])
    assert (again["route"] == "degraded:quota:escalations").sum() == wanted
    assert f'gainroute_degraded_total{{reason="quota"}} {3 * wanted - 10:.1f}' in text
    assert "gainroute_escalations_total 10.0" in text


# ---- feedback and decisions -----------------------------------------------------------------------------


def test_decisions_wait_for_one_other_write_at_most(tmp_path):
    log = DecisionLog(LogSettings(path=tmp_path / "log.sqlite"))
    gate, order = threading.Event(), []

    async def work():
        blocked = asyncio.ensure_future(log.write(lambda _: gate.wait(20)))
        await asyncio.sleep(0)
        feedback = [asyncio.ensure_future(log.write(lambda _: order.append("feedback"))) for _ in range(50)]
        await asyncio.sleep(0)
        decisions = [log._submit(lambda _: order.append("decision"), alone=False) for _ in range(3)]
        gate.set()
        await asyncio.gather(blocked, *feedback, *decisions)

    asyncio.run(work())
    log.close()
    assert len(order) == 53
    assert order[:3] == ["decision"] * 3


def test_a_long_list_of_labels_is_written_in_pieces(fed):
    async def work():
        async with running(fed) as up:
            names = outputs((await post(up, "shop", IDS)).json())["decision_id"].tolist()
            writes, write = [], up.coordinator.log.write

            def note(work):
                if isinstance(work, partial):  # not what the monitor saves
                    writes.append(work)
                return write(work)

            up.coordinator.log.write = note
            items = [{"decision_id": name, "label": "cat"} for name in names] * 5
            items[CHUNK + 3] = {"decision_id": "nothing", "label": "cat"}
            headers = {"Authorization": "Bearer shop"}
            told = (await up.client.post("/feedback", json={"feedback": items}, headers=headers)).json()
            return items, writes, told

    items, writes, told = asyncio.run(work())
    assert len(writes) == -(-len(items) // CHUNK)
    assert [error["index"] for error in told["errors"]] == [CHUNK + 3]
    assert len(told["accepted"]) == len(items) - 1
