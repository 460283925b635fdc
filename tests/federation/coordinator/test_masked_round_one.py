"""A coordinator whose parties mask Round 1, over real sockets: the same answers, and nothing of a single party."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import httpx
import numpy as np
import pytest

pytest.importorskip("grpc")

from fake_federation import CLASSES, IDS, NAMES, K, M, Running, TableParty, federation
from masked_federation import mask_keys, privacy
from party_helpers import QUICK, Federation, PartyNode
from synthetic import world
from waiting import until

import gainroute as gr
from gainroute.errors import InputError, SettingError
from gainroute.federation.coordinator.app import create_app
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.decision_log.store import reading
from gainroute.federation.coordinator.errors import HandshakeError
from gainroute.federation.coordinator.settings import PartyEndpoint, RoundOnePrivacy, RoundSettings
from gainroute.federation.party.model import version_of
from gainroute.federation.party.settings import PrivacySettings
from gainroute.federation.party.sources import source_of
from gainroute.federation.transport.grpc_client import GrpcConnection
from gainroute.routing.pooled_only import route_pooled

MASKED = RoundOnePrivacy(round1="masked")


def pooled_router(path, **settings):
    """A router for a masked Round 1, with the provenance of the models "one"."""
    calibration = world(400, M, K, 0)
    router = gr.ExpectedGainRouter(
        0.3, classes=CLASSES, threshold="calibration", **{"pooled_only": True, "lam": 1.0, **settings}
    )
    # Evidence of its own, so that blending it with Round 1 pays.
    strong = np.exp(np.random.default_rng(7).normal(size=(400, K)) + 2 * np.eye(K)[calibration.labels])
    strong /= strong.sum(axis=1, keepdims=True)
    router.fit(calibration.local, np.array(CLASSES)[calibration.labels], strong_posterior=strong)
    gr.save(router, path, provenance=gr.Provenance({name: f"one-{name}" for name in NAMES}, "float32"))
    return router


class MaskedFederation:
    """Three masking party nodes with the tables of `fake_federation`, and a coordinator in this process."""

    def __init__(self, folder, **how):
        self.fed = federation(folder)
        self.router = pooled_router(folder / "pooled.safetensors")
        self.certificates = Federation(folder / "certificates")
        self.folder, self.public = folder, mask_keys(folder, NAMES)
        self.how, self.nodes = how, {}

    def node(self, party, **how):
        served = TableParty(party, f"one-{party.name}")
        served.ids = [name for name in IDS if name not in party.lacks]
        privacy_ = how.pop("privacy", None) or privacy(self.folder, party.name, self.public, **self.how)
        settings = self.certificates.settings(party.name, privacy=privacy_, **how)
        return PartyNode(settings, source=source_of(version_of(served, served.model, CLASSES, K + 1)))

    @asynccontextmanager
    async def running(self, *, own=None, **sections):
        """The coordinator's app, started; `own` are settings of single parties."""
        async with AsyncExitStack() as stack:
            for party in self.fed.parties:
                node = self.nodes[party.name] = self.node(party, **(own or {}).get(party.name, {}))
                await node.start()
                stack.push_async_callback(node.stop, 0.2)
            table = tuple(PartyEndpoint(name=name, address=self.nodes[name].address) for name in NAMES)
            rounds = {"one_seconds": 5.0, "two_seconds": 5.0}
            router = {"artifact": self.folder / "pooled.safetensors"}
            sections = {"party": table, "rounds": rounds, "router": router, "privacy": MASKED} | sections
            fed = self.fed.having(**sections)
            files = self.certificates.files("coordinator", "main")
            connections = [GrpcConnection(party.name, party.address, files, QUICK) for party in table]
            coordinator = Coordinator(fed.settings, connections, load_strong=fed.load_strong)
            await coordinator.start()
            stack.push_async_callback(coordinator.stop)
            transport = httpx.ASGITransport(create_app(coordinator, manage=False))
            client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=30)
            yield Running(fed, coordinator, await stack.enter_async_context(client))


