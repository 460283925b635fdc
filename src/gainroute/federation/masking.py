"""Masks that cancel in the sum of all parties: secure aggregation of the log-linear pool.

Each party adds to its weighted log-odds one mask per other party, drawn from a secret that the two share. One of them
adds it, the other subtracts it, so that the sum over the roster holds no masks, and anything less than the whole sum is
noise. Numbers are fixed-point in the ring of the integers modulo 2³², with 16 fractional bits.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gainroute._util.files import write_bytes
from gainroute.errors import DataError, SettingError

__all__ = [
    "ENCODING",
    "PairwiseMasks",
    "Ring",
    "create_mask_key",
    "largest_sum",
    "load_mask_key",
    "log_odds",
    "mask_context",
    "noise",
    "public_text",
    "read_public",
    "total_of",
    "weight_differences",
]

Ring = npt.NDArray[np.uint32]

ENCODING = "uint32"  # of a tensor of masked numbers, little-endian
FRACTION_BITS = 16
LARGEST = 2.0 ** (31 - FRACTION_BITS)  # a sum must stay below it, in absolute value
MIN_SHARE = 0.05  # of the absolute weights; a party with less does not hide the others
PURPOSE = b"gainroute masked round 1 v1"
COUNTER = bytes(16)  # every key encrypts one stream, so that the counter may start at 0


# ---- keys -------------------------------------------------------------------------------------------


def create_mask_key(path: str | os.PathLike[str]) -> str:
    """Write a new X25519 key, readable by its owner only, and return its public key as text.

    An existing key is never overwritten: peers have pinned its public key.
    """
    if Path(path).exists():
        raise SettingError(f"{path} exists, and peers may have pinned its public key: name another file, or remove it")
    key = X25519PrivateKey.generate()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_bytes(path, key.private_bytes(encoding, form, serialization.NoEncryption()), private=True)
    return public_text(key.public_key().public_bytes_raw())


def load_mask_key(path: str | os.PathLike[str]) -> X25519PrivateKey:
    """Load a key that `create_mask_key` wrote."""
    try:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error}): `gainroute certs mask-key` makes such a file") from error
    if not isinstance(key, X25519PrivateKey):
        raise DataError(f"{path} holds a {type(key).__name__}; an X25519 key from `gainroute certs mask-key` is needed")
    return key


def public_text(public: bytes) -> str:
    """A public key as text, for the settings of the peers."""
    return base64.b64encode(public).decode()


def read_public(text: str, where: str) -> bytes:
    """The 32 bytes of a public key from its text; `where` names it in errors."""
    try:
        public = base64.b64decode(text, validate=True)
    except ValueError:
        public = b""
    if len(public) != 32:
        raise SettingError(
            f"{where} is {text[:60]!r}; the 44 characters that `gainroute certs mask-key` prints are needed"
        )
    return public


# ---- numbers ----------------------------------------------------------------------------------------


def log_odds(posterior: npt.NDArray[np.float32], weight: float, eps: float) -> Ring:
    """The weighted log-odds of K − 1 classes against the last, w·log((p[k] + ε) / (p[K] + ε)), in fixed point.

    K − 1 numbers and not K: sums of all K log-posteriors of two parties can be solved for both of them.
    """
    logs = np.add(posterior, eps, dtype=np.float64)
    np.log(logs, out=logs)
    odds = (logs[:, :-1] - logs[:, -1:]) * (weight * 2**FRACTION_BITS)
    fixed: Ring = np.rint(odds, out=odds).astype(np.int32).view(np.uint32)
    return fixed


def largest_sum(weights: Sequence[float], eps: float) -> float:
    """The largest absolute value that a sum of log-odds can have; `LARGEST` must exceed it."""
    return sum(map(abs, weights)) * math.log((1 + eps) / eps)


def weight_differences(weights: Mapping[str, float], eps: float, min_roster: int, max_share: float) -> list[str]:
    """List what makes a sum with these weights reveal a party, or exceed the ring; parties and coordinator check it."""
    total = sum(map(abs, weights.values()))
    if not (math.isfinite(total) and total > 0 and 0 < eps <= 0.01):
        return [f"weights {list(weights.values())} and ε {eps} are not usable"]
    found: list[str] = []
    if len(weights) < min_roster:
        found.append(f"a roster of {len(weights)} parties; {min_roster} or more are needed (privacy.min_roster)")
    elif sum(abs(w) >= MIN_SHARE * total for w in weights.values()) < min_roster:
        shares = ", ".join(f"{name} {abs(w) / total:.0%}" for name, w in weights.items())
        found.append(
            f"fewer than {min_roster} parties with {MIN_SHARE:.0%} or more of the weight ({shares}): the others would "
            "hide nothing"
        )
    heaviest = max(weights, key=lambda name: abs(weights[name]))
    share = abs(weights[heaviest]) / total
    if share > max_share:
        found.append(f"{share:.0%} of the weight on {heaviest!r}; at most {max_share:.0%} (privacy.max_weight_share)")
    if largest_sum(list(weights.values()), eps) >= LARGEST:
        found.append(f"sums of up to {largest_sum(list(weights.values()), eps):.3g}; they must stay below {LARGEST:g}")
    return found


def total_of(parts: Sequence[Ring]) -> npt.NDArray[np.float64]:
    """The sum of all parties' messages as numbers: the masks cancel."""
    total = np.add.reduce(np.asarray(parts), axis=0, dtype=np.uint32)
    numbers: npt.NDArray[np.float64] = total.view(np.int32) / np.float64(2**FRACTION_BITS)
    return numbers


