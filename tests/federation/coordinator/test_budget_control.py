"""The budget controller in the service: it decides as the library's, and nothing that happens makes it forget."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from fake_federation import ADMIN, IDS, N, federation, hold, running
from waiting import until

import gainroute as gr
from gainroute._util.hashing import hash_contents
from gainroute.federation.coordinator.budget_control import BudgetControl, ControlHistory, control_status
from gainroute.federation.coordinator.decision_log.store import get_state
from gainroute.federation.coordinator.deployment import Deployment
from gainroute.federation.coordinator.settings import CapSettings, ControllerSettings
from gainroute.federation.transport.base import PartyUnavailableError

COLUMNS = "threshold, probability, explored, capped, strong_prediction"


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path)


def controlled(fed, **settings):
    return fed.having(controller=ControllerSettings(**settings))


def ask(fed, requests=1, ids=IDS, then=None):
    """Start, ask, and stop; returns what `then` does with the running coordinator."""

    async def work():
        async with running(fed) as up:
            for _ in range(requests):
                await up.answers(ids)
            return await then(up) if then is not None else control_status(up.coordinator.deployment.control)

    return asyncio.run(work())


def rows(fed, columns=COLUMNS):
    with closing(sqlite3.connect(fed.settings.log.path)) as connection:
        return connection.execute(f"SELECT {columns} FROM decisions ORDER BY seq").fetchall()  # noqa: S608


def library(fed, requests=1, ids=IDS, artifact="one", **settings):
    """What `gr.BudgetController` says of the same stream."""
    router = gr.load(fed.artifacts[artifact])
    controller = gr.BudgetController(router, **settings)
    at = [IDS.index(i) for i in ids] * requests
    local = np.array([p.models[f"{artifact}-{p.name}"][0][at] for p in fed.parties])
    decision = controller.route(local)
    expected = list(
        zip(
            decision.thresholds.tolist(),
            decision.probability.tolist(),
            decision.explored.tolist() if settings.get("explore") else [None] * len(at),
            decision.capped.tolist(),
            decision.escalate.tolist(),
            strict=True,
        )
    )
    return controller, expected


def same(found, expected):
    assert [(*row[:4], row[4] is not None) for row in found] == expected


# ---- deciding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"budget": 0.1, "explore": 0.08}, {"explore": 0.0}, {"step": 0.05}])
def test_a_stream_is_decided_and_logged_as_the_library_decides_it(fed, settings):
    status = ask(controlled(fed, **settings), requests=5)
    controller, expected = library(fed, requests=5, **({"explore": 0.01} | settings))
    same(rows(fed), expected)
    assert status["on"] is True
    found = [status[name] for name in ("samples", "escalated", "explored", "capped", "threshold")]
    assert found == [5 * N, controller.escalated, controller.explored, 0, controller.threshold]
    assert status["window"] == {"samples": 5 * N, "rate": controller.rate, "bound": controller.bound(5 * N)}
    assert abs(controller.rate - controller.budget) <= status["bound"] == controller.bound(5 * N)


def test_a_batch_that_is_routed_in_a_thread_is_decided_the_same(fed):
    ids = (IDS * 8)[:900]
    ask(controlled(fed, explore=0.05), requests=2, ids=ids)
    same(rows(fed), library(fed, requests=2, ids=ids, explore=0.05)[1])


def test_without_the_section_one_threshold_holds_and_nothing_is_kept(fed):
    status = ask(fed, requests=2)
    assert status == {"on": False, "history": []}
    router = gr.load(fed.artifacts["one"])
    wanted = fed.offline(IDS).escalated.tolist() * 2
    assert rows(fed) == [
        (router.threshold_, float(w), None, 0, row[4]) for w, row in zip(wanted, rows(fed), strict=True)
    ]
    assert any(wanted)
    assert get_state(fed.settings.log.path, ["controller"]) == {}


def test_what_lacks_a_party_is_never_explored_nor_counted(fed):
    fed.parties[1].lacks = set(IDS[::3])
    status = ask(controlled(fed, budget=0.9, explore=0.9), requests=3)
    complete = 3 * sum(i % 3 != 0 for i in range(N))
    assert status["samples"] == status["window"]["samples"] == complete
    found = rows(fed, "sample_id, route, probability, explored, strong_prediction")
    lacking = [row for row in found if row[0] in fed.parties[1].lacks]
    assert {row[1:] for row in lacking} == {("degraded:missing:b", 0.0, 0, None)}
    assert len(lacking) == 3 * N - complete
    assert status["explored"] == sum(row[3] for row in found) > 0


def test_requests_in_flight_are_decided_one_after_the_other(fed):
    held = controlled(fed, budget=0.2, explore=0.02)

    async def work():
        async with running(held) as up:
            await asyncio.gather(*(up.answers(IDS[i % 100 : i % 100 + 20]) for i in range(60)))
            return control_status(up.coordinator.deployment.control)

    status = asyncio.run(work())
    found = rows(fed)
    assert status["samples"] == len(found) == 1200
    assert status["escalated"] == sum(row[4] is not None for row in found)
    assert status["explored"] == sum(row[2] for row in found)
    assert abs(status["escalated"] / 1200 - 0.2) <= status["bound"]


def test_min_gain_keeps_protecting(fed):
    router = gr.ExpectedGainRouter(0.3, classes=fed.parties[0].classes, threshold="calibration", min_gain=0.9)
    names = np.array(fed.parties[0].classes)
    router.fit(fed.test.local, names[fed.test.labels], names[fed.test.strong])
    models = {p.name: f"one-{p.name}" for p in fed.parties}
    gr.save(router, fed.artifacts["one"], provenance=gr.Provenance(models, "float32"))
    status = ask(controlled(fed, explore=0.0), requests=3)
    assert (status["samples"], status["escalated"], status["min_gain"]) == (3 * N, 0, 0.9)
    assert {row[0] >= 0.9 for row in rows(fed)} == {True}


# ---- the cap ----------------------------------------------------------------------------------------


def test_a_cap_in_samples_stops_bursts_and_says_so(fed):
    cap = CapSettings(rate=0.05, burst=3, per="sample")
    status = ask(controlled(fed, explore=0.02, cap=cap), requests=4)
    bucket = gr.TokenBucket(0.05, 3, per="sample")
    controller, expected = library(fed, requests=4, explore=0.02, cap=bucket)
    same(rows(fed), expected)
    assert status["capped"] == controller.capped > 0
    assert status["escalated"] <= 3 + 0.05 * 4 * N
    assert status["cap"] == {"unit": "samples", "per": "sample", "rate": 0.05, "burst": 3}
    closed = [row for row in rows(fed) if row[3]]
    assert {row[:2] for row in closed} == {(math.inf, 0.0)}


def test_a_cap_in_bytes_counts_what_embeddings_weigh(fed):
    size = 4 * sum(p.models[f"one-{p.name}"][1].shape[1] for p in fed.parties)
    cap = CapSettings(rate=0.02 * size, burst=5 * size, unit="bytes", per="sample")
    status = ask(controlled(fed, cap=cap), requests=4)
    assert status["capped"] > 0
    assert 5 <= status["escalated"] <= 5 + 0.02 * 4 * N


def test_a_cap_in_bytes_waits_for_a_party_that_comes_late_and_holds_then(fed):
    cap = CapSettings(rate=1e-9, burst=1.0, unit="bytes", per="sample")  # below one sample: taken as one
    held = controlled(fed, cap=cap).having(rounds={"on_missing_party": "pool"})
    fed.parties[0].down = PartyUnavailableError("a", "is not there yet")

    async def work():
        async with running(held) as up:
            await up.answers(IDS)
            before = control_status(up.coordinator.deployment.control)
            fed.parties[0].down = None

            async def back():
                return "absent" not in "".join((await up.answers(IDS[:1]))["route"].tolist())

            await until(back)
            for _ in range(3):
                await up.answers(IDS)
            return before, control_status(up.coordinator.deployment.control)

    before, after = asyncio.run(work())
    assert before["samples"] == 0
    assert after["samples"] > 3 * N
    assert (after["escalated"], after["capped"] > 0) == (1, True)


# ---- state ------------------------------------------------------------------------------------------


def test_a_restart_goes_on_as_if_nothing_had_happened(fed, caplog):
    caplog.set_level(logging.INFO, "gainroute.coordinator")
    cap = CapSettings(rate=0.1, burst=4, per="sample")
    held = controlled(fed, explore=0.05, cap=cap)
    for _ in range(3):
        ask(held, requests=2)
    bucket = gr.TokenBucket(0.1, 4, per="sample")
    same(rows(fed), library(fed, requests=6, explore=0.05, cap=bucket)[1])
    assert f"continues after {4 * N} samples" in caplog.text


def test_the_state_on_disk_is_never_behind_the_rows_it_decided(fed):
    held = controlled(fed)

    async def work():
        behind = []
        async with running(held) as up:
            for _ in range(10):
                await asyncio.gather(*(up.answers(IDS[:7]) for _ in range(5)))
                with closing(sqlite3.connect(fed.settings.log.path)) as connection:
                    connection.execute("BEGIN")
                    (logged,) = connection.execute("SELECT count(*) FROM decisions").fetchone()
                    (kept,) = connection.execute("SELECT value FROM state WHERE name = 'controller'").fetchone()
                behind.append(logged - json.loads(kept)["state"]["samples"])
        return behind, logged

    behind, logged = asyncio.run(work())
    assert logged == 350
    assert behind == [0] * 10


def test_the_state_of_another_router_or_of_other_settings_is_not_taken_up(fed, caplog):
    ask(controlled(fed, explore=0.05), requests=2)
    caplog.clear()
    status = ask(controlled(fed, explore=0.02))
    assert status["samples"] == N
    assert "starts afresh: the state was saved with explore 0.05, this controller has 0.02" in caplog.text
    caplog.clear()
    other = fed.having(
        router={"artifact": fed.artifacts["two"]}, fusion=replace(fed.settings.fusion, factory="made:two")
    )
    status = ask(controlled(other, explore=0.02))
    assert status["samples"] == N
    assert "starts afresh: the saved state is of router" in caplog.text
    same(rows(fed)[-N:], library(fed, artifact="two", explore=0.02)[1])


def test_a_state_that_cannot_be_read_is_not_half_taken_up(fed, caplog):
    control = BudgetControl(gr.load(fed.artifacts["one"]), "hash", 0.3, ControllerSettings(), lambda: 1)
    fresh = control.state()
    broken = fresh | {"state": fresh["state"] | {"level": 0.1, "samples": 7, "drawn": "many"}}
    for saved in (broken, {"artifact": "hash"}, {"artifact": "hash", "state": 3}, {"artifact": "other"}, None):
        assert control.restore(saved) is False
    assert control.state() == fresh
    assert caplog.text.count("starts afresh") == 4


# ---- what admins do ---------------------------------------------------------------------------------


def test_a_new_budget_is_a_new_controller_audited_and_there_after_a_restart(fed):
    held = controlled(fed, explore=0.05)

    async def change(up):
        assert (await up.admin("budget", {"budget": 0.6})).status_code == 200
        anew = control_status(up.coordinator.deployment.control)
        await up.answers(IDS)
        audit = await up.client.get("/admin/audit", headers={"Authorization": f"Bearer {ADMIN}"})
        return anew, audit.json()["audit"][0]

    anew, audit = ask(held, then=change)
    assert (anew["budget"], anew["samples"], len(anew["history"])) == (0.6, 0, 1)  # what was before is still shown
    assert audit["action"] == "budget"
    assert audit["before"]["controlled"] is audit["after"]["controlled"] is True
    status = ask(held)
    assert (status["budget"], status["samples"]) == (0.6, 2 * N)
    same(rows(fed)[N:], library(fed, requests=2, budget=0.6, explore=0.05)[1])


def test_a_threshold_turns_it_off_and_a_budget_on_again(fed):
    held = controlled(fed)

    async def change(up):
        assert (await up.admin("threshold", {"threshold": "inf"})).status_code == 200
        return control_status(up.coordinator.deployment.control)

    assert ask(held, then=change)["on"] is False
    assert ask(held)["on"] is False  # after a restart
    assert {row[1:3] for row in rows(fed)[N:]} == {(0.0, None)}

    async def back(up):
        await up.admin("budget", {"budget": 0.0})  # less than what is explored
        off = await up.answers(IDS)
        await up.admin("budget", {"budget": 1.0})
        return off, await up.answers(IDS), control_status(up.coordinator.deployment.control)

    off, full, status = ask(held, requests=0, then=back)
    assert not off["escalated"].any()
    assert full["escalated"].all()
    assert (status["on"], status["bound"], status["threshold"]) == (True, 0.0, "-inf")


def test_a_change_of_budget_neither_fills_the_cap_nor_lifts_the_protection(fed):
    held = controlled(fed, cap=CapSettings(rate=1e-9, burst=4)).having(drift={"seconds": 600.0})

    async def change(up):
        await up.coordinator.operator.protect(0.01, "as found")
        floors = []
        for path, body in (("budget", 0.4), ("threshold", -1), ("threshold", "-inf"), ("budget", 0.5), ("budget", 0.6)):
            assert (await up.admin(path, {path: body})).status_code == 200
            version = up.coordinator.deployment
            floors.append((version.floor, version.control is not None))
            if version.control is not None:
                await up.answers(IDS)
        return floors

    floors = ask(held, requests=2, then=change)
    assert floors == [(0.01, True), (0.01, False), (0.01, False), (0.01, True), (0.01, True)]
    assert sum(row[4] is not None for row in rows(fed)) == 4 + 4  # a threshold has no cap: it is forgotten meanwhile
    status = ask(held, requests=2)
    assert (status["budget"], status["escalated"]) == (0.6, 0)


def test_another_router_brings_a_controller_of_its_own_and_so_does_the_way_back(fed):
    held = controlled(fed, explore=0.05)

    async def switch(up):
        up.coordinator.deployment.control.controller.protection = 0.01
        other = {"artifact": "two.safetensors", "fusion": {"run": "two"}}
        assert (await up.admin("router", other)).status_code == 200
        await up.answers(IDS)
        return up.coordinator.deployment.control

    control = ask(held, then=switch)
    assert control.identity != hash_contents(fed.artifacts["one"])
    assert control.controller.protection is None
    same(rows(fed)[N:], library(fed, artifact="two", explore=0.05)[1])
    ask(held)  # after a restart it goes on
    same(rows(fed)[N:], library(fed, requests=2, artifact="two", explore=0.05)[1])

    async def back(up):
        assert (await up.admin("router", {"rollback": True})).status_code == 200
        await up.answers(IDS)
        return up.coordinator.deployment.control.controller.samples

    assert ask(held, requests=0, then=back) == N
    same(rows(fed)[3 * N :], library(fed, explore=0.05)[1])


def test_a_batch_under_way_is_decided_by_the_controller_it_began_with(fed):
    held = controlled(fed, budget=0.5)

    async def work():
        async with running(held) as up:
            old: Deployment = up.coordinator.deployment
            gate = hold(fed)
            under_way = asyncio.ensure_future(up.answers(IDS))
            await until(lambda: up.coordinator.batcher.in_flight == N)
            assert (await up.admin("budget", {"budget": 0.0})).status_code == 200
            gate.set()
            found = await under_way
            return found, old.control.controller.samples, up.coordinator.deployment.control.controller.samples

    found, old, new = asyncio.run(work())
    assert found["escalated"].any()
    assert (old, new) == (N, 0)


# ---- what is shown ----------------------------------------------------------------------------------


def test_the_status_is_json_and_its_history_grows(fed):
    async def look(up):
        control = up.coordinator.deployment.control
        control.history._spacing = control.history._due = 0.0
        for _ in range(4):
            await up.answers(IDS)
        return control_status(control)

    status = json.loads(json.dumps(ask(controlled(fed), then=look)))
    assert len(status["history"]) == 5
    assert set(status["history"][0]) == {"time", "threshold", "rate"}
    assert status["history"][-1]["threshold"] == status["threshold"]
    assert status["history"][-1]["rate"] == status["window"]["rate"] == status["escalated"] / status["samples"]
    fresh = control_status(BudgetControl(gr.load(fed.artifacts["one"]), "x", 0.3, ControllerSettings(), lambda: 1))
    assert fresh["window"] == {"samples": 0, "rate": None, "bound": 1.0}


def test_the_history_is_bounded_and_reaches_back_to_the_start():
    now = 0.0
    history = ControlHistory(points=10, spacing=1.0, clock=lambda: now)
    for _ in range(1000):
        history.add(now, lambda: None)
        now += 1.0
    times = [point["time"] for point in history.points()]
    assert 5 <= len(times) <= 10
    assert times[0] == 0.0
    assert times[-1] > 800
    assert times == sorted(times)
