"""Bearer tokens: the settings hold their hashes, never the tokens.

``sha256:<64 hex digits>`` is for random tokens (`new_token`); ``scrypt:<n>:<r>:<p>:<salt>:<hash>`` (hex) is slow on
purpose, for tokens chosen by a person.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping

from gainroute.errors import SettingError

__all__ = ["Tokens", "bearer", "check_hash", "hash_token", "new_token"]

SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
SCRYPT = re.compile(r"scrypt:(\d{1,8}):(\d{1,2}):(\d{1,2}):([0-9a-f]{16,128}):([0-9a-f]{64})")
REMEMBERED = 256


def new_token() -> str:
    """Draw a random token of 256 bits."""
    return secrets.token_urlsafe(32)


def hash_token(token: str, *, slow: bool = False) -> str:
    """Hash a token for the settings; `slow` for a token chosen by a person.

    Examples
    --------
    >>> hash_token("abc")[:16]
    'sha256:ba7816bf8'
    """
    if not slow:
        return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
    salt = secrets.token_bytes(16)
    return f"scrypt:16384:8:1:{salt.hex()}:{_scrypt(token, 16384, 8, 1, salt)}"


def check_hash(value: str, where: str) -> str:
    """Raise if `value` is not a hash. The message does not repeat it, since it may be a token."""
    if not SHA256.fullmatch(value) and not SCRYPT.fullmatch(value):
        raise SettingError(
            f"{where} is not a hash; 'sha256:<64 hex digits>' or 'scrypt:<n>:<r>:<p>:<salt>:<hash>' is needed: "
            "gainroute coordinator --new-token draws a token and prints its hash"
        )
    return value


def bearer(header: str | None, *, basic: bool = False) -> str | None:
    """The token of an Authorization header; with `basic`, also the password of Basic, which browsers ask for."""
    scheme, _, rest = (header or "").partition(" ")
    if scheme.lower() == "bearer" and rest:
        return rest.strip()
    if basic and scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


class Tokens:
    """Looks up the holder of a token; `holders` are hashes by name."""

    def __init__(self, holders: Mapping[str, str]) -> None:
        self._fast = {name: h for name, h in holders.items() if h.startswith("sha256:")}
        self._slow = {name: m for name, h in holders.items() if (m := SCRYPT.fullmatch(h))}
        # Valid tokens are cached by a keyed digest: the slow hash is computed once, and tokens are not kept.
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._fast or self._slow)

    @property
    def slow(self) -> bool:
        """Whether a lookup may take a tenth of a second: use a thread."""
        return bool(self._slow)

    def remembered(self, token: str) -> str | None:
        """The holder, if the token was valid before."""
        return self._known.get(self._digest(token))

    def holder(self, token: str) -> str | None:
        """The holder of a token; None if it is not valid. Every hash is compared, in constant time."""
        found: str | None = None
        fast = hash_token(token)
        for name, expected in self._fast.items():
            if hmac.compare_digest(fast, expected):
                found = name
        for name, match in self._slow.items():
            n, r, p, salt, expected = match.groups()
            if hmac.compare_digest(_scrypt(token, int(n), int(r), int(p), bytes.fromhex(salt)), expected):
                found = name
        if found is not None:
            self._known[self._digest(token)] = found
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return found

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(), "sha256")


def _scrypt(token: str, n: int, r: int, p: int, salt: bytes) -> str:
    try:
        return hashlib.scrypt(token.encode(), salt=salt, n=n, r=r, p=p, dklen=32, maxmem=256 * 2**20).hex()
    except ValueError as error:
        raise SettingError(f"scrypt with n={n}, r={r}, p={p}: {error}; 16384, 8, 1 are good choices") from None
