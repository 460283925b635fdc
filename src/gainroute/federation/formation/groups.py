"""Groups in which ids are blinded: an id becomes a group element, and every party multiplies it by its secret key.

Multiplications commute: an id that passed through all parties has the same element, whatever their order. Without one
of the keys, the element of an id cannot be computed, not even for a guessed id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric import ec

from gainroute.errors import DataError, InputError

__all__ = ["P256", "BlindingGroup"]


class BlindingGroup(Protocol):
    """A group of prime order. Elements are passed as one `bytes`, `element_bytes` per element."""

    name: str
    element_bytes: int

    def new_key(self) -> bytes:
        """A random secret key."""
        ...

    def blind(self, key: bytes, ids: Iterable[str]) -> bytes:
        """Hash ids to elements and mask them."""
        ...

    def mask(self, key: bytes, elements: bytes) -> bytes:
        """Multiply elements by the key, in order; raises InputError for one that is not in the group."""
        ...

    def split(self, elements: bytes) -> list[bytes]:
        """The single elements; raises InputError, with the position, for one that is repeated or not in the group."""
        ...


class _P256:
    """The curve NIST P-256. An element is the x-coordinate of a point: the sign of y is lost and does not matter.

    The order is prime and every incoming x-coordinate is checked to be on the curve, so that no element reveals a part
    of the key. ECDH is the multiplication: it returns the x-coordinate of the product, and other threads run meanwhile.
    """

    name = "P-256"
    element_bytes = 32

    def new_key(self) -> bytes:
        return ec.generate_private_key(CURVE).private_numbers().private_value.to_bytes(32, "big")

    def blind(self, key: bytes, ids: Iterable[str]) -> bytes:
        return _multiply(key, map(_hash_to_point, ids))

    def mask(self, key: bytes, elements: bytes) -> bytes:
        return _multiply(key, _points(elements))

    def split(self, elements: bytes) -> list[bytes]:
        for _ in _points(elements):
            pass
        return _split(elements)


P256: BlindingGroup = _P256()
CURVE, EXCHANGE = ec.SECP256R1(), ec.ECDH()
TAG = b"gainroute alignment v1 P-256"


def _point(x: bytes) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, b"\x02" + x)


def _split(elements: bytes) -> list[bytes]:
    if len(elements) % 32:
        raise InputError(f"{len(elements):,} bytes are not whole elements of 32 bytes; some were lost on the way")
    parts = [elements[start : start + 32] for start in range(0, len(elements), 32)]
    if len(set(parts)) < len(parts):
        last = {part: place for place, part in enumerate(parts)}
        place = next(place for place, part in enumerate(parts) if last[part] != place)
        raise InputError(f"elements {place} and {last[parts[place]]} are equal; each has to belong to another id")
    return parts


def _points(elements: bytes) -> Iterator[ec.EllipticCurvePublicKey]:
    parts, done = _split(elements), 0
    try:
        for x in parts:
            yield _point(x)
            done += 1
    except ValueError:
        raise InputError(f"element {done} is not a point of P-256; what was received is damaged or garbage") from None


def _hash_to_point(sample: str) -> ec.EllipticCurvePublicKey:
    encoded = sample.encode()
    for counter in range(256):  # every second x-coordinate is on the curve
        with suppress(ValueError):
            return _point(hashlib.sha256(TAG + bytes([counter]) + encoded).digest())
    raise InputError("an id has no point on P-256")  # pragma: no cover (probability 2⁻²⁵⁶)


def _multiply(key: bytes, points: Iterable[ec.EllipticCurvePublicKey]) -> bytes:
    try:
        private = ec.derive_private_key(int.from_bytes(key, "big"), CURVE)
    except ValueError:
        raise DataError(
            "the alignment key is not a key of P-256: restore its file, or delete it and align again"
        ) from None
    return b"".join([private.exchange(EXCHANGE, point) for point in points])
