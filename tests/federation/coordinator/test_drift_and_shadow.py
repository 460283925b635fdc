"""The service watches itself: alarms, protection, a router in the shadow, its swap and the way back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from fake_federation import ADMIN, CLASSES, IDS, K, N, child_environment, federation, running
from test_coordinator_process import SCRIPT
from typer.testing import CliRunner
from waiting import wait_until

import gainroute as gr
from gainroute.cli import app
from gainroute.errors import SettingError
from gainroute.federation.coordinator.monitoring.drift import ALARMS
from gainroute.federation.coordinator.settings import ControllerSettings, DriftSettings

QUIET = DriftSettings(window=360, seconds=600.0)  # tests look when they want to
STEERED = {"controller": ControllerSettings(explore=0.05), "drift": QUIET}


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path)


def spoiled(embeddings):
    """Embeddings that speak for another class; the version's tag, the last column, stays."""
    return np.hstack([np.roll(embeddings[:, :-1], 1, axis=1), embeddings[:, -1:]])


def spoil(fed):
    for party in fed.parties:
        party.change = (None, spoiled)


async def tell(up, found, labels=None, **more):
    """Give every answer its true label."""
    truth = up.federation.test.labels if labels is None else labels
    told = zip(found["decision_id"].tolist(), truth, strict=True)
    items = [{"decision_id": name, "label": CLASSES[y], **more} for name, y in told]
    response = await up.client.post("/feedback", json={"feedback": items})
    assert response.status_code == 200, response.text
    assert not response.json()["errors"]
    await up.coordinator.monitor.examine()


async def metrics(up):
    text = (await up.client.get("/metrics")).text
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("gainroute_"): float(value) for name, value in rows}


async def until_alarm(up, rounds=20):
    """Answer and label until collaboration is found to hurt."""
    for done in range(1, rounds + 1):
        await tell(up, await up.answers(IDS))
        status = await up.status()
        if any(alarm["name"] == "collaboration" for alarm in status["alarms"]):
            return done, status
    raise AssertionError("no alarm")


# ---- drift ----------------------------------------------------------------------------------------------


def test_quiet_while_nothing_changes_and_scores_and_rate_are_held_against_calibration(fed):
    async def work():
        async with running(fed.having(**STEERED)) as up:
            before = await up.status()
            for _ in range(6):
                await tell(up, await up.answers(IDS))
            return before, await up.status(), await metrics(up)

    before, status, told = asyncio.run(work())
    assert before["drift"]["scores"] is None
    assert before["drift"]["labels"] == 0
    drift = status["drift"]
    assert status["alarms"] == []
    assert drift["labels"] == 6 * N
    assert drift["scores"]["samples"] == 360
    assert 0 < drift["scores"]["distance"] < drift["scores"]["limit"]
    assert drift["scores"]["rate"] == pytest.approx(0.3, abs=0.1)
    assert drift["collaboration"]["harmful"] is False
    assert drift["calibration_error"] > 0
    assert told['drift_alarm{alarm="collaboration"}'] == told['drift_alarm{alarm="scores"}'] == 0
    assert told["drift_distance"] == pytest.approx(drift["scores"]["distance"])
    assert told["drift_labels"] == 6 * N
    assert told["drift_evidence_limit"] == 100
    assert np.isnan(told["protection"])
    assert told["shadow_loaded"] == 0


