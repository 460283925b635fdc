"""Messages of the Open Inference Protocol over gRPC: strict reading of requests, and replies.

A reply has raw tensors if the request had, as those of a stock ``tritonclient``; otherwise one field per datatype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from gainroute.federation.coordinator.errors import BadRequestError
from gainroute.federation.coordinator.grpc_door.proto import open_inference_pb2 as pb
from gainroute.federation.coordinator.open_inference import (
    ONE_INPUT,
    OUTPUTS,
    InferRequest,
    Tensor,
    binary_ids,
    check_input,
    check_outputs,
    decode_id,
    shape_of,
    tensor_bytes,
)

__all__ = ["read_infer", "read_message", "write_infer", "write_reply"]

FIELDS = {"BOOL": "bool_contents", "INT64": "int64_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}
DIMENSIONS = 8  # of a shape that are looked at, whatever its length


def read_message(kind: Any, data: bytes) -> Any:
    """Parse a message of a generated class."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        text = f"the message has {len(data)} bytes that are no {kind.DESCRIPTOR.name} ({error})"
        raise BadRequestError(f"{text}; see the .proto of the Open Inference Protocol") from None


def read_infer(message: pb.InferRequest, max_ids: int) -> InferRequest:
    """Check a request of at most `max_ids` ids."""
    if len(message.inputs) != 1:
        raise BadRequestError(ONE_INPUT)
    tensor, raw = message.inputs[0], message.raw_input_contents
    n = check_input(tensor.name, tensor.datatype, tensor.shape[:DIMENSIONS], tensor.parameters, max_ids)
    if len(raw) > 1 or (raw and tensor.HasField("contents")):
        raise BadRequestError(
            f'the request has {len(raw)} "raw_input_contents" for its one input'
            + (', and "contents" as well' if tensor.HasField("contents") else "")
            + "; give one of them, or contents"
        )
    ids = binary_ids(raw[0], n) if raw else _typed_ids(tensor.contents.bytes_contents, n)
    outputs = check_outputs(output.name for output in message.outputs)
    return InferRequest(ids, message.id or None, outputs, frozenset(outputs if raw else ()))


def _typed_ids(contents: Any, n: int) -> list[str]:
    if len(contents) != n:
        raise BadRequestError(f'"bytes_contents" has {len(contents)} entries; {n}, as "shape" says, are needed')
    return [decode_id(content, i) for i, content in enumerate(contents)]


def write_infer(request: InferRequest, model: str, version: str, tensor_of: Callable[[str], Tensor]) -> bytes:
    """Write the requested outputs."""
    reply = pb.InferReply(model_name=model, model_version=version, id=request.id or "")
    for name in request.outputs:
        tensor, datatype = tensor_of(name), OUTPUTS[name]
        output = reply.outputs.add(name=name, datatype=datatype, shape=shape_of(tensor))
        if name in request.binary:
            reply.raw_output_contents.append(tensor_bytes(name, tensor))
        else:
            values = tensor.reshape(-1).tolist() if isinstance(tensor, np.ndarray) else [t.encode() for t in tensor]
            getattr(output.contents, FIELDS[datatype]).extend(values)
    return bytes(reply.SerializeToString())


def write_reply(kind: Any, value: Mapping[str, Any]) -> bytes:
    """Write a reply from what the HTTP server answers; what the message has no field for is left out."""
    return bytes(ParseDict(value, kind(), ignore_unknown_fields=True).SerializeToString())
