"""The gRPC front door: what it answers and refuses is what HTTP answers and refuses."""

from __future__ import annotations

import asyncio
import json

import grpc
import numpy as np
import pytest
from fake_federation import ADMIN, IDS, K, federation, outputs, running
from grpc_front_door import GrpcClient, Refused, grpc_door, infer_request, packed, tensors
from grpc_health.v1 import health_pb2

from gainroute.federation.coordinator.errors import CoordinatorError
from gainroute.federation.coordinator.grpc_door.proto import open_inference_pb2 as pb
from gainroute.federation.coordinator.grpc_door.service import STATUS
from gainroute.federation.coordinator.open_inference import HEADER
from gainroute.federation.coordinator.tokens import hash_token

Code = grpc.StatusCode
S0_S1 = packed(b"s0", b"s1")


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Ask one coordinator through both front doors, call by call."""
    loop = asyncio.new_event_loop()
    over_http = running(federation(tmp_path_factory.mktemp("doors")))
    up = loop.run_until_complete(over_http.__aenter__())
    over_grpc = grpc_door(up.coordinator)
    client = loop.run_until_complete(over_grpc.__aenter__())

    class Both:
        def http(self, method, path, **more):
            return loop.run_until_complete(up.client.request(method, path, **more))

        def __getattr__(self, name):
            return lambda *given, **more: loop.run_until_complete(getattr(client, name)(*given, **more))

    yield Both()
    for manager in (over_grpc, over_http):
        loop.run_until_complete(manager.__aexit__(None, None, None))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def over_http(request: pb.InferRequest):
    """The same request in HTTP's binary form, and its path."""
    inputs = [
        {"name": t.name, "datatype": t.datatype, "shape": list(t.shape)}
        | {"parameters": {key: getattr(value, value.WhichOneof("choice")) for key, value in t.parameters.items()}}
        for t in request.inputs
    ]
    raw = b"".join(request.raw_input_contents)
    for tensor in inputs:
        tensor["parameters"]["binary_data_size"] = len(raw)
    body = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    if request.outputs:
        body["outputs"] = [{"name": output.name} for output in request.outputs]
    text = json.dumps(body).encode()
    version = f"/versions/{request.model_version}" if request.model_version else ""
    path = f"/v2/models/{request.model_name}{version}/infer"
    return path, {"content": text + raw, "headers": {HEADER: str(len(text))}}


REFUSED = {
    "no input": infer_request(inputs=[]),
    "two inputs": infer_request(S0_S1, inputs=[{"name": "id"}, {"name": "id"}]),
    "another name": infer_request(S0_S1, input_name="x"),
    "another type": infer_request(S0_S1, input_datatype="INT64"),
    "no shape": infer_request(S0_S1, shape=[]),
    "a matrix": infer_request(S0_S1, shape=[2, 1]),
    "no samples": infer_request(b"", shape=[0]),
    "a negative shape": infer_request(S0_S1, shape=[-1]),
    "too many": infer_request(S0_S1, shape=[1_000_000]),
    "more than a number of 32 bits": infer_request(S0_S1, shape=[2**63 - 1]),
    "shared memory": infer_request(S0_S1, input_parameters={"shared_memory_region": pb.Parameter(string_param="r")}),
    "too few": infer_request(packed(b"s0")),
    "too many bytes": infer_request(packed(b"s0", b"s1", b"s2")),
    "half a length": infer_request(packed(b"s0") + b"\x02\x00"),
    "half an id": infer_request(packed(b"s0") + b"\x09\x00\x00\x00s1"),
    "a length beyond all bytes": infer_request(b"\xff\xff\xff\xffabcd"),
    "an empty id": infer_request(packed(b"s0", b"")),
    "a long id": infer_request(packed(b"s0", b"x" * 2000)),
    "not UTF-8": infer_request(packed(b"s0", b"\xff")),
    "an unknown output": infer_request(S0_S1, outputs=[{"name": "x"}]),
    "an output twice": infer_request(S0_S1, outputs=[{"name": "label"}] * 2),
    "another model": infer_request(S0_S1, model_name="other"),
    "another version": infer_request(S0_S1, model_version="zzz"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_both_front_doors_refuse_alike(both, what):
    path, sent = over_http(REFUSED[what])
    expected = both.http("POST", path, **sent)
    told = both.infer(REFUSED[what])
    assert expected.status_code in (400, 404, 413)
    assert (told.code, told.text) == (STATUS[expected.status_code], expected.json()["error"])
    assert told.trailing["error-code"] == expected.json()["code"]
    assert told.trailing["x-request-id"]


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (b"\xff\xff\xff", "3 bytes that are no InferRequest"),
        (b"\x0a\x02\xff\xfe", "4 bytes that are no InferRequest"),  # a text that is not UTF-8
        (infer_request(typed=[b"s0"]), '"bytes_contents" has 1 entries; 2, as "shape" says, are needed'),
        (infer_request(typed=[b"s0", b""]), "id 1 has 0 bytes; 1 … 1024 are allowed"),
        (infer_request(typed=[b"s0", b"\xff"]), "id 1 is b'\\xff'; UTF-8 is needed"),
        (infer_request(S0_S1, [b"s0", b"s1"]), '1 "raw_input_contents" for its one input, and "contents" as well'),
        (infer_request(raw_input_contents=[S0_S1, S0_S1]), '2 "raw_input_contents" for its one input'),
        (infer_request(), '"bytes_contents" has 0 entries'),
        (infer_request(S0_S1, shape=[1] * 100_000), '"shape" is [1, 1, 1, 1, 1, 1, 1, 1]; [N] with N ≥ 1 is needed'),
    ],
)
def test_what_only_grpc_can_say_wrong_is_refused(both, request_, told):
    reply = both.infer(request_)
    assert reply.code is Code.INVALID_ARGUMENT
    assert told in reply.text