def test_scores_that_differ_from_calibration_raise_an_alarm_that_goes_when_they_do_not(fed, caplog):
    def flat(values):
        return 0.5 * values + 0.5 / K

    async def work():
        async with running(fed.having(drift=QUIET)) as up:
            for party in fed.parties:
                party.change = (flat, None)
            for _ in range(3):
                await up.answers(IDS)
            await up.coordinator.monitor.examine()
            raised, told = await up.status(), await metrics(up)
            for party in fed.parties:
                party.change = (None, None)
            for _ in range(3):
                await up.answers(IDS)
            await up.coordinator.monitor.examine()
            return raised, told, await up.status()

    with caplog.at_level(logging.INFO, "gainroute.coordinator"):
        raised, told, after = asyncio.run(work())
    texts = {alarm["name"]: alarm["text"] for alarm in raised["alarms"]}
    assert "distance" in texts["scores"]
    assert "of all parties: rather the data have changed" in texts["parties"]  # each is less confident
    assert told['drift_alarm{alarm="scores"}'] == 1
    assert told["drift_distance"] > told["drift_limit"]
    assert [alarm["name"] for alarm in after["alarms"]] == ["parties"]
    said = [(r.alarm, r.raised) for r in caplog.records if hasattr(r, "alarm")]
    assert said == [("scores", True), ("parties", True), ("scores", False)]


def test_collaboration_that_hurts_is_said_with_its_evidence_and_not_forgotten_by_a_restart(fed):
    async def first():
        async with running(fed.having(**STEERED)) as up:
            for _ in range(3):
                await tell(up, await up.answers(IDS))
            assert (await up.status())["alarms"] == []
            spoil(fed)
            return await until_alarm(up), await metrics(up)

    async def again():
        async with running(fed.having(**STEERED)) as up:
            before = await up.status()
            reset = await up.admin("drift", {"reset": True})
            after = await up.status()
            audit = await up.client.get("/admin/audit", headers={"Authorization": f"Bearer {ADMIN}"})
            return before, reset.json(), after, audit.json()["audit"]

    (_, status), told = asyncio.run(first())
    alarm = status["alarms"][0]
    assert alarm["name"] == "collaboration"
    assert "collaboration has begun to hurt" in alarm["text"]
    helps = status["drift"]["collaboration"]
    assert helps["e_value"] >= helps["limit"] == 100
    assert helps["strong_right"] < helps["weak_right"]
    assert told['drift_alarm{alarm="collaboration"}'] == 1
    assert told["drift_evidence"] >= 100
    assert status["protection"] is None  # nobody asked for it
    assert status["drift"]["recommended_min_gain"] > 0
    before, reset, after, audit = asyncio.run(again())
    assert before["alarms"] == status["alarms"]
    assert before["drift"]["collaboration"] == helps
    assert "collaboration" in reset["reset"]
    assert after["alarms"] == []
    assert after["drift"]["labels"] == 0
    assert audit[0]["action"] == "drift reset"
    assert audit[0]["who"] == "admin:ops"
    assert "collaboration has begun to hurt" in audit[0]["before"]["collaboration"]


@pytest.mark.parametrize("controlled", [True, False])
def test_protection_demands_more_gain_until_the_reset_with_and_without_a_controller(fed, controlled):
    sections = {"drift": DriftSettings(window=360, seconds=600.0, protect=True)}
    if controlled:
        sections["controller"] = ControllerSettings(explore=0.0)
    fed = fed.having(**sections)
    spoil(fed)

    async def first():
        async with running(fed) as up:
            before = (await up.answers(IDS))["escalated"].mean()
            _, status = await until_alarm(up)
            found = await up.answers(IDS)
            rows = (await up.client.get(f"/api/decisions?limit={N}")).json()["decisions"]
            return before, status, found, rows, await metrics(up)

    async def again():
        async with running(fed) as up:
            protected = await up.answers(IDS)
            status = await up.status()
            await up.admin("budget", {"budget": 0.5})
            still = await up.status()
            await up.admin("drift", {"reset": True})
            audit = await up.client.get("/admin/audit", headers={"Authorization": f"Bearer {ADMIN}"})
            free = [await up.answers(IDS) for _ in range(3)][-1]
            return protected, status, still, await up.status(), free, audit.json()["audit"]

    before, status, found, rows, told = asyncio.run(first())
    assert before > 0.2
    floor = status["protection"]
    assert floor > 0
    assert told["protection"] == pytest.approx(floor)
    assert found["escalated"].mean() < before / 2
    assert (found["score"][found["escalated"]] > floor).all()
    assert min(row["threshold"] for row in rows if row["threshold"] != "inf") >= floor
    protected, status, still, freed, free, audit = asyncio.run(again())
    assert status["protection"] == still["protection"] == floor
    assert protected["escalated"].mean() < before / 2
    assert freed["protection"] is None
    assert free["escalated"].mean() > 0.4
    acts = [(entry["action"], entry["who"]) for entry in audit]
    assert ("protect", "drift monitor") in acts
    assert next(e for e in audit if e["action"] == "protect" and e["after"]["min_gain"] is None)


