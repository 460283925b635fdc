"""Feedback, and the JSON behind the dashboard."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
from fake_federation import CLASSES, IDS, K, M, N, federation, running

from gainroute.evaluation.metrics import tradeoff_curve
from gainroute.federation.coordinator.api.curve import curve_points, expected_at, recommend
from gainroute.federation.coordinator.deployment import SetPoint
from gainroute.federation.coordinator.monitoring.statistics import LiveStatistics, RingBuffer
from gainroute.federation.coordinator.settings import FederationFolder
from gainroute.federation.formation.status import status_file


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path)


def test_feedback_by_decision_and_by_sample_where_that_is_unique(fed):
    async def work():
        async with running(fed) as up:

            async def tell(**body):
                response = await up.client.post("/feedback", json=body)
                return response.status_code, response.json()

            found = await up.answers(IDS)
            await up.answers(["s0"])
            first = str(found["decision_id"][0])
            assert (await tell(decision_id=first, label="cat"))[1] == {"accepted": [first], "errors": []}
            assert (await tell(decision_id=first, label="dog"))[0] == 200  # a correction
            assert (await tell(sample_id="s1", label="bee"))[1]["accepted"] == [found["decision_id"][1]]
            status, told = await tell(sample_id="s0", label="bee")
            assert (status, told["code"]) == (409, "conflict")
            assert "more than once" in told["error"]
            assert (await tell(sample_id="nobody", label="bee"))[0] == 404
            for name in ("ffffffffffffffff", "zz", first.upper() + "0", "-1"):
                assert (await tell(decision_id=name, label="bee"))[0] == 404
            for label in (-1, 0, K, "cow", "1", 1.0, True, None):
                assert (await tell(decision_id=first, label=label))[0] == 400
            assert (await tell(label="bee"))[0] == 400
            assert (await tell(decision_id=first, sample_id="s1", label="bee"))[0] == 400
            assert (await tell(decision_id=5, label="bee"))[0] == 400
            assert (await tell(decision_id=first, label="bee", more=1))[0] == 400
            many = [{"decision_id": str(d), "label": CLASSES[y]} for d, y in
                    zip(found["decision_id"], fed.test.labels, strict=True)]  # fmt: skip
            status, told = await tell(feedback=[*many, {"sample_id": "nobody", "label": "ant"}])
            assert len(told["accepted"]) == N
            assert told["errors"][0]["index"] == N
            assert (await tell(feedback=[{}] * 10_001))[0] == 413
            return found, await up.status()

    found, status = asyncio.run(work())
    judged, escalated = status["feedback"], found["escalated"]
    assert judged["labels"] == N
    assert judged["accuracy"] == pytest.approx((found["label"] == fed.test.labels).mean())
    weak = fed.pooled().argmax(axis=1)
    assert judged["weak_accuracy"] == pytest.approx((weak == fed.test.labels).mean())
    assert judged["escalated_labels"] == escalated.sum()
    assert judged["escalated_accuracy"] == pytest.approx((found["label"] == fed.test.labels)[escalated].mean())


@pytest.mark.parametrize(
    ("names", "accepted", "refused"),
    [
        (CLASSES, {"bee": 1}, {1: "a number could mean a column or a name", "1": "given by name"}),
        (("1", "2", "3", "4"), {"1": 0, "4": 3}, {1: '{"label": "1"}', 0: "a column or a name", "0": '"1", "2", "3"'}),
        (("1", "0", "2", "3"), {"1": 0, "0": 1}, {0: '{"label": "0"}'}),
        (("0", "1", "2", "3"), {"1": 1, 1: 1, 0: 0}, {4: "given by name", True: "label is true"}),
    ],
)
def test_a_class_is_given_by_its_name_and_a_number_only_where_it_cannot_be_misread(tmp_path, names, accepted, refused):
    fed = federation(tmp_path, classes=names)

    async def work():
        async with running(fed) as up:
            found = await up.answers(["s0", "s1"])
            assert found["class"].tolist() == [names[label] for label in found["label"]]
            name = str(found["decision_id"][0])
            for label, column in accepted.items():
                told = await up.client.post("/feedback", json={"decision_id": name, "label": label})
                assert told.status_code == 200
                told = (await up.client.get(f"/api/decisions/{name}/explanation")).json()
                assert (told["truth"], told["true_class"], told["class"]) == (column, names[column], found["class"][0])
            for label, remedy in refused.items():
                told = await up.client.post("/feedback", json={"decision_id": name, "label": label})
                assert told.status_code == 400
                assert remedy in told.json()["error"]

    asyncio.run(work())


def test_samples_that_no_party_has_are_not_counted_as_wrong(fed):
    async def work():
        async with running(fed) as up:
            found = await up.answers([*IDS[:10], "nobody-has-it", "nor-this"])
            labels = [*found["class"][:10].tolist(), "ant", "bee"]
            body = [{"decision_id": str(d), "label": y} for d, y in zip(found["decision_id"], labels, strict=True)]
            assert (await up.client.post("/feedback", json={"feedback": body})).json()["errors"] == []
            listed = (await up.client.get("/api/decisions?limit=12")).json()["decisions"]
            return (await up.status())["feedback"], listed

    judged, listed = asyncio.run(work())
    assert (judged["labels"], judged["accuracy"], judged["unanswered"]) == (10, 1.0, 2)
    assert [d["right"] for d in listed] == [None] * 2 + [True] * 10


def test_status_counts_rate_bytes_and_latency(fed):
    async def work():
        async with running(fed) as up:
            empty = await up.status()
            await up.answers(IDS)
            return empty, await up.status()

    empty, status = asyncio.run(work())
    expected = fed.offline(IDS)
    assert empty["escalation"]["last_1000"] == {"samples": 0, "rate": None}
    assert empty["feedback"]["accuracy"] is None
    assert status["escalation"]["last_1000"]["rate"] == pytest.approx(expected.escalated.mean())
    assert status["escalation"]["escalated"] == expected.escalated.sum()
    first, embedding = N * M * K * 4, M * (K + 1) * 4
    assert status["bytes"]["round1"] == first
    assert status["bytes"]["round2"] == expected.escalated.sum() * embedding
    assert status["bytes"]["always"] == first + N * embedding
    assert status["bytes"]["saved"] == (N - expected.escalated.sum()) * embedding
    assert status["latency_ms"]["round1"]["count"] == status["latency_ms"]["round2"]["count"] == 1
    assert status["latency_ms"]["request"]["p99"] > 0
    assert status["operating_point"]["budget"] == 0.3
    assert status["ready"] is True
    assert status["you"] == "local"
    assert [p["state"] for p in status["parties"]] == ["ok"] * 3
    assert status["router"]["classes"] == list(CLASSES)


def test_the_curve_is_that_of_calibration(fed):
    router = fed.routers["one"]
    behind = router.threshold_scores_
    points = curve_points(router, points=10_000)
    curve = tradeoff_curve(
        behind.score, ~behind.weak_right * 1, ~behind.strong_right * 1, np.zeros(len(behind.score), int)
    )
    at = {round(r, 9): a for r, a in zip(curve.escalation_rate, curve.accuracy, strict=True)}
    for point in points:
        assert at[round(point["rate"], 9)] == pytest.approx(point["accuracy"])
        assert expected_at(behind, point["threshold"]) == pytest.approx((point["rate"], point["accuracy"]))
    thin = curve_points(router)
    assert len(thin) <= 201
    assert (thin[0]["rate"], thin[-1]["rate"]) == (0, 1)

    async def work():
        async with running(fed) as up:
            first = (await up.client.get("/api/curve")).json()
            await up.admin("budget", {"budget": 0.6})
            return first, (await up.client.get("/api/curve")).json()

    first, second = asyncio.run(work())
    assert first["points"] == second["points"]
    assert first["points"][-1]["threshold"] == "-inf"
    assert first["operating_point"]["expected_rate"] == pytest.approx(0.3, abs=0.01)
    assert second["operating_point"]["expected_rate"] == pytest.approx(0.6, abs=0.01)


def curve_of(rng, samples, weak, strong):
    """The curve of a router whose scores say nothing, with the accuracies given."""
    scores = SimpleNamespace(
        score=rng.normal(size=samples), weight=np.ones(samples),
        weak_right=rng.random(samples) < weak, strong_right=rng.random(samples) < strong,
    )  # fmt: skip
    return curve_points(SimpleNamespace(threshold_scores_=scores))


def test_a_budget_is_recommended_only_where_the_interval_excludes_no_advantage():
    rng = np.random.default_rng(0)
    none = [curve_of(rng, 252, 0.8, 0.8) for _ in range(200)]
    assert sum(recommend(points) is not None for points in none) <= 0.05 * len(none), "no false optimum"
    true = [np.interp(0.5, [p["rate"] for p in c], [p["low"] <= 0.8 <= p["high"] for p in c]) for c in none]
    assert np.mean(true) > 0.9
    points = curve_of(rng, 2000, 0.6, 0.9)
    best = recommend(points)
    assert best is not None
    assert best > 0.8, "every escalation helps here"
    assert all(p["low"] <= p["accuracy"] <= p["high"] for p in points)
    assert (points[0]["low"], points[0]["high"]) == (points[0]["accuracy"],) * 2
    few, many = (next(p for p in curve_of(rng, n, 0.6, 0.9) if p["rate"] >= 0.5) for n in (250, 4000))
    assert few["high"] - few["low"] > 3 * (many["high"] - many["low"])


def test_the_live_rate_is_that_since_the_operating_point_was_changed(fed):
    async def work():
        async with running(fed) as up:
            empty = (await up.client.get("/api/rate")).json()["points"]
            await up.answers(IDS)
            before = await up.status()
            await up.admin("budget", {"budget": 0.6})
            assert (await up.status())["escalation"]["now"] == {"samples": 0, "rate": None, "changed": True}
            await up.answers(IDS[:40])
            rates = (await up.client.get("/api/rate?seconds=60")).json()["points"]
            wrong = await up.client.get("/api/rate?seconds=0")
            return empty, before["escalation"]["now"], (await up.status())["escalation"]["now"], rates, wrong

    empty, before, after, rates, wrong = asyncio.run(work())
    assert [(point["samples"], point["budget"]) for point in empty] == [(0, 0.3)]
    assert (before["samples"], before["changed"]) == (N, False)
    assert (after["samples"], after["changed"]) == (40, True)
    assert after["rate"] > before["rate"]
    assert (rates[-1]["rate"], rates[-1]["samples"], rates[-1]["budget"]) == (after["rate"], 40, 0.6)
    assert wrong.status_code == 400


def test_the_history_of_the_rate_covers_a_day_in_few_points():
    clock = [0.0]
    live = LiveStatistics(lambda: clock[0])
    outcome = SimpleNamespace(
        route=["round1"] * 4, wanted=np.array([True, False, False, False]), label=np.zeros(4, int), spent=None,
        deployment=SimpleNamespace(hash="a", point=SetPoint("budget", 0.3, 0.1)),
    )  # fmt: skip
    outcome = type("Four", (SimpleNamespace,), {"__len__": lambda self: 4})(**vars(outcome))
    for clock[0] in range(0, 90_000, 3):
        live.answered(outcome, None)
    day, minutes = (live.history(seconds, outcome.deployment) for seconds in (86_400, 600))
    assert len(day) <= 301
    assert day[0]["time"] == pytest.approx(clock[0] - 86_400, abs=10)
    assert 90 <= len(minutes) <= 130
    assert {point["rate"] for point in minutes} == {0.25}
    assert minutes[-1] == {"time": clock[0], "samples": 1000, "rate": 0.25, "changed": False, "budget": 0.3}


def test_decisions_are_listed_and_explained_class_by_class(fed):
    fed.parties[1].lacks = {"s3"}

    async def work():
        async with running(fed) as up:
            found = await up.answers(IDS)
            listed = (await up.client.get("/api/decisions?limit=7")).json()
            names = found["decision_id"].tolist()
            explained = [(await up.client.get(f"/api/decisions/{n}/explanation")).json() for n in names]
            unknown = await up.client.get("/api/decisions/0000000000000000/explanation")
            await up.admin("router", {"artifact": "two.safetensors", "fusion": {"run": "two"}})
            before = await up.client.get(f"/api/decisions/{names[0]}/explanation")
            return found, listed, explained, unknown, before

    found, listed, explained, unknown, before = asyncio.run(work())
    assert [d["sample_id"] for d in listed["decisions"]] == IDS[:-8:-1]
    assert listed["classes"] == list(CLASSES)
    assert unknown.status_code == 404
    assert before.status_code == 200  # the router before is still at hand
    router = fed.routers["one"]
    for i, told in enumerate(explained):
        if i == 3:
            assert [c["local"]["b"] for c in told["classes"]] == [None] * K
            assert "did not have the sample" in told["note"]
            continue
        want = router.explain(fed.test.local[:, i].astype(np.float32))
        np.testing.assert_allclose([c["contribution"] for c in told["classes"]], want.contribution, atol=1e-6)
        np.testing.assert_allclose([c["reliability"] for c in told["classes"]], want.reliability)
        assert sum(c["contribution"] for c in told["classes"]) == pytest.approx(told["score"], abs=1e-6)
        assert told["answered_by"] == ("strong" if found["escalated"][i] else "weak")
        assert (told["classes"][0]["strong"] is not None) == found["escalated"][i]


def test_live_statistics_do_not_grow():
    ring = RingBuffer(10)
    for part in (3, 4, 25, 1, 9, 10):
        ring.extend(np.arange(ring.total, ring.total + part))
        kept = min(ring.total, 10)
        np.testing.assert_array_equal(ring.last(100), np.arange(ring.total - kept, ring.total))
    ring.add(ring.total)
    np.testing.assert_array_equal(ring.last(2), [51, 52])
    live = LiveStatistics()
    for i in range(10_000):
        live.latency("round1", i)
    assert live.latencies()["round1"]["count"] == 10_000
    assert live.latencies()["round1"]["p50"] > 7e6


# ---- a version that is being formed ---------------------------------------------------------------------


def test_the_newest_run_of_federate_is_shown_once_it_has_begun(fed, tmp_path):
    out = tmp_path / "federation"
    told = {"version": "v11", "stages": {"align": "running"}, "parties": {"a": {"bytes_up": 12}}}

    async def work():
        async with running(fed.having(federation=FederationFolder(out=out))) as up:

            async def shown():
                return (await up.client.get("/api/federation")).json()

            found = [await shown()]
            for version in ("v9", "v10", "v11"):
                (out / version / "work").mkdir(parents=True)
            status_file(out / "v10").write_text("{}")
            found.append(await shown())
            status_file(out / "v11").write_text(json.dumps(told))
            return [*found, await shown()]

    assert asyncio.run(work()) == [{"run": None}, {"run": None}, {"run": told}]
