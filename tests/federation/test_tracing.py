"""Traces: one per request, across coordinator and parties, without anything about samples."""

from __future__ import annotations

import ast
import asyncio
import sys
from pathlib import Path

import pytest
from fake_federation import IDS, NAMES, federation, hold, running
from grpc_front_door import grpc_door, packed
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from party_helpers import MODEL, StubParty, connected, serving
from party_helpers import Federation as Certificates
from waiting import until

from gainroute.errors import MissingExtraError, SettingError
from gainroute.federation import tracing
from gainroute.federation.tracing import RequestTracingSettings, Tracing, TracingSettings, served
from gainroute.federation.transport.base import PartyUnavailableError

ENDPOINT = "http://127.0.0.1:4318/v1/traces"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
PRIVATE = "patient 17"  # a request id that a client chose


class Exported:
    """What the exporters of this process were given."""

    def __init__(self):
        self._made = []

    def __call__(self, **_):
        self._made.append(InMemorySpanExporter())
        return self._made[-1]

    def all(self, name=None):
        return [span for made in self._made for span in made.get_finished_spans() if name in (None, span.name)]

    def one(self, name):
        (span,) = self.all(name)
        return span

    def parents(self):
        """Each span's name, and that of its parent in this process."""
        names = {span.context.span_id: span.name for span in self.all()}
        return {(span.name, span.parent and names.get(span.parent.span_id)) for span in self.all()}


@pytest.fixture
def exported(monkeypatch):
    made = Exported()
    monkeypatch.setattr("opentelemetry.exporter.otlp.proto.http.trace_exporter.OTLPSpanExporter", made)
    return made


def traced(folder, **how):
    return federation(folder).having(tracing=RequestTracingSettings(endpoint=ENDPOINT, **how))


def ask(fed, headers=None):
    """Send a request, and stop the coordinator: it sends what is left."""

    async def work():
        async with running(fed) as service:
            service.client.headers.update(headers or {})
            return await service.infer(IDS)

    return asyncio.run(work())


def test_a_request_is_one_trace_with_a_span_for_every_step(exported, tmp_path):
    assert ask(traced(tmp_path)).status_code == 200
    assert exported.parents() == {
        ("request", None), ("batch", "request"), ("log commit", "request"),
        ("round 1", "batch"), ("routing", "batch"), ("round 2", "batch"), ("fusion", "batch"),
    }  # fmt: skip
    assert len({span.context.trace_id for span in exported.all()}) == 1
    for number in (1, 2):
        spans = exported.all(f"round {number}")
        assert {span.attributes["gainroute.party"] for span in spans} == set(NAMES)
        assert {span.kind for span in spans} == {SpanKind.CLIENT}
    assert exported.all("round 1")[0].attributes["gainroute.samples"] == len(IDS)
    assert 0 < exported.all("round 2")[0].attributes["gainroute.samples"] < len(IDS)
    assert exported.one("batch").attributes["gainroute.samples"] == len(IDS)
    assert exported.one("request").resource.attributes["service.name"] == "gainroute-coordinator"


def test_the_trace_of_the_client_goes_on_and_nothing_that_it_or_a_party_said_is_in_it(exported, tmp_path):
    fed = traced(tmp_path, share=0.0)
    fed.parties[1].error = (PartyUnavailableError("b", f"does not know {IDS[0]}"), None)
    assert ask(fed, {"traceparent": TRACEPARENT, "x-request-id": PRIVATE}).status_code == 503
    request = exported.one("request")
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, PARENT)
    failed = {span.name: span.status for span in exported.all() if span.status.status_code is StatusCode.ERROR}
    assert {name: status.description for name, status in failed.items()} == {
        "round 1": "PartyUnavailableError", "routing": "PartyMissingError", "request": "PartyMissingError",
    }  # fmt: skip
    written = "".join(span.to_json() for span in exported.all())
    assert PRIVATE not in written
    assert not any(f'"{name}' in written or f" {name}" in written for name in IDS)
    assert not any(span.events for span in exported.all()), "an exception's text may name samples"


def test_a_client_over_grpc_sends_its_trace_in_the_metadata(exported, tmp_path):
    async def work():
        async with running(traced(tmp_path)) as service, grpc_door(service.coordinator) as client:
            return await client.infer(raw=packed(b"s1", b"s2"), metadata=(("traceparent", TRACEPARENT),))

    assert asyncio.run(work()).outputs
    assert f"{exported.one('request').parent.span_id:016x}" == PARENT