def test_a_label_counts_once_whatever_is_killed_in_between_and_a_correction_does_not_count_again(fed):
    fed = fed.having(**STEERED)

    async def first():
        async with running(fed) as up:
            found = await up.answers(IDS)
            await tell(up, found)
            await tell(up, found, (fed.test.labels + 1) % K)
            assert (await up.status())["drift"]["labels"] == N
            more = await up.answers(IDS)
            monitor = up.coordinator.monitor
            monitor.examine = monitor.stop = _nothing
            await tell(up, more)  # in the log, and not looked at before the end

    async def again():
        async with running(fed) as up:
            return (await up.status())["drift"]["labels"]

    asyncio.run(first())
    with sqlite3.connect(fed.settings.log.path) as connection:
        assert connection.execute("SELECT count(*) FROM unwatched").fetchone() == (N,)
    assert asyncio.run(again()) == 2 * N
    with sqlite3.connect(fed.settings.log.path) as connection:
        assert connection.execute("SELECT count(*) FROM unwatched").fetchone() == (0,)
    connection.close()


async def _nothing() -> None: ...


@pytest.mark.slow
def test_an_alarm_survives_a_kill(tmp_path):
    """In processes of their own; the labels say that the weak answer was right wherever both were asked."""

    @contextlib.contextmanager
    def process():
        command = [sys.executable, "-c", SCRIPT, str(tmp_path), "0", "3"]
        begun = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment())
        try:
            yield begun.stdout.readline().strip()
        finally:
            begun.kill()
            begun.wait()
            begun.stdout.close()

    def alarms(url):
        return httpx.get(f"{url}/api/status", timeout=20).json()["alarms"]

    def alarmed(url):
        ids = {"inputs": [{"name": "id", "shape": [N], "datatype": "BYTES", "data": IDS}]}
        assert httpx.post(f"{url}/v2/models/gainroute/infer", json=ids, timeout=20).status_code == 200
        rows = httpx.get(f"{url}/api/decisions?limit={N}", timeout=20).json()["decisions"]
        told = [{"decision_id": row["decision_id"], "label": row["weak_class"]} for row in rows]
        assert httpx.post(f"{url}/feedback", json={"feedback": told}, timeout=20).status_code == 200
        return any(alarm["name"] == "collaboration" for alarm in alarms(url))

    with process() as url:
        wait_until(lambda: alarmed(url), 60)
        before = alarms(url)
    with process() as url:
        assert alarms(url)[0] == before[0]
        assert before[0]["name"] == "collaboration"


def test_feedback_may_carry_its_probability_and_too_small_a_one_is_kept_but_not_watched(fed):
    async def work():
        async with running(fed.having(**STEERED)) as up:
            found = await up.answers(IDS)
            first = str(found["decision_id"][0])
            for wrong in (0, -0.1, 1.1, "0.5", True, float("nan")):
                body = f'{{"decision_id": "{first}", "label": "bee", "probability": {_json(wrong)}}}'
                response = await up.client.post("/feedback", content=body)
                assert response.status_code == 400, response.text
                assert "probability" in response.json()["error"]
            await tell(up, found, probability=0.5)
            await tell(up, await up.answers(IDS), probability=0.01)
            return (await up.status())["drift"]

    drift = asyncio.run(work())
    with sqlite3.connect(fed.settings.log.path) as connection:
        kept = connection.execute("SELECT probability, count(*) FROM feedback GROUP BY 1 ORDER BY 1").fetchall()
    connection.close()
    assert kept == [(0.01, N), (0.5, N)]
    assert (drift["labels"], drift["labels_left_out"]) == (N, N)


