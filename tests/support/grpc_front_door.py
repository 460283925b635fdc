"""A coordinator's gRPC front door in the loop of a test, and a client of it."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from grpc import aio

from gainroute.federation.coordinator.auth import Authenticator
from gainroute.federation.coordinator.grpc_door.proto import open_inference_pb2 as pb
from gainroute.federation.coordinator.grpc_door.server import GrpcDoor
from gainroute.federation.coordinator.grpc_door.service import SERVICE

KINDS = {"INT64": "<i8", "FP32": "<f4", "BOOL": "?"}
FIELDS = {"INT64": "int64_contents", "FP32": "fp32_contents", "BOOL": "bool_contents", "BYTES": "bytes_contents"}


def packed(*ids: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(i)) + i for i in ids)


def infer_request(raw=None, typed=None, shape=None, **changes) -> pb.InferRequest:
    """A request with raw or typed contents; keys that start with `input_` change the tensor."""
    own = {key.removeprefix("input_"): changes.pop(key) for key in list(changes) if key.startswith("input_")}
    tensor = {"name": "id", "datatype": "BYTES", "shape": [2] if shape is None else shape, **own}
    request = pb.InferRequest(**{"model_name": "gainroute", "inputs": [tensor], **changes})
    if raw is not None:
        request.raw_input_contents.append(raw)
    if typed is not None:
        request.inputs[0].contents.bytes_contents.extend(typed)
    return request


def tensors(reply: pb.InferReply) -> dict[str, np.ndarray]:
    """The outputs of a reply, with texts as texts."""
    found = {}
    for number, output in enumerate(reply.outputs):
        if reply.raw_output_contents:
            raw = reply.raw_output_contents[number]
            if output.datatype == "BYTES":
                values, at = [], 0
                while at < len(raw):
                    (size,) = struct.unpack_from("<I", raw, at)
                    values.append(raw[at + 4 : at + 4 + size].decode())
                    at += 4 + size
            else:
                values = np.frombuffer(raw, KINDS[output.datatype])
        else:
            values = getattr(output.contents, FIELDS[output.datatype])
            values = [v.decode() for v in values] if output.datatype == "BYTES" else list(values)
        found[output.name] = np.array(values).reshape(list(output.shape))
    return found


@dataclass
class Refused:
    code: Any
    text: str
    trailing: dict[str, str]


@dataclass
class GrpcClient:
    channel: aio.Channel
    door: GrpcDoor
    bearer: str | None = None

    async def call(self, method, message=b"", *, service=SERVICE, metadata=(), timeout=20, **more):
        """The bytes of the reply, or how the call was refused."""
        own = [] if self.bearer is None else [("authorization", f"Bearer {self.bearer}")]
        data = message if isinstance(message, bytes) else message.SerializeToString()
        call = self.channel.unary_unary(f"/{service}/{method}")(
            data, metadata=(*own, *metadata), timeout=timeout, **more
        )
        try:
            return await call
        except aio.AioRpcError as error:
            return Refused(error.code(), error.details(), dict(error.trailing_metadata() or ()))

    async def infer(self, *given, metadata=(), **changes):
        request = given[0] if given else infer_request(**changes)
        reply = await self.call("ModelInfer", request, metadata=metadata)
        return pb.InferReply.FromString(reply) if isinstance(reply, bytes) else reply


def another_connection(door):
    """A channel that shares its connection with no other."""
    own = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return aio.insecure_channel(door.address, options=own)


@contextlib.asynccontextmanager
async def grpc_door(coordinator, *, bearer=None):
    """The gRPC front door of a running coordinator, and a client of it."""
    door = GrpcDoor(replace(coordinator.settings.server, grpc_port=0))
    await door.start(coordinator, Authenticator(coordinator.settings))
    try:
        async with another_connection(door) as channel:
            yield GrpcClient(channel, door, bearer)
    finally:
        await door.stop(None)
