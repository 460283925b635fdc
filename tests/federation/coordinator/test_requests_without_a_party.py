"""A party that is absent, or lacks a sample: the service routes and fuses those present, as the library does."""

from __future__ import annotations

import asyncio
import json
import sqlite3

import numpy as np
import pytest
from fake_federation import IDS, N, federation, running

from gainroute.federation.audit_compare import compare_audit
from gainroute.federation.coordinator.settings import ControllerSettings
from gainroute.federation.transport.base import PartyUnavailableError

SUBSETS = ((0, 2), (0, 1))


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path, subsets=SUBSETS).having(rounds={"on_missing_party": "pool"})


def asked(fed):
    with sqlite3.connect(fed.settings.log.path) as connection:
        found = connection.execute("SELECT round, samples, failed FROM asked ORDER BY number").fetchall()
    connection.close()
    return found


def answers(fed, ids=IDS):
    async def work():
        async with running(fed) as up:
            found = await up.answers(ids)
            why = await up.client.get(f"/api/decisions/{found['decision_id'][0]}/explanation")
            return found, await up.status(), why.json()

    return asyncio.run(work())


def expected_of(fed, ids=IDS):
    """What the library says while party b answers nothing."""
    parties = fed.parties
    lacks = parties[1].lacks
    parties[1].lacks = {*IDS}
    found = fed.offline(ids)
    parties[1].lacks = lacks
    return found


def test_while_a_party_is_absent_answers_are_those_of_the_library_without_it(fed):
    fed.parties[1].error = (PartyUnavailableError("b", "gone"), None)
    found, status, why = answers(fed)
    expected = expected_of(fed)
    np.testing.assert_array_equal(found["class"], expected.prediction)
    np.testing.assert_array_equal(found["escalated"], expected.escalated)
    np.testing.assert_allclose(found["probabilities"], expected.probabilities, atol=1e-6)
    np.testing.assert_allclose(found["score"], expected.score, atol=1e-6)
    np.testing.assert_array_equal(found["route"], np.where(expected.escalated, "round2:absent:b", "round1:absent:b"))
    assert 0.15 < expected.escalated.mean() < 0.5
    assert [n for number, n, *_ in fed.parties[0].calls if number == 2] == [expected.escalated.sum()]
    assert not [n for number, n, *_ in fed.parties[1].calls if number == 2]
    assert status["degraded"]["samples"] == 0
    assert status["without_a_party"] == {"round1": (~expected.escalated).sum(), "round2": expected.escalated.sum()}
    assert why["note"].startswith("without b: it was routed by the calibration for the other parties")
    assert sum(c["contribution"] for c in why["classes"]) == pytest.approx(why["score"], abs=1e-5)
    with sqlite3.connect(fed.settings.log.path) as connection:
        logged = connection.execute("SELECT threshold, bytes FROM decisions ORDER BY seq").fetchall()
    connection.close()
    threshold, sent = zip(*logged, strict=True)
    assert set(threshold) == {fed.routers["one"].subset_routers_[0, 2].threshold_}
    np.testing.assert_array_equal(sent, expected.bytes)


def test_one_batch_holds_samples_of_all_kinds(fed):
    fed.parties[1].lacks = {f"s{i}" for i in range(0, N, 2)}
    fed.parties[2].lacks = {"s1", "s2", "s3"}
    found, _, _ = answers(fed)
    expected = fed.offline(IDS)
    np.testing.assert_array_equal(found["class"], expected.prediction)
    np.testing.assert_array_equal(found["escalated"], expected.escalated)
    np.testing.assert_allclose(found["probabilities"], expected.probabilities, atol=1e-6)
    kinds = set(found["route"].tolist())
    assert kinds >= {"round1", "round2", "round1:missing:b", "round2:missing:b", "degraded:missing:b,c"}
    assert any(route.endswith(":missing:c") for route in kinds)
    (_, samples, one), (_, escalated, two) = asked(fed)
    counts = {name: int((expected.escalated & [i not in p.lacks for i in IDS]).sum()) for p in fed.parties
              for name in p.name}  # fmt: skip
    assert (samples, one, escalated) == (N, "", expected.escalated.sum())
    assert json.loads(two) == {"failed": [], "samples": counts}
    assert counts["b"] < counts["a"]


def test_the_log_says_what_each_party_was_asked_for(fed, tmp_path):
    """A party's own audit log agrees, and one that claims another number does not."""
    fed.parties[1].lacks = {f"s{i}" for i in range(0, N, 2)}
    answers(fed)
    calls = {p.name: [c for c in p.calls if c[0] in (1, 2)] for p in fed.parties}
    for extra, agrees in ((0, True), (1, False)):
        file = tmp_path / f"audit{extra}.jsonl"
        file.write_text("".join(
            json.dumps({"time": "2020-01-01T00:00:00+00:00", "party": "b", "coordinator": "main", "request_id": name,
                        "round": number, "count": n + extra * (number == 2), "outcome": "answered"}) + "\n"
            for number, n, _, name in calls["b"]
        ))  # fmt: skip
        assert compare_audit(fed.settings.log.path, [file], party="b").agrees is agrees


def test_a_party_that_fails_in_round_two_concerns_its_samples_alone(fed):
    fed.parties[1].lacks = {f"s{i}" for i in range(0, N, 2)}
    fed.parties[1].error = (None, PartyUnavailableError("b", "gone"))
    found, _, _ = answers(fed)
    expected = fed.offline(IDS)
    fused = expected.escalated & (np.arange(N) % 2 == 0)
    np.testing.assert_array_equal(found["escalated"], fused)
    np.testing.assert_array_equal(found["class"][fused], expected.prediction[fused])
    assert set(found["route"][expected.escalated & ~fused]) == {"degraded:round2:late:b"}


def test_the_budget_controller_counts_samples_that_lack_a_party(fed):
    fed.parties[1].error = (PartyUnavailableError("b", "gone"), None)
    _, status, _ = answers(fed.having(controller=ControllerSettings(budget=0.1, explore=0.0)), IDS * 5)
    controller = status["controller"]
    assert controller["samples"] == 5 * N
    assert abs(controller["escalated"] / controller["samples"] - 0.1) <= controller["bound"]


def test_a_budget_set_by_an_admin_holds_for_those_present_too(fed):
    fed.parties[1].error = (PartyUnavailableError("b", "gone"), None)

    async def work():
        async with running(fed) as up:
            await up.admin("budget", {"budget": 0.0})
            none = await up.answers(IDS)
            await up.admin("budget", {"budget": 1.0})
            return none, await up.answers(IDS)

    none, every = asyncio.run(work())
    assert not none["escalated"].any()
    assert every["escalated"].all()