def _json(value):
    return {True: "true"}.get(value, f'"{value}"' if isinstance(value, str) else str(value).replace("nan", "NaN"))


def test_without_posteriors_in_the_log_collaboration_is_watched_all_the_same(fed):
    fed = fed.having(log={"posteriors": False}, **STEERED)
    spoil(fed)

    async def work():
        async with running(fed) as up:
            return await until_alarm(up)

    _, status = asyncio.run(work())
    assert status["drift"]["calibration_error"] is None
    assert status["drift"]["labels"] > 0


def test_what_is_not_watched_is_said(fed):
    async def work():
        async with running(fed.having(drift={"enabled": False, "seconds": 600.0})) as up:
            await tell(up, await up.answers(IDS))
            return await up.status(), await up.admin("drift", {"reset": True})

    status, reset = asyncio.run(work())
    assert status["drift"] == {"enabled": False, "alarms": {}}
    assert reset.status_code == 409
    for wrong in ({"window": 0}, {"window": 20_000}, {"false_alarm": 0}, {"memory": 0}, {"seconds": 0}):
        with pytest.raises(SettingError, match="drift"):
            DriftSettings(**wrong)


def test_every_alarm_has_an_alert_and_what_alerts_and_panels_read_is_measured(fed):
    async def work():
        async with running(fed) as up:
            await up.answers(IDS)
            return (await up.client.get("/metrics")).text

    deploy = Path(__file__).parents[3] / "deploy"
    rules, board = (deploy / "alerts.yml").read_text(), (deploy / "grafana.json").read_text()
    told = asyncio.run(work())
    named = set(re.findall(r"gainroute_[a-z_]+", rules + board))
    assert not {n for n in named if f"# TYPE {n.removesuffix('_bucket')} " not in told}
    assert set(re.findall(r'gainroute_drift_alarm\{alarm="(\w+)"\} == 1', rules)) == set(ALARMS)


# ---- the shadow -----------------------------------------------------------------------------------------


def refit(fed, out="new.safetensors", router="one"):
    """`gainroute recalibrate` on the coordinator's log."""
    command = ["recalibrate", fed.artifacts[router], "--log", fed.settings.log.path, "--out", fed.folder / out]
    done = CliRunner().invoke(app, [str(word) for word in command])
    assert done.exit_code == 0, done.output
    return fed.folder / out


