"""Answers over the front door: those of the library, one by one; and what happens when parties misbehave."""

from __future__ import annotations

import asyncio
import sqlite3

import numpy as np
import pytest
from fake_federation import CLASSES, IDS, K, M, N, federation, hold, running
from waiting import until

import gainroute as gr
from gainroute.federation.coordinator.settings import LogSettings
from gainroute.federation.transport.base import PartyRefusedError, PartyUnavailableError


def column(labels):
    return np.array([-1 if value is None else CLASSES.index(value) for value in labels.tolist()])


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path)


def run(work):
    return asyncio.run(work)


def rows(fed, where="1=1"):
    with sqlite3.connect(fed.settings.log.path) as connection:
        connection.row_factory = sqlite3.Row
        found = [dict(r) for r in connection.execute(f"SELECT * FROM decisions WHERE {where} ORDER BY seq")]  # noqa: S608
    connection.close()
    return found


def test_answers_are_those_of_predict_two_round(fed):
    async def work():
        async with running(fed) as up:
            return await up.answers(IDS)

    found, expected = run(work()), fed.offline(IDS)
    np.testing.assert_array_equal(found["label"], column(expected.prediction))
    np.testing.assert_array_equal(found["escalated"], expected.escalated)
    np.testing.assert_allclose(found["probabilities"], expected.probabilities, atol=1e-6)
    np.testing.assert_allclose(found["score"], expected.score, atol=1e-6)
    np.testing.assert_array_equal(found["route"], np.where(expected.escalated, "round2", "round1"))
    assert len(set(found["decision_id"].tolist())) == N
    assert expected.escalated.any()


def test_every_answer_is_in_the_log_before_it_is_sent(fed):
    async def work():
        async with running(fed) as up:
            found = await up.answers(IDS)
            return found, rows(fed)  # while the coordinator runs: nothing is flushed at its end

    found, logged = run(work())
    expected = fed.offline(IDS)
    assert [f"{r['seq']:016x}" for r in logged] == found["decision_id"].tolist()
    assert [r["sample_id"] for r in logged] == IDS
    assert [r["label"] for r in logged] == found["label"].tolist()
    np.testing.assert_allclose([r["score"] for r in logged], expected.score)
    np.testing.assert_allclose([r["bytes"] for r in logged], expected.bytes)
    pooled = fed.pooled()
    for i, r in enumerate(logged):
        local = np.frombuffer(r["local"], "<f4").reshape(M, K)
        np.testing.assert_array_equal(local, fed.test.local[:, i].astype(np.float32))
        np.testing.assert_allclose(np.frombuffer(r["pooled"], "<f4"), pooled[i], atol=1e-6)
        assert (r["strong"] is not None) == expected.escalated[i] == (r["strong_prediction"] is not None)
        assert r["probability"] == float(expected.escalated[i])
        assert r["threshold"] == fed.routers["one"].threshold_
        assert r["latency"] > 0
    assert {len(r["router"]) for r in logged} == {64}


def test_posteriors_are_stored_only_where_asked_for(fed):
    assert LogSettings().posteriors is False

    async def work():
        async with running(fed.having(log={"posteriors": False})) as up:
            found = await up.answers(IDS)
            name = found["decision_id"][0]
            return await up.client.get(f"/api/decisions/{name}/explanation")

    response = run(work())
    assert (
        {r["local"] for r in rows(fed)}
        == {r["pooled"] for r in rows(fed)}
        == {r["strong"] for r in rows(fed)}
        == {None}
    )
    assert response.status_code == 404
    assert "set [log] posteriors = true" in response.json()["error"]


