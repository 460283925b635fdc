"""From views to answers by the command line alone: `train`, then `up`; and by hand, with TLS and tokens in front."""

from __future__ import annotations

import ssl
from contextlib import ExitStack

import httpx
import numpy as np
import pytest
from by_hand import gainroute, infer, outputs, serve
from up_helpers import Up

import gainroute as gr
from gainroute.routing.payload import round_trip
from gainroute.training.trained_run import load_fusion, load_parties


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What `gainroute train` leaves of three small views, one of them an image, in a process of its own."""
    root = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(3)
    y = np.arange(900) % 3
    ids = np.array([f"case-{i}" for i in range(len(y))])
    parts = {"bloods": (4,), "scan": (1, 8, 8), "history": (6,)}
    for i, (name, shape) in enumerate(parts.items()):
        x = rng.normal(scale=2.0, size=(len(y), *shape)) + np.where(y == i, 1.0, 0.0).reshape(-1, *[1] * len(shape))
        np.savez(root / f"{name}.npz", x=x, ids=ids)
    np.savez(root / "y.npz", labels=np.array(["low", "middle", "high"])[y], ids=ids)
    views = [word for name in parts for word in ("--views", root / f"{name}.npz")]
    how = ["--epochs", 6, "--local-epochs", 2, "--codec", "float16", "--budget", 0.3]
    gainroute("train", *views, "--labels", root / "y.npz", "--out", root / "run", *how)
    return root / "run"


class Travelled:
    """A party whose embeddings have been through the codec, as on the wire."""

    def __init__(self, party):
        self.posteriors = party.posteriors
        self.embeddings = lambda ids: round_trip(party.embeddings(ids), "float16")


@pytest.fixture(scope="module")
def expected(run):
    """Algorithm 1 in process, on the test split, by what the run's folder holds."""
    router = gr.load(run / "server" / "router.safetensors")
    with np.load(run / "record.npz") as record:
        ids = record["test.ids"].tolist()
    parties = [Travelled(party) for party in load_parties(run)]
    found = gr.predict_two_round(parties, load_fusion(run / "server"), router, ids)
    column = {name: i for i, name in enumerate(router.classes.tolist())}
    assert 0 < found.escalated.mean() < 1, "both routes are to be seen"
    return ids, [column[name] for name in found.prediction.tolist()], found.escalated.tolist(), found.score


def check(found, expected):
    _, label, escalate, score = expected
    assert found["route"] == ["round2" if e else "round1" for e in escalate]
    assert found["label"] == label
    assert found["escalated"] == escalate
    np.testing.assert_allclose(found["score"], score, rtol=1e-4, atol=1e-5)


def test_what_was_trained_is_what_up_answers(run, expected, tmp_path):
    with Up(run, tmp_path) as up:
        assert [party["name"] for party in up.told["parties"]] == ["bloods", "scan", "history"]
        assert up.told["example_ids"] == expected[0]
        found = outputs(up.ask(expected[0]))
        status = httpx.get(f"{up.url}/api/status").json()
    _, label, escalate, score = expected
    np.testing.assert_allclose(found["score"], score, rtol=1e-4, atol=1e-5)
    same = np.array(found["escalated"]) == np.array(escalate)
    np.testing.assert_array_equal(np.array(found["label"])[same], np.array(label)[same])
    assert [status["router"]["classes"][i] for i in found["label"]] == found["class"]
    assert same.mean() > 0.8, "a budget controller moves the threshold a little"
    assert status["controller"]["on"] is True
    assert abs(np.mean(found["escalated"]) - 0.3) <= status["controller"]["window"]["bound"]
    assert status["router"]["codec"] == "float16"
    assert status["operating_point"]["budget"] == 0.3


@pytest.fixture(scope="module")
def served(run, tmp_path_factory):
    with ExitStack() as stack:
        yield serve(run, tmp_path_factory.mktemp("by-hand"), stack)


def test_by_hand_with_tls_in_front_the_answers_are_the_same(served, expected):
    assert served.url.startswith("https://")
    with served.http(served.client) as http:
        check(outputs(infer(http, expected[0])), expected)
        days = http.get("/api/status").json()["certificates"]
    assert set(days) == {"coordinator", "front door", "party bloods", "party scan", "party history"}
    assert 29 < days["front door"] <= 30


def test_the_front_door_is_shut_to_whom_it_does_not_know(served, expected):
    places = ("/", "/docs", "/openapi.json", "/metrics", "/api/status", "/api/decisions", "/v2/models/gainroute")
    with served.http() as stranger, served.http("guessed") as guesser:
        for who in (stranger, guesser):
            assert infer(who, expected[0][:1]).status_code == 401
            assert {who.get(place).status_code for place in places} == {401}
            assert who.get("/v2/health/live").status_code == 200, "a supervisor has no token"
    with served.http(served.client) as client, served.http(served.admin) as admin:
        assert {client.get(place).status_code for place in places} == {200}
        assert client.post("/admin/budget", json={"budget": 1.0}).status_code == 403
        assert client.get("/api/status").json()["operating_point"]["budget"] == 0.3
        assert admin.post("/admin/budget", json={"budget": 0.5}).status_code == 200
        assert client.get("/api/status").json()["operating_point"]["budget"] == 0.5
        assert served.admin not in client.get("/").text, "a page for many must not carry the admin's token"
        assert admin.post("/admin/budget", json={"budget": 0.3}).status_code == 200
        told = admin.get("/admin/audit").json()["audit"]
    assert [(entry["who"], entry["after"]["budget"]) for entry in told] == [
        ("admin:operations", 0.3),
        ("admin:operations", 0.5),
    ]


def test_without_tls_or_without_trust_nothing_is_said(served):
    with pytest.raises(httpx.TransportError):
        httpx.get(served.url.replace("https://", "http://") + "/v2/health/live")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{served.url}/v2/health/live", verify=ssl.create_default_context())
