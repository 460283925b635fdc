"""Embeddings on the wire: float32, float16, or int8 with a scale a vector."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gainroute.errors import SettingError, ShapeError

__all__ = ["CODECS", "check_codec", "decode", "encode", "round_trip"]

CODECS = ("float32", "float16", "int8")

Floats = npt.NDArray[np.float32]


def check_codec(codec: str) -> str:
    """Refuse a codec that is not known."""
    if codec not in CODECS:
        raise SettingError(f"codec is {codec!r}; allowed are {', '.join(map(repr, CODECS))}")
    return codec


def encode(values: Floats, codec: str) -> bytes:
    """(N, d) values → bytes. For int8, N scales (float32) stand before the N·d codes.

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


def decode(data: bytes, rows: int, dimension: int, codec: str) -> Floats:
    """Bytes → (rows, dimension) float32."""
    check_codec(codec)
    size = {"float32": 4 * dimension, "float16": 2 * dimension, "int8": 4 + dimension}[codec] * rows
    if len(data) != size:
        raise ShapeError(f"{len(data)} bytes of {codec} for {rows} × {dimension} values; {size} are needed")
    if codec == "int8":
        scale = np.frombuffer(data, "<f4", rows)
        codes = np.frombuffer(data, np.int8, offset=4 * rows).reshape(rows, dimension)
        values: Floats = (codes * scale[:, None]).astype(np.float32)
        return values
    kind = "<f4" if codec == "float32" else "<f2"
    return np.frombuffer(data, kind).reshape(rows, dimension).astype(np.float32)


def round_trip(values: Floats, codec: str) -> Floats:
    """What arrives when `values` are sent: a router is calibrated on these."""
    return decode(encode(values, codec), len(values), values.shape[1], codec)
