"""Damage safetensors files: bytes anywhere, and values of the JSON in their header."""

from __future__ import annotations

import copy
import json
import random
import struct

VALUES = [None, True, -1, 0, 10**9, 10**400, 1.5, "", "x", "inf", [], [[]], {}, {"a": 1}, ["a", 1], "\0", "é" * 40]


def damaged(content: bytes, text: str, seed: int) -> bytes:
    """A file with one or two faults; `text` names the header's entry that is itself JSON."""
    rng = random.Random(seed)  # noqa: S311 (nothing secret)
    kind = rng.choice(["bytes", "header", "json", "json", "json", "cut", "deep"])
    if kind == "bytes":
        changed = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if kind == "cut":
        return content[: rng.randrange(len(content))]
    (size,) = struct.unpack("<Q", content[:8])
    header, rest = json.loads(content[8 : 8 + size]), content[8 + size :]
    if kind == "deep":
        header["__metadata__"][text] = "[" * 100_000
    elif kind == "header":
        tensor = rng.choice([name for name in header if name != "__metadata__"])
        fault = rng.randrange(4)
        if fault == 0:
            header[rng.choice(["other", f"{tensor}.more", ""])] = header.pop(tensor)
        elif fault == 1:
            dtype = header[tensor]["dtype"]
            header[tensor]["dtype"] = {"F64": "I64", "F32": "I32", "BOOL": "U8"}.get(dtype, "F8_E4M3")
        elif fault == 2:
            header[tensor]["shape"] = [1, *header[tensor]["shape"]]
        else:
            header["__metadata__"].pop(rng.choice(list(header["__metadata__"])))
    else:
        body = json.loads(header["__metadata__"][text])
        for _ in range(rng.randint(1, 2)):
            _change(body, rng)
        header["__metadata__"][text] = json.dumps(body)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + rest


def _change(body, rng):
    """Change one value somewhere inside."""
    places = []

    def walk(value):
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            places.append((value, key))
            walk(inner)

    walk(body)
    holder, key = rng.choice(places)
    fault = rng.randrange(4)
    if fault == 0 and isinstance(holder, dict):
        holder[rng.choice(["other", "kind", "stage", "self", "é"])] = holder.pop(key)
    elif fault == 1 and isinstance(holder, dict):
        holder.pop(key)
    elif fault == 2 and isinstance(holder[key], int):
        holder[key] += rng.choice([-1, 1, 10**6, 10**12])
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