def test_requests_in_flight_share_batches_and_embeddings_are_asked_for_the_escalated_alone(fed):
    async def work():
        async with running(fed.having(batching={"slots": 1})) as up:
            return await asyncio.gather(*(up.answers([name]) for name in IDS))

    found, expected = run(work()), fed.offline(IDS)
    np.testing.assert_array_equal([f["label"][0] for f in found], column(expected.prediction))
    first = [n for number, n, *_ in fed.parties[0].calls if number == 1]
    second = [n for number, n, *_ in fed.parties[0].calls if number == 2]
    assert sum(first) == N
    assert len(first) < N / 4
    assert sum(second) == expected.escalated.sum()


def first_rounds(fed):
    return [n for number, n, *_ in fed.parties[0].calls if number == 1]


def test_what_comes_while_a_batch_is_under_way_goes_together_when_it_is_back(fed):
    async def work():
        async with running(fed.having(batching={"max_wait_ms": 60_000.0})) as up:
            gate = hold(fed)
            asked = [asyncio.create_task(up.answers([IDS[0]]))]
            await until(lambda: len(first_rounds(fed)) == 1)
            for n, name in enumerate(IDS[1:4], 2):
                asked.append(asyncio.create_task(up.answers([name])))
                await until(lambda n=n: up.coordinator.batcher.in_flight == n)
            gate.set()
            await asyncio.wait_for(asyncio.gather(*asked), 20)

    run(work())
    assert first_rounds(fed) == [1, 3]


def test_a_request_that_fills_a_batch_by_itself_does_not_wait_for_others(fed):
    async def work():
        async with running(fed.having(batching={"max_wait_ms": 60_000.0, "max_batch": 4})) as up:
            gate = hold(fed)
            slow = asyncio.create_task(up.answers([IDS[0]]))
            await until(lambda: len(first_rounds(fed)) == 1)
            full = asyncio.create_task(up.answers(IDS[1:5]))
            await until(lambda: len(first_rounds(fed)) == 2)
            under_way = not slow.done()
            gate.set()
            await asyncio.gather(slow, full)
            return under_way

    assert run(work())


def test_but_it_waits_for_a_slow_batch_no_longer_than_it_is_told(fed):
    async def work():
        async with running(fed.having(batching={"max_wait_ms": 20.0})) as up:
            gate = hold(fed)
            slow = asyncio.create_task(up.answers([IDS[0]]))
            await until(lambda: len(first_rounds(fed)) == 1)
            other = asyncio.create_task(up.answers([IDS[1]]))
            await until(lambda: len(first_rounds(fed)) == 2)
            under_way = not slow.done()
            gate.set()
            await asyncio.gather(slow, other)
            return under_way

    assert run(work())


def test_a_request_without_escalation_does_not_wait_for_round_two(fed):
    expected = fed.offline(IDS)
    kept, sent = IDS[int(np.argmin(expected.escalated))], IDS[int(np.argmax(expected.escalated))]
    for party in fed.parties:
        party.delay = (0.0, 0.3)

    async def work():
        async with running(fed) as up:
            first = asyncio.create_task(up.answers([kept]))  # who comes alone does not wait for company
            slow = asyncio.create_task(up.answers([sent]))
            quick = asyncio.create_task(up.answers([kept]))
            done, _ = await asyncio.wait([slow, quick], return_when=asyncio.FIRST_COMPLETED)
            assert done == {quick}
            assert (await slow)["route"].tolist() == ["round2"]
            await first

    run(work())
    assert [n for number, n, *_ in fed.parties[0].calls if number == 1] == [1, 2]  # they did share a batch


