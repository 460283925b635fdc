"""Tasks that a coordinator gives to parties while a federation forms, as messages: a kind, options, and arrays.

=================  ====================================================  ==============================================
kind               sent                                                  returned
=================  ====================================================  ==============================================
open               run, plan (`FormationPlan`)                           whether it is aligned, holds labels, data hash
align              number of parties                                     number of own ids
align own          position                                              blinded ids
align mask         another party's elements                              the same, masked
align commit       a pseudonym or zeros per own id, in chunks            number of aligned samples, data hash
split              (label holder) shares, seed                           class names, rows of the three parts
labels             (label holder) which part, ε                          labels of that part, randomised if ε is set
prepare            class names, rows of the parts, labels if handed out  hash of what it trains on
local              –                                                     (progress) seconds
begin              epochs already done                                   –
epoch              number                                                embeddings of the first batch
gradient           gradient of the batch just sent                       embeddings of the next batch, or nothing
encoder            –                                                     (progress) seconds; trains without gradients
embed              first training row                                    embeddings of the training rows from there
deploy             version                                               hash of the models, now served
answers            (label holder) rows, answers of both routes           –
calibrate          (label holder) hashes of all models                   the router, results on the test part
=================  ====================================================  ==============================================
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import GainrouteError, InputError
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.routing.payload import CODECS, decode, encode

__all__ = ["CHUNK_BYTES", "Array", "read_json_object", "read_tensors", "tensor_bytes", "write_tensors"]

Array = npt.NDArray[Any]

CHUNK_BYTES = 4 << 20  # of the numbers in one message
LONGEST_JSON = 1 << 20


def write_tensors(arrays: Sequence[Array | bytes], codec: str = "float32") -> list[pb.Tensor]:
    """Encode arrays: bytes and whole numbers as they are, (N, d) floats with `codec`."""
    return [_write(array, codec) for array in arrays]


def _write(array: Array | bytes, codec: str) -> pb.Tensor:
    if isinstance(array, bytes):
        return pb.Tensor(shape=[len(array)], encoding="bytes", data=array)
    if array.dtype.kind in "iu":
        data = np.ascontiguousarray(array, dtype="<i8").tobytes()
        return pb.Tensor(shape=array.shape, encoding="int64", data=data)
    flat = array.reshape(-1, array.shape[-1])
    return pb.Tensor(shape=array.shape, encoding=codec, data=encode(flat, codec))


def read_tensors(tensors: Sequence[pb.Tensor]) -> list[Array]:
    """Decode what `write_tensors` encoded, into int64, float32, or uint8 for bytes; floats are finite."""
    return [_read(tensor) for tensor in tensors]


def _read(tensor: pb.Tensor) -> Array:
    shape, size = list(tensor.shape), len(tensor.data)
    if not 1 <= len(shape) <= 3 or max(shape) > 1 << 40:
        raise InputError(f"an array has shape {shape[:8]}; one to three dimensions are needed")
    if tensor.encoding == "bytes" and shape == [size]:
        return np.frombuffer(tensor.data, np.uint8)
    if tensor.encoding == "int64" and size == 8 * int(np.prod(shape, dtype=object)):
        return np.frombuffer(tensor.data, "<i8").astype(np.int64).reshape(shape)
    if tensor.encoding in CODECS and len(shape) >= 2:
        rows = int(np.prod(shape[:-1], dtype=object))
        values = decode(tensor.data, rows, shape[-1], tensor.encoding)
        if not np.isfinite(values).all():
            raise InputError("an array holds NaN or infinite values")
        return values.reshape(shape)
    raise InputError(f"an array is {tensor.encoding[:20]!r} of shape {shape} in {size} bytes, which do not fit")


def tensor_bytes(tensors: Sequence[pb.Tensor]) -> int:
    """Bytes of the numbers in a message."""
    return sum(len(tensor.data) for tensor in tensors)


def read_json_object(text: str, what: str) -> dict[str, Any]:
    """Parse the JSON object of a message."""
    try:
        body = json.loads(text[:LONGEST_JSON] or "{}")
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise GainrouteError(f"{what} is not a JSON object of at most {LONGEST_JSON} characters")
    return body