def test_what_the_share_or_the_client_leaves_out_is_not_traced(exported, tmp_path):
    async def work():
        async with running(traced(tmp_path, share=0.0)) as service:
            for header in ("", TRACEPARENT[:-2] + "00", "nonsense"):
                service.client.headers["traceparent"] = header
                assert (await service.infer(IDS[:3])).status_code == 200

    asyncio.run(work())
    assert exported.all() == []


def test_requests_of_one_batch_are_linked_with_it(exported, tmp_path):
    fed = traced(tmp_path)

    async def work():
        async with running(fed) as service:
            gate = hold(fed)
            waiting = [asyncio.ensure_future(service.infer([name])) for name in IDS[:6]]
            await until(lambda: service.coordinator.batcher.in_flight == len(waiting), 30)
            gate.set()
            await asyncio.gather(*waiting)

    asyncio.run(work())
    requests, batches = exported.all("request"), exported.all("batch")
    assert len(requests) == 6
    assert len({span.context.trace_id for span in requests}) == 6, "each has its own trace"
    assert len(batches) < 6
    inside = {span.parent.span_id for span in batches}
    linked = {(span.context.span_id, link.context.span_id) for span in requests for link in span.links}
    for span in requests:
        own = span.context.span_id
        assert own in inside or any(first == own for first, _ in linked)
    assert linked == {(link.context.span_id, span.context.span_id) for span in batches for link in span.links}


def test_a_party_continues_the_trace_over_grpc_and_traces_nothing_else(exported, tmp_path):
    certificates = Certificates(tmp_path)
    settings = certificates.settings(tracing=TracingSettings(endpoint=ENDPOINT))

    async def work():
        async with serving(settings, StubParty()) as node, connected(certificates, node) as connection:
            outer = Tracing(ENDPOINT, "test")
            await connection.posteriors([1, 2], model=MODEL, request_id="untraced")
            with served(outer, "outside", TRACEPARENT):
                await connection.posteriors([1, 2], model=MODEL, request_id=PRIVATE)
                await connection.embeddings([1], model=MODEL, codec="float32", request_id=PRIVATE)
            outer.close()

    asyncio.run(work())
    outside = exported.one("outside")
    first, second = exported.one("round 1"), exported.one("round 2")
    for span in (first, second):
        assert (span.parent.span_id, span.context.trace_id) == (outside.context.span_id, int(TRACE, 16))
        assert span.kind is SpanKind.SERVER
        assert span.resource.attributes["service.instance.id"] == "a"
    assert [span.attributes["gainroute.samples"] for span in (first, second)] == [2, 1]


def test_a_party_marks_what_it_refused(exported, tmp_path):
    certificates = Certificates(tmp_path)
    settings = certificates.settings(tracing=TracingSettings(endpoint=ENDPOINT), codecs=("float32",))

    class Broken(StubParty):
        def posteriors(self, ids):
            raise KeyError(PRIVATE)

    async def work():
        async with serving(settings, Broken()) as node, connected(certificates, node) as connection:
            outer = Tracing(ENDPOINT, "test")
            with served(outer, "outside", TRACEPARENT):
                await asyncio.gather(connection.posteriors([1], model=MODEL, request_id="r"), return_exceptions=True)
            outer.close()

    asyncio.run(work())
    assert exported.one("round 1").status.description == "internal"
    assert PRIVATE not in "".join(span.to_json() for span in exported.all())


def test_settings_are_checked_and_a_missing_extra_is_named(monkeypatch):
    with pytest.raises(SettingError, match="endpoint is 'collector:4318'; a URL is needed"):
        TracingSettings(endpoint="collector:4318")
    with pytest.raises(SettingError, match=r"share is 2; a share in \[0, 1\]"):
        RequestTracingSettings(endpoint=ENDPOINT, share=2)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtraError, match=r"gainroute\[otel\]"):
        Tracing(ENDPOINT, "test")


def test_the_sdk_is_imported_where_tracing_is_configured_only():
    tree = ast.parse(Path(tracing.__file__).read_text(encoding="utf-8"))
    imported = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not [node for node in imported if "opentelemetry" in ast.unparse(node)]
    assert tracing.open_tracing(None, "test") is None
