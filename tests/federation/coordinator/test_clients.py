"""Clients beside each other: what is whose, who may do what, and whose labels decide."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from fake_federation import ADMIN, CLASSES, IDS, federation, outputs, running
from typer.testing import CliRunner

from gainroute.cli import app
from gainroute.federation.coordinator.decision_log.label_holders import largest_share
from gainroute.federation.coordinator.decision_log.schema import MIGRATIONS, connect, migrate
from gainroute.federation.coordinator.settings import ControllerSettings, DriftSettings
from gainroute.federation.coordinator.tokens import hash_token

INFER = "/v2/models/gainroute/infer"
TOKENS = {
    "client": {"shop": hash_token("shop"), "rival": hash_token("rival")},
    "infer": {"kiosk": hash_token("kiosk")},
    "feedback": {"registry": hash_token("registry")},
    "view": {"auditor": hash_token("auditor")},
}


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path).having(tokens=TOKENS)


def caller(up, token):
    """Send requests with this token."""

    def ask(method, path, **more):
        return up.client.request(method, path, headers={"Authorization": f"Bearer {token}"}, **more)

    return ask


async def infer(ask, ids=IDS):
    body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": list(ids)}]}
    response = await ask("POST", INFER, json=body)
    assert response.status_code == 200, response.text
    return outputs(response.json())


async def label(ask, items):
    response = await ask("POST", "/feedback", json={"feedback": items})
    assert response.status_code == 200, response.text
    return response.json()


# ---- roles ----------------------------------------------------------------------------------------------


def test_every_role_opens_its_own_doors_and_no_others(fed):
    doors = {
        ("POST", INFER): {"shop", "kiosk", ADMIN},
        ("POST", "/feedback"): {"shop", "registry", ADMIN},
        ("GET", "/v2/models/gainroute"): {"shop", "kiosk", "registry", "auditor", ADMIN},
        ("GET", "/docs"): {"shop", "kiosk", "registry", "auditor", ADMIN},
        ("GET", "/"): {"shop", "auditor", ADMIN},
        ("GET", "/metrics"): {"shop", "auditor", ADMIN},
        ("GET", "/api/status"): {"shop", "auditor", ADMIN},
        ("GET", "/api/decisions"): {"shop", "auditor", ADMIN},
        ("GET", "/api/decisions/0000000000000001/explanation"): {"auditor", ADMIN},
        ("GET", "/admin/audit"): {ADMIN},
    }

    async def work():
        async with running(fed) as up:
            for (method, path), holders in doors.items():
                for token in ("shop", "kiosk", "registry", "auditor", ADMIN):
                    response = await caller(up, token)(method, path, json={} if method == "POST" else None)
                    assert (response.status_code != 403) == (token in holders), (path, token, response.text)

    asyncio.run(work())


def test_a_token_under_several_roles_has_all_of_them(fed):
    both = fed.having(tokens=TOKENS | {"view": {"registry": TOKENS["feedback"]["registry"]}})

    async def work():
        async with running(both) as up:
            ask = caller(up, "registry")
            return [(await ask(*call)).status_code for call in (("GET", "/api/status"), ("POST", INFER))]

    assert asyncio.run(work()) == [200, 403]


def test_decisions_belong_to_the_client_that_asked(fed):
    async def work():
        async with running(fed) as up:
            shop, rival, registry, auditor = (caller(up, name) for name in ("shop", "rival", "registry", "auditor"))
            names = (await infer(shop, ["s0", "s1"]))["decision_id"].tolist()
            (other,) = (await infer(rival, ["s0"]))["decision_id"].tolist()
            listed = {}
            for name, ask in (("shop", shop), ("rival", rival), ("auditor", auditor)):
                found = (await ask("GET", "/api/decisions")).json()["decisions"]
                listed[name] = [(d["decision_id"], d["holder"]) for d in found]
            assert listed["rival"] == [(other, "rival")]
            assert listed["shop"] == [(names[1], "shop"), (names[0], "shop")]
            assert listed["auditor"] == listed["rival"] + listed["shop"]
            # Another client's decision is not there; one's own is found by its sample, though both asked for it.
            refused = await rival("POST", "/feedback", json={"decision_id": names[0], "label": "cat"})
            assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
            assert (await rival("POST", "/feedback", json={"sample_id": "s1", "label": "cat"})).status_code == 404
            own = await rival("POST", "/feedback", json={"sample_id": "s0", "label": "cat"})
            assert own.json()["accepted"] == [other]
            # The registry labels everything, and a client does not replace its labels.
            assert (await label(registry, [{"decision_id": n, "label": "dog"} for n in (*names, other)]))[
                "errors"
            ] == []
            replaced = await rival("POST", "/feedback", json={"decision_id": other, "label": "cat"})
            assert (replaced.status_code, replaced.json()["code"]) == (409, "conflict")
            own = (await auditor("GET", f"/api/decisions/{other}/explanation")).json()
            assert own["true_class"] == "dog"
            return (await shop("GET", f"/api/decisions/{names[0]}/explanation")).json()["error"]

    assert "posteriors; a token for view is needed" in asyncio.run(work())


def test_decisions_of_older_logs_belong_to_nobody(fed):
    path = fed.settings.log.path
    path.parent.mkdir()
    with closing(connect(str(path))) as connection:
        migrate(connection, str(path), MIGRATIONS[:2])
        connection.execute(
            "INSERT INTO decisions (seq, sample_id, request_id, time, threshold, probability, route, label, "
            "weak_prediction, router, bytes, latency) VALUES (1, 's1', 'r', 5.0, 0.1, 0, 'round1', 2, 2, 'x', 9, 0.5)"
        )

    async def work():
        async with running(fed) as up:
            seen = {}
            for name in ("shop", "auditor"):
                found = (await caller(up, name)("GET", "/api/decisions")).json()["decisions"]
                seen[name] = [d["decision_id"] for d in found]
            body = {"decision_id": f"{1:016x}", "label": "cat"}
            told = [
                (await caller(up, name)("POST", "/feedback", json=body)).status_code for name in ("shop", "registry")
            ]
            return seen, told

    seen, told = asyncio.run(work())
    assert seen == {"shop": [], "auditor": [f"{1:016x}"]}
    assert told == [404, 200]
    with closing(sqlite3.connect(path)) as connection:
        plan = connection.execute("EXPLAIN QUERY PLAN SELECT seq FROM decisions WHERE holder = 'x' ORDER BY seq DESC")
        assert "decisions_by_holder" in plan.fetchone()[3]


# ---- whose labels decide --------------------------------------------------------------------------------


async def attack(up, token, most=33):
    """Answers of the strong route, labelled as if the weak one had been right."""
    ask, sent = caller(up, token), 0
    while sent < most:
        await infer(ask)
        found = (await ask("GET", f"/api/decisions?limit={len(IDS)}")).json()["decisions"]
        wrong = [d for d in found if d["escalated"] and d["strong_class"] != d["weak_class"]][: most - sent]
        await label(ask, [{"decision_id": d["decision_id"], "label": d["weak_class"]} for d in wrong])
        sent += len(wrong)
    await up.coordinator.monitor.examine()


@pytest.mark.parametrize("trusted", [(), ("shop",)])
def test_wrong_labels_of_one_client_do_not_switch_the_strong_route_off(fed, trusted):
    fed = fed.having(drift=DriftSettings(window=360, seconds=600.0, protect=True, trusted_holders=trusted))

    async def first():
        async with running(fed) as up:
            before = (await infer(caller(up, "rival")))["escalated"].sum()
            await attack(up, "shop", 60)
            status = (await caller(up, "auditor")("GET", "/api/status")).json()
            told = (await caller(up, "rival")("GET", "/api/status")).json()
            return before, (await infer(caller(up, "rival")))["escalated"].sum(), status, told

    async def again():
        async with running(fed) as up:
            restored = (await caller(up, "auditor")("GET", "/api/status")).json()["drift"]
            await attack(up, "rival", 60)
            return restored, (await caller(up, "auditor")("GET", "/api/status")).json()

    before, after, status, told = asyncio.run(first())
    assert before > 10
    assert "shop" not in json.dumps(told)
    assert status["drift"]["labels_by"] == {"client:shop": 60}
    if trusted:  # what the operator asked for
        assert after < before
        assert status["alarms"][0]["name"] == "collaboration"
        assert status["alarms"][0]["text"].endswith("; labels by client:shop (60)")
        return
    assert after == before
    assert (status["alarms"], status["protection"]) == ([], None)
    assert status["drift"]["collaboration"]["harmful"] is False
    withheld = status["drift"]["withheld"]["collaboration"]
    assert "depends on the labels of client:shop (60)" in withheld
    assert "trusted_holders" in withheld
    restored, both = asyncio.run(again())
    assert (restored["labels_by"], restored["withheld"]) == ({"client:shop": 60}, status["drift"]["withheld"])
    # With a second holder who finds the same, the alarm is raised, and says by whose labels.
    assert both["alarms"][0]["name"] == "collaboration"
    assert "labels by client:shop (60), client:rival (60)" in both["alarms"][0]["text"]
    assert both["protection"] > 0


def test_labels_of_one_holder_count_at_most_as_many_as_those_of_all_others():
    who = ["client:a"] * 90 + [None] * 50 + ["client:b"] * 6 + ["client:c"] * 4
    name, drop, share = largest_share(who, ())
    assert (name, drop.sum(), share) == ("client:a", 80, pytest.approx(1 / 9))
    assert not drop[90:].any()
    assert not largest_share(who, ("a",))[1].any()
    assert largest_share(who[95:], ())[0] == "client:b"
    assert largest_share(["local"] * 5, ())[0] == largest_share([], ())[0] == ""
    assert largest_share(["client:a"] * 5, ())[1].all()


def test_a_router_is_not_recalibrated_by_the_labels_of_one_client(fed, tmp_path):
    fed = fed.having(controller=ControllerSettings(explore=0.1))
    truth = dict(zip(IDS, fed.test.labels, strict=True))

    async def work():
        async with running(fed) as up:
            for name, requests in (("shop", 8), ("rival", 4)):
                for _ in range(requests):
                    found = await infer(caller(up, name))
                    items = zip(found["decision_id"].tolist(), IDS, strict=True)
                    told = [{"decision_id": d, "label": CLASSES[truth[i]]} for d, i in items]
                    assert (await label(caller(up, name), told))["errors"] == []

    asyncio.run(work())
    path, artifact = fed.settings.log.path, fed.artifacts["one"]
    start = ["recalibrate", str(artifact), "--log", str(path), "--out", str(tmp_path / "new.safetensors"), "--json"]
    found = json.loads(CliRunner().invoke(app, start).output)
    assert found["labels"] == 8 * len(IDS)
    assert found["left_out"].startswith(f"{4 * len(IDS)} of {12 * len(IDS):,} labels, by client:shop")
    trusting = json.loads(CliRunner().invoke(app, [*start, "--trust", "shop"]).output)
    assert (trusting["labels"], trusting["left_out"]) == (12 * len(IDS), "")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM feedback WHERE who = 'client:rival'")
        connection.commit()
    alone = CliRunner().invoke(app, start)
    assert alone.exit_code == 2
    assert "use --trust if they are right" in alone.output
    assert np.isfinite(trusting["rate"])
