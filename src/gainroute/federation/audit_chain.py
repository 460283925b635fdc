"""Tamper-evident audit trails: every line carries a keyed hash of itself and of the line before.

A line is a JSON object that ends with ``"number": n, "chain": "<64 hex digits>"``. The chain value of line n is
keyed BLAKE2b, 256 bits, of the chain value of line n − 1 and of the line without its own; that of line 0 is 64 zeros.
The first line that a process writes to a file repeats the value before it as ``prev``, so that each file can be
verified by itself. The same key turns sample ids into pseudonyms.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from gainroute._util.files import kept_secret
from gainroute.errors import DataError

__all__ = [
    "START", "AuditKey", "chained", "head_path", "key_path", "parse_head", "read_head", "read_key", "sealed",
]  # fmt: skip

START = "0" * 64
WIDTH = 8  # characters of a pseudonym: 48 bits; among ten million others, one is the same with a probability of 4e-8
_BYTES = WIDTH * 6 // 8
_END = re.compile(rb', "number": ([1-9][0-9]*), "chain": "([0-9a-f]{64})"}$')
_OWN = len(f', "chain": "{START}"}}')
KNOWN = 1 << 15  # pseudonyms kept in memory


class AuditKey:
    """The secret of one audit trail: authenticates its lines and pseudonymises the sample ids in them."""

    def __init__(self, secret: bytes) -> None:
        chain, ids = (hmac.digest(secret, purpose, "sha256") for purpose in (b"chain", b"sample ids"))
        self._chain = chain
        self._keyed = hashlib.blake2b(key=ids, digest_size=_BYTES)
        self._known: dict[str, bytes] = {}  # Round 2 is about samples of Round 1: looking up takes a tenth of hashing

    def link(self, previous: str, body: str) -> str:
        """The chain value of a line: `previous` is that of the line before, `body` the line without its own."""
        return hashlib.blake2b((previous + body).encode(), key=self._chain, digest_size=32).hexdigest()

    def pseudonyms(self, ids: Iterable[str]) -> str:
        """Pseudonyms of sample ids, `WIDTH` characters each, without separators. Without the key they tell nothing."""
        known = self._known
        made: list[bytes] = []
        for name in ids:
            pseudonym = known.get(name)
            if pseudonym is None:
                keyed = self._keyed.copy()
                keyed.update(name.encode())
                pseudonym = known[name] = keyed.digest()
            made.append(pseudonym)
        if len(known) > KNOWN:
            known.clear()
        return binascii.b2a_base64(b"".join(made), newline=False).decode()

    def names(self, sample: str, pseudonyms: str) -> bool:
        """Whether a sample is among pseudonyms that `pseudonyms` wrote."""
        wanted = self.pseudonyms([sample])
        return wanted in pseudonyms and any(
            pseudonyms[at : at + WIDTH] == wanted for at in range(0, len(pseudonyms), WIDTH)
        )


def sealed(key: AuditKey, previous: str, body: str) -> tuple[str, str]:
    """A line with its chain value, and that value. `body` is a JSON object that ends with its number."""
    chain = key.link(previous, body)
    return f'{body[:-1]}, "chain": "{chain}"}}', chain


def chained(line: bytes) -> tuple[int, str, str] | None:
    """Number, chain value, and the rest of a line, as it was authenticated; None for a line without them."""
    found = _END.search(line)
    if found is None:
        return None
    return int(found[1]), found[2].decode(), line[:-_OWN].decode(errors="replace") + "}"


def read_key(path: Path, *, create: bool = False) -> AuditKey:
    """Read a key from a file that only its owner may read, or create it."""
    if not create and not path.exists():
        raise DataError(f"{path}: no such key; pass the file that the audit trail was written with (--key)")
    remedy = "restore it from a backup: without it, what was written so far cannot be verified"
    return AuditKey(kept_secret(path, lambda: secrets.token_bytes(32), remedy))


def key_path(path: Path) -> Path:
    """Where the key of an audit trail is unless the settings say otherwise: beside it."""
    return path.with_name(f"{path.name}.key")


def head_path(path: Path) -> Path:
    """Where a party keeps the head of its audit log: number and chain value of the last line."""
    return path.with_name(f"{path.name}.head")


def read_head(path: Path) -> tuple[int, str] | None:
    """The head that is kept beside an audit log; None if there is none, or if it is damaged."""
    try:
        return parse_head(head_path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def parse_head(text: str) -> tuple[int, str]:
    """Number and chain value from ``<number>:<chain>``; raises ValueError if it is something else."""
    found = re.fullmatch(r"\s*([0-9]{1,20}):([0-9a-f]{64})\s*", text)
    if found is None:
        raise ValueError(f"{text[:100]!r} is not <number>:<64 hex digits>")
    return int(found[1]), found[2]
