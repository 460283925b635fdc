"""What fits together, what an admin changes while it runs, and that it is still there after a restart."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
from fake_federation import CLASSES, IDS, K, M, N, federation, running
from synthetic import world
from waiting import until

import gainroute as gr
from gainroute.federation.coordinator.errors import HandshakeError
from gainroute.federation.coordinator.settings import ControllerSettings, FusionSettings, PartyEndpoint
from gainroute.federation.coordinator.strong_source import from_function
from gainroute.federation.transport.base import PartyUnavailableError


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path)


def start(fed):
    async def work():
        async with running(fed):
            pass

    asyncio.run(work())


def save(fed, models=None, codec="float32", **settings):
    given = {p.name: f"one-{p.name}" for p in fed.parties} if models is None else models
    gr.save(fed.routers["one"], fed.artifacts["one"], provenance=gr.Provenance(given, codec))


def in_another_order(fed):
    fed.parties[1].classes = CLASSES[::-1]


def other_classes(fed):
    fed.parties[0].classes = ("x", *CLASSES[1:])


def no_model(fed):
    del fed.parties[2].models["one-c"]


def another_codec(fed):
    fed.parties[2].codecs = ("float16", "int8")


def another_dimension(fed):
    fed.parties[2].dimension = K + 7


def bare(fed):
    save(fed, models={})


def another_party(fed):
    save(fed, models={"a": "one-a", "b": "one-b", "z": "one-c"})


def no_codec(fed):
    save(fed, codec="")


def another_fusion(fed):
    save(fed, models={p.name: f"one-{p.name}" for p in fed.parties} | {"server": "0" * 64})
    fuse = fed.fusions["one"].fuse
    fuse.hash = "1" * 64
    fed.fusions["one"] = from_function(fuse, "one")


def fusion_of_another_order(fed):
    from dataclasses import replace

    fed.fusions["one"] = replace(fed.fusions["one"], party_names=("c", "b", "a"))


def fusion_of_other_classes(fed):
    fed.fusions["one"] = from_function(lambda e: np.ones((len(e[0]), 9)) / 9, "one")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (in_another_order, "party 'b': its classes are in another order: \\['dog'"),
        (other_classes, "party 'a': its classes differ: \\['x'"),
        (no_model, "party 'c': it does not have the models one-c; it has two-c"),
        (another_codec, "party 'c': it does not offer the codec 'float32'; it offers float16, int8"),
        (another_dimension, "does not take embeddings of lengths \\[5, 5, 11\\]"),
        (bare, "has no provenance"),
        (another_party, "the parties \\['a', 'b', 'z'\\], the route table has \\['a', 'b', 'c'\\]"),
        (no_codec, "names no codec"),
        (another_fusion, "calibrated with the fusion 000"),
        (fusion_of_another_order, "trained with the parties \\['c', 'b', 'a'\\], in this order"),
        (fusion_of_other_classes, "answers two samples with shape \\(2, 9\\)"),
    ],
)
def test_what_does_not_fit_is_refused_and_named(fed, change, told):
    change(fed)
    with pytest.raises(HandshakeError, match=told):
        start(fed)


def test_a_party_struck_from_the_route_table_is_not_served_with(fed):
    table = tuple(PartyEndpoint(name=n, address="x:1") for n in ("a", "b"))
    fed = fed.having(party=table)
    fed.parties = fed.parties[:2]
    with pytest.raises(HandshakeError, match="fitted with 3 parties, the route table has 2"):
        start(fed)


def test_a_party_that_changes_its_models_while_we_run_is_not_asked_any_more(fed):
    async def work():
        async with running(fed.having(rounds={"on_missing_party": "pool"})) as up:
            fed.parties[1].classes = CLASSES[::-1]
            await until(lambda: up.coordinator.parties.links["b"].state == "mismatch")
            found = await up.answers(IDS)
            return found, await up.status()

    found, status = asyncio.run(work())
    assert set(found["route"]) == {"degraded:absent:b"}
    assert "another order" in status["parties"][1]["error"]


# ---- budget and threshold -------------------------------------------------------------------------------


def test_a_budget_is_taken_live_audited_and_still_there_after_a_restart(fed):
    async def first():
        async with running(fed) as up:
            before = await up.answers(IDS)
            response = await up.admin("budget", {"budget": 0.8})
            assert response.status_code == 200, response.text
            after = await up.answers(IDS)
            audit = await up.client.get("/admin/audit", headers={"Authorization": "Bearer the admin's token"})
            return before, response.json(), after, audit.json()["audit"]

    async def again(fed):
        async with running(fed) as up:
            return await up.answers(IDS), (await up.status())["operating_point"]

    before, told, after, audit = asyncio.run(first())
    router = fed.routers["one"]
    assert told["operating_point"]["threshold"] == router.threshold_for(0.8)
    assert before["escalated"].sum() < after["escalated"].sum()
    assert audit[0]["action"] == "budget"
    assert audit[0]["who"] == "admin:ops"
    assert (audit[0]["before"]["budget"], audit[0]["after"]["budget"]) == (0.3, 0.8)
    found, point = asyncio.run(again(fed))
    np.testing.assert_array_equal(found["label"], after["label"])
    assert (point["set_by"], point["budget"]) == ("budget", 0.8)
    # A configuration that says otherwise since then is the later word.
    _, point = asyncio.run(again(fed.having(router={"budget": 0.5})))
    assert point["budget"] == 0.5


def certified(fed, **settings):
    """The federation with a certified router in place of the first one."""
    calibration = world(800, M, K, 0)
    labels, answers = (np.array(CLASSES)[values] for values in (calibration.labels, calibration.strong))
    router = gr.ExpectedGainRouter(classes=CLASSES, lam=1.0, **settings).fit(calibration.local, labels, answers)
    gr.save(router, fed.artifacts["one"], provenance=gr.load(fed.artifacts["one"]).provenance_)
    fed.routers["one"] = router
    return router


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": "certified-error", "kept_error": 0.3},
        {"threshold": "certified-both", "kept_error": 0.3, "budget": 0.6},
        {"threshold": "certified", "budget": 0.3},
    ],
)
def test_a_guarantee_is_shown_while_its_threshold_is_in_force(fed, settings):
    router = certified(fed, **settings)
    want = router.guarantee_.as_json()
    assert "With 95 % confidence" in want["text"]

    async def work():
        async with running(fed) as up:
            first = (await up.status())["operating_point"]
            changed = [
                (await up.admin("budget", {"budget": 0.45})).json()["operating_point"],
                (await up.admin("threshold", {"threshold": router.threshold_ - 0.01})).json()["operating_point"],
                (await up.admin("threshold", {"threshold": router.threshold_})).json()["operating_point"],
            ]
            await up.coordinator.operator.protect(0.9, "a test")
            changed.append((await up.status())["operating_point"])
            await up.coordinator.operator.protect(None, "a test")
            return first, [*changed, (await up.status())["operating_point"]]

    first, changed = asyncio.run(work())
    assert first["guarantee"] == want
    assert first["budget"] == settings.get("budget")
    assert [point["guarantee"] for point in changed] == [None, None, want, None, want]


def test_a_controller_and_a_guarantee_exclude_each_other(fed, caplog):
    certified(fed, threshold="certified", budget=0.3)

    async def point():
        async with running(fed.having(controller=ControllerSettings())) as up:
            status = await up.status()
            return status["operating_point"], status["controller"]["on"]

    found, controlled = asyncio.run(point())
    assert (found["guarantee"], controlled) == (None, True)
    assert "is not kept: the budget controller moves τ" in caplog.text
    # Without a budget of its own, a router certified for the kept error alone is not moved.
    promised = certified(fed, threshold="certified-error", kept_error=0.3).guarantee_
    found, controlled = asyncio.run(point())
    assert (found["guarantee"], controlled) == (promised.as_json(), False)


def test_a_threshold_is_taken_live_and_kept(fed):
    async def first():
        async with running(fed) as up:
            return [(await up.admin("threshold", {"threshold": t})).json() for t in (0.01, "inf", "-inf")], (
                await up.answers(IDS)
            )

    async def again():
        async with running(fed) as up:
            return (await up.status())["operating_point"]

    told, found = asyncio.run(first())
    assert [t["operating_point"]["threshold"] for t in told] == [0.01, "inf", "-inf"]
    assert found["escalated"].all()
    point = asyncio.run(again())
    assert (point["set_by"], point["budget"], point["threshold"], point["expected_rate"]) == (
        "threshold",
        None,
        "-inf",
        1,
    )


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("budget", {"budget": 1.5}, 400),
        ("budget", {"budget": "0.5"}, 400),
        ("budget", {"budget": True}, 400),
        ("budget", {"budget": 10**400}, 400),
        ("budget", {}, 400),
        ("budget", {"budget": 0.1, "more": 1}, 400),
        ("budget", [0.1], 400),
        ("threshold", {"threshold": None}, 400),
        ("threshold", {"threshold": "nan"}, 400),
        ("threshold", {"threshold": -(10**400)}, 400),
        ("router", {}, 400),
        ("router", {"artifact": 3}, 400),
        ("router", {"artifact": "x", "rollback": True}, 400),
        ("router", {"rollback": 1}, 400),
        ("router", {"artifact": "two.safetensors", "fusion": {"factory": "os:getcwd"}}, 400),
        ("router", {"artifact": "nowhere.safetensors"}, 400),
        ("router", {"rollback": True}, 409),
    ],
)
def test_what_an_admin_cannot_mean_changes_nothing(fed, path, body, status):
    async def work():
        async with running(fed) as up:
            response = await up.admin(path, body)
            return response, (await up.status())["operating_point"]["set_by"]

    response, kind = asyncio.run(work())
    assert response.status_code == status, response.text
    assert response.json()["error"]
    assert kind == "artifact"


@pytest.fixture
def around(tmp_path):
    """A federation in a folder of its own, beside files that admin calls may not name."""
    (home := tmp_path / "home").mkdir()
    fed = federation(home)
    (tmp_path / "two.safetensors").write_bytes(fed.artifacts["two"].read_bytes())
    (home / "out.safetensors").symlink_to(tmp_path / "two.safetensors")
    (home / "in.safetensors").symlink_to("two.safetensors")
    (home / "loop").symlink_to("loop")
    (home / "device").symlink_to("/dev/zero")
    os.mkfifo(home / "pipe")
    with (home / "sparse").open("wb") as file:
        file.truncate(2**40)
    (home / "run" / "server").mkdir(parents=True)
    os.mkfifo(home / "run" / "server" / "head.safetensors")
    return fed


OUTSIDE = {
    "../two.safetensors": "is outside",
    "x/../../two.safetensors": "is outside",
    "/etc/passwd": "is outside",
    "out.safetensors": "is outside",
    "device": "is outside",
    "loop": "cannot be read",
    "pipe": "it is not a regular file",
    ".": "it is not a regular file",
    "": "it is not a regular file",
    "sparse": "it has 1099511627776 bytes, 1073741824 are allowed",
    "a\0b": "is not the name of a file",
    "x" * 5000: "cannot be read",
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_admin_calls_name_regular_files_in_one_folder_and_never_block(around, name):
    async def work():
        async with running(around) as up:
            two = "two.safetensors"
            told = [
                await up.admin("router", {"artifact": name}),
                await up.admin("shadow", {"artifact": name}),
                await up.admin("router", {"artifact": two, "fusion": {"strong": name}}),
            ]
            return told, await up.admin("budget", {"budget": 0.1})

    told, after = asyncio.run(asyncio.wait_for(work(), 30))
    for response in told:
        assert response.status_code == 400, response.text
        assert OUTSIDE[name] in response.json()["error"] or "loop" in name, response.text
    assert after.status_code == 200


def test_the_files_of_a_run_are_checked_too_and_a_link_inside_the_folder_is_fine(around):
    async def work():
        async with running(around) as up:
            blocked = await up.admin("router", {"artifact": "two.safetensors", "fusion": {"run": "run/server"}})
            outside = await up.admin("router", {"artifact": "two.safetensors", "fusion": {"run": ".."}})
            linked = await up.admin("router", {"artifact": "in.safetensors", "fusion": {"run": "two"}})
        beside = around.having(router={"folder": around.folder.parent})
        async with running(beside) as up:
            allowed = await up.admin("router", {"artifact": "two.safetensors", "fusion": {"run": "two"}})
            return blocked, outside, linked, allowed

    blocked, outside, linked, allowed = asyncio.run(asyncio.wait_for(work(), 30))
    assert (blocked.status_code, outside.status_code) == (400, 400)
    assert "not a regular file" in blocked.text
    assert linked.status_code == 200, linked.text
    assert allowed.status_code == 200, allowed.text


# ---- another router -------------------------------------------------------------------------------------


def by_version(fed, found):
    name = {fed_hash(fed, v): v for v in ("one", "two")}[found["version"]]
    return name, fed.offline


def fed_hash(fed, version):
    import hashlib

    return hashlib.sha256(fed.artifacts[version].read_bytes()).hexdigest()[:12]


def test_switching_and_rolling_back_under_load_gives_no_failed_and_no_mixed_answer(fed):
    for party in fed.parties:
        party.delay = (0.002, 0.004)
    versions = {fed_hash(fed, v): v for v in ("one", "two")}

    async def client(up, stop, found, seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            ids = [IDS[i] for i in rng.choice(N, size=20, replace=False)]
            found.append((ids, await up.infer(ids)))

    async def work():
        async with running(fed) as up:
            stop, found = asyncio.Event(), []
            load = [asyncio.create_task(client(up, stop, found, i)) for i in range(6)]
            told = []
            for _ in range(3):
                for change in ({"artifact": "two.safetensors", "fusion": {"run": "two"}}, {"rollback": True}):
                    answered = len(found)
                    await until(lambda answered=answered: len(found) >= answered + 12)  # two per client
                    told.append(await up.admin("router", change))
            stop.set()
            await asyncio.gather(*load)
            return told, found

    told, found = asyncio.run(work())
    assert [t.status_code for t in told] == [200] * 6, told[0].text
    from fake_federation import outputs

    expected = {v: fed.offline(IDS, v) for v in ("one", "two")}
    seen = set()
    for ids, response in found:
        assert response.status_code == 200, response.text
        answer = outputs(response.json())
        version = versions[answer["version"]]
        seen.add(version)
        rows = [IDS.index(i) for i in ids]
        want = expected[version]
        assert set(answer["route"]) <= {"round1", "round2"}, answer["route"]
        np.testing.assert_array_equal(answer["escalated"], want.escalated[rows])
        assert [CLASSES[c] for c in answer["label"]] == want.prediction[rows].tolist()
        np.testing.assert_allclose(answer["probabilities"], want.probabilities[rows], atol=1e-6)
    assert seen == {"one", "two"}
    assert len(found) > 30


def test_a_switch_survives_a_restart_and_takes_the_budget_along(fed):
    async def first():
        async with running(fed) as up:
            await up.admin("budget", {"budget": 0.6})
            return (await up.admin("router", {"artifact": "two.safetensors", "fusion": {"run": "two"}})).json()

    async def again(fed, rollback=False):
        async with running(fed) as up:
            if rollback:
                assert (await up.admin("router", {"rollback": True})).status_code == 200
            return await up.answers(IDS), await up.status()

    told = asyncio.run(first())
    assert told["version"] == fed_hash(fed, "two")
    assert told["operating_point"]["threshold"] == fed.routers["two"].threshold_for(0.6)
    found, status = asyncio.run(again(fed))
    assert found["version"] == fed_hash(fed, "two")
    assert status["operating_point"]["budget"] == 0.6
    found, status = asyncio.run(again(fed, rollback=True))
    assert found["version"] == fed_hash(fed, "one")
    # The file of the router in use has changed: that is said, not served.
    asyncio.run(first())
    gr.save(fed.routers["one"], fed.artifacts["two"], provenance=gr.Provenance({}, ""))
    with pytest.raises(HandshakeError):
        start(fed)


def test_a_switch_needs_every_party_and_models_they_have(fed):
    async def work():
        async with running(fed) as up:
            body = {"artifact": "two.safetensors", "fusion": {"run": "two"}}
            fed.parties[0].down = PartyUnavailableError("a", "gone")
            away = await up.admin("router", body)
            fed.parties[0].down = None
            del fed.parties[0].models["two-a"]
            without = await up.admin("router", body)
            found = await up.answers(IDS)
            return away, without, found

    away, without, found = asyncio.run(work())
    assert (away.status_code, away.json()["code"]) == (503, "party_missing")
    assert (without.status_code, without.json()["code"]) == (422, "handshake")
    assert "party 'a': it does not have the models two-a" in without.json()["error"]
    assert found["version"] == fed_hash(fed, "one")


def test_fusion_settings_name_one_source():
    with pytest.raises(gr.errors.SettingError, match="exactly one"):
        FusionSettings()
