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
yardstick          first test row                                        posteriors of a logistic regression from there
deploy             version                                               hash of the models, now served
answers            (label holder) a part, rows, answers on them          –
calibrate          (label holder) hashes of all models                   the router, results on the test part
=================  ====================================================  ==============================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute.errors import GainrouteError, InputError
from gainroute.federation.transport.bounds import MAX_CLASSES, MAX_VALUE, is_name, printable
from gainroute.federation.transport.proto import party_pb2 as pb
from gainroute.routing.payload import CODECS, decode, encode

__all__ = [
    "CHUNK_BYTES", "Array", "read_json_object", "read_progress", "read_result", "read_tensors", "tensor_bytes",
    "write_tensors",
]  # fmt: skip

Array = npt.NDArray[Any]

CHUNK_BYTES = 4 << 20  # of the numbers in one message
LONGEST_JSON = 1 << 20
SHOWN = 80  # characters of a stage or a note in the progress


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= 1 << 40


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= MAX_VALUE and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_name(value)


def _are_classes(value: Any) -> bool:
    return isinstance(value, list) and 2 <= len(value) <= MAX_CLASSES and all(map(_is_text, map(str, value)))


# Bounds of the values that the coordinator uses, and how many arrays belong to a result.
VALUES: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "align": {"ids": _is_count}, "split": {"class_names": _are_classes, "integer_labels": lambda v: v in (0, 1)},
    "local": {"seconds": _is_number}, "deploy": {"model": _is_text},
    "calibrate": dict.fromkeys(
        ("calibration_samples", "test_samples", "weak_accuracy", "strong_accuracy", "routed_accuracy",
         "escalation_rate"), _is_number,
    ),
}  # fmt: skip
ARRAYS: Mapping[str, tuple[int, ...]] = {
    "align own": (1,), "align mask": (1,), "split": (3,), "labels": (1,), "epoch": (1,), "gradient": (0, 1),
    "embed": (1,), "yardstick": (1,), "calibrate": (1,),
}  # fmt: skip


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
    """Decode what `write_tensors` encoded, into int64, float32, or uint8 for bytes; floats are within ±`MAX_VALUE`."""
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
        if values.size and not np.abs(values).max() <= MAX_VALUE:
            raise InputError(f"an array holds NaN, or a value beyond ±{MAX_VALUE:g}")
        return values.reshape(shape)
    raise InputError(f"an array is {tensor.encoding[:20]!r} of shape {shape} in {size} bytes, which do not fit")


def read_result(kind: str, result: pb.TaskResult) -> tuple[dict[str, Any], list[Array]]:
    """Decode and check what a party returns for a task."""
    allowed = ARRAYS.get(kind, (0,))
    if len(result.tensors) not in allowed:
        raise InputError(f"{len(result.tensors)} arrays; {' or '.join(map(str, allowed))} are expected")
    values = read_json_object(result.values, "values")
    if kind in VALUES:
        wrong = [name for name, is_valid in VALUES[kind].items() if not is_valid(values.get(name))]
        if wrong:
            raise InputError(f"{wrong[0]} is {values.get(wrong[0])!r:.100}, which is missing or out of bounds")
        values = {name: values[name] for name in VALUES[kind]}
    return values, read_tensors(result.tensors)


def read_progress(text: str) -> dict[str, Any]:
    """Decode what a party reports while it works; numbers out of bounds are None, texts are cut."""
    state = read_json_object(text, "progress")
    counts = {name: state[name] if _is_count(state.get(name)) else None for name in ("done", "total")}
    return counts | {name: printable(str(state.get(name, ""))[: SHOWN + 1], SHOWN) for name in ("stage", "note")}


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