def test_masked_answers_are_those_of_the_library(tmp_path):
    made = MaskedFederation(tmp_path)
    made.fed.parties[1].lacks = {"s7"}

    async def work():
        async with made.running() as running:
            found = await running.answers([*IDS, "who?"])
            decided = await running.client.get("/api/decisions", params={"limit": 200})
            one = decided.json()["decisions"][-1]
            explained = (await running.client.get(f"/api/decisions/{one['decision_id']}/explanation")).json()
            with reading(running.coordinator.log.place) as log:
                stored = log.execute("SELECT count(local), count(pooled) FROM decisions").fetchone()
            refused = await running.admin("shadow", {"artifact": str(tmp_path / "one.safetensors")})
            return found, explained, tuple(stored), refused

    found, explained, stored, refused = asyncio.run(work())
    made.fed.parties[1].lacks = set()
    expected = made.fed.offline(IDS, router=made.router)
    whole = np.array([name != "s7" for name in IDS])
    labels = np.array([CLASSES.index(name) for name in expected.prediction])
    assert (found["label"][:-1][whole] == labels[whole]).all()
    assert (found["escalated"][:-1][whole] == expected.escalated[whole]).all()
    assert expected.escalated.any()
    assert not expected.escalated.all()
    assert np.abs(found["probabilities"][:-1][whole] - expected.probabilities[whole]).max() < 1e-3
    # A sample that a party lacks has no sum, and so no answer.
    assert found["label"][7] == found["label"][-1] == -1
    assert found["route"][7] == "degraded:missing:b"
    assert found["route"][-1] == "unknown"
    # No posterior of a party is known, stored or shown.
    assert stored == (0, len(IDS) + 1)
    assert "masked" in explained["note"]
    assert all(entry["local"] == {} for entry in explained["classes"])
    assert refused.status_code == 409
    assert "masked" in refused.json()["error"]


def test_requests_are_refused_while_a_party_is_absent_and_answered_when_it_is_back(tmp_path):
    made = MaskedFederation(tmp_path)

    async def work():
        async with made.running() as running:
            assert (await running.infer(IDS[:4])).status_code == 200
            await made.nodes["c"].stop(0)
            seen = await running.infer(IDS[4:8])
            assert seen.status_code == 503
            assert "party 'c'" in seen.json()["error"]
            node = made.node(made.fed.parties[2], listen=made.nodes["c"].address)
            await node.start()
            made.nodes["c"] = node

            async def answered():
                return (await running.infer(IDS[2:8])).status_code == 200

            await until(answered, 30)
            again = await running.answers(IDS[2:8])  # with the same roster, which says nothing new
            assert set(again["route"]) <= {"round1", "round2"}
            await node.stop(0.2)

    asyncio.run(work())


def test_a_dropout_is_asked_around_with_a_smaller_roster_for_samples_without_a_sum(tmp_path):
    made = MaskedFederation(tmp_path, min_roster=2)
    rounds = {"one_seconds": 5.0, "on_missing_party": "smaller-roster"}

    async def work():
        async with made.running(rounds=rounds) as running:
            before = await running.answers(IDS[:4])
            await made.nodes["c"].stop(0)
            lost = await running.infer(IDS[20:22])
            assert lost.status_code in (200, 503)  # asked with or without the party, as its loss was noticed
            return before, await running.answers([*IDS[2:8]])

    before, after = asyncio.run(work())
    assert set(before["route"]) <= {"round1", "round2"}
    assert after["route"][:2].tolist() == ["degraded:absent:c+withheld:a,b"] * 2
    assert after["label"][:2].tolist() == [-1, -1]
    assert after["route"][2:].tolist() == ["degraded:absent:c"] * 4
    assert not after["escalated"].any()
    # Its router is taught, and that map was fitted to the pool of all parties: the log-linear pool answers.
    pool = made.router._pipeline.pool.pool
    local = made.fed.test.local[:2, 4:8].astype(np.float32)
    scaled = pool.weight[:2] * pool.weight.sum() / pool.weight[:2].sum()
    expected = replace(pool, weight=scaled)(local)
    assert np.abs(after["probabilities"][2:] - expected).max() < 1e-4


