"""Mutations of inputs: bytes, JSON, protocol messages, safetensors files and zip archives (npz, folders of files)."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

Mutate = Callable[[bytes, random.Random], bytes]

NUMBERS = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    256,
    65535,
    2**31 - 1,
    -(2**31),
    2**32,
    2**53,
    2**63 - 1,
    -(2**63),
    2**64,
    10**30,
)
TEXTS = ("", "\x00", "a", "é", "\ud800", "..", "../" * 9, "/dev/zero", "%s%n", "nan", "inf", "-0", "null", "x" * 300)
VALUES: tuple[Any, ...] = (
    *NUMBERS, *TEXTS, None, True, False, 0.5, 1e308, -1e-308, float("nan"), float("inf"), [], {}, [[]], [None], {"": 0},
)  # fmt: skip
TOKENS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\n",
    b"\r\n",
    b"=",
    b":",
    b",",
    b"\x00",
    b"\xff\xff\xff\xff",
    b"[" * 2000,
    b"1" * 400,
)
LONGEST = 1 << 16


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change bytes in one to eight places."""
    body = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        at, length = rng.randrange(len(body) + 1), 1 + int(rng.expovariate(0.2))
        match rng.randrange(8):
            case 0 if body:
                body[at % len(body)] ^= 1 << rng.randrange(8)
            case 1 if body:
                body[at % len(body)] = rng.choice((0, 1, 9, 10, 13, 32, 34, 127, 128, 255))
            case 2:
                del body[at : at + length]
            case 3:
                body[at:at] = rng.choice(TOKENS)
            case 4:
                body[at:at] = body[at : at + length] * rng.choice((1, 1, 1, 40))
            case 5:
                kind = rng.choice(("<b", "<h", "<i", "<q", ">i", "<f", "<d"))
                value = rng.choice((0, 1, -1, 127, -128))
                body[at : at + struct.calcsize(kind)] = struct.pack(kind, value)
            case 6:
                start = rng.randrange(len(body) + 1)
                body[at : at + length] = body[start : start + length]
            case 7 if rng.random() < 0.2:
                del body[at:]
    return bytes(body[:LONGEST])


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Change values, keys and lengths of a JSON document; its bytes if it is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, rng)
    if rng.random() < 0.15:
        return mutate_bytes(data, rng)
    for _ in range(1 << rng.randrange(3)):
        value = _changed(value, rng)
    try:
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # numbers of too many digits, lists too deep
        return mutate_bytes(data, rng)
    return text.replace(b'"deep"', b"[" * 3000 + b"]" * 3000)[:LONGEST]


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, (dict, list)) and value and rng.random() < 0.8:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        match rng.randrange(8):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[rng.choice(TEXTS + tuple(map(str, keys)))] = value.pop(key)
            case 1:
                value.append(copy.deepcopy(value[key]))
            case 2:
                value[key] = copy.deepcopy(value[rng.choice(keys)])
            case _:
                value[key] = _changed(value[key], rng)
        return value
    if isinstance(value, str) and rng.random() < 0.5:
        if value[:1] in "{[":  # JSON within JSON
            return mutate_json(value.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
        return mutate_bytes(value.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**64 and rng.random() < 0.3:
        return rng.choice((-value, value + 1, value - 1, value * 2, float(value), str(value)))
    return copy.deepcopy(rng.choice((*VALUES, "deep")))


def mutate_text(words: Sequence[str]) -> Mutate:
    """Mutate text by lines and by words of its language."""

    def mutate(data: bytes, rng: random.Random) -> bytes:
        lines = data.split(b"\n")
        for _ in range(1 << rng.randrange(3)):
            at = rng.randrange(len(lines))
            match rng.randrange(5):
                case 0 if len(lines) > 1:
                    del lines[at]
                case 1:
                    lines.insert(at, rng.choice(lines))
                case 2 | 3:
                    key, found, _ = lines[at].partition(b"=")
                    value = rng.choice((*VALUES, *words))
                    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
                    lines[at] = key + b"= " + text if found else rng.choice(words).encode()
                case 4:
                    lines[at] = mutate_bytes(lines[at], rng)
        return b"\n".join(lines)[:LONGEST]

    return mutate


def mutate_message(kinds: Sequence[Any]) -> Mutate:
    """Mutate a protocol message by its fields; the first byte of an input selects the kind."""

    def mutate(data: bytes, rng: random.Random) -> bytes:
        head = data[:1] or b"\x00"
        message = kinds[head[0] % len(kinds)]()
        if rng.random() < 0.2:
            return mutate_bytes(data, rng)
        try:
            message.ParseFromString(data[1:])
        except Exception:  # noqa: BLE001 (not a message of this kind: its bytes are changed)
            return mutate_bytes(data, rng)
        for _ in range(1 << rng.randrange(3)):
            _change_field(message, rng)
        return (head + message.SerializeToString())[:LONGEST]

    return mutate


def _change_field(message: Any, rng: random.Random) -> None:
    field = rng.choice(message.DESCRIPTOR.fields)
    name, repeated = field.name, field.is_repeated
    held = getattr(message, name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        if value.message_type is None:
            held[_scalar(key, None, rng)] = _scalar(value, None, rng)
        else:
            _change_field(held[_scalar(key, None, rng)], rng)
        return
    if field.message_type is not None:
        if repeated and rng.random() < 0.3:
            held.add()
        elif repeated and held and rng.random() < 0.2:
            del held[rng.randrange(len(held))]
        elif not repeated or held:
            _change_field(rng.choice(held) if repeated else held, rng)
        return
    value = _scalar(field, held, rng)
    if not repeated:
        setattr(message, name, value)
    elif held and rng.random() < 0.5:
        at = rng.randrange(len(held))
        if rng.random() < 0.3:
            del held[at]
        else:
            held[at] = value
    else:
        held.extend([value] * rng.choice((1, 1, 2, 50)))


def _scalar(field: Any, held: Any, rng: random.Random) -> Any:
    kinds = field.cpp_type
    if kinds in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return rng.choice((0.0, -1.0, 1e308, float("nan"), float("inf"), 0.5))
    if kinds == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kinds == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return mutate_bytes(held if isinstance(held, bytes) else b"", rng)
        known = held if isinstance(held, str) else ""
        if known[:1] == "{" and rng.random() < 0.8:
            return mutate_json(known.encode(), rng).decode("utf-8", "replace")
        return rng.choice(("float32", "float16", "int8", "int64", "bytes", known, *TEXTS)).replace("\ud800", "?")
    lowest, highest = {
        field.CPPTYPE_INT32: (-(2**31), 2**31 - 1), field.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
        field.CPPTYPE_UINT32: (0, 2**32 - 1), field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
        field.CPPTYPE_UINT64: (0, 2**64 - 1),
    }[kinds]  # fmt: skip
    near = held if isinstance(held, int) else 1
    return min(max(rng.choice((*NUMBERS, near + 1, near - 1, near * 2, 2, 3, 4)), lowest), highest)


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Mutate the header of a safetensors file as JSON, with a length that fits; or the numbers; or any bytes."""
    if len(data) < 8 or rng.random() < 0.15:
        return mutate_bytes(data, rng)
    size = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.75:
        header = mutate_json(header, rng)
    else:
        body = mutate_bytes(body, rng)
    return (len(header).to_bytes(8, "little") + header + body)[:LONGEST]


def mutate_archive(member: Callable[[str], Mutate]) -> Mutate:
    """Mutate one file in a zip archive, with checksums that fit; or the archive's bytes."""

    def mutate(data: bytes, rng: random.Random) -> bytes:
        files = unpack(data)
        if not files or rng.random() < 0.1:
            return mutate_bytes(data, rng)
        for _ in range(1 << rng.randrange(2)):
            if not files:
                break
            name = rng.choice(list(files))
            if rng.random() < 0.06:
                del files[name]
            elif rng.random() < 0.06:
                files[rng.choice(list(files))] = files[name]
            else:
                files[name] = member(name)(files[name], rng)
        return pack(files)

    return mutate


def mutate_npy(data: bytes, rng: random.Random) -> bytes:
    """Mutate an .npy file: its header as text, with a length that fits, or its numbers."""
    if len(data) < 10 or data[:6] != b"\x93NUMPY":
        return mutate_bytes(data, rng)
    size = int.from_bytes(data[8:10], "little")
    header, body = data[10 : 10 + size], data[10 + size :]
    if rng.random() < 0.5:
        for old in (b"<f4", b"<f8", b"<i8", b"|u1", b"<U", b"True", b"False", b"(", b",)"):
            if old in header and rng.random() < 0.3:
                new = (
                    b"<f4",
                    b"<i8",
                    b"|O",
                    b"<U3",
                    b"|S2",
                    b"?",
                    b"<M8[s]",
                    b"<c8",
                    b"True",
                    b"False",
                    b"(2, ",
                    b",)",
                )
                header = header.replace(old, rng.choice(new), 1)
        header = mutate_bytes(header, rng) if rng.random() < 0.5 else header
    elif body[:1] == b"{":  # the metadata of a record
        body = mutate_json(body, rng)
        header = header.replace(header[header.find(b"(") + 1 : header.find(b",)")], str(len(body)).encode())
    else:
        body = mutate_bytes(body, rng)
    return data[:8] + len(header).to_bytes(2, "little") + header + body


mutate_npz = mutate_archive(lambda _: mutate_npy)


def pack(files: dict[str, bytes]) -> bytes:
    """A zip archive of files, stored."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def unpack(data: bytes) -> dict[str, bytes]:
    """The files of a zip archive; none if it is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except Exception:  # noqa: BLE001 (zipfile raises many kinds)
        return {}