def test_a_sample_that_one_party_lacks_or_nobody_has_concerns_that_sample_alone(fed):
    fed.parties[1].lacks = {"s5", "s7"}
    fed.parties[2].lacks = {"s7"}
    ids = [*IDS, "who?"]

    async def work():
        async with running(fed) as up:
            return await up.answers(ids), await up.status()

    (found, status), expected = run(work()), fed.offline(ids)
    np.testing.assert_array_equal(found["label"], column(expected.prediction))
    assert found["route"][[5, 7, N]].tolist() == ["degraded:missing:b", "degraded:missing:b,c", "unknown"]
    assert (found["label"][N], found["class"][N]) == (-1, "")
    np.testing.assert_array_equal(found["probabilities"][N], np.zeros(K))
    assert found["score"][N] == 0
    others = np.setdiff1d(np.arange(N), [5, 7])
    assert set(found["route"][others]) == {"round1", "round2"}
    assert status["degraded"] == {"samples": 2, "by_reason": {"missing": 2}, "unknown": 1}
    assert len(rows(fed)) == N + 1
    assert rows(fed, "sample_id = 'who?'")[0]["score"] is None


FAILURES = {
    "unavailable": {"error": (PartyUnavailableError("b", "gone"), None)},
    "refused": {"error": (PartyRefusedError("b", "another model's hash"), None)},
    "late": {"delay": (60.0, 0.0)},
    "a bug": {"error": (RuntimeError("boom"), None)},
    "short": {"change": (lambda v: v[:-1], None)},
    "narrow": {"change": (lambda v: v[:, :-1], None)},
    "integers": {"change": (lambda v: np.zeros(v.shape, int), None)},
    "half a row of NaN": {"change": (lambda v: np.where(np.arange(K) == 0, np.nan, v), None)},
    "infinite": {"change": (lambda v: v * np.inf, None)},
    "negative": {"change": (lambda v: -v, None)},
    "logits": {"change": (lambda v: 5 * v, None)},
}


def waiting_less(fed):
    """With rounds that the late party alone exceeds, also on a busy machine."""
    return fed.having(rounds={"one_seconds": 1.0, "two_seconds": 1.0})


@pytest.mark.parametrize("how", FAILURES)
def test_a_party_missing_in_round_one_is_named_in_a_refusal(fed, how):
    vars(fed.parties[1]).update(FAILURES[how])
    fed = waiting_less(fed) if how == "late" else fed

    async def work():
        async with running(fed) as up:
            return await up.infer(IDS)

    response = run(work())
    assert response.status_code == 503
    assert response.json()["code"] == "party_missing"
    assert "party 'b'" in response.json()["error"]
    assert "party 'a'" not in response.json()["error"]
    assert response.headers["Retry-After"] == "1"
    assert rows(fed) == []


@pytest.mark.parametrize("how", FAILURES)
def test_or_those_present_are_pooled_never_escalated_and_marked(fed, how):
    vars(fed.parties[1]).update(FAILURES[how])
    fed = waiting_less(fed) if how == "late" else fed

    async def work():
        async with running(fed.having(rounds={"on_missing_party": "pool"})) as up:
            return await up.answers(IDS), await up.status()

    found, status = run(work())
    assert set(found["route"]) == {"degraded:absent:b"}
    assert not found["escalated"].any()
    np.testing.assert_array_equal(found["label"], fed.test.local[[0, 2]].mean(axis=0).argmax(axis=1))
    assert status["degraded"]["by_reason"] == {"absent": N}
    assert [c for c in fed.parties[0].calls if c[0] == 2] == []


def test_with_every_party_missing_nothing_is_pooled(fed):
    for party in fed.parties:
        party.error = (PartyUnavailableError(party.name, "gone"), None)

    async def work():
        async with running(fed.having(rounds={"on_missing_party": "pool"})) as up:
            return await up.infer(IDS)

    assert run(work()).status_code == 503


def test_while_a_party_is_absent_a_sample_the_others_lack_is_not_called_unknown(fed):
    fed.parties[0].error = (PartyUnavailableError("a", "gone"), None)

    async def work():
        async with running(fed.having(rounds={"on_missing_party": "pool"})) as up:
            return await up.answers(["who?", "s0"])

    found = run(work())
    assert found["route"].tolist() == ["degraded:absent:a+missing:b,c", "degraded:absent:a"]
    assert found["label"][0] == -1