def test_from_drift_to_a_new_router_and_back_without_a_failed_or_mixed_answer(fed):
    """Load, drift, feedback, recalibrate, shadow, swap, rollback: while clients go on asking."""
    fed = fed.having(
        controller=ControllerSettings(explore=0.1), drift=DriftSettings(window=360, seconds=0.05, protect=True)
    )
    path = fed.folder / "new.safetensors"
    answers = []

    async def client(up, end, seed):
        rng = np.random.default_rng(seed)
        while not end.is_set():
            ids = rng.choice(IDS, 7).tolist()
            answers.append((ids, await up.infer(ids)))
            await asyncio.sleep(0.01)

    async def work():
        async with running(fed) as up:
            for _ in range(4):
                await tell(up, await up.answers(IDS))
            spoil(fed)
            await until_alarm(up)
            for _ in range(6):
                await tell(up, await up.answers(IDS))
            await asyncio.to_thread(refit, fed)
            end = asyncio.Event()
            clients = [asyncio.create_task(client(up, end, seed)) for seed in range(3)]
            loaded = await up.admin("shadow", {"artifact": "new.safetensors"})
            assert loaded.status_code == 200, loaded.text
            old = (await up.status())["version"]
            for _ in range(6):
                await tell(up, await up.answers(IDS))
            up.coordinator.monitor.shadow._due = 0.0
            await up.coordinator.monitor.examine()
            shadowed, told = await up.status(), await metrics(up)
            assert shadowed["version"] == old
            swapped = await up.admin("shadow", {"swap": True})
            assert swapped.status_code == 200, swapped.text
            after = await up.answers(IDS)
            await up.coordinator.monitor.examine()
            status = await up.status()
            back = await up.admin("router", {"rollback": True})
            assert back.status_code == 200, back.text
            await up.coordinator.monitor.examine()
            end.set()
            await asyncio.gather(*clients)
            return old, shadowed, told, swapped.json(), after, status, await up.status()

    old, shadowed, told, swapped, after, status, last = asyncio.run(work())
    routers = {old: fed.routers["one"], swapped["version"]: gr.load(path)}
    assert len(routers) == 2
    seen = set()
    for ids, response in answers:
        assert response.status_code == 200, response.text
        body = response.json()
        seen.add(body["model_version"])
        rows = [IDS.index(i) for i in ids]
        want = routers[body["model_version"]].route(fed.test.local[:, rows].astype(np.float32))
        score = next(o for o in body["outputs"] if o["name"] == "score")["data"]
        np.testing.assert_allclose(score, want.score, atol=1e-5)
    assert old in seen
    shadow = shadowed["shadow"]
    assert shadow["version"] == swapped["version"]
    assert shadow["samples"] >= 6 * N
    assert 0 < shadow["agreement"] <= 1
    comparison = shadow["comparison"]
    assert comparison["labels"] == 6 * N
    assert comparison["low"] <= comparison["difference"] <= comparison["high"]
    assert comparison["verdict"] in ("better", "undecided", "worse")
    assert told["shadow_loaded"] == 1
    assert told["shadow_agreement"] == pytest.approx(shadow["agreement"], abs=0.05)  # clients go on between the two
    assert told["shadow_difference_low"] == pytest.approx(comparison["low"])
    # The new router has a monitor of its own; the old one's alarm comes back with the old one.
    assert after["version"] == status["version"] == swapped["version"]
    assert status["shadow"] is None
    assert status["alarms"] == []
    assert status["router"]["previous"].startswith(old)
    assert last["version"] == old
    assert "collaboration" in [alarm["name"] for alarm in last["alarms"]]
    assert last["protection"] > 0


def test_a_shadow_survives_a_restart_and_never_answers(fed):
    fed = fed.having(**STEERED)

    async def first():
        async with running(fed) as up:
            for _ in range(4):
                await tell(up, await up.answers(IDS))
            await asyncio.to_thread(refit, fed)
            response = await up.admin("shadow", {"artifact": "new.safetensors"})
            found = await up.answers(IDS)
            await up.coordinator.monitor.examine()
            return response.json()["shadow"], found, await up.status()

    async def again():
        async with running(fed) as up:
            await up.answers(IDS)
            await up.coordinator.monitor.examine()
            kept = await up.status()
            dropped = await up.admin("shadow", {"drop": True})
            none = await up.admin("shadow", {"drop": True})
            swap = await up.admin("shadow", {"swap": True})
            audit = await up.client.get("/admin/audit", headers={"Authorization": f"Bearer {ADMIN}"})
            return kept, dropped.json(), none, swap, await up.status(), audit.json()["audit"]

    loaded, found, status = asyncio.run(first())
    want = fed.routers["one"].route(fed.test.local.astype(np.float32))
    np.testing.assert_allclose(found["score"], want.score, atol=1e-5)
    assert loaded["samples"] == 0
    assert "no labels" in loaded["no_comparison"]
    assert status["shadow"]["samples"] == N
    kept, dropped, none, swap, last, audit = asyncio.run(again())
    assert kept["shadow"]["hash"] == loaded["hash"]
    assert kept["shadow"]["samples"] == 2 * N
    assert dropped == {"shadow": None}
    assert none.status_code == swap.status_code == 409
    assert last["shadow"] is None
    assert last["version"] == status["version"]
    assert [entry["action"] for entry in audit[:2]] == ["shadow drop", "shadow load"]

    async def third():
        async with running(fed) as up:
            return (await up.status())["shadow"]

    assert asyncio.run(third()) is None


