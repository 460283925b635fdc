"""From a service's own log to a better router: what the controller wrote is what a refit needs."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from fake_federation import CLASSES, IDS, K, M, N, federation, running
from typer.testing import CliRunner

import gainroute as gr
from gainroute._util.hashing import hash_contents
from gainroute.cli import app
from gainroute.control.logged_decisions import checked
from gainroute.federation.coordinator.decision_log.reading import read_decisions
from gainroute.federation.coordinator.settings import ControllerSettings

REQUESTS, EXPLORE = 25, 0.1


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path)


def serve(fed, requests=REQUESTS, probability=None):
    """Answer every sample this many times, and tell the truth about each answer."""

    async def work():
        async with running(fed) as up:
            for _ in range(requests):
                found = await up.answers(IDS)
                told = [
                    {"decision_id": name, "label": CLASSES[label]}
                    | ({} if probability is None or probability[i] is None else {"probability": probability[i]})
                    for i, (name, label) in enumerate(zip(found["decision_id"], fed.test.labels, strict=True))
                ]
                response = await up.client.post("/feedback", json={"feedback": told})
                assert len(response.json()["accepted"]) == N, response.text

    asyncio.run(work())


def read(fed):
    artifact = fed.artifacts["one"]
    return read_decisions(fed.settings.log.path, gr.load(artifact), hash_contents(artifact))


def recalibrate(fed, *more):
    artifact, log, out = fed.artifacts["one"], fed.settings.log.path, fed.folder / "new.safetensors"
    arguments = ["recalibrate", str(artifact), "--log", str(log), "--out", str(out), *more]
    return CliRunner().invoke(app, arguments), out


def test_a_log_of_the_service_teaches_what_the_library_would_have_learned(fed):
    serve(fed, requests=3)  # before the controller was turned on: nothing was explored
    refused, _ = recalibrate(fed)
    assert refused.exit_code == 2
    assert "had no chance of being escalated" in " ".join(refused.stderr.split())
    serve(fed.having(controller=ControllerSettings(explore=EXPLORE)))

    done, out = recalibrate(fed, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["decisions"], told["labels"], told["unexplored"]) == (REQUESTS * N, REQUESTS * N, 3 * N)

    router = gr.load(fed.artifacts["one"])
    local = np.array([p.models[f"one-{p.name}"][0] for p in fed.parties], dtype=np.float64)
    decision = gr.BudgetController(router, explore=EXPLORE).route(np.tile(local, (1, REQUESTS, 1)))
    names = np.array(CLASSES, dtype=object)
    strong = np.where(decision.escalate, names[np.tile(fed.test.strong, REQUESTS)], None)
    log = gr.LoggedDecisions(
        np.tile(local, (1, REQUESTS, 1)), names[np.tile(fed.test.labels, REQUESTS)], strong, decision.probability,
        threshold=decision.thresholds,
    )  # fmt: skip
    expected, new = gr.recalibrate(router, log), gr.load(out)
    np.testing.assert_allclose(new.confusion_, expected.confusion_, rtol=1e-6)
    assert new.threshold_ == pytest.approx(expected.threshold_)


def test_the_probabilities_in_the_log_undo_what_the_router_chose(fed):
    """Where little gain was expected the strong route is now wrong: only what was explored shows it."""
    expected = fed.offline(IDS).escalated
    strong = np.where(expected, fed.test.labels, (fed.test.labels + 1) % K)
    for party in fed.parties:
        posteriors, embeddings = party.models[f"one-{party.name}"]
        spoiled = np.hstack([np.eye(K)[strong] / M, embeddings[:, -1:]]).astype(np.float32)
        party.models[f"one-{party.name}"] = posteriors, spoiled
    serve(fed.having(controller=ControllerSettings(explore=EXPLORE)))
    found = read(fed)
    rows = checked(gr.load(fed.artifacts["one"]), found.decisions)
    truth = expected.mean()
    asked = rows.strong >= 0
    right = rows.strong[asked] == rows.labels[asked]
    weight = 1 / rows.probability[asked]
    assert weight.sum() / len(asked) == pytest.approx(1, abs=0.1)  # every sample is stood for
    assert weight.max() == 1 / EXPLORE
    weighted, naive = np.average(right, weights=weight), right.mean()
    assert abs(weighted - truth) < 0.05
    assert naive > truth + 0.3


def test_what_feedback_says_of_its_own_probability_is_used_and_the_rest_is_the_share_of_its_route(fed):
    probability = [0.5 if i % 3 == 0 else 0.25 if i % 3 == 1 else None for i in range(N)]
    serve(fed.having(controller=ControllerSettings(explore=EXPLORE)), requests=4, probability=probability)
    found = read(fed)
    expected = np.tile(np.array(probability, dtype=np.float64), 4)
    np.testing.assert_array_equal(found.decisions.feedback_probability, expected)
    rows = checked(gr.load(fed.artifacts["one"]), found.decisions)
    assert len(rows.feedback) == 4 * N
    np.testing.assert_array_equal(rows.feedback, np.where(np.isnan(expected), 1.0, expected))
    later = found.take(slice(N, None)).decisions
    np.testing.assert_array_equal(later.feedback_probability, expected[N:])