SECOND = [
    ("round2:late:b", {"error": (None, PartyUnavailableError("b", "gone"))}),
    ("round2:refused:b", {"change": (None, lambda v: v[:, :-1])}),
    ("round2:refused:b", {"change": (None, lambda v: np.where(np.arange(v.shape[1]) == 0, np.inf, v))}),
    ("round2:b:missing", {"change": (None, lambda v: v * np.nan)}),
    ("round2:fusion:ValueError", {"change": (None, lambda v: v * 3)}),  # the fusion does not know these
]


@pytest.mark.parametrize(("reason", "fault"), SECOND)
def test_round_two_failed_keeps_round_one_marked(fed, reason, fault):
    vars(fed.parties[1]).update(fault)

    async def work():
        async with running(fed) as up:
            return await up.answers(IDS)

    found, expected = run(work()), fed.offline(IDS)
    np.testing.assert_array_equal(found["label"], fed.pooled().argmax(axis=1))
    np.testing.assert_array_equal(found["route"], np.where(expected.escalated, f"degraded:{reason}", "round1"))
    assert not found["escalated"].any()
    assert {r["strong_prediction"] for r in rows(fed)} == {None}


def test_round_two_late_keeps_round_one_marked(fed):
    fed.parties[2].delay = (0.0, 60.0)

    async def work():
        async with running(waiting_less(fed)) as up:
            return await up.answers(IDS)

    found = run(work())
    assert set(found["route"]) == {"round1", "degraded:round2:late:c"}


def test_a_sample_lost_between_the_rounds_concerns_that_sample_alone(fed):
    expected = fed.offline(IDS)
    lost = int(np.flatnonzero(expected.escalated)[1])

    def lose(values):
        values[1] = np.nan
        return values

    fed.parties[0].change = (None, lose)

    async def work():
        async with running(fed) as up:
            return await up.answers(IDS)

    found = run(work())
    assert found["route"][lost] == "degraded:round2:a:missing"
    others = np.setdiff1d(np.arange(N), [lost])
    np.testing.assert_array_equal(found["label"][others], column(expected.prediction)[others])


def test_strong_posteriors_computed_beforehand_need_no_embedding(fed, tmp_path):
    from gainroute.federation.coordinator.coordinator import Coordinator
    from gainroute.federation.coordinator.settings import FusionSettings
    from gainroute.federation.coordinator.strong_source import load_strong_source

    strong = np.eye(K)[fed.test.strong]
    path = tmp_path / "strong.npz"
    np.savez(path, ids=np.array(IDS[:-10]), strong_posterior=strong[:-10])
    settings = fed.having(fusion=FusionSettings(strong=path)).settings

    async def work():
        coordinator = Coordinator(settings, fed.parties, load_strong=load_strong_source)
        await coordinator.start()
        try:
            return await coordinator.infer(IDS, "r", lambda outcome, _: outcome)
        finally:
            await coordinator.stop()

    found, expected = run(work()), fed.offline(IDS)
    there = np.arange(N) < N - 10
    np.testing.assert_array_equal(found.escalated, expected.escalated & there)
    np.testing.assert_array_equal(found.label[there], column(expected.prediction)[there])
    assert {r for r, lost in zip(found.route, expected.escalated & ~there, strict=True) if lost} == {
        "degraded:round2:no_answer"
    }
    assert [c for p in fed.parties for c in p.calls if c[0] == 2] == []


def test_the_request_id_goes_through_to_parties_log_and_answer(fed):
    async def work():
        async with running(fed) as up:
            body = {"inputs": [{"name": "id", "shape": [1], "datatype": "BYTES", "data": ["s1"]}]}
            named = await up.client.post("/v2/models/gainroute/infer", json=body, headers={"X-Request-Id": "trace-7"})
            forged = await up.client.post("/v2/models/gainroute/infer", json=body, headers={"X-Request-Id": "a b\tc"})
            return named, forged

    named, forged = run(work())
    assert named.headers["X-Request-Id"] == "trace-7"
    assert len(forged.headers["X-Request-Id"]) == 32
    names = ["trace-7", forged.headers["X-Request-Id"]]
    assert [r["request_id"] for r in rows(fed)] == names
    sent = [c[3] for c in fed.parties[0].calls if c[0] == 1]
    assert sent == [f"{r['batch']},{r['request_id']}" for r in rows(fed)]  # the batch, then the requests in it