def test_a_comparison_without_exploration_says_what_it_lacks(fed):
    async def work():
        async with running(fed.having(drift=QUIET)) as up:
            gr.save(
                gr.ExpectedGainRouter(0.3, classes=CLASSES, lam=3.0, threshold="calibration").fit(
                    fed.test.local, np.array(CLASSES)[fed.test.labels], np.array(CLASSES)[fed.test.strong]
                ),
                fed.folder / "new.safetensors",
                provenance=gr.Provenance({p.name: f"one-{p.name}" for p in fed.parties}, "float32"),
            )
            response = await up.admin("shadow", {"artifact": "new.safetensors"})
            assert response.status_code == 200, response.text
            await tell(up, await up.answers(IDS))
            up.coordinator.monitor.shadow._due = 0.0
            await up.coordinator.monitor.examine()
            return (await up.status())["shadow"]

    shadow = asyncio.run(work())
    assert shadow["samples"] == N
    assert shadow["comparison"] is None
    assert "explore" in shadow["no_comparison"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"artifact": "one.safetensors"}, (409, "is the router in use")),
        ({"artifact": "two.safetensors"}, (422, "other models of a, b, c")),
        ({"artifact": "nowhere.safetensors"}, (400, "nowhere")),
        ({"artifact": 3}, (400, "is needed")),
        ({"artifact": "x", "swap": True}, (400, "is needed")),
        ({"swap": False}, (400, "is needed")),
        ({}, (400, "is needed")),
        ({"artifact": "classes.safetensors"}, (422, "its classes are")),
    ],
)
def test_a_shadow_that_does_not_fit_is_refused(fed, change, told):
    labels = np.array(CLASSES)
    other = gr.ExpectedGainRouter(0.3, classes=CLASSES[::-1], threshold="calibration").fit(
        fed.test.local, labels[fed.test.labels], labels[fed.test.strong], check_class_order=False
    )
    provenance = gr.Provenance({p.name: f"one-{p.name}" for p in fed.parties}, "float32")
    gr.save(other, fed.folder / "classes.safetensors", provenance=provenance)

    async def work():
        async with running(fed.having(drift=QUIET)) as up:
            return await up.admin("shadow", change), (await up.status())["shadow"]

    response, shadow = asyncio.run(work())
    assert response.status_code == told[0], response.text
    assert told[1] in response.json()["error"]
    assert shadow is None


def test_a_file_that_changed_in_the_shadow_is_not_swapped_in_and_a_switch_drops_the_shadow(fed):
    async def work():
        async with running(fed.having(**STEERED)) as up:
            for _ in range(3):
                await tell(up, await up.answers(IDS))
            await asyncio.to_thread(refit, fed)
            await up.admin("shadow", {"artifact": "new.safetensors"})
            (fed.folder / "new.safetensors").write_bytes(fed.artifacts["one"].read_bytes())
            refused = await up.admin("shadow", {"swap": True})
            there = (await up.status())["shadow"]
            await up.admin("router", {"artifact": "two.safetensors", "fusion": {"run": "two"}})
            await up.coordinator.monitor.examine()
            return refused, there, await up.status()

    refused, there, status = asyncio.run(work())
    assert refused.status_code == 422
    assert "has changed" in refused.json()["error"]
    assert there is not None
    assert status["shadow"] is None
