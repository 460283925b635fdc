"""A party that sends anything the protocol can carry: monitoring stays up, and requests are answered or refused."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import httpx
import numpy as np
import pytest
from fake_federation import CLASSES, IDS, K, federation, outputs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from party_helpers import FaultyParty, Federation, serving_faulty

from gainroute.federation.coordinator.app import create_app
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.server import certificate_days
from gainroute.federation.transport.bounds import CONTROL, MAX_TEXT
from gainroute.federation.transport.grpc_client import ClientOptions, GrpcConnection
from gainroute.federation.transport.proto import party_pb2 as pb

MODEL, DIMENSION = "one-a", K + 1
OPTIONS = ClientOptions(connect_timeout=5, first_backoff=0.01, longest_backoff=0.02)
HONEST = pb.DescribeReply(
    name="a", classes=CLASSES, codecs=["float32"], models=[pb.Model(hash=MODEL, dimension=DIMENSION)]
)


def honest(party, request):
    """The table's own answer."""
    table = party.models[MODEL][request.round - 1][[party.rows[name] for name in request.ids]]
    tensor = pb.Tensor(shape=table.shape, encoding="float32", data=table.astype("<f4").tobytes())
    return pb.Response(answer=pb.Answer(model=MODEL, values=tensor))


class Attacked:
    """A coordinator whose party `a` is malicious and behind a real socket; b and c are honest."""

    def __init__(self, folder):
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.fed = federation(folder).having(rounds={"on_missing_party": "pool", "health_seconds": 3600.0})
        self.party = FaultyParty(HONEST, self.honest)
        self.loop.run_until_complete(self._start(Federation(folder / "certificates")))

    def honest(self, request):
        return honest(self.fed.parties[0], request)

    async def _start(self, certificates):
        address = await self.stack.enter_async_context(serving_faulty(certificates, self.party))
        files = certificates.files("coordinator", "main")
        connections = [GrpcConnection("a", address, files, OPTIONS), *self.fed.parties[1:]]
        self.coordinator = Coordinator(
            self.fed.settings, connections, load_strong=self.fed.load_strong,
            certificates=lambda: certificate_days(self.fed.settings, connections),
        )  # fmt: skip
        await self.coordinator.start()
        self.stack.push_async_callback(self.coordinator.stop)
        transport = httpx.ASGITransport(create_app(self.coordinator, manage=False), raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        self.client = await self.stack.enter_async_context(client)

    def ask(self, describe=HONEST, answer=None, ids=IDS[:20]):
        """Replies to a request for samples, /metrics and /api/status while the party sends these messages."""

        async def main():
            self.party.describe, self.party.answer = describe, answer or self.honest
            await self.coordinator.parties.check_health(self.coordinator.deployment)
            body = {"inputs": [{"name": "id", "shape": [len(ids)], "datatype": "BYTES", "data": ids}]}
            paths = "/metrics", "/api/status"
            first = [await self.client.get(path) for path in paths]
            reply = await self.client.post("/v2/models/gainroute/infer", json=body)
            await asyncio.sleep(0)
            return reply, [*first, *[await self.client.get(path) for path in paths]]

        return self.loop.run_until_complete(main())

    def state(self):
        return self.coordinator.parties.links["a"].state

    def close(self):
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.close()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    made = Attacked(tmp_path_factory.mktemp("attacked"))
    yield made
    made.close()


TEXT = st.one_of(st.text(max_size=20), st.sampled_from(["", "\0", "\x1b[2J", "x" * 300, "y" * 100_000, "a", *CLASSES]))
UINT32 = st.one_of(st.integers(0, 6), st.sampled_from([2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
UINT64 = st.one_of(st.integers(0, 6), st.sampled_from([2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
SECONDS = st.one_of(st.sampled_from([0, -1, 1, 2**31, 253402300800, 2**62, -(2**63)]), st.integers(-(2**63), 2**63 - 1))
MODELS = st.lists(
    st.builds(pb.Model, hash=st.one_of(st.just(MODEL), TEXT), dimension=st.one_of(st.just(DIMENSION), UINT32)),
    max_size=4,
)
DESCRIPTIONS = st.builds(
    pb.DescribeReply, name=st.one_of(st.just("a"), TEXT), revision=UINT32, max_samples=UINT32,
    classes=st.one_of(st.just(list(CLASSES)), st.lists(TEXT, max_size=6), st.just(["k"] * 200_000)),
    models=st.one_of(st.just([pb.Model(hash=MODEL, dimension=DIMENSION)]), MODELS),
    codecs=st.one_of(st.just(["float32"]), st.lists(TEXT, max_size=4)), max_message_bytes=UINT64,
    certificate_not_after=SECONDS,
)  # fmt: skip
NUMBERS = st.sampled_from([0.0, 0.25, 1.0, -0.0, -1.0, 1e-45, 3e38, -3e38, 1e13, float("nan"), float("inf")])
TENSORS = st.builds(
    pb.Tensor, shape=st.one_of(st.sampled_from([[20, K], [20, DIMENSION], [0, K]]), st.lists(UINT64, max_size=5)),
    encoding=st.one_of(st.sampled_from(["float32", "float16", "int8"]), TEXT),
    data=st.one_of(
        st.binary(max_size=40),
        st.builds(lambda x, n: np.full(20 * n, x, "<f4").tobytes(), NUMBERS, st.sampled_from([K, DIMENSION])),
    ),
)  # fmt: skip
FAILURES = st.builds(
    pb.Failure, code=st.integers(0, 9), message=TEXT, retry_after_seconds=st.floats(allow_nan=True, allow_infinity=True)
)
ANSWERS = st.builds(
    pb.Answer, model=st.one_of(st.just(MODEL), TEXT), missing=st.one_of(st.just([]), st.lists(UINT32, max_size=30)),
    values=TENSORS,
)  # fmt: skip
RESPONSES = st.one_of(
    st.builds(pb.Response, answer=ANSWERS), st.builds(pb.Response, failure=FAILURES), st.just(pb.Response())
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(describe=st.one_of(st.just(HONEST), DESCRIPTIONS), first=RESPONSES, second=st.none() | RESPONSES)
def test_whatever_a_party_sends_monitoring_stays_up_and_requests_get_an_answer_or_a_refusal(
    attacked, describe, first, second
):
    def answer(request):
        if second is None:
            return pb.Response.FromString(first.SerializeToString())
        return attacked.honest(request) if request.round == 1 else pb.Response.FromString(second.SerializeToString())

    reply, monitoring = attacked.ask(describe, answer)
    assert [page.status_code for page in monitoring] == [200] * 4
    assert reply.status_code in (200, 503), reply.text
    assert len(reply.text) < 50_000
    assert max(len(page.text) for page in monitoring) < 100_000
    if reply.status_code == 200:
        probabilities = outputs(reply.json())["probabilities"]
        assert np.isfinite(probabilities).all()
    for link in attacked.coordinator.parties.links.values():
        assert len(link.error) < 3 * MAX_TEXT
        assert CONTROL.search(link.error) is None


def test_an_absurd_embedding_names_the_party_in_the_answer_and_in_the_metrics(attacked):
    def answer(request):
        sent = attacked.honest(request)
        if request.round == 2:
            values = np.full((len(request.ids), DIMENSION), 3e38, "<f4")
            sent.answer.values.data = values.tobytes()
        return sent

    reply, (*_, metrics, status) = attacked.ask(answer=answer, ids=IDS)
    routes = set(outputs(reply.json())["route"])
    assert routes == {"round1", "degraded:round2:refused:a"}
    assert 'gainroute_party_failures_total{party="a",round="2"}' in metrics.text
    party = status.json()["parties"][0]
    assert (party["state"], "beyond" in party["error"]) == ("refused", True)


def test_a_party_that_describes_itself_under_another_name_is_not_asked_and_not_ok(attacked):
    other = pb.DescribeReply.FromString(HONEST.SerializeToString())
    other.name = "b"
    reply, (*_, status) = attacked.ask(describe=other)
    assert set(outputs(reply.json())["route"]) == {"degraded:absent:a"}
    party = status.json()["parties"][0]
    assert (party["state"], "calls itself 'b'" in party["error"]) == ("refused", True)
    assert 'gainroute_party_up{party="a"} 0.0' in attacked.ask(describe=other)[1][0].text
    reply, _ = attacked.ask()
    assert "degraded:absent:a" not in set(outputs(reply.json())["route"])
    assert attacked.state() == "ok"


@pytest.mark.parametrize("wrong", [{"certificate_not_after": 2**62}, {"name": "b"}, {"classes": ["k"] * 200_000}])
def test_a_party_that_is_absurd_from_the_start_does_not_break_monitoring(tmp_path, wrong):
    described = pb.DescribeReply.FromString(HONEST.SerializeToString())
    for name, value in wrong.items():
        if isinstance(value, list):
            del getattr(described, name)[:]
            getattr(described, name).extend(value)
        else:
            setattr(described, name, value)

    made = Attacked.__new__(Attacked)
    made.loop, made.stack = asyncio.new_event_loop(), AsyncExitStack()
    made.fed = federation(tmp_path).having(rounds={"on_missing_party": "pool", "health_seconds": 3600.0})
    made.party = FaultyParty(described, made.honest)
    made.loop.run_until_complete(made._start(Federation(tmp_path / "certificates")))
    reply, monitoring = made.ask(described)
    made.close()
    assert [page.status_code for page in monitoring] == [200] * 4
    assert set(outputs(reply.json())["route"]) == {"degraded:absent:a"}
