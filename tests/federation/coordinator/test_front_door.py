"""The Open Inference Protocol as clients speak it, and everything that is no such request."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import struct
import threading
from functools import partial
from html import escape

import httpx
import numpy as np
import pytest
from fake_federation import ADMIN, IDS, K, N, federation, outputs, running
from waiting import until

from gainroute._util.allowance import Allowance
from gainroute.errors import DataError
from gainroute.federation.coordinator import auth
from gainroute.federation.coordinator import tokens as tokens_module
from gainroute.federation.coordinator.open_inference import HEADER
from gainroute.federation.coordinator.server import serve
from gainroute.federation.coordinator.settings import FusionSettings
from gainroute.federation.coordinator.tokens import Grant, Tokens, hash_token


@pytest.fixture
def fed(tmp_path):
    return federation(tmp_path)


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """Ask one running coordinator, request by request."""
    fed = federation(tmp_path_factory.mktemp("door"))
    loop = asyncio.new_event_loop()
    manager = running(fed)
    up = loop.run_until_complete(manager.__aenter__())

    def ask(method, path, **more):
        return loop.run_until_complete(up.client.request(method, path, **more))

    yield ask
    loop.run_until_complete(manager.__aexit__(None, None, None))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


INFER = "/v2/models/gainroute/infer"


def tensor(**changes):
    return {"name": "id", "shape": [2], "datatype": "BYTES", "data": ["s0", "s1"], **changes}


def packed(*ids):
    return b"".join(struct.pack("<I", len(i)) + i for i in ids)


def binary(raw, size=None, n=2, **more):
    head = tensor(shape=[n], parameters={"binary_data_size": len(raw) if size is None else size})
    del head["data"]
    text = json.dumps({"inputs": [head], **more}).encode()
    return {"content": text + raw, "headers": {HEADER: str(len(text))}}


BAD = {
    "not JSON": ({"content": b"{nope"}, "not JSON"),
    "empty": ({"content": b""}, "not JSON"),
    "NaN": ({"content": b'{"inputs": NaN}'}, "NaN is not a JSON value"),
    "deep": ({"content": b"[" * 100_000}, "not JSON"),
    "not UTF-8": ({"content": b"\xff\xfe{}"}, "not JSON"),
    "a list": ({"json": []}, "an object is needed"),
    "unknown key": ({"json": {"inputs": [tensor()], "modle": 1}}, "'modle'; allowed are id, inputs"),
    "no inputs": ({"json": {}}, "exactly one tensor"),
    "two inputs": ({"json": {"inputs": [tensor(), tensor()]}}, "exactly one tensor"),
    "an input that is text": ({"json": {"inputs": ["id"]}}, "the input is 'id'; an object"),
    "another name": ({"json": {"inputs": [tensor(name="x")]}}, "'id' of 'BYTES' is needed"),
    "another type": ({"json": {"inputs": [tensor(datatype="INT64")]}}, "'id' of 'BYTES' is needed"),
    "no shape": ({"json": {"inputs": [tensor(shape=None)]}}, "[N] with N ≥ 1"),
    "a matrix": ({"json": {"inputs": [tensor(shape=[2, 1])]}}, "[N] with N ≥ 1"),
    "nothing": ({"json": {"inputs": [tensor(shape=[0], data=[])]}}, "[N] with N ≥ 1"),
    "a negative shape": ({"json": {"inputs": [tensor(shape=[-1])]}}, "[N] with N ≥ 1"),
    "true as a shape": ({"json": {"inputs": [tensor(shape=[True])]}}, "[N] with N ≥ 1"),
    "too few": ({"json": {"inputs": [tensor(shape=[3])]}}, "a list of 3 texts"),
    "no data": ({"json": {"inputs": [tensor(data=None)]}}, "a list of 2 texts"),
    "numbers": ({"json": {"inputs": [tensor(data=["s0", 1])]}}, '"data"[1] is 1; ids are texts'),
    "empty id": ({"json": {"inputs": [tensor(data=["s0", ""])]}}, "id 1 has 0 bytes"),
    "long id": ({"json": {"inputs": [tensor(data=["s0", "x" * 2000])]}}, "id 1 has 2000 bytes"),
    "half a surrogate": ({"content": json.dumps({"inputs": [tensor(data=["s0", "\ud800"])]})}, "surrogate"),
    "parameters": ({"json": {"inputs": [tensor(parameters=3)]}}, "an object is needed"),
    "shared memory": (
        {"json": {"inputs": [tensor(parameters={"shared_memory_region": "r"})]}}, "shared memory is not supported",
    ),
    "an output unknown": ({"json": {"inputs": [tensor()], "outputs": [{"name": "x"}]}}, "allowed: label"),
    "an output twice": ({"json": {"inputs": [tensor()], "outputs": [{"name": "label"}] * 2}}, "asked for twice"),
    "outputs that are text": ({"json": {"inputs": [tensor()], "outputs": "label"}}, "a list is needed"),
    "binary_data": (
        {"json": {"inputs": [tensor()], "outputs": [{"name": "label", "parameters": {"binary_data": 1}}]}}, "true or f",
    ),
    "id that is a number": ({"json": {"inputs": [tensor()], "id": 3}}, "text without half surrogate pairs is needed"),
    "bytes after JSON": ({"content": json.dumps({"inputs": [tensor()]}) + "x", "headers": {HEADER: "10"}}, "not JSON"),
    "header too long": ({"content": b"{}", "headers": {HEADER: "3"}}, "a number of bytes up to 2"),
    "header no number": ({"content": b"{}", "headers": {HEADER: "-1"}}, "a number of bytes up to 2"),
    "header of 5,000 digits": ({"content": b"{}", "headers": {HEADER: "9" * 5000}}, "a number of bytes up to 2"),
    "binary size": (binary(packed(b"s0", b"s1"), size=3), "12 bytes follow"),
    "binary too short": (binary(packed(b"s0")), "the bytes end before id 1"),
    "binary too long": (binary(packed(b"s0", b"s1", b"s2")), "6 bytes follow the last id"),
    "binary length": (binary(b"\xff\xff\xff\xff" + b"abcd"), "id 0 has 4294967295 bytes, 4 are left"),
    "binary not UTF-8": (binary(packed(b"s0", b"\xff")), "UTF-8 is needed"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_request_is_a_400_that_says_why(door, what):
    sent, told = BAD[what]
    response = door("POST", INFER, **sent)
    assert response.status_code == 400, response.text
    assert response.json()["code"] == "bad_request"
    assert told in response.json()["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://["}, 403),
        ({"Host": "["}, 403),
        ({"Host": "127.0.0.1:x]"}, 403),
        ({"Authorization": "Basic é".encode("latin-1")}, 200),  # no token, as with any other scheme that is not known
        ({"Content-Length": "9" * 5000}, 200),  # what the body has counts; the server checks the header itself
    ],
)
def test_malformed_headers_are_not_an_internal_error(door, headers, status):
    assert door("POST", INFER, json={"inputs": [tensor()]}, headers=headers).status_code == status


def test_a_million_ids_and_a_body_too_large_are_refused_before_they_are_looked_at(door):
    told = door("POST", INFER, json={"inputs": [tensor(shape=[1_000_000], data=["s0"])]})
    assert (told.status_code, told.json()["code"]) == (413, "too_large")
    assert "1000000 ids in one request; 1024 are allowed" in told.json()["error"]
    ids = [f"s{i}" for i in range(1_000_000)]
    body = json.dumps({"inputs": [tensor(shape=[len(ids)], data=ids)]})
    sent = door("POST", INFER, content=body)
    assert sent.status_code == 413
    assert "4194304 are allowed" in sent.json()["error"]

    async def drip():
        for _ in range(5):
            yield b" " * 2**20

    undeclared = door("POST", INFER, content=drip())
    assert undeclared.status_code == 413


def test_a_compressed_body_is_not_understood_and_a_wrong_page_or_method_neither(door):
    assert door("POST", INFER, content=b"x", headers={"Content-Encoding": "gzip"}).status_code == 415
    assert door("POST", "/v2/models/other/infer", json={}).json()["error"].startswith("there is no model 'other'")
    assert door("POST", "/v2/models/gainroute/versions/zzz/infer", json={}).status_code == 404
    assert door("GET", "/nowhere").json()["code"] == "not_found"
    refused = door("GET", INFER)
    assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")
    assert door("GET", "/api/decisions?limit=many").status_code == 400
    assert door("GET", "/api/decisions?limit=0").json()["code"] == "bad_request"


def test_binary_and_json_say_the_same(door):
    plain = outputs(door("POST", INFER, json={"inputs": [tensor()], "id": "mine"}).json())
    response = door("POST", INFER, **binary(packed(b"s0", b"s1"), parameters={"binary_data_output": True}))
    at = int(response.headers[HEADER])
    head, raw = json.loads(response.content[:at]), response.content[at:]
    kinds = {"INT64": "<i8", "FP32": "<f4", "BOOL": "?"}
    for out in head["outputs"]:
        part, raw = raw[: out["parameters"]["binary_data_size"]], raw[out["parameters"]["binary_data_size"] :]
        if out["name"] in ("label", "probabilities", "escalated", "score"):
            found = np.frombuffer(part, kinds[out["datatype"]]).reshape(out["shape"])
            np.testing.assert_allclose(found, plain[out["name"]], rtol=1e-6)
        elif out["name"] == "class":
            assert part == packed(*(name.encode() for name in plain["class"]))
    assert raw == b""
    chosen = door("POST", INFER, json={"inputs": [tensor()], "outputs": [{"name": "label"}]}).json()
    assert [o["name"] for o in chosen["outputs"]] == ["label"]
    now = f"/v2/models/gainroute/versions/{plain['version']}/infer"
    assert door("POST", now, json={"inputs": [tensor()]}).status_code == 200


def test_metadata_health_docs_and_metrics(door):
    assert door("POST", INFER, json={"inputs": [tensor()]}).status_code == 200  # so that there is something to count
    assert door("GET", "/v2").json()["extensions"] == [
        "binary_tensor_data", "model_configuration", "statistics", "model_repository",
    ]  # fmt: skip
    assert door("GET", "/v2/health/live").status_code == door("GET", "/v2/health/ready").status_code == 200
    assert door("GET", "/v2/models/gainroute/ready").json() == {"name": "gainroute", "ready": True}
    model = door("GET", "/v2/models/gainroute").json()
    assert model["inputs"] == [{"name": "id", "datatype": "BYTES", "shape": [-1]}]
    assert {o["name"]: (o["datatype"], o["shape"]) for o in model["outputs"]}["probabilities"] == ("FP32", [-1, K])
    assert {"name": "class", "datatype": "BYTES", "shape": [-1]} in model["outputs"]
    schema = door("GET", "/openapi.json").json()
    codes = schema["paths"]["/v2/models/{name}/infer"]["post"]["responses"]
    assert set(codes) >= {"200", "400", "401", "404", "413", "503"}
    assert "busy" in codes["503"]["description"]
    metrics = door("GET", "/metrics")
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = metrics.text
    for name in ("requests_total", "samples_total", "escalations_total", "payload_bytes_total", "round_seconds_bucket",
                 "queue_samples", "batch_samples_bucket", "party_up", "log_ok", "threshold"):  # fmt: skip
        assert f"gainroute_{name}" in text
    assert 'gainroute_payload_bytes_total{party="a",round="1"}' in text
    page = door("GET", "/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-cache"


def test_the_schema_describes_every_body_and_who_may_call(door):
    schema = door("GET", "/openapi.json").json()
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            bodies = [operation["responses"], {"": operation["requestBody"]} if "requestBody" in operation else {}]
            contents = [found["content"] for part in bodies for found in part.values()]
            described = [content["schema"] for kinds in contents for content in kinds.values()]
            assert described, path
            assert all(described), (method, path)
            assert {part for part in path.split("/") if part.startswith("{")} == {
                f"{{{parameter['name']}}}" for parameter in operation["parameters"] if parameter["in"] == "path"
            }
    known = schema["components"]["schemas"]
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(schema)))
    assert named <= set(known)
    assert known["Budget"]["properties"]["budget"] == {"maximum": 1, "minimum": 0, "title": "Budget", "type": "number"}
    security = {path: next(iter(methods.values()))["security"] for path, methods in schema["paths"].items()}
    assert security["/v2/health/live"] == []
    assert security["/admin/budget"] == [{"token": []}]
    assert {} in security["/feedback"]  # no token is needed on this machine


def test_the_docs_page_tells_every_call_and_loads_nothing_from_elsewhere(door):
    schema = door("GET", "/openapi.json").json()
    page = door("GET", "/docs").text
    assert len(schema["paths"]) > 10
    for path, methods in schema["paths"].items():
        assert f"<code>{path}</code>" in page, path
        assert all(escape(operation["summary"]) in page for operation in methods.values())
    assert "busy" in page
    dashboard = door("GET", "/").text
    own = re.findall(r'(?:src|href)="(/dashboard/[^"]+)"', dashboard)
    assert own
    for text in (page, dashboard, *(door("GET", path).text for path in own)):
        addresses = re.findall(r'(?:src|href|action|data)\s*=\s*["\']?([^"\'\s>]+)', text)
        addresses += re.findall(r'(?:url\(|@import|fetch\(|from)\s*["\']([^"\']+)', text)
        assert not [address for address in addresses if "//" in address]
        assert not re.search(r"(?:https?:)?//(?!www\.w3\.org/)[\w-]+\.\w", text)


# ---- who may enter --------------------------------------------------------------------------------------


def test_a_refusal_is_counted_under_the_status_that_the_client_sees(fed):
    async def main():
        async with running(fed) as up:

            async def refuse(*_):
                raise DataError("the file is damaged; write it again")

            up.coordinator.infer = refuse
            answer = await up.client.post(INFER, json={"inputs": [tensor()]})
            return answer.status_code, (await up.client.get("/metrics")).text

    status, metrics = asyncio.run(main())
    assert status == 400
    assert 'gainroute_requests_total{status="400"} 1.0' in metrics


def test_tokens_are_needed_for_everything_but_health(fed):
    fed = fed.having(tokens={"client": {"shop": hash_token("c"), "old": hash_token("slow one", slow=True)}})
    # fmt: off
    doors = [("POST", INFER), ("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/metrics"),
             ("GET", "/api/status"), ("GET", "/v2"), ("GET", "/v2/models/gainroute"), ("POST", "/feedback"),
             ("GET", "/v2/models/gainroute/config"), ("GET", "/v2/models/stats"), ("POST", "/v2/repository/index")]

    async def work():
        async with running(fed) as up:

            async def ask(method, path, header=None, **more):
                headers = {"Authorization": header} if header else {}
                return await up.client.request(method, path, headers=headers | more.pop("headers", {}), **more)

            body = {"inputs": [tensor()]}
            for method, path in doors:
                for header in (
                    None,
                    "Bearer wrong",
                    "Bearer ",
                    "Basic !!",
                    f"Basic {base64.b64encode(b'x:no').decode()}",
                ):
                    response = await ask(method, path, header)
                    assert response.status_code == 401, (path, header)
                    assert response.headers["WWW-Authenticate"].startswith("Bearer")
                    assert response.json()["code"] == "unauthorized"
            assert (await ask("GET", "/v2/health/live")).status_code == 200
            assert (await ask("POST", INFER, "Bearer c", json=body)).status_code == 200
            assert (await ask("POST", INFER, "Bearer slow one", json=body)).status_code == 200
            assert (await ask("POST", INFER, f"Bearer {ADMIN}", json=body)).status_code == 200
            basic = base64.b64encode(b"anyone:c").decode()
            assert (await ask("GET", "/", f"Basic {basic}")).status_code == 200
            # The client's token is not the admin's, and the admin's does not come from a password box.
            change = {"json": {"budget": 0.1}}
            assert (await ask("POST", "/admin/budget", "Bearer c", **change)).status_code == 403
            assert (await ask("POST", "/admin/budget", "Bearer wrong", **change)).status_code == 401
            boxed = base64.b64encode(f"x:{ADMIN}".encode()).decode()
            assert (await ask("POST", "/admin/budget", f"Basic {boxed}", **change)).status_code == 401
            assert (await ask("POST", "/admin/budget", f"Bearer {ADMIN}", **change)).status_code == 200
            assert (await ask("GET", "/admin/audit", "Bearer c")).status_code == 403

    asyncio.run(work())


def test_on_loopback_without_tokens_foreign_pages_and_names_stay_out(fed):
    async def work():
        async with running(fed.having(tokens={"admin": {}})) as up:
            body = {"inputs": [tensor()]}
            foreign = await up.client.post(INFER, json=body, headers={"Origin": "https://evil.example"})
            renamed = await up.client.post(INFER, json=body, headers={"Host": "evil.example"})
            own = await up.client.post(INFER, json=body, headers={"Origin": "http://127.0.0.1"})
            admin = await up.client.post("/admin/budget", json={"budget": 1})
            added = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP")
            proxied = [await up.client.post(INFER, json=body, headers={name: "203.0.113.7"}) for name in added]
            return [r.status_code for r in (foreign, renamed, own, admin, *proxied)]

    assert asyncio.run(work()) == [403, 403, 200, 403] + [403] * 5


def test_tokens_are_known_by_their_hashes_and_a_slow_hash_is_computed_until_its_token_was_seen(monkeypatch):
    computed = []
    monkeypatch.setattr(tokens_module, "_scrypt", lambda *a, true=tokens_module._scrypt: computed.append(a) or true(*a))
    a, b = (Grant(name, frozenset({"client"})) for name in "ab")
    tokens = Tokens([(hash_token("x"), a), (hash_token("y", slow=True), b)])
    computed.clear()
    assert (tokens.find("x"), tokens.find("y"), tokens.find("z")) == (a, None, None)
    assert not computed
    assert (tokens.verify("z"), tokens.verify("y"), tokens.find("y")) == (None, b, b)
    assert len(computed) == 2
    assert not tokens.slow
    assert tokens.verify("z") is None
    assert len(computed) == 2


def test_two_hundred_junk_tokens_are_limited_by_address_and_delay_nobody(fed, monkeypatch):
    """Junk from one address costs few slow hashes, which nobody waits for who has another token."""
    gate, hashing, tried = threading.Event(), threading.Event(), []

    def slow(token, *_):
        tried.append(token)
        hashing.set()
        assert gate.wait(20)
        return "0" * 64

    fed = fed.having(tokens={"client": {"shop": hash_token("c"), "old": hash_token("o", slow=True)}})
    monkeypatch.setattr(tokens_module, "_scrypt", slow)
    # The minute in which 30 are allowed does not go on, however slow the machine is.
    monkeypatch.setattr(auth, "Allowance", partial(Allowance, clock=lambda: 0.0))
    body = {"inputs": [tensor()]}

    async def work():
        async with running(fed) as up:

            def ask(token):
                return up.client.post(INFER, json=body, headers={"Authorization": f"Bearer {token}"})

            junk = [asyncio.ensure_future(ask(f"junk {i}")) for i in range(200)]
            await until(hashing.is_set)
            honest = [await ask("c") for _ in range(3)]  # answered while a slow hash is being computed
            await until(lambda: sum(not task.done() for task in junk) <= 30)  # the others are refused meanwhile
            gate.set()
            return honest, await asyncio.gather(*junk)

    honest, junk = asyncio.run(work())
    assert [response.status_code for response in honest] == [200] * 3
    assert 1 <= len(tried) <= 30
    refused = [response for response in junk if response.status_code == 429]
    assert len(refused) >= 170
    assert refused[0].json()["code"] == "too_many_requests"
    assert "wrong token from 127.0.0.1" in refused[0].json()["error"]
    assert int(refused[0].headers["Retry-After"]) >= 1


# ---- a real socket, a real client -----------------------------------------------------------------------


@pytest.fixture
def served(fed, caplog):
    """A coordinator on two sockets, in a thread; gives its address, and that of its gRPC server."""
    found, ready = {}, threading.Event()

    def on_ready(url):
        found["url"] = url
        ready.set()

    server = {"port": 0, "grpc_port": 0}
    settings = fed.having(server=server, fusion=FusionSettings(factory="fake_federation:make_fusion")).settings
    caplog.set_level("INFO", "gainroute.coordinator")
    by_name = {p.name: p for p in fed.parties}

    async def work():
        task = asyncio.create_task(serve(settings, connect=lambda p, _: by_name[p.name], on_ready=on_ready))
        found["stop"] = lambda: loop.call_soon_threadsafe(task.cancel)
        loop = asyncio.get_running_loop()
        await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    assert ready.wait(30)
    (over_grpc,) = [record.address for record in caplog.records if record.getMessage().startswith("gRPC is served")]
    yield found["url"], over_grpc
    found["stop"]()
    thread.join()


class OverHttp:
    """A stock Triton client; what it tells of the model, as JSON."""

    def __init__(self, addresses):
        self.module = pytest.importorskip("tritonclient.http")
        self.client = self.module.InferenceServerClient(addresses[0].removeprefix("http://"))

    def told(self, call, *given):
        return getattr(self.client, call)(*given)

    def config(self, *given):
        return self.told("get_model_config", *given)

    def index(self):
        return self.told("get_model_repository_index")


class OverGrpc(OverHttp):
    """The same over gRPC. Numbers of 64 bits are texts in the JSON of its messages, and empty texts are left out."""

    def __init__(self, addresses):
        self.module = pytest.importorskip("tritonclient.grpc")
        self.client = self.module.InferenceServerClient(addresses[1])

    def told(self, call, *given):
        return _with_numbers(getattr(self.client, call)(*given, as_json=True))

    def config(self, *given):
        return {"max_batch_size": 0} | self.told("get_model_config", *given)["config"]

    def index(self):
        return [{"reason": ""} | model for model in self.told("get_model_repository_index")["models"]]


def _with_numbers(value):
    if isinstance(value, dict):
        return {key: part if key.startswith("version") else _with_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_numbers(part) for part in value]
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value) else value


def stats_of(stock, *version):
    (found,) = stock.told("get_inference_statistics", "gainroute", *version)["model_stats"]
    return found


def check_management(stock):
    """Configuration, statistics and repository index of a model that has answered one request of N samples."""
    version = stock.told("get_model_metadata", "gainroute")["versions"][0]
    config = stock.config("gainroute", version)
    assert (config["name"], config["max_batch_size"]) == ("gainroute", 0)
    assert config["input"] == [{"name": "id", "data_type": "TYPE_STRING", "dims": [-1]}]
    outputs = {tensor["name"]: (tensor["data_type"], tensor["dims"]) for tensor in config["output"]}
    assert outputs["probabilities"] == ("TYPE_FP32", [-1, K])
    assert outputs["class"] == ("TYPE_STRING", [-1])
    assert stock.index() == [{"name": "gainroute", "version": version, "state": "READY", "reason": ""}]
    found = stats_of(stock, version)
    assert stock.told("get_inference_statistics")["model_stats"] == [found]
    assert (found["version"], found["inference_count"], found["execution_count"]) == (version, N, 1)
    spent = found["inference_stats"]
    counts = {"success": 1, "fail": 0, "queue": 1, "compute_infer": 1, "cache_hit": 0}
    assert {name: spent[name].get("count", 0) for name in counts} == counts
    assert spent["success"]["ns"] >= spent["queue"]["ns"] + spent["compute_infer"]["ns"] > 0
    assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in found["batch_stats"]] == [(N, 1)]
    assert found["last_inference"] > 1.7e12


@pytest.mark.filterwarnings("default")  # what the client's own libraries warn of is not ours
@pytest.mark.parametrize("stock_client", [OverHttp, OverGrpc])
def test_a_stock_triton_client_with_its_defaults(served, fed, stock_client):
    stock = stock_client(served)
    client, module = stock.client, stock.module
    # The form of a tensor is chosen over HTTP only.
    json = {"binary_data": False} if stock_client is OverHttp else {}
    try:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("gainroute")
        assert stock.told("get_server_metadata")["name"] == "gainroute"
        assert stock.told("get_model_metadata", "gainroute")["outputs"][0]["name"] == "label"
        tensor_in = module.InferInput("id", [N], "BYTES")
        tensor_in.set_data_from_numpy(np.array([i.encode() for i in IDS], dtype=np.object_))
        result = client.infer("gainroute", [tensor_in])
        expected = fed.offline(IDS)
        np.testing.assert_array_equal(result.as_numpy("escalated"), expected.escalated)
        np.testing.assert_allclose(result.as_numpy("probabilities"), expected.probabilities, atol=1e-6)
        assert set(result.as_numpy("route").tolist()) == {b"round1", b"round2"}
        assert result.as_numpy("label").dtype == np.int64
        assert [name.decode() for name in result.as_numpy("class")] == expected.prediction.tolist()
        assert len(result.as_numpy("decision_id")) == N
        check_management(stock)
        text_in = module.InferInput("id", [1], "BYTES")
        text_in.set_data_from_numpy(np.array(["s3"], dtype=np.object_), **json)
        wanted = module.InferRequestedOutput("label", **json)
        assert client.infer("gainroute", [text_in], outputs=[wanted]).as_numpy("label").shape == (1,)
        with pytest.raises(Exception, match="there is no model 'x'"):
            client.infer("x", [tensor_in])
        with pytest.raises(Exception, match="POST /admin/router"):
            client.load_model("gainroute")
        assert stats_of(stock)["inference_stats"]["fail"]["count"] == 1
    finally:
        client.close()


def test_the_socket_serves_http(served):
    with httpx.Client(base_url=served[0]) as client:
        assert client.get("/v2/health/ready").status_code == 200
        assert client.get("/docs").status_code == 200


def test_the_repository_index_leaves_out_what_would_not_answer(fed):
    async def scenario():
        async with running(fed) as up:
            post = up.client.post
            up.coordinator.batcher.draining = True
            (listed,) = (await post("/v2/repository/index")).json()
            assert (listed["state"], "stopping" in listed["reason"]) == ("UNAVAILABLE", True)
            assert (await post("/v2/repository/index", json={"ready": True})).json() == []
            assert (await post("/v2/repository/index", json={"raedy": True})).status_code == 400
            assert (await post("/v2/repository/index", json={"ready": "yes"})).status_code == 400
            assert (await up.client.get("/v2/models/gainroute/versions/0/config")).status_code == 404

    asyncio.run(scenario())
