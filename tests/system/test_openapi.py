"""schemathesis: requests made from the OpenAPI schema, valid and not; the answers are as it says, and none is a 500."""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import pytest
import requests
import schemathesis
from fake_federation import ADMIN, CLASSES, IDS, federation, running
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

import gainroute as gr
from gainroute.federation.coordinator.app import create_app
from gainroute.federation.coordinator.coordinator import Coordinator
from gainroute.federation.coordinator.settings import CapSettings, ControllerSettings

ADDRESS = "http://127.0.0.1"
EXAMPLES = 25  # per call and test, beside those that schemathesis derives from limits and types
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
BOUNDED = settings(deadline=None, suppress_health_check=list(HealthCheck))
REQUEST = ("method", "url", "headers", "files", "data", "params", "cookies", "json")
NEVER = {f"POST /v2/repository/models/{{name}}/{verb}" for verb in ("load", "unload")}  # these are refused


SHADOW = "three.safetensors"
DECISION, VERSION = "decision of sample 0", "version in use"  # in requests: replaced by what the service answered with


def document():
    """The schema of a service that is not started."""
    with tempfile.TemporaryDirectory() as folder:
        made = federation(Path(folder))
        return create_app(Coordinator(made.settings, made.parties), manage=False)._app._app.openapi()


def named(schema):
    """The schema with names that exist, so that most requests are answered."""
    schema = copy.deepcopy(schema)
    bodies = schema["components"]["schemas"]
    ids = bodies["SampleIds"]["properties"]
    ids["shape"]["items"] = {"const": 2}
    ids["data"] |= {"minItems": 2, "maxItems": 2, "items": {"enum": [*IDS[:20], "nobody has it"]}}
    for name in ("LabelByDecision", "LabelBySample"):
        bodies[name]["properties"]["label"] = {"enum": list(CLASSES)}
    bodies["LabelByDecision"]["properties"]["decision_id"] = {"const": DECISION}
    bodies["LabelBySample"]["properties"]["sample_id"] = {"enum": IDS[:20]}
    for name in ("Switch", "ShadowLoad"):
        bodies[name]["properties"]["artifact"] = {"enum": ["one.safetensors", "two.safetensors", SHADOW]}
    values = {"version": {"const": VERSION}, "decision_id": {"const": DECISION}, "sample_id": {"enum": IDS[20:]}}
    for methods in schema["paths"].values():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                parameter["schema"] = values.get(parameter["name"], parameter["schema"])
    return schema


def bounded(schema, *modes):
    """Requests from a schema, the same in every run."""
    made = schemathesis.openapi.from_dict(schema)
    made.config.generation.update(
        modes=list(modes), max_examples=EXAMPLES, deterministic=True, with_security_parameters=False
    )
    return made


DOCUMENT = document()
any_request = bounded(DOCUMENT, GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
good_request = bounded(named(DOCUMENT), GenerationMode.POSITIVE)


class Service:
    """A coordinator in this process, and the statuses it answered with, by call."""

    def __init__(self, folder):
        self._loop = asyncio.new_event_loop()
        made = federation(folder).having(controller=ControllerSettings(cap=CapSettings(rate=1e6, burst=1e6)))
        provenance = gr.Provenance({party.name: f"one-{party.name}" for party in made.parties}, "float32")
        gr.save(made.routers["two"], folder / SHADOW, provenance=provenance)  # fits beside the router in use
        self._running = running(made)
        self._up = self._do(self._running.__aenter__())
        self._decision = self._do(self._prepare())
        self.statuses = {}

    async def _prepare(self):
        """Have something to report: answers, labels, a shadow router, and the first look of the monitors."""
        decisions = (await self._up.answers(IDS))["decision_id"]
        await self._up.admin("shadow", {"artifact": SHADOW})
        labels = [{"decision_id": name, "label": CLASSES[0]} for name in decisions.tolist()]
        await self._up.client.post("/feedback", json={"feedback": labels})
        await self._up.answers(IDS)
        await self._up.coordinator.monitor.examine()
        return decisions[0]

    def _do(self, work):
        return self._loop.run_until_complete(work)

    def send(self, case):
        given = case.as_transport_kwargs(ADDRESS)
        made = requests.Request(**{name: given[name] for name in REQUEST if name in given}).prepare()
        url, body = made.url, made.body.encode() if isinstance(made.body, str) else made.body
        for name, real in ((DECISION, self._decision), (VERSION, self._up.coordinator.deployment.name)):
            url = url.replace(quote(name), real)
            body = body and body.replace(name.encode(), real.encode())
        headers = {**made.headers, "Authorization": f"Bearer {ADMIN}", "Content-Length": str(len(body or b""))}
        answer = self._do(self._up.client.request(made.method, url, headers=headers, content=body))
        self.statuses.setdefault(case.operation.label, Counter())[answer.status_code] += 1
        return answer

    def close(self):
        self._do(self._running.__aexit__(None, None, None))
        self._do(self._loop.shutdown_default_executor())
        self._loop.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    made = Service(tmp_path_factory.mktemp("service"))
    yield made
    made.close()


@any_request.parametrize()
@BOUNDED
def test_any_request_is_answered_as_the_schema_says(case, service):
    checks = CHECKS if case.path == "/feedback" else [*CHECKS, negative_data_rejection]  # a list is accepted in part
    case.validate_response(service.send(case), checks=checks)


@good_request.parametrize()
@BOUNDED
def test_a_good_request_is_answered_as_the_schema_says(case, service):
    case.validate_response(service.send(case), checks=CHECKS)


def test_every_call_was_answered(service):
    assert set(service.statuses) == {f"{verb.upper()} {path}" for path, of in DOCUMENT["paths"].items() for verb in of}
    assert {call for call, found in service.statuses.items() if not found[200]} <= NEVER
