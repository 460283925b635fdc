"""What goes over the wire: the codecs of embeddings, and the bytes per sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gainroute._util.arrays import Float32Array
from gainroute.errors import SettingError, ShapeError
from gainroute.routing.inputs import check_fraction, one_of

__all__ = [
    "CODECS",
    "check_codec",
    "communication_cost",
    "decode",
    "embedding_bytes",
    "encode",
    "round_trip",
    "row_bytes",
]

CODECS = ("float32", "float16", "int8")
_ITEM_BYTES = {"float32": 4, "float16": 2, "int8": 1}


def check_codec(codec: str) -> str:
    """Refuse a codec that is not known."""
    return one_of(codec, "codec", CODECS)


# ---- bytes ------------------------------------------------------------------------------------------


def row_bytes(length: int, dtype: Any = "float32") -> int:
    """Bytes of one posterior or embedding of `length` values."""
    known = _ITEM_BYTES.get(dtype) if isinstance(dtype, str) else None
    return length * (int(np.dtype(dtype).itemsize) if known is None else known)


def embedding_bytes(dimensions: Sequence[int], codec: str = "float32") -> int:
    """Bytes of one escalated sample in Round 2, all parties together; int8 carries a float32 scale per embedding.

    Examples
    --------
    >>> [embedding_bytes([512, 512], codec) for codec in CODECS]
    [4096, 2048, 1032]
    """
    scale = row_bytes(1) if check_codec(codec) == "int8" else 0
    return sum(row_bytes(d, codec) + scale for d in dimensions)


def communication_cost(
    classes: int,
    dimensions: Sequence[int],
    escalation_rate: float = 1.0,
    posterior_dtype: Any = "float32",
    embedding_dtype: Any = "float32",
    *,
    codec: str | None = None,
) -> float:
    """Payload bytes per sample, all parties together: Σᵢ (K + rate · dᵢ) values.

    Parameters
    ----------
    classes
        K: every party sends K values for every sample.
    dimensions
        dᵢ, the length of each party's embedding, sent for escalated samples only.
    escalation_rate
        The share of samples escalated.
    posterior_dtype, embedding_dtype
        Number formats on the wire, as numpy names them.
    codec
        How the transports encode embeddings, in place of `embedding_dtype`: "float32", "float16", or "int8",
        which adds a float32 scale per embedding.

    Examples
    --------
    Four parties, ten classes, embeddings of 512 values:

    >>> communication_cost(10, [512] * 4, 0.2)
    1798.4
    >>> communication_cost(10, [512] * 4, 1.0)
    8352.0
    """
    rate = check_fraction(escalation_rate, "escalation_rate", "the share of samples escalated")
    if classes < 2 or not len(dimensions) or min(dimensions) < 1:
        raise SettingError(
            f"classes is {classes} and dimensions {list(dimensions)}; at least two classes, one party, and embeddings "
            "of one value or more are needed"
        )
    posterior = len(dimensions) * row_bytes(classes, posterior_dtype)
    embedding = row_bytes(sum(dimensions), embedding_dtype) if codec is None else embedding_bytes(dimensions, codec)
    return float(posterior + rate * embedding)


# ---- codecs -----------------------------------------------------------------------------------------


def encode(values: Float32Array, codec: str) -> bytes:
    """Encode (N, d) values. For int8, N scales (float32) precede the N·d codes.

    Rows of NaN, samples the party lacks, stay rows of NaN through every codec.
    """
    check_codec(codec)
    little = np.ascontiguousarray(values, dtype="<f4")
    if codec == "float32":
        return little.tobytes()
    if codec == "float16":
        half: bytes = np.clip(little, -65504, 65504).astype("<f2").tobytes()
        return half
    absent = np.isnan(little).any(axis=1)
    filled = np.where(absent[:, None], 0, little)
    scale = np.abs(filled).max(axis=1, initial=0) / 127
    codes = np.rint(filled / np.where(scale > 0, scale, 1)[:, None]).astype(np.int8)
    scale = np.where(absent, np.nan, scale).astype("<f4")
    data: bytes = scale.tobytes() + codes.tobytes()
    return data


def decode(data: bytes, rows: int, dimension: int, codec: str) -> Float32Array:
    """Decode bytes into (rows, dimension) float32."""
    size = rows * embedding_bytes([dimension], codec)
    if len(data) != size:
        raise ShapeError(f"{len(data)} bytes of {codec} for {rows} × {dimension} values; {size} are needed")
    if codec == "int8":
        scale = np.frombuffer(data, "<f4", rows)
        codes = np.frombuffer(data, np.int8, offset=4 * rows).reshape(rows, dimension)
        with np.errstate(invalid="ignore", over="ignore"):  # a scale may be anything: who receives values checks them
            values: Float32Array = (codes * scale[:, None]).astype(np.float32)
        return values
    kind = "<f4" if codec == "float32" else "<f2"
    return np.frombuffer(data, kind).reshape(rows, dimension).astype(np.float32)


def round_trip(values: Float32Array, codec: str) -> Float32Array:
    """Return what arrives when `values` are sent: a router is calibrated on these."""
    return decode(encode(values, codec), len(values), values.shape[1], codec)
