"""The Open Inference Protocol (v2): strict parsing of requests, and responses, in JSON and binary tensors.

A binary request or response is a JSON part, whose length is in the header ``Inference-Header-Content-Length``,
followed by the tensors' bytes, little-endian; an element of BYTES is its length (4 bytes) and its content.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import to_json

from gainroute.federation.coordinator.api.http import as_size
from gainroute.federation.coordinator.errors import BadRequestError, TooLargeError

__all__ = ["HEADER", "OUTPUTS", "InferRequest", "Tensor", "model_metadata", "parse_request", "write_response"]

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
        raise BadRequestError('"inputs" must be a list of exactly one tensor: "id", BYTES, [N]')
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
    if tensor.get("name") != "id" or tensor.get("datatype") != "BYTES":
        raise BadRequestError(
            f"the input is {_shown(tensor.get('name'))} of {_shown(tensor.get('datatype'))}; 'id' of 'BYTES' is needed"
        )
    shape = tensor.get("shape")
    if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int or shape[0] < 1:
        raise BadRequestError(f'"shape" is {_shown(shape)}; [N] with N ≥ 1 is needed')
    if shape[0] > max_ids:
        raise TooLargeError(f"{shape[0]} ids in one request; {max_ids} are allowed: split the request")
    parameters = _parameters(tensor, "the input")
    size = parameters.get("binary_data_size")
    if "shared_memory_region" in parameters:
        raise BadRequestError("shared memory is not supported; send the tensor in the body")
    if size is None:
        return _json_ids(tensor.get("data"), shape[0], raw)
    if "data" in tensor:
        raise BadRequestError('the input has both "data" and "binary_data_size"; give one of them')
    if type(size) is not int or size != len(raw):
        raise BadRequestError(f'"binary_data_size" is {_shown(size)}; {len(raw)} bytes follow the JSON part')
    return _binary_ids(raw, shape[0])


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


def _binary_ids(raw: bytes, n: int) -> list[str]:
    ids: list[str] = []
    at, end = 0, len(raw)
    for i in range(n):
        if at + 4 > end:
            raise BadRequestError(f'the bytes end before id {i}; "shape" says {n}')
        (size,) = struct.unpack_from("<I", raw, at)
        at += 4
        if at + size > end:
            raise BadRequestError(f"id {i} has {size} bytes, {end - at} are left; lengths are 4 bytes, little-endian")
        _check_length(size, i)
        try:
            ids.append(raw[at : at + size].decode())
        except UnicodeDecodeError:
            raise BadRequestError(f"id {i} is {raw[at : at + min(size, 40)]!r}; UTF-8 is needed") from None
        at += size
    if at != end:
        raise BadRequestError(f'{end - at} bytes follow the last id; "shape" says {n}')
    return ids


def _check_length(size: int, i: int) -> None:
    if not 0 < size <= ID_BYTES:
        raise BadRequestError(f"id {i} has {size} bytes; 1 … {ID_BYTES} are allowed")


def _outputs(asked: Any, default: bool) -> tuple[tuple[str, ...], frozenset[str]]:
    if asked is None or asked == []:
        return tuple(OUTPUTS), frozenset(OUTPUTS if default else ())
    if not isinstance(asked, list):
        raise BadRequestError(f'"outputs" is {_shown(asked)}; a list is needed')
    names: list[str] = []
    binary: set[str] = set()
    for entry in asked:
        _keys(entry, "an output", OUTPUT_KEYS)
        name = entry.get("name")
        if not isinstance(name, str) or name not in OUTPUTS or name in names:
            raise BadRequestError(
                f"output {_shown(name)} is not served, or asked for twice; allowed: {', '.join(OUTPUTS)}"
            )
        names.append(name)
        wanted = _parameters(entry, "an output").get("binary_data", default)
        if not isinstance(wanted, bool):
            raise BadRequestError(f'parameter "binary_data" is {_shown(wanted)}; true or false is needed')
        if wanted:
            binary.add(name)
    return tuple(names), frozenset(binary)


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
    n = len(request.ids)
    for name in request.outputs:
        tensor = tensor_of(name)
        shape = list(tensor.shape) if isinstance(tensor, np.ndarray) else [n]
        output: dict[str, Any] = {"name": name, "datatype": OUTPUTS[name], "shape": shape}
        if name in request.binary:
            blob = _to_bytes(tensor, OUTPUTS[name], repeats=name != "decision_id")
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


def _to_bytes(tensor: Tensor, datatype: str, *, repeats: bool) -> bytes:
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor, dtype=DTYPES[datatype]).tobytes()
    return b"".join(map(_known_element if repeats else _element, tensor))


def _element(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<I", len(content)) + content


_known_element = lru_cache(4096)(_element)  # classes and routes repeat: each is encoded once


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
