"""Everything a coordinator is told, as frozen records; `settings_file` reads them from TOML and the environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gainroute.errors import SettingError
from gainroute.federation.coordinator.settings_control import CapSettings, ControllerSettings, DriftSettings, at_least
from gainroute.federation.coordinator.tokens import check_hash

__all__ = [
    "BatchingSettings",
    "CapSettings",
    "ControllerSettings",
    "CoordinatorSettings",
    "DriftSettings",
    "FusionSettings",
    "LogSettings",
    "PartySettings",
    "RoundSettings",
    "RouterSettings",
    "ServerSettings",
    "TlsSettings",
    "TokenSettings",
    "is_loopback",
]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The front door.

    Attributes
    ----------
    host, port
        Where it listens; port 0 takes a free one.
    model
        The name clients ask for: ``/v2/models/{model}/infer``.
    certificate, key
        PEM files for TLS; both or neither.
    max_body_bytes
        A larger request is refused before it is parsed.
    drain_seconds
        How long requests under way may still take after SIGTERM.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    model: str = "gainroute"
    certificate: Path | None = None
    key: Path | None = None
    max_body_bytes: int = 4 * 2**20
    drain_seconds: float = 30.0

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise SettingError("server: certificate and key belong together; give both for TLS, or neither")
        if not 0 <= self.port <= 65535:
            raise SettingError(f"server: port is {self.port}; 0 … 65535 are allowed, 0 takes a free one")
        if not self.model or "/" in self.model:
            raise SettingError(f"server: model is {self.model!r}; a name without '/' is needed, such as 'gainroute'")
        at_least(self.max_body_bytes, 1024, "server: max_body_bytes", "4194304 is a good choice")


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """What routes: the artifact, and the budget if it is not the artifact's own."""

    artifact: Path
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and not 0 <= self.budget <= 1:
            raise SettingError(f"router: budget is {self.budget!r}; a share in [0, 1] is needed, such as 0.2")


@dataclass(frozen=True, kw_only=True)
class FusionSettings:
    """Where the strong answer comes from; exactly one of the three.

    Attributes
    ----------
    run
        The ``server`` folder of a trained run (needs torch).
    factory
        "package.module:make_fusion": called without arguments, it returns the fusion, a function of the list of M
        embeddings (E, dᵢ) that returns (E, K) posteriors or (E,) predictions.
    strong
        Strong posteriors by id, precomputed: ``.npz`` with `ids` (N,) and `strong_posterior` (N, K), or Parquet with
        the columns id and strong_posterior. No embedding is asked for.
    """

    run: Path | None = None
    factory: str | None = None
    strong: Path | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("run", "factory", "strong") if getattr(self, name) is not None]
        if len(given) != 1:
            raise SettingError(f"fusion: {', '.join(given) or 'nothing'} is given; exactly one of run, factory, strong")
        if self.factory is not None and not all(self.factory.partition(":")):
            raise SettingError(f"fusion: factory is {self.factory!r}; 'package.module:function' is needed")