def test_a_full_queue_answers_503_with_retry_after(fed):
    for party in fed.parties:
        party.delay = (0.2, 0.0)

    async def work():
        async with running(fed.having(batching={"max_batch": 50, "max_queued": 100})) as up:
            return await asyncio.gather(*(up.infer(IDS[:40]) for _ in range(5)))

    found = run(work())
    assert sorted(r.status_code for r in found) == [200, 200, 503, 503, 503]
    busy = next(r for r in found if r.status_code == 503)
    assert busy.json()["code"] == "busy"
    assert busy.headers["Retry-After"] == "1"


def test_draining_answers_what_was_taken_on_and_takes_nothing_more(fed):
    async def work():
        async with running(fed) as up:
            gate, batcher = hold(fed), up.coordinator.batcher
            under_way = asyncio.create_task(up.infer(IDS))
            await until(lambda: batcher.in_flight == N)
            draining = asyncio.create_task(batcher.drain(30))
            await until(lambda: batcher.draining)
            refused = await up.infer(IDS)
            ready = await up.client.get("/v2/health/ready")
            gate.set()
            assert await draining
            return await under_way, refused, ready

    answered, refused, ready = run(work())
    assert answered.status_code == 200
    assert (refused.status_code, refused.json()["code"], ready.status_code) == (503, "draining", 503)


def test_a_party_that_comes_late_is_waited_for_and_one_that_comes_back_is_taken_back(fed):

    fed.parties[1].down = PartyUnavailableError("b", "gone")

    async def work():
        async with running(fed) as up:
            assert (await up.client.get("/v2/health/ready")).status_code == 503
            assert (await up.infer(IDS)).status_code == 503
            fed.parties[1].down = None
            await until(lambda: not up.coordinator.not_ready())
            assert (await up.infer(IDS)).status_code == 200
            fed.parties[1].down = PartyUnavailableError("b", "gone")
            await until(up.coordinator.not_ready)
            red = {p["name"]: p["state"] for p in (await up.status())["parties"]}
            assert red == {"a": "ok", "b": "unavailable", "c": "ok"}
            fed.parties[1].down = None
            await until(lambda: not up.coordinator.not_ready())
            return await up.answers(IDS)

    found, expected = run(work()), fed.offline(IDS)
    np.testing.assert_array_equal(found["label"], column(expected.prediction))


def test_a_defer_router_takes_one_column_more(fed, tmp_path):
    rng = np.random.default_rng(0)
    local = rng.dirichlet(np.ones(K + 1), size=(M, N)).astype(np.float32)
    labels = rng.integers(K, size=N)
    router = gr.DeferRouter(0.3, threshold="calibration").fit(local, labels, fed.test.strong)
    models = {p.name: f"one-{p.name}" for p in fed.parties}
    gr.save(router, tmp_path / "one.safetensors", provenance=gr.Provenance(models, "float32"))
    for i, party in enumerate(fed.parties):
        party.models[f"one-{party.name}"] = local[i], party.models[f"one-{party.name}"][1]

    async def work():
        async with running(fed) as up:
            found = await up.answers(IDS)
            first = await up.client.get(f"/api/decisions/{found['decision_id'][0]}/explanation")
            return found, first.json()

    found, explained = run(work())
    expected = fed.offline(IDS, router=router)
    np.testing.assert_array_equal(found["label"], expected.prediction)
    assert "no class-by-class" in explained["note"]