# ---- the handshake ----------------------------------------------------------------------------------


def refusal(made, **how):
    async def start():
        async with made.running(**how):
            raise AssertionError("it started")

    with pytest.raises(HandshakeError) as caught:
        asyncio.run(start())
    return str(caught.value)


def test_what_reads_a_partys_posterior_is_refused_in_the_handshake(tmp_path):
    made = MaskedFederation(tmp_path)
    message = refusal(made, router={"artifact": tmp_path / "one.safetensors"})
    for word in ("'masked'", "learned gain", "explanations, blending and checks per party", "pooled_only=True"):
        assert word in message
    calibration = world(400, M, K, 0)
    names = np.array(CLASSES)
    learned = gr.LearnedGainRouter(0.3, classes=CLASSES, epochs=2)
    learned.fit(calibration.local, names[calibration.labels], names[calibration.strong])
    provenance = gr.Provenance({name: f"one-{name}" for name in NAMES}, "float32")
    gr.save(learned, tmp_path / "learned.safetensors", provenance=provenance)
    assert "LearnedGainRouter" in refusal(made, router={"artifact": tmp_path / "learned.safetensors"})
    pooled_router(tmp_path / "mean.safetensors", pooling="mean")
    assert "log-linear" in refusal(made, router={"artifact": tmp_path / "mean.safetensors"})
    with pytest.raises(SettingError, match="'refuse' and 'smaller-roster'"):
        made.fed.having(privacy=MASKED, rounds=RoundSettings(on_missing_party="pool"))
    with pytest.raises(SettingError, match="'refuse' and 'pool'"):
        made.fed.having(rounds=RoundSettings(on_missing_party="smaller-roster"))


def test_parties_and_coordinator_agree_on_masking_before_the_first_request(tmp_path):
    made = MaskedFederation(tmp_path)
    plain = RoundOnePrivacy()
    assert "it answers Round 1 masked only" in refusal(made, privacy=plain)
    assert "party 'b': it does not mask Round 1" in refusal(made, own={"b": {"privacy": PrivacySettings()}})
    ours = privacy(tmp_path, "a", made.public)
    few = replace(ours, peers={"b": made.public["b"]})
    assert "party 'a': it has no masking key of c" in refusal(made, own={"a": {"privacy": few}})
    other = mask_keys(tmp_path, ["other"])["other"]
    wrong = replace(ours, peers={**ours.peers, "c": other})
    assert "another masking key of 'c'" in refusal(made, own={"a": {"privacy": wrong}})
    around = {"one_seconds": 5.0, "on_missing_party": "smaller-roster"}
    assert "in sums of 3 or more parties only" in refusal(made, rounds=around)
    strict = replace(ours, min_roster=4)
    assert "it refuses a roster of 3 parties; 4 or more" in refusal(made, own={"a": {"privacy": strict}})


def test_the_router_for_it_routes_pooled_posteriors_like_local_ones(tmp_path):
    router = pooled_router(tmp_path / "router.safetensors")
    assert router.blends_
    local = world(200, M, K, 5).local
    expected = router.route(local)
    found = route_pooled(router, expected.pooled)
    assert (found.escalate == expected.escalate).all()
    assert (found.score == expected.score).all()
    assert expected.local.shape == (1, 200, K)
    strong = np.random.default_rng(0).dirichlet(np.ones(K), size=int(expected.escalate.sum()))
    loaded = gr.load(tmp_path / "router.safetensors")
    for one in (router, loaded):
        assert (one.answer(found, strong).probabilities == router.answer(expected, strong).probabilities).all()
    unknown = expected.pooled.copy()
    unknown[3] = np.nan
    assert route_pooled(loaded, unknown).weak_prediction[3] is None
    assert not route_pooled(loaded, unknown, np.ones(200, dtype=bool)).escalate.any()
    with pytest.raises(InputError, match="pooled_only=True"):
        route_pooled(gr.ExpectedGainRouter(), unknown)
