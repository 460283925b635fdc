"""The Open Inference Protocol (v2): strict parsing of requests, and responses, in JSON and binary tensors.

A binary request or response is a JSON part, whose length is in the header ``Inference-Header-Content-Length``,
followed by the tensors' bytes, little-endian; an element of BYTES is its length (4 bytes) and its content.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import to_json

from gainroute.federation.coordinator.api.http import as_size
from gainroute.federation.coordinator.errors import BadRequestError, TooLargeError

__all__ = [
    "HEADER", "ONE_INPUT", "OUTPUTS", "InferRequest", "Tensor", "binary_ids", "check_input", "check_outputs",
    "decode_id", "model_metadata", "parse_request", "server_metadata", "shape_of", "tensor_bytes", "write_response",
]  # fmt: skip

HEADER = "Inference-Header-Content-Length"
OUTPUTS = {
    "label": "INT64",
    "probabilities": "FP32",
    "escalated": "BOOL",
    "score": "FP32",
    "route": "BYTES",
    "decision_id": "BYTES",
    "class": "BYTES",
}
DTYPES = {"INT64": "<i8", "FP32": "<f4", "BOOL": "?"}
REQUEST_KEYS = {"id", "parameters", "inputs", "outputs"}
INPUT_KEYS = {"name", "shape", "datatype", "parameters", "data"}
OUTPUT_KEYS = {"name", "parameters"}
ID_BYTES = 1024
ONE_INPUT = '"inputs" must be a list of exactly one tensor: "id", BYTES, [N]'


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON value")


# Python's decoder accepts NaN and Infinity, which are not JSON. Built once, since that takes longer than decoding.
DECODER = json.JSONDecoder(parse_constant=_no_constant)

Tensor = npt.NDArray[Any] | Sequence[str]


@dataclass(frozen=True)
class InferRequest:
    """A request: sample ids, outputs, and which of them in binary form."""

    ids: list[str]
    id: str | None
    outputs: tuple[str, ...]
    binary: frozenset[str]


# ---- reading ----------------------------------------------------------------------------------------


def parse_request(body: bytes, header: str | None, max_ids: int) -> InferRequest:
    """Read a request of at most `max_ids` ids; `header` is the value of ``Inference-Header-Content-Length``, if any."""
    text, raw = _split(body, header)
    try:
        request = DECODER.decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON ({error}); see /docs for an example") from None
    _keys(request, "the request", REQUEST_KEYS)
    parameters = _parameters(request, "the request")
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise BadRequestError(ONE_INPUT)
    ids = _ids(inputs[0], raw, max_ids)
    name = request.get("id")
    if name is not None and not (isinstance(name, str) and name == name.encode(errors="ignore").decode()):
        raise BadRequestError(f'"id" is {_shown(name)}; text without half surrogate pairs is needed')
    default = parameters.get("binary_data_output", False)
    if not isinstance(default, bool):
        raise BadRequestError(f'parameter "binary_data_output" is {_shown(default)}; true or false is needed')
    outputs, binary = _outputs(request.get("outputs"), default)
    return InferRequest(ids, name, outputs, binary)


def _split(body: bytes, header: str | None) -> tuple[bytes, bytes]:
    if header is None:
        return body, b""
    size = as_size(header)
    if size is None or size > len(body):
        raise BadRequestError(
            f"{HEADER} is {header[:40]!r}; a number of bytes up to {len(body)}, the body's, is needed"
        )
    return body[:size], body[size:]


def _ids(tensor: Any, raw: bytes, max_ids: int) -> list[str]:
    _keys(tensor, "the input", INPUT_KEYS)
    parameters = _parameters(tensor, "the input")
    n = check_input(tensor.get("name"), tensor.get("datatype"), tensor.get("shape"), parameters, max_ids)
    size = parameters.get("binary_data_size")
    if size is None:
        return _json_ids(tensor.get("data"), n, raw)
    if "data" in tensor:
        raise BadRequestError('the input has both "data" and "binary_data_size"; give one of them')
    if type(size) is not int or size != len(raw):
        raise BadRequestError(f'"binary_data_size" is {_shown(size)}; {len(raw)} bytes follow the JSON part')
    return binary_ids(raw, n)


def check_input(name: Any, datatype: Any, shape: Any, parameters: Collection[str], max_ids: int) -> int:
    """Check what is said of the input; returns the number of its ids."""
    if name != "id" or datatype != "BYTES":
        raise BadRequestError(f"the input is {_shown(name)} of {_shown(datatype)}; 'id' of 'BYTES' is needed")
    if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int or shape[0] < 1:
        raise BadRequestError(f'"shape" is {_shown(shape)}; [N] with N ≥ 1 is needed')
    if shape[0] > max_ids:
        raise TooLargeError(f"{shape[0]} ids in one request; {max_ids} are allowed: split the request")
    if "shared_memory_region" in parameters:
        raise BadRequestError("shared memory is not supported; send the tensor in the body")
    return int(shape[0])


def _json_ids(data: Any, n: int, raw: bytes) -> list[str]:
    if raw:
        raise BadRequestError(f'{len(raw)} bytes follow the JSON part, and no input has a "binary_data_size"')
    if not isinstance(data, list) or len(data) != n:
        found = f"{len(data)} entries" if isinstance(data, list) else _shown(data)
        raise BadRequestError(f'"data" has {found}; a list of {n} texts, as "shape" says, is needed')
    for i, value in enumerate(data):
        if not isinstance(value, str):
            raise BadRequestError(f'"data"[{i}] is {_shown(value)}; ids are texts')
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise BadRequestError(f'"data"[{i}] is {_shown(value)}; it has half a surrogate pair') from None
        _check_length(size, i)
    return data


def binary_ids(raw: bytes, n: int) -> list[str]:
    """Read n ids, each of which is its length (4 bytes) and its content."""
    ids: list[str] = []
    at, end = 0, len(raw)
    for i in range(n):
        if at + 4 > end:
            raise BadRequestError(f'the bytes end before id {i}; "shape" says {n}')
        (size,) = struct.unpack_from("<I", raw, at)
        at += 4
        if at + size > end:
            raise BadRequestError(f"id {i} has {size} bytes, {end - at} are left; lengths are 4 bytes, little-endian")
        ids.append(decode_id(raw[at : at + size], i))
        at += size
    if at != end:
        raise BadRequestError(f'{end - at} bytes follow the last id; "shape" says {n}')
    return ids


def decode_id(content: bytes, i: int) -> str:
    """Read the content of id i."""
    _check_length(len(content), i)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadRequestError(f"id {i} is {content[:40]!r}; UTF-8 is needed") from None


def _check_length(size: int, i: int) -> None:
    if not 0 < size <= ID_BYTES:
        raise BadRequestError(f"id {i} has {size} bytes; 1 … {ID_BYTES} are allowed")


def _outputs(asked: Any, default: bool) -> tuple[tuple[str, ...], frozenset[str]]:
    if asked is None or asked == []:
        return tuple(OUTPUTS), frozenset(OUTPUTS if default else ())
    if not isinstance(asked, list):
        raise BadRequestError(f'"outputs" is {_shown(asked)}; a list is needed')
    for entry in asked:
        _keys(entry, "an output", OUTPUT_KEYS)
    names = check_outputs([entry.get("name") for entry in asked])
    binary: set[str] = set()
    for name, entry in zip(names, asked, strict=True):
        wanted = _parameters(entry, "an output").get("binary_data", default)
        if not isinstance(wanted, bool):
            raise BadRequestError(f'parameter "binary_data" is {_shown(wanted)}; true or false is needed')
        if wanted:
            binary.add(name)
    return names, frozenset(binary)


def check_outputs(asked: Iterable[Any]) -> tuple[str, ...]:
    """Check the names of the outputs that are asked for; without any, all are."""
    names: list[str] = []
    for name in asked:
        if not isinstance(name, str) or name not in OUTPUTS or name in names:
            raise BadRequestError(
                f"output {_shown(name)} is not served, or asked for twice; allowed: {', '.join(OUTPUTS)}"
            )
        names.append(name)
    return tuple(names or OUTPUTS)


def _keys(value: Any, what: str, allowed: set[str]) -> None:
    if not isinstance(value, dict):
        raise BadRequestError(f"{what} is {_shown(value)}; an object is needed")
    unknown = sorted(set(value) - allowed)
    if unknown:
        raise BadRequestError(f"{what} has the key {_shown(unknown[0])}; allowed are {', '.join(sorted(allowed))}")


def _parameters(value: dict[str, Any], what: str) -> dict[str, Any]:
    found = value.get("parameters", {})
    if not isinstance(found, dict):
        raise BadRequestError(f"{what} has the parameters {_shown(found)}; an object is needed")
    return found


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


# ---- writing ----------------------------------------------------------------------------------------


def write_response(
    request: InferRequest, model: str, version: str, tensor_of: Callable[[str], Tensor]
) -> tuple[bytes, int | None]:
    """Write the requested outputs; returns the body, and the length of its JSON part if binary tensors follow."""
    outputs: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for name in request.outputs:
        tensor = tensor_of(name)
        output: dict[str, Any] = {"name": name, "datatype": OUTPUTS[name], "shape": shape_of(tensor)}
        if name in request.binary:
            blob = tensor_bytes(name, tensor)
            output["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            output["data"] = tensor.reshape(-1).tolist() if isinstance(tensor, np.ndarray) else tensor
        outputs.append(output)
    body: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": outputs}
    if request.id is not None:
        body["id"] = request.id
    text = to_json(body, inf_nan_mode="null")  # eight times as fast as json.dumps on numbers
    return (b"".join([text, *blobs]), len(text)) if blobs else (text, None)


def shape_of(tensor: Tensor) -> list[int]:
    """The shape of an output."""
    return list(tensor.shape) if isinstance(tensor, np.ndarray) else [len(tensor)]


def tensor_bytes(name: str, tensor: Tensor) -> bytes:
    """The binary form of an output."""
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor, dtype=DTYPES[OUTPUTS[name]]).tobytes()
    return b"".join(map(_element if name == "decision_id" else _known_element, tensor))


def _element(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<I", len(content)) + content


_known_element = lru_cache(4096)(_element)  # classes and routes repeat: each is encoded once


def server_metadata(*extensions: str) -> dict[str, Any]:
    """The response of ``/v2``."""
    from gainroute._version import __version__

    return {"name": "gainroute", "version": __version__, "extensions": list(extensions)}


def model_metadata(model: str, versions: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """The response of ``/v2/models/{name}``."""
    shapes = {"probabilities": [-1, len(classes)]}
    return {
        "name": model,
        "versions": list(versions),
        "platform": "gainroute",
        "inputs": [{"name": "id", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": n, "datatype": t, "shape": shapes.get(n, [-1])} for n, t in OUTPUTS.items()],
        "parameters": {"classes": list(classes)},
    }
