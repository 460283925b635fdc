"""The peer of the serving benchmark: a minimal FastAPI endpoint, and parties on bare grpc.aio streams.

`python -m benchmarks.serving_bare party PACE FOLDER` serves a stub, `… front PACE FOLDER ADDRESS…` the endpoint. The
pace is "plain", as installed by `pip install fastapi uvicorn grpcio`, or "fast": with uvloop and httptools, like the
coordinator. The endpoint fans out over one mutual-TLS stream per party, averages the posteriors, and answers JSON. It
has no batching, deadlines, router, validation, identities beyond the CA's signature, reconnection, audit, metrics or
decision log: the ratios measure what these cost.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import uvicorn
import uvloop
from fastapi import FastAPI
from grpc import aio
from pydantic import BaseModel

from benchmarks.serving_models import CLASSES, NAMES, make_stub
from gainroute.federation.pki.certificates import Identity
from gainroute.federation.transport.proto import party_pb2 as pb

METHOD = "/bench.Party/Stream"


def _pem(folder: Path) -> tuple[bytes, bytes, bytes]:
    """Authority, certificate and key in a folder named after their holder."""
    ca, certificate, key = (
        (folder / name).read_bytes() for name in ("ca.crt", f"{folder.name}.crt", f"{folder.name}.key")
    )
    return ca, certificate, key


# ---- a party ----------------------------------------------------------------------------------------


async def party(folder: Path) -> None:
    """Answer each message of a stream with rows of a table."""
    stub = make_stub()

    async def stream(requests: Any, context: Any) -> None:
        async for request in requests:
            values = stub.posteriors(request.ids)
            tensor = pb.Tensor(shape=values.shape, encoding="float32", data=values.tobytes())
            await context.write(pb.Response(answer=pb.Answer(values=tensor)))

    handler = grpc.stream_stream_rpc_method_handler(
        stream, request_deserializer=pb.Request.FromString, response_serializer=pb.Response.SerializeToString
    )
    server = aio.server()
    service, method = METHOD[1:].split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    ca, certificate, key = _pem(folder)
    credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


# ---- the endpoint -----------------------------------------------------------------------------------


class Asked(BaseModel):
    """The body of a request."""

    ids: list[str]


class Answered(BaseModel):
    """The body of an answer: a declared model, which the framework writes three times as fast as a dictionary."""

    label: list[int]
    probabilities: list[float]


class _Peer:
    """A stream to a party; answers come in the order of the requests."""

    def __init__(self, address: str, name: str, folder: Path) -> None:
        ca, certificate, key = _pem(folder)
        channel = aio.secure_channel(
            address, grpc.ssl_channel_credentials(ca, key, certificate), [("grpc.ssl_target_name_override", name)]
        )
        self._call = channel.stream_stream(METHOD, pb.Request.SerializeToString, pb.Response.FromString)()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._lock = asyncio.Lock()
        self._reading = asyncio.ensure_future(self._read())

    async def ask(self, ids: list[str]) -> Any:
        waiting = asyncio.get_running_loop().create_future()
        async with self._lock:
            self._waiting.append(waiting)
            await self._call.write(pb.Request(ids=ids))
        response = await waiting
        return np.frombuffer(response.answer.values.data, np.float32).reshape(len(ids), CLASSES)

    async def _read(self) -> None:
        async for response in self._call:
            self._waiting.popleft().set_result(response)


async def front(pace: str, folder: Path, addresses: list[str]) -> None:
    """Serve the endpoint."""
    names = [Identity("party", name).dns for name in NAMES]
    peers = [_Peer(address, name, folder) for address, name in zip(addresses, names, strict=True)]
    app = FastAPI()

    @app.post("/infer")
    async def infer(asked: Asked) -> Answered:
        found = await asyncio.gather(*(peer.ask(asked.ids) for peer in peers))
        pooled = np.mean(found, axis=0)
        return Answered(label=pooled.argmax(axis=1).tolist(), probabilities=pooled.reshape(-1).tolist())

    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that asyncio sets NODELAY
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, server_header=False,
                            proxy_headers=False, timeout_keep_alive=30,
                            http="httptools" if pace == "fast" else "h11")  # fmt: skip
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    kind, chosen, home, *rest = sys.argv[1:]
    run = uvloop.run if chosen == "fast" else asyncio.run
    run(party(Path(home)) if kind == "party" else front(chosen, Path(home), rest))