def test_every_status_has_a_code():
    kinds = [CoordinatorError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.status for kind in kinds} <= set(STATUS)


def test_both_front_doors_answer_alike_in_every_form(both):
    ids = IDS[:40]
    body = {"inputs": [{"name": "id", "shape": [40], "datatype": "BYTES", "data": ids}]}
    plain = outputs(both.http("POST", "/v2/models/gainroute/infer", json=body).json())
    content = [name.encode() for name in ids]
    for form in ({"raw": packed(*content)}, {"typed": content}):
        reply = both.infer(shape=[40], id="mine", model_version=plain["version"], **form)
        assert (reply.model_name, reply.model_version, reply.id) == ("gainroute", plain["version"], "mine")
        assert bool(reply.raw_output_contents) == ("raw" in form)
        found = tensors(reply)
        assert list(found) == [name for name in plain if name != "version"]
        assert {output.name: output.datatype for output in reply.outputs}["probabilities"] == "FP32"
        for name in ("label", "escalated", "route", "class"):
            np.testing.assert_array_equal(found[name], plain[name])
        for name in ("probabilities", "score"):
            np.testing.assert_allclose(found[name], plain[name], rtol=1e-6)
        assert len(set(found["decision_id"])) == 40
        assert set(found["decision_id"]).isdisjoint(plain["decision_id"])
    chosen = both.infer(raw=S0_S1, outputs=[{"name": "class"}, {"name": "label"}])
    assert [output.name for output in chosen.outputs] == ["class", "label"]


def test_metadata_configuration_statistics_and_health(both):
    assert pb.LiveReply.FromString(both.call("ServerLive")).live
    assert pb.ReadyReply.FromString(both.call("ServerReady")).ready
    health = both.call("Check", service="grpc.health.v1.Health")
    assert health_pb2.HealthCheckResponse.FromString(health).status == health_pb2.HealthCheckResponse.SERVING
    server = pb.ServerMetadata.FromString(both.call("ServerMetadata"))
    assert ["binary_tensor_data", *server.extensions] == both.http("GET", "/v2").json()["extensions"]
    asked = pb.ModelRequest(name="gainroute")
    assert pb.ReadyReply.FromString(both.call("ModelReady", asked)).ready
    model = pb.ModelMetadata.FromString(both.call("ModelMetadata", asked))
    expected = both.http("GET", "/v2/models/gainroute").json()
    assert list(model.versions) == expected["versions"]
    assert [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in model.outputs] == expected[
        "outputs"
    ]
    config = pb.ConfigReply.FromString(both.call("ModelConfig", asked)).config
    shapes = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in config.output}
    assert shapes["probabilities"] == (pb.DESCRIPTOR.enum_types_by_name["DataType"].values_by_name["TYPE_FP32"].number,
                                       [-1, K])  # fmt: skip
    assert config.parameters["max_batch"].string_value == "1024"
    for request in (asked, pb.ModelRequest()):
        (stats,) = pb.StatisticsReply.FromString(both.call("ModelStatistics", request)).model_stats
        (told,) = both.http("GET", "/v2/models/stats").json()["model_stats"]
        assert stats.inference_count == told["inference_count"]
        assert stats.inference_stats.success.count == told["inference_stats"]["success"]["count"]
        assert [batch.batch_size for batch in stats.batch_stats] == [b["batch_size"] for b in told["batch_stats"]]
    (listed,) = pb.IndexReply.FromString(both.call("RepositoryIndex")).models
    assert (listed.name, listed.state) == ("gainroute", "READY")
    for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
        assert (
            both.call(method, pb.ModelRequest(name="x")).text
            == "there is no model 'x'; this coordinator serves 'gainroute'"
        )
        assert both.call(method, pb.ModelRequest(name="gainroute", version="0")).code is Code.NOT_FOUND
    assert "POST /admin/router" in both.call("RepositoryModelLoad", pb.RepositoryRequest(model_name="gainroute")).text
    assert both.call("ModelStreamInfer").code is Code.UNIMPLEMENTED