@dataclass(frozen=True, kw_only=True)
class PartySettings:
    """A row of the route table; striking it revokes the party. Rows stand in the order the router was fitted with."""

    name: str
    address: str

    def __post_init__(self) -> None:
        # Names stand in routes (degraded:absent:a+missing:b) and metrics; these characters would blur them.
        if not self.name or any(c in ":+," or c.isspace() for c in self.name):
            raise SettingError(f"party: name is {self.name!r}; one without space, ':', '+' and ',' is needed")


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """The coordinator's certificate towards parties, and the CA that signed theirs."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BatchingSettings:
    """How requests in flight are put together.

    Attributes
    ----------
    max_batch
        Samples a batch, and the most that one request may ask for.
    max_wait_ms
        While a batch is in Round 1: how long the first request of the next one waits for others to go with, at most;
        when the batch comes back, or the next one is full, it goes at once. A request that finds no other never waits.
        Larger batches cost less a sample, so that a service under load answers sooner for it.
    slots
        Batches in Round 1 at once, and as many in Round 2: what keeps parties busy that are far away, or slow.
    max_queued
        Samples taken on and not yet answered; beyond it the answer is 503.
    """

    max_batch: int = 1024
    max_wait_ms: float = 5.0
    slots: int = 4
    max_queued: int = 16384

    def __post_init__(self) -> None:
        at_least(self.max_batch, 1, "batching: max_batch", "1024 is a good choice")
        at_least(self.max_wait_ms, 0, "batching: max_wait_ms", "0 sends at once")
        at_least(self.slots, 1, "batching: slots", "4 is a good choice")
        at_least(self.max_queued, self.max_batch, "batching: max_queued", "a whole batch must find room")


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """Deadlines, and what happens when a party is missing in Round 1.

    Attributes
    ----------
    one_seconds, two_seconds
        Deadline of each round.
    on_missing_party
        "refuse": 503 that names it. "pool": those present are pooled, nothing is escalated, and the answer is marked.
    health_seconds
        How often each party is asked how it is.
    """

    one_seconds: float = 2.0
    two_seconds: float = 10.0
    on_missing_party: Literal["refuse", "pool"] = "refuse"
    health_seconds: float = 5.0

    def __post_init__(self) -> None:
        for name in ("one_seconds", "two_seconds", "health_seconds"):
            at_least(getattr(self, name), 0.001, f"rounds: {name}", "seconds")


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """The decision log.

    Attributes
    ----------
    path
        An SQLite file; it also holds feedback, the audit of admin calls, and what they set.
    posteriors
        Whether local, pooled and strong posteriors are kept (explanations and replays need them).
    on_failure
        "refuse": no answer without its row on disk. "answer": answered, and marked ``degraded:unlogged``.
    retention_days
        Rows older than that are deleted; 0 keeps them.
    max_bytes
        The file grows no further; 0 sets no bound.
    """

    path: Path = Path("decisions.sqlite")
    posteriors: bool = True
    on_failure: Literal["refuse", "answer"] = "refuse"
    retention_days: float = 0.0
    max_bytes: int = 0

    def __post_init__(self) -> None:
        at_least(self.retention_days, 0, "log: retention_days", "0 keeps everything")
        at_least(self.max_bytes, 0, "log: max_bytes", "0 sets no bound")


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """Hashed bearer tokens by the name of their holder; see `gainroute.federation.coordinator.tokens`."""

    client: Mapping[str, str] = field(default_factory=dict)
    admin: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in ("client", "admin"):
            for name, value in getattr(self, kind).items():
                check_hash(value, f"tokens.{kind}.{name}")


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """All of it."""

    router: RouterSettings
    fusion: FusionSettings
    party: tuple[PartySettings, ...]
    server: ServerSettings = field(default_factory=ServerSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    batching: BatchingSettings = field(default_factory=BatchingSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    log: LogSettings = field(default_factory=LogSettings)
    tokens: TokenSettings = field(default_factory=TokenSettings)
    controller: ControllerSettings | None = None
    drift: DriftSettings = field(default_factory=DriftSettings)

    def __post_init__(self) -> None:
        if self.router.budget is not None and self.controller is not None and self.controller.budget is not None:
            raise SettingError("budget stands in [router] and in [controller]; it is one and the same: strike one")
        names = [p.name for p in self.party]
        if not names:
            raise SettingError("party: the route table is empty; add a [[party]] with name and address")
        if len(set(names)) != len(names):
            raise SettingError(f"party: the names {names} repeat; each party stands once in the route table")
        if not self.tokens.client and not self.open_door:
            raise SettingError(
                f"tokens: none for clients, and host is {self.server.host!r}, which others reach; add [tokens.client] "
                "(gainroute coordinator --new-token makes one), or bind to 127.0.0.1"
            )

    @property
    def budget(self) -> float | None:
        """The budget configured; None leaves the artifact's own."""
        given = None if self.controller is None else self.controller.budget
        return self.router.budget if given is None else given

    @property
    def open_door(self) -> bool:
        """Whether clients need no token: only this machine reaches the door, and none is configured."""
        return is_loopback(self.server.host) and not self.tokens.client