def noise(rows: int, columns: int) -> Ring:
    """Random numbers in place of an answer. The sum of a row that holds them says nothing about any party."""
    return np.frombuffer(os.urandom(4 * rows * columns), "<u4").reshape(rows, columns)


# ---- masks ------------------------------------------------------------------------------------------


def mask_context(plan: bytes, nonce: bytes, coordinator: str, request_id: str, ids: Sequence[str]) -> bytes:
    """The hash of everything that a mask is used for.

    Equal masks over different numbers would reveal their difference, so the ids belong to it as well.
    """
    texts = json.dumps([coordinator, request_id, *ids]).encode()
    digest = hashlib.sha256(PURPOSE)
    for part in (plan, nonce, texts):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


class PairwiseMasks:
    """The masks of one party.

    Parameters
    ----------
    name
        Of the party itself.
    key
        Its private key.
    peers
        Public keys of the other parties by name, from its own settings: nobody else can add a party.
    """

    def __init__(self, name: str, key: X25519PrivateKey, peers: Mapping[str, bytes]) -> None:
        self.public = key.public_key().public_bytes_raw()
        if len({self.public, *peers.values()}) <= len(peers):
            raise SettingError(
                "privacy.peers: a public key occurs twice, or is the party's own; every party has its own"
            )
        self.name, self.peers = name, dict(peers)
        self._secrets = {peer: self._shared(key, peer) for peer in peers}

    def _shared(self, key: X25519PrivateKey, peer: str) -> bytes:
        try:
            secret = key.exchange(X25519PublicKey.from_public_bytes(self.peers[peer]))
        except ValueError as error:
            raise SettingError(f"privacy.peers: the key of {peer!r} is not a valid X25519 key") from error
        ends = sorted([(self.name.encode(), self.public), (peer.encode(), self.peers[peer])])
        info = PURPOSE + b"".join(len(name).to_bytes(8, "little") + name + public for name, public in ends)
        return HKDF(hashes.SHA256(), 32, None, info).derive(secret)

    def add_to(self, values: Ring, roster: Sequence[str], context: bytes) -> Ring:
        """Add the masks shared with every other party of the roster."""
        blank = bytes(4 * values.size)
        total = values.copy()
        for peer in roster:
            if peer == self.name:
                continue
            # HKDF-Expand with one block: a key per request, because a hash cut to a nonce could be made to collide.
            key = hmac.digest(self._secrets[peer], context + b"\x01", "sha256")
            stream = Cipher(algorithms.AES(key), modes.CTR(COUNTER)).encryptor().update(blank)
            mask = np.frombuffer(stream, "<u4").reshape(values.shape)
            if self.name < peer:
                total += mask
            else:
                total -= mask
        return total