# ---- who may enter --------------------------------------------------------------------------------------


def test_tokens_and_roles_are_those_of_http(fed):
    holders = {"client": {"shop": hash_token("c")}, "view": {"eye": hash_token("v")}, "infer": {"bot": hash_token("i")}}
    fed = fed.having(tokens=holders)

    async def work():
        async with running(fed) as up, grpc_door(up.coordinator) as client:
            # fmt: off
            closed = ("ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "ModelInfer",
                      "RepositoryIndex", "RepositoryModelLoad")
            # fmt: on
            for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "Basic !!"),)):
                expected = await up.client.get("/v2", headers=dict(metadata))
                for method in closed:
                    told = await client.call(method, metadata=metadata)
                    assert (told.code, told.text) == (Code.UNAUTHENTICATED, expected.json()["error"])
            assert isinstance(await client.call("ServerLive"), bytes)
            assert isinstance(await client.call("ServerReady"), bytes)
            assert isinstance(await client.call("Check", service="grpc.health.v1.Health"), bytes)
            found = {}
            for token in ("c", "v", "i", ADMIN):
                own = GrpcClient(client.channel, client.door, token)
                assert isinstance(await own.call("ServerMetadata"), bytes)
                found[token] = await own.infer(raw=S0_S1)
            told = found.pop("v")
            assert (told.code, told.trailing["error-code"]) == (Code.PERMISSION_DENIED, "forbidden")
            assert told.text == "the roles of client:eye do not include inference; a token for infer is needed here"
            assert not [reply for reply in found.values() if isinstance(reply, Refused)]
            metrics = (await up.client.get("/metrics", headers={"Authorization": "Bearer v"})).text
            assert 'gainroute_requests_total{status="200"} 3.0' in metrics
            assert 'gainroute_requests_total{status="403"} 1.0' in metrics

    asyncio.run(work())


def test_without_tokens_a_proxy_is_refused_and_wrong_tokens_are(fed):
    async def work():
        async with running(fed) as up, grpc_door(up.coordinator) as client:
            proxied = await client.infer(raw=S0_S1, metadata=[("x-forwarded-for", "203.0.113.7")])
            wrong = await client.infer(raw=S0_S1, metadata=[("authorization", "Bearer x")])
            return proxied, wrong

    proxied, wrong = asyncio.run(work())
    assert (proxied.code, wrong.code) == (Code.PERMISSION_DENIED, Code.UNAUTHENTICATED)
    assert "came through a proxy" in proxied.text


def test_wrong_tokens_are_limited_by_address(fed):
    fed = fed.having(tokens={"client": {"shop": hash_token("c")}, "failures_per_minute": 3})

    async def work():
        async with running(fed) as up, grpc_door(up.coordinator, bearer="junk") as client:
            told = [await client.infer(raw=S0_S1) for _ in range(4)]
            client.bearer = "c"
            return told, await client.infer(raw=S0_S1)

    told, valid = asyncio.run(work())
    assert [refused.code for refused in told] == [Code.UNAUTHENTICATED] * 3 + [Code.RESOURCE_EXHAUSTED]
    assert "wrong token from 127.0.0.1" in told[3].text
    assert int(told[3].trailing["retry-after"]) >= 1
    assert not isinstance(valid, Refused)


def test_the_holder_and_the_request_id_are_in_the_log(fed, caplog):
    fed = fed.having(tokens={"client": {"shop": hash_token("c")}})
    caplog.set_level("DEBUG", "gainroute.coordinator.access")

    async def work():
        async with running(fed) as up, grpc_door(up.coordinator, bearer="c") as client:
            await client.infer(raw=S0_S1, metadata=[("x-request-id", "order-17")])
            listed = await up.client.get("/api/decisions", headers={"Authorization": "Bearer c"})
            return listed.json()["decisions"]

    decisions = asyncio.run(work())
    assert {row["request_id"] for row in decisions} == {"order-17"}
    assert len(decisions) == 2
    (record,) = [r for r in caplog.records if getattr(r, "request_id", "") == "order-17"]
    assert record.getMessage() == "gRPC /inference.GRPCInferenceService/ModelInfer 200"
    assert record.who == "client:shop"
