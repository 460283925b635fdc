"""Settings of the clients: their tokens, and what each may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gainroute.errors import SettingError
from gainroute.federation.coordinator.tokens import ROLES, Grant, parse_hashes

__all__ = ["ClientQuotaSettings", "HolderQuota", "TokenSettings", "TokenTables"]


@dataclass(frozen=True, kw_only=True)
class TokenTables:
    """Hashed bearer tokens by role and by the name of the holder; see `gainroute.federation.coordinator.tokens`.

    A token that is listed under several roles has all of them. ``<hash> until <date>`` expires; several hashes of one
    holder are separated by commas.
    """

    client: Mapping[str, str] = field(default_factory=dict)
    infer: Mapping[str, str] = field(default_factory=dict)
    feedback: Mapping[str, str] = field(default_factory=dict)
    view: Mapping[str, str] = field(default_factory=dict)
    admin: Mapping[str, str] = field(default_factory=dict)

    def grants(self) -> Iterator[tuple[str, Grant]]:
        """What each hash stands for."""
        for role in ROLES:
            for holder, value in getattr(self, role).items():
                for hashed, expires in parse_hashes(value, f"tokens.{role}.{holder}"):
                    yield hashed, Grant(holder, frozenset({role}), expires)

    def __post_init__(self) -> None:
        for _ in self.grants():  # checks all
            pass


@dataclass(frozen=True, kw_only=True)
class TokenSettings(TokenTables):
    """The tokens of the settings, and those of a file of their own."""

    file: Path | None = None  # a TOML file with the same tables by role; changes apply within a second
    failures_per_minute: int = 30  # requests with a wrong token per address; beyond it they get 429

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.failures_per_minute < 1:
            found = f"tokens: failures_per_minute is {self.failures_per_minute!r}"
            raise SettingError(f"{found}; 1 or more is needed: 30 is a good choice")


@dataclass(frozen=True, kw_only=True)
class HolderQuota:
    """The quota of one holder; a key that is left out is that of all."""

    name: str
    requests_per_minute: int | None = None
    samples_per_minute: int | None = None
    escalations_per_minute: int | None = None

    def __post_init__(self) -> None:
        _check_quota(self, "quota.holder")


@dataclass(frozen=True, kw_only=True)
class ClientQuotaSettings:
    """What each holder of a token may use per minute; 0 sets no limit. At most a minute's worth can be used at once."""

    requests_per_minute: int = 0  # inference and feedback; beyond it 429
    samples_per_minute: int = 0  # beyond it 429
    escalations_per_minute: int = 0  # beyond it the Round 1 answer is returned, marked degraded:quota:escalations
    holder: tuple[HolderQuota, ...] = ()  # those that differ

    def __post_init__(self) -> None:
        _check_quota(self, "quota")


def _check_quota(quota: HolderQuota | ClientQuotaSettings, where: str) -> None:
    for name in ("requests_per_minute", "samples_per_minute", "escalations_per_minute"):
        value = getattr(quota, name)
        if value is not None and value < 0:
            raise SettingError(f"{where}: {name} is {value!r}; 0 or more is needed: 0 sets no limit")
