"""What is fuzzed. Each target reads an input as the software does, and raises only what it promises to raise."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fake_federation import ADMIN, IDS, K, federation

from gainroute.errors import GainrouteError
from tests.fuzz.mutate import (
    Mutate,
    mutate_archive,
    mutate_bytes,
    mutate_json,
    mutate_message,
    mutate_npy,
    mutate_safetensors,
    mutate_text,
    pack,
    unpack,
)

ROOT = Path(__file__).parents[2]
REQUEST_SECONDS = 30.0


class ServerError(Exception):
    """The service answered with status 500, or with something that is not HTTP."""


@dataclass(frozen=True)
class Target:
    """How to make, change and try inputs. `run` returns what happened, in one word; other errors are crashes."""

    seeds: list[bytes]
    mutate: Mutate
    run: Callable[[bytes], str]


def read_by(function: Callable[[Path], Any], suffix: str, folder: Path) -> Callable[[bytes], str]:
    """Read an input from a file; an error that gainroute promises is a refusal."""
    path = folder / f"input{suffix}"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                function(path)
            except GainrouteError:
                return "refused"
        return "read"

    return run


# ---- HTTP -------------------------------------------------------------------------------------------

JSON_REQUEST = {"inputs": [{"name": "id", "shape": [2], "datatype": "BYTES", "data": IDS[:2]}]}
BINARY_REQUEST = {
    "id": "r", "parameters": {"binary_data_output": True},
    "inputs": [{"name": "id", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 12}}],
    "outputs": [{"name": "label", "parameters": {"binary_data": True}}, {"name": "probabilities"}],
}  # fmt: skip
CALLS: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v2/models/gainroute/infer", JSON_REQUEST),
    ("POST", "/v2/models/gainroute/infer", BINARY_REQUEST),
    ("POST", "/v2/models/gainroute/versions/1/infer", JSON_REQUEST),
    ("POST", "/feedback", {"decision_id": "0006605b471d9825", "label": "ant", "probability": 0.5}),
    ("POST", "/admin/budget", {"budget": 0.2}),
    ("POST", "/admin/threshold", {"threshold": 0.05}),
    ("POST", "/admin/router", {"artifact": "two.safetensors", "fusion": {"strong": "strong.npz"}}),
    ("POST", "/admin/router", {"rollback": True}),
    ("POST", "/admin/shadow", {"artifact": "two.safetensors"}),
    ("POST", "/admin/shadow", {"drop": True}),
    ("POST", "/admin/drift", {"reset": True}),
    ("DELETE", "/admin/decisions?sample_id=s1", None),
    ("GET", "/admin/audit?limit=3", None),
    ("GET", "/api/status", None),
    ("GET", "/api/decisions?limit=3&route=round1&before=9", None),
    ("GET", "/api/decisions/0006605b471d9825", None),
    ("GET", "/api/history?seconds=600", None),
    ("GET", "/api/curve", None),
    ("GET", "/metrics", None),
    ("GET", "/", None),
    ("GET", "/v2/models/gainroute", None),
    ("GET", "/v2/models/gainroute/stats", None),
    ("POST", "/v2/repository/index", {"ready": True}),
)


def http_seed(method: str, path: str, body: Any) -> bytes:
    """A request as an input: the request line, headers, an empty line, the body."""
    text, raw = b"" if body is None else json.dumps(body).encode(), b""
    headers = [b"host: 127.0.0.1", f"authorization: Bearer {ADMIN}".encode(), b"content-type: application/json"]
    if body is BINARY_REQUEST:
        raw = b"".join(len(name).to_bytes(4, "little") + name.encode() for name in IDS[:2])
        headers.append(b"inference-header-content-length: %d" % len(text))
    return b"\n".join([f"{method} {path}".encode(), *headers, b"", text + raw])


def mutate_http(data: bytes, rng: random.Random) -> bytes:
    """Mutate the body as JSON, keeping the header that gives its length; or the head."""
    head, _, body = data.partition(b"\n\n")
    if body[:1] == b"{" and rng.random() < 0.7:
        lines = [line for line in head.split(b"\n") if not line.startswith(b"inference-header")]
        if lines == head.split(b"\n"):
            return head + b"\n\n" + mutate_json(body, rng)
        size = next((int(v) for line in head.split(b"\n") if (v := line.partition(b": ")[2][:9]).isdigit()), 0)
        text, raw = mutate_json(body[:size], rng), body[size:]
        raw = mutate_bytes(raw, rng) if rng.random() < 0.3 else raw
        return b"\n".join([*lines, b"inference-header-content-length: %d" % len(text), b"", text + raw])
    if rng.random() < 0.3:
        extra = rng.choice((
            b"origin: http://[", b"host: [", b"authorization: Basic \xe9", b"authorization: Bearer x", b"origin: null",
            b"inference-header-content-length: 99999999999999999999", b"content-length: -1", b"content-encoding: gzip",
            b"x-request-id: ../\x00", b"inference-header-content-length: " + b"9" * 5000,
        ))  # fmt: skip
        return head + b"\n" + extra + b"\n\n" + body
    return mutate_bytes(head, rng) + b"\n\n" + body


@contextlib.contextmanager
def http(folder: Path) -> Iterator[Target]:
    """The whole HTTP application of a coordinator with parties in this process."""
    from gainroute.federation.coordinator.app import create_app
    from gainroute.federation.coordinator.coordinator import Coordinator
    from gainroute.federation.coordinator.strong_source import load_strong_source

    loop = asyncio.new_event_loop()
    fed = federation(folder)
    np.savez(folder / "strong.npz", ids=np.array(IDS), strong_posterior=np.full((len(IDS), K), 1 / K))
    coordinator = Coordinator(
        fed.settings,
        fed.parties,
        load_strong=lambda given: (fed.load_strong if given.factory else load_strong_source)(given),
    )
    loop.run_until_complete(coordinator.start())
    app = create_app(coordinator, manage=False)

    async def ask(data: bytes) -> str:
        head, _, body = data.partition(b"\n\n")
        line, *lines = head.split(b"\n")
        method, _, target = line.partition(b" ")
        path, _, query = target.partition(b"?")
        headers = [(n.strip().lower(), v.strip()) for n, _, v in (line.partition(b":") for line in lines)]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "headers": headers,
            "method": method.decode("latin-1").upper() or "GET", "path": path.decode("utf-8", "replace") or "/",
            "raw_path": path, "query_string": query, "root_path": "",
            "client": (f"127.0.{len(data) % 256}.{sum(data) % 256}", 1),  # wrong tokens are limited by address
            "server": ("127.0.0.1", 8080),
        }  # fmt: skip
        status: list[int] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])

        await app(scope, receive, send)
        if len(status) != 1 or (status[0] >= 500 and status[0] != 503):
            raise ServerError(f"status {status} for {data[:200]!r}")
        return str(status[0])

    def run(data: bytes) -> str:
        return loop.run_until_complete(asyncio.wait_for(ask(data), REQUEST_SECONDS))

    try:
        yield Target([http_seed(*call) for call in CALLS], mutate_http, run)
    finally:
        loop.run_until_complete(coordinator.stop())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@contextlib.contextmanager
def requests(folder: Path) -> Iterator[Target]:
    """Inference requests alone, in JSON and with binary tensors, which is much faster than the whole application."""
    from gainroute.federation.coordinator.open_inference import parse_request

    seeds = [http_seed("POST", "", JSON_REQUEST), http_seed("POST", "", BINARY_REQUEST)]

    def run(data: bytes) -> str:
        head, _, body = data.partition(b"\n\n")
        header = head.rpartition(b"inference-header-content-length: ")[2] if b"inference-header-" in head else None
        try:
            parse_request(body, None if header is None else header.decode("latin-1"), 1024)
        except GainrouteError:
            return "refused"
        return "read"

    yield Target(seeds, mutate_http, run)


# ---- messages of parties and coordinators -----------------------------------------------------------


@contextlib.contextmanager
def messages(folder: Path) -> Iterator[Target]:
    """Every message of the protocol: requests at a party, and whatever a party may answer."""
    from party_helpers import CLASSES, DIMENSION, MODEL, Federation, StubParty, versions

    from gainroute.federation.formation.tasks import read_json_object, read_tensors, write_tensors
    from gainroute.federation.party.service import PartyService
    from gainroute.federation.party.sources import source_of
    from gainroute.federation.pki.access import Caller
    from gainroute.federation.pki.credentials import ReloadingCertificate
    from gainroute.federation.transport.grpc_client import GrpcConnection
    from gainroute.federation.transport.proto import party_pb2 as pb
    from gainroute.federation.transport.wire import read_description, write_answer

    made = Federation(folder)
    settings = made.settings()
    service = PartyService(settings, source_of(*versions(StubParty())), ReloadingCertificate(settings.tls))
    connection = GrpcConnection("a", "127.0.0.1:1", made.files("coordinator", "main"))
    caller, loop = Caller("main", "f"), asyncio.new_event_loop()
    asked = pb.Request(round=pb.ROUND_POSTERIORS, model=MODEL, ids=["0", "1", "x"])
    escalated = pb.Request(round=pb.ROUND_EMBEDDINGS, model=MODEL, codec="int8", ids=["0", "1"])
    described = loop.run_until_complete(service.describe(caller))

    def request(message: Any) -> None:
        loop.run_until_complete(service.answer(caller, message))

    def description(message: Any) -> None:
        found = read_description("a", message)
        connection._session = type("Session", (), {"description": found})  # what it keeps after `Describe`
        _ = connection.certificate_expires

    def response(message: Any) -> None:
        connection._read(asked, len(CLASSES), "float32", message)

    def embeddings(message: Any) -> None:
        connection._read(escalated, DIMENSION, "int8", message)

    def task(message: Any) -> None:
        read_json_object(message.options, "options")
        read_tensors(message.tensors)

    def reply(message: Any) -> None:
        read_json_object(message.progress, "progress")
        read_json_object(message.done.values, "values")
        read_tensors(message.done.tensors)

    rows = np.full((2, 3), 1 / 3, np.float32)
    tensors = write_tensors([np.arange(4), np.ones((2, 3), np.float32), b"bytes"], "float16")
    numbers = np.ones((2, DIMENSION), np.float32)
    kinds: list[tuple[Any, Callable[[Any], None]]] = [
        (asked, request), (escalated, request), (described, description),
        (write_answer(asked, rows, np.array([2]), "float32"), response),
        (pb.Response(failure=pb.Failure(code=pb.Failure.CODE_QUOTA, message="m")), response),
        (write_answer(escalated, numbers, np.array([], np.int64), "int8"), embeddings),
        (pb.Task(number=1, kind="open", options='{"federation": "f", "plan": {"seed": 0}}', tensors=tensors), task),
        (pb.TaskReply(number=1, done=pb.TaskResult(values='{"a": [1]}', tensors=tensors)), reply),
    ]  # fmt: skip

    def run(data: bytes) -> str:
        example, read = kinds[(data[:1] or b"\x00")[0] % len(kinds)]
        try:
            message = type(example).FromString(data[1:])
        except Exception:  # noqa: BLE001 (gRPC refuses it)
            return "no message"
        try:
            read(message)
        except GainrouteError:
            return "refused"
        return "read"

    seeds = [bytes([i]) + message.SerializeToString() for i, (message, _) in enumerate(kinds)]
    try:
        yield Target(seeds, mutate_message([type(message) for message, _ in kinds]), run)
    finally:
        service.close()
        loop.close()


# ---- files ------------------------------------------------------------------------------------------


def small_router(folder: Path) -> Path:
    """A saved router of few samples."""
    import gainroute as gr

    rng = np.random.default_rng(0)
    local, labels = rng.dirichlet(np.ones(3), size=(2, 40)), rng.integers(0, 3, 40)
    router = gr.ExpectedGainRouter(0.3, lam=1.0).fit(local, labels, labels)
    gr.save(router, folder / "seed.safetensors", provenance=gr.Provenance({"a": "1", "b": "2"}, "float32"))
    return folder / "seed.safetensors"


@contextlib.contextmanager
def routers(folder: Path) -> Iterator[Target]:
    """Saved routers, of this version and of older ones."""
    import gainroute as gr

    old = sorted((ROOT / "tests/routing/artifacts").glob("*.safetensors"), key=lambda file: file.stat().st_size)[:4]
    seeds = [file.read_bytes() for file in (small_router(folder), *old)]
    small = [seed for seed in seeds if len(seed) < 1 << 15]
    yield Target(small, mutate_safetensors, read_by(gr.load, ".safetensors", folder))


def head(folder: Path) -> bytes:
    """A small fusion head, as training saves it."""
    from gainroute.training.models.build import ModelSpec, build_model, save_model

    spec = ModelSpec("fusion", {"dimensions": [2, 2], "latent": 2, "classes": 3})
    save_model(build_model(spec), spec, folder / "head.safetensors")
    return (folder / "head.safetensors").read_bytes()


@contextlib.contextmanager
def heads(folder: Path) -> Iterator[Target]:
    """Models of a run."""
    from gainroute.training.models.build import load_model

    yield Target([head(folder)], mutate_safetensors, read_by(load_model, ".safetensors", folder))


def by_suffix(name: str) -> Mutate:
    """The mutation that fits a file of a run."""
    kinds: dict[str, Mutate] = {".json": mutate_json, ".safetensors": mutate_safetensors, ".npz": mutate_npz}
    return kinds.get(Path(name).suffix, mutate_bytes)


mutate_npz = mutate_archive(lambda _: mutate_npy)


@contextlib.contextmanager
def runs(folder: Path) -> Iterator[Target]:
    """Whole run folders, each as an archive: descriptions, models, router, views."""
    from gainroute.io.run_folder import RunFolder
    from gainroute.training.models.build import ModelSpec, build_model, save_model
    from gainroute.training.opened_run import open_run

    run = RunFolder(folder / "run")
    for name in ("a", "b"):
        party = run.party(name)
        for path, spec in (
            (party.local_model, ModelSpec("local-mlp", {"features": 2, "outputs": 3})),
            (party.encoder, ModelSpec("mlp-encoder", {"features": 2, "width": 1})),
        ):
            save_model(build_model(spec), spec, path)
        means = [{"name": n, "categories": None, "mean": 1.0, "deviation": 2.0, "gaps": False} for n in ("x0", "x1")]
        body = {"name": name, "class_names": ["0", "1", "2"], "preprocess": {"kind": "table", "columns": means}}
        party.description.write_text(json.dumps(body))
        np.savez(party.views, ids=np.array([1, 2]), x=np.zeros((2, 2), np.float32))
    spec = ModelSpec("fusion", {"dimensions": [8, 8], "latent": 2, "classes": 3})
    for path in (run.server.head, run.server.masked_head):
        save_model(build_model(spec), spec, path)
    run.server.router.write_bytes(small_router(folder).read_bytes())
    run.description.write_text(json.dumps({"party_names": ["a", "b"], "class_names": [0, 1, 2]}))
    import gainroute as gr

    gr.save(gr.load(run.server.router), run.server.router, provenance=run.provenance("float32"))
    files = sorted(path for path in run.path.rglob("*") if path.is_file())
    seed = pack({path.relative_to(run.path).as_posix(): path.read_bytes() for path in files})

    def open_archive(path: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as home:
            for name, content in unpack(path.read_bytes()).items():
                if name in known:
                    (Path(home) / name).parent.mkdir(parents=True, exist_ok=True)
                    (Path(home) / name).write_bytes(content)
            open_run(home)

    known = set(unpack(seed))
    yield Target([seed], mutate_archive(by_suffix), read_by(open_archive, ".zip", folder))


@contextlib.contextmanager
def settings(folder: Path) -> Iterator[Target]:
    """Settings of coordinator, party and federation; the first byte selects which."""
    from gainroute._util.settings import parse_settings
    from gainroute.federation.coordinator.settings import CoordinatorSettings
    from gainroute.federation.formation.plan import FederationSettings
    from gainroute.federation.party.settings import PartySettings

    kinds = {"coordinator": CoordinatorSettings, "party": PartySettings, "federation": FederationSettings}
    seeds, words = (
        [],
        {"[[party]]", "[trust]", "[training]", "a = 1979-05-27T07:32:00Z", "[a.b]", "[[a]]", "x = {y = 1}"},
    )
    for number, name in enumerate(kinds):
        text = (ROOT / f"deploy/{name}.example.toml").read_text()
        lines = [line.split(" #")[0].rstrip() for line in text.splitlines()]
        plain = [line.removeprefix("# ") for line in lines if (line and not line.startswith("# ")) or " = " in line]
        words |= set(plain)
        seeds.append(bytes([number]) + "\n".join(line for line in lines if line and line[0] != "#").encode())

    tls = b'[tls]\nca = "a"\ncertificate = "b"\nkey = "c"\n'
    endpoint = b'[[party]]\nname = "a"\naddress = "a:1"\n'
    seeds += [
        b'\x00[router]\nartifact = "r"\n[fusion]\nrun = "s"\n' + endpoint,
        b'\x01name = "a"\ncoordinators = ["m"]\n[source]\nrun = "m"\n' + tls,
        b'\x02name = "f"\nout = "o"\n[labels]\nholder = "a"\n' + tls + endpoint + endpoint.replace(b'"a', b'"b'),
    ]

    def read(path: Path) -> None:
        data = path.read_bytes()
        kind = list(kinds.values())[(data[:1] or b"\x00")[0] % len(kinds)]
        parse_settings(kind, data[1:].decode("utf-8", "replace"), "input", folder)

    yield Target(seeds, mutate_text(sorted(words)), read_by(read, ".toml", folder))


def read_tables(path: Path) -> None:
    """Read a table in every way there is."""
    from gainroute.io.party_answers import read_columns
    from gainroute.io.posteriors import load_outcomes
    from gainroute.io.views import read_labels, read_view

    accepted = 0
    for read in (read_columns, load_outcomes, read_view, read_labels):
        with contextlib.suppress(GainrouteError):
            read(path)  # type: ignore[operator]
            accepted += 1
    if not accepted:
        raise GainrouteError("refused by all")


def table_arrays() -> dict[str, Any]:
    """Columns that all readers of tables know."""
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(3), size=(2, 5)).astype(np.float32)
    return {
        "ids": np.array([f"s{i}" for i in range(5)]), "posteriors": rows[0], "embeddings": rows[1],
        "local_posteriors": rows, "labels": np.arange(5) % 3, "strong_prediction": np.arange(5) % 3,
        "x": rows[0], "class_names": np.array(["a", "b", "c"]), "model_hash": np.array("m"),
    }  # fmt: skip


@contextlib.contextmanager
def npz(folder: Path) -> Iterator[Target]:
    """Tables as .npz."""
    np.savez(folder / "seed.npz", **table_arrays())
    yield Target([pack(unpack((folder / "seed.npz").read_bytes()))], mutate_npz, read_by(read_tables, ".npz", folder))


@contextlib.contextmanager
def parquet(folder: Path) -> Iterator[Target]:
    """Tables as Parquet."""
    from gainroute.io.tables import write_parquet

    held = table_arrays()
    columns = {
        "id": held["ids"],
        "posterior": held["posteriors"],
        "embedding": held["embeddings"],
        "label": held["labels"],
    }
    write_parquet(folder / "seed.parquet", columns)
    wide = {
        "id": held["ids"],
        "posterior_a": held["x"][:, 0],
        "posterior_b": 1 - held["x"][:, 0],
        "label": held["labels"],
    }
    write_parquet(folder / "wide.parquet", wide)
    seeds = [(folder / name).read_bytes() for name in ("seed.parquet", "wide.parquet")]
    yield Target(seeds, mutate_bytes, read_by(read_tables, ".parquet", folder))


@contextlib.contextmanager
def records(folder: Path) -> Iterator[Target]:
    """Records of trained cells."""
    from synthetic_records import synthetic_record

    from gainroute.experiments.records import load_record, save_record

    save_record(synthetic_record(classes=3, samples=12, counts=(1,), alphas=("1",)), folder / "seed.npz")
    seed = pack(unpack((folder / "seed.npz").read_bytes()))
    yield Target([seed], mutate_npz, read_by(load_record, ".npz", folder))


@contextlib.contextmanager
def signatures(folder: Path) -> Iterator[Target]:
    """Signature files beside an artifact."""
    from gainroute.federation.pki.signatures import Trust, create_key, load_key, sign, signature_file, verified

    create_key(folder / "signer.key")
    (folder / "artifact").write_bytes(b"an artifact")
    seed = sign(folder / "artifact", load_key(folder / "signer.key")).read_bytes()
    trust, genuine = Trust([folder / "signer.pub"]), seed.rstrip(b"\n")

    def read(path: Path) -> None:
        signature_file(folder / "artifact").write_bytes(path.read_bytes())
        with verified(folder / "artifact", trust):
            if path.read_bytes().rstrip(b"\n") != genuine:
                raise ServerError("an altered signature was accepted")

    yield Target([seed], mutate_text(["signer ed25519:00", "signature 00"]), read_by(read, ".sig", folder))


TARGETS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Target]]] = {
    made.__name__: made
    for made in (http, requests, messages, routers, heads, runs, settings, npz, parquet, records, signatures)
}
