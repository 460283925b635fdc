"""Bearer tokens: the settings hold their hashes, never the tokens.

``sha256:<64 hex digits>`` is for random tokens (`new_token`): with 256 random bits, a fast hash is as safe as a slow
one. ``scrypt:<n>:<r>:<p>:<salt>:<hash>`` (hex) is slow on purpose, for tokens chosen by a person; it is still accepted.
A hash may be followed by ``until <date>``; a holder that changes its token has two of them, separated by a comma.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from gainroute.errors import SettingError

__all__ = ["LOCAL", "ROLES", "Grant", "Tokens", "bearer", "hash_token", "new_token", "parse_hashes"]

SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
SCRYPT = re.compile(r"scrypt:(\d{1,8}):(\d{1,2}):(\d{1,2}):([0-9a-f]{16,128}):([0-9a-f]{64})")


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


def parse_hashes(value: str, where: str) -> list[tuple[str, float]]:
    """Hashes, each with the time it expires, in seconds since 1970; infinity if it does not.

    Messages do not repeat the value, since it may be a token.

    Examples
    --------
    >>> parse_hashes(f"sha256:{'0' * 64} until 2030-01-31, sha256:{'1' * 64}", "tokens.client.shop")[0][1]
    1896134400.0
    """
    found: list[tuple[str, float]] = []
    for part in value.split(","):
        hashed, _, until = part.strip().partition(" until ")
        if not SHA256.fullmatch(hashed) and not SCRYPT.fullmatch(hashed):
            raise SettingError(
                f"{where} is not a hash; 'sha256:<64 hex digits>' or 'scrypt:<n>:<r>:<p>:<salt>:<hash>' is needed: "
                "gainroute coordinator --new-token draws a token and prints its hash"
            )
        found.append((hashed, _time(until.strip(), where) if until else math.inf))
    return found


def _time(text: str, where: str) -> float:
    try:
        if len(text) == len("2030-01-31"):  # to the end of that day
            moment = datetime.fromisoformat(text) + timedelta(days=1)
        else:
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise SettingError(
            f"{where}: until {text[:40]!r} is not a date; 2030-01-31 or 2030-01-31T12:00Z is needed"
        ) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)).timestamp()


def bearer(header: str | None, *, basic: bool = False) -> str | None:
    """The token of an Authorization header; with `basic`, also the password of Basic, which browsers ask for."""
    scheme, _, rest = (header or "").partition(" ")
    if scheme.lower() == "bearer" and rest:
        return rest.strip()
    if basic and scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2] or None
        except ValueError:  # not base64, not ASCII, or not UTF-8
            return None
    return None


# infer: answers. client: answers, feedback on the holder's own decisions, their list, and the dashboard. feedback: true
# labels of any decision. view: all decisions, their explanations, and the dashboard. admin: everything.
ROLES = ("client", "infer", "feedback", "view", "admin")


@dataclass(frozen=True)
class Grant:
    """What a token stands for: its holder, and the holder's roles. Without tokens, on loopback, there is no holder."""

    holder: str | None
    roles: frozenset[str]
    expires: float = math.inf  # seconds since 1970

    def may(self, *roles: str) -> bool:
        """Whether the holder has one of these roles; an admin has all."""
        return "admin" in self.roles or not self.roles.isdisjoint(roles)

    @property
    def who(self) -> str:
        """The holder in logs and in the audit trail."""
        return "local" if self.holder is None else f"{'admin' if 'admin' in self.roles else 'client'}:{self.holder}"


LOCAL = Grant(None, frozenset(ROLES) - {"admin"})


class Tokens:
    """Looks up what a token grants; `entries` are pairs of a hash and a grant, `before` the tokens that they replace.

    Only `verify` computes slow hashes, and each of them stops mattering once its token has been seen: no other token
    can have the same hash.
    """

    def __init__(self, entries: Iterable[tuple[str, Grant]], before: Tokens | None = None) -> None:
        # Looked up by a keyed digest: the time that takes says nothing about the hashes.
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, Grant] = {}
        self._slow: dict[str, Grant] = {}  # whose token was not seen yet
        self._seen: dict[str, str] = {} if before is None else before._seen  # fast hashes by slow ones
        self.has_admin = False
        for given, grant in entries:
            self.has_admin |= "admin" in grant.roles
            value = self._seen.get(given, given)
            if SHA256.fullmatch(value):
                known = self._digest(value)
                self._known[known] = _merged(self._known.get(known), grant)
            else:
                self._slow[value] = _merged(self._slow.get(value), grant)

    @property
    def slow(self) -> bool:
        """Whether `verify` may find what `find` does not."""
        return bool(self._slow)

    def find(self, token: str) -> Grant | None:
        """What a token grants, in microseconds; None if it is not known."""
        return self._known.get(self._digest(hash_token(token)))

    def verify(self, token: str) -> Grant | None:
        """Compare a token with the slow hashes as well, a tenth of a second each: use a thread."""
        for value, grant in list(self._slow.items()):
            _, n, r, p, salt, expected = value.split(":")
            if hmac.compare_digest(_scrypt(token, int(n), int(r), int(p), bytes.fromhex(salt)), expected):
                self._seen[value] = hash_token(token)
                known = self._digest(self._seen[value])
                self._known[known] = _merged(self._known.get(known), grant)
                self._slow.pop(value, None)
        return self.find(token)

    def _digest(self, value: str) -> bytes:
        return hmac.digest(self._key, value.encode(), "sha256")


def _merged(before: Grant | None, grant: Grant) -> Grant:
    """One token in several tables has the roles of all, under the name given last, until the first of them expires."""
    if before is None:
        return grant
    return Grant(grant.holder, before.roles | grant.roles, min(before.expires, grant.expires))


def _scrypt(token: str, n: int, r: int, p: int, salt: bytes) -> str:
    try:
        return hashlib.scrypt(token.encode(), salt=salt, n=n, r=r, p=p, dklen=32, maxmem=256 * 2**20).hex()
    except ValueError as error:
        raise SettingError(f"scrypt with n={n}, r={r}, p={p}: {error}; 16384, 8, 1 are good choices") from None
