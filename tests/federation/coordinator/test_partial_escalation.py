"""Partial escalation in the service: whom to ask is what the library says, logged, explained, and within the budget."""

from __future__ import annotations

import asyncio
import sqlite3

import numpy as np
import pytest
from fake_federation import BYTES, IDS, NAMES, K, M, N, TableParty, federation, running

import gainroute as gr
from gainroute.errors import DataError
from gainroute.federation.coordinator.decision_log.reading import read_decisions
from gainroute.federation.coordinator.errors import HandshakeError
from gainroute.federation.coordinator.outcome import asked_for_embedding
from gainroute.federation.coordinator.settings import ControllerSettings
from gainroute.federation.transport.base import PartyUnavailableError

SUBSETS = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path, subsets=SUBSETS).having(router={"partial": True}, rounds={"on_missing_party": "pool"})


def library(fed, ids=IDS, budget=None):
    parties = [TableParty(p, f"one-{p.name}") for p in fed.parties]
    partial = gr.PartialRouter(fed.routers["one"], budget)
    found = gr.predict_two_round(parties, fed.fusions["one"].fuse, partial, ids)
    local = np.array([party.posteriors(ids) for party in parties])
    return found, partial.route(np.nan_to_num(local, nan=1 / K), present=~np.isnan(local[:, :, 0]))


def answers(fed, ids=IDS):
    async def work():
        async with running(fed) as up:
            found = await up.answers(ids)
            row = int(np.flatnonzero(found["escalated"])[0])
            why = await up.client.get(f"/api/decisions/{found['decision_id'][row]}/explanation")
            return found, await up.status(), row, why.json()

    return asyncio.run(work())


def logged(fed):
    with sqlite3.connect(fed.settings.log.path) as connection:
        found = connection.execute("SELECT score, threshold, bytes, route FROM decisions ORDER BY seq").fetchall()
    connection.close()
    return [np.array(values) for values in zip(*found, strict=True)]


def test_answers_and_bytes_are_those_of_the_library_and_each_party_is_asked_for_its_own(fed):
    found, status, row, why = answers(fed)
    expected, decision = library(fed)
    np.testing.assert_array_equal(found["class"], expected.prediction)
    np.testing.assert_array_equal(found["escalated"], expected.escalated)
    np.testing.assert_allclose(found["probabilities"], expected.probabilities, atol=1e-6)
    score, threshold, sent, route = logged(fed)
    np.testing.assert_allclose(score, decision.score, atol=1e-6)
    assert set(threshold) == {gr.PartialRouter(fed.routers["one"]).price_}
    np.testing.assert_array_equal(sent, expected.bytes)
    np.testing.assert_array_equal(sent, M * K * 4 + np.array(BYTES) @ decision.ask)
    for i, (name, party) in enumerate(zip(NAMES, fed.parties, strict=True)):
        asked = [asked_for_embedding(text, name) for text in route]
        np.testing.assert_array_equal(asked, decision.ask[i])
        assert [n for number, n, *_ in party.calls if number == 2] == [decision.ask[i].sum()]
    some = decision.escalate & ~decision.ask.all(axis=0)
    assert some.any()
    assert set(route[some]) <= {f"round2:asked:{','.join(NAMES[i] for i in s)}" for s in SUBSETS}
    best = why["offers"][0]
    assert best["parties"] == [name for name, there in zip(NAMES, decision.ask[:, row], strict=True) if there]
    assert best["net"] == pytest.approx(best["gain"] - threshold[0] * best["bytes_share"], abs=1e-9)
    assert max(offer["gain_per_byte"] for offer in why["offers"]) == pytest.approx(score[row], abs=1e-5)
    point = status["operating_point"]
    assert (point["budget_of"], status["policy"]["partial"]) == ("bytes", True)
    offers = fed.routers["one"].offers_
    assert (point["expected_rate"], point["expected_accuracy"]) == offers.expected(point["threshold"])
    spent = (np.array(BYTES) @ decision.ask).sum() / (sum(BYTES) * N)
    assert status["escalation"]["last_1000"]["rate"] == pytest.approx(spent)


def test_with_a_party_absent_those_present_are_offered(fed):
    fed.parties[1].error = (PartyUnavailableError("b", "gone"), None)
    found, _, _, why = answers(fed)
    fed.parties[1].lacks = {*IDS}
    expected, decision = library(fed)
    np.testing.assert_array_equal(found["class"], expected.prediction)
    np.testing.assert_array_equal(found["escalated"], expected.escalated)
    assert not decision.ask[1].any()
    assert {tuple(offer["parties"]) for offer in why["offers"]} == {("a",), ("c",), ("a", "c")}
    assert all(route.startswith(("round1:absent:b", "round2:absent:b")) for route in found["route"])


def test_the_controller_keeps_the_bytes_within_the_budget(fed):
    found, status, _, _ = answers(fed.having(controller=ControllerSettings(budget=0.1, explore=0.02)), IDS * 8)
    _, _, sent, _ = logged(fed)
    spent = (sent - M * K * 4).sum() / (sum(BYTES) * len(sent))
    assert spent <= 0.1 + status["controller"]["bound"]
    assert status["controller"]["window"]["rate"] == pytest.approx(spent)
    assert found["escalated"].mean() > spent


def test_a_budget_set_by_an_admin_is_one_of_bytes(fed):
    async def work():
        async with running(fed) as up:
            response = await up.admin("budget", {"budget": 0.05})
            return response.json(), await up.answers(IDS)

    point, found = asyncio.run(work())
    _, decision = library(fed, budget=0.05)
    np.testing.assert_array_equal(found["escalated"], decision.escalate)
    assert point["operating_point"]["threshold"] == pytest.approx(gr.PartialRouter(fed.routers["one"], 0.05).price_)


def test_what_needs_every_party_is_refused(fed, tmp_path):
    answers(fed)
    with pytest.raises(DataError, match=r"router\.partial"):
        read_decisions(fed.settings.log.path, fed.routers["one"], rows_router(fed))
    other = tmp_path / "other"
    other.mkdir()
    plain = federation(other).having(router={"partial": True})

    async def start():
        async with running(plain):
            pass

    with pytest.raises(HandshakeError, match="does not know what asking some of the parties is worth"):
        asyncio.run(start())


def rows_router(fed):
    with sqlite3.connect(fed.settings.log.path) as connection:
        (found,) = connection.execute("SELECT router FROM decisions").fetchone()
    connection.close()
    return found
