"""The coordinator's settings: a TOML file, overridden by ``GAINROUTE_COORDINATOR_<TABLE>_<KEY>``."""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from gainroute._util.settings import load_settings
from gainroute.errors import SettingError
from gainroute.federation.coordinator.client_settings import ClientQuotaSettings, TokenSettings
from gainroute.federation.coordinator.tokens import ROLES
from gainroute.federation.pki.signatures import TrustSettings
from gainroute.federation.tracing import RequestTracingSettings

__all__ = [
    "PREFIX", "BatchingSettings", "CapSettings", "ControllerSettings", "CoordinatorSettings",
    "CoordinatorTls", "DriftSettings", "FusionSettings", "LogSettings", "PartyEndpoint",
    "RoundOnePrivacy", "RoundSettings", "RouterSettings", "ServerSettings",
    "is_loopback", "load_coordinator_settings",
]  # fmt: skip

PREFIX = "GAINROUTE_COORDINATOR_"


def load_coordinator_settings(
    path: str | os.PathLike[str], environment: Mapping[str, str] | None = None
) -> CoordinatorSettings:
    """Read a TOML file, overridden by the environment; relative paths start at the folder of the file.

    ``…_SERVER_PORT`` sets ``[server] port``; ``…_TOKENS_CLIENT`` and ``…_TOKENS_ADMIN`` add one hashed token each.
    """
    example = "deploy/coordinator.example.toml"
    return load_settings(CoordinatorSettings, path, prefix=PREFIX, environment=environment, example=example)


def is_loopback(host: str) -> bool:
    """Whether `host` is reachable from this machine only.

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


def _at_least(value: float, low: float, name: str, remedy: str) -> None:
    if not value >= low:
        raise SettingError(f"{name} is {value!r}; {low} or more is needed: {remedy}")


def _share(value: float | None, name: str, example: str) -> None:
    if value is not None and not 0 <= value <= 1:
        raise SettingError(f"{name} is {value!r}; a share in [0, 1] is needed, such as {example}")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The HTTP server and, if it has a port, the gRPC server."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0 takes a free one
    grpc_port: int | None = None  # the Open Inference Protocol over gRPC as well, with the same tokens and limits
    model: str = "gainroute"  # its name in URLs: /v2/models/{model}/infer
    # On loopback: clients need no token. Everyone on this machine may ask, and everyone whom a proxy on it lets in.
    without_tokens: bool = False
    certificate: Path | None = None  # PEM files for TLS; both or neither
    key: Path | None = None
    max_body_bytes: int = 4 * 2**20  # larger requests are refused before they are parsed
    drain_seconds: float = 30.0  # how long SIGTERM waits for requests in flight
    # What a connection may cost before anyone is authenticated. Behind a proxy all connections have one address.
    max_header_bytes: int = 32 * 2**10  # of a request's first line and headers together
    max_url_bytes: int = 8 * 2**10
    max_headers: int = 100
    max_connections: int = 1024
    max_connections_per_address: int = 256
    header_seconds: float = 20.0  # from the first byte to the end of the headers; and for the TLS handshake
    body_seconds: float = 60.0  # for the whole body, and to read the response
    idle_seconds: float = 30.0  # until the next request

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise SettingError("server: certificate and key belong together; give both for TLS, or neither")
        if not 0 <= self.port <= 65535:
            raise SettingError(f"server: port is {self.port}; 0 … 65535 are allowed, 0 takes a free one")
        if self.grpc_port is not None and (
            not 0 <= self.grpc_port <= 65535 or (self.grpc_port and self.grpc_port == self.port)
        ):
            raise SettingError(
                f"server: grpc_port is {self.grpc_port}; 0 … 65535 are allowed, but not that of port: leave it out for "
                "HTTP only"
            )
        if not self.model or "/" in self.model:
            raise SettingError(f"server: model is {self.model!r}; a name without '/' is needed, such as 'gainroute'")
        _at_least(self.max_body_bytes, 1024, "server: max_body_bytes", "4194304 is a good choice")
        for name, low in (("max_header_bytes", 1024), ("max_url_bytes", 256), ("max_headers", 16),
                          ("max_connections", 1), ("max_connections_per_address", 1), ("header_seconds", 0.01),
                          ("body_seconds", 0.01), ("idle_seconds", 0.01)):  # fmt: skip
            _at_least(getattr(self, name), low, f"server: {name}", "leave it out for the default")


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """The router's artifact, and the budget if it differs from the artifact's."""

    artifact: Path
    budget: float | None = None
    folder: Path | None = None  # admin calls name files in it, and no others; by default that of the artifact
    max_file_bytes: int = 2**30  # largest file that an admin call may name
    # Whether an escalated sample goes only to the parties whose embeddings are worth their bytes. The budget is then a
    # share of bytes: those of Round 2, compared with asking every party for every sample.
    partial: bool = False

    def __post_init__(self) -> None:
        _share(self.budget, "router: budget", "0.2")
        _at_least(self.max_file_bytes, 1, "router: max_file_bytes", "1073741824 is a good choice")


@dataclass(frozen=True, kw_only=True)
class FusionSettings:
    """Source of the strong answers; exactly one of the three."""

    run: Path | None = None  # the `server` folder of a trained run (needs torch)
    # "package.module:make_fusion": called without arguments, it returns the fusion, a function from the list of M
    # embeddings (E, dᵢ) to (E, K) posteriors or (E,) predictions. For a router with subsets it needs an attribute
    # `masked`, a function of embeddings and of which parties are present, (M,), to the same.
    factory: str | None = None
    # Precomputed strong posteriors by id: .npz with `ids` (N,) and `strong_posterior` (N, K), or Parquet with the
    # columns id and strong_posterior. Parties are not asked for embeddings.
    strong: Path | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("run", "factory", "strong") if getattr(self, name) is not None]
        if len(given) != 1:
            raise SettingError(f"fusion: {', '.join(given) or 'nothing'} is given; exactly one of run, factory, strong")
        if self.factory is not None and not all(self.factory.partition(":")):
            raise SettingError(f"fusion: factory is {self.factory!r}; 'package.module:function' is needed")


@dataclass(frozen=True, kw_only=True)
class PartyEndpoint:
    """One party of the route table, in the order the router was fitted with; removing the row revokes the party."""

    name: str
    address: str

    def __post_init__(self) -> None:
        # Names are part of routes (degraded:absent:a+missing:b) and of metric labels.
        if not self.name or any(c in ":+," or c.isspace() for c in self.name):
            raise SettingError(f"party: name is {self.name!r}; a name without space, ':', '+' and ',' is needed")


@dataclass(frozen=True, kw_only=True)
class CoordinatorTls:
    """The coordinator's certificate for connections to parties, and the CA that signed the parties' certificates."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BatchingSettings:
    """How concurrent requests are batched."""

    max_batch: int = 1024  # most samples per batch, and per request
    # While a batch is in Round 1, how long the next one gathers requests, unless it is full or the batch in flight
    # returns. Without a batch in flight, requests never wait. Larger batches cost less per sample.
    max_wait_ms: float = 5.0
    slots: int = 4  # batches in Round 1 at once, and as many in Round 2: keeps distant or slow parties busy
    # Most samples accepted and not yet answered, shared equally by the holders that have any; beyond it requests get
    # 503. Every holder may have one request.
    max_queued: int = 16384

    def __post_init__(self) -> None:
        _at_least(self.max_batch, 1, "batching: max_batch", "1024 is a good choice")
        _at_least(self.max_wait_ms, 0, "batching: max_wait_ms", "0 sends at once")
        _at_least(self.slots, 1, "batching: slots", "4 is a good choice")
        _at_least(self.max_queued, self.max_batch, "batching: max_queued", "a full batch must fit in")


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """Deadlines, and the policy for a party that is missing in Round 1."""

    one_seconds: float = 2.0  # deadline of Round 1
    two_seconds: float = 10.0
    # "refuse": 503 that names the party. "pool": answer from the others. If the router is calibrated for them, it
    # routes the sample; else that is pooled, not escalated, and marked as degraded.
    # "smaller-roster": the same with a masked Round 1, for samples that are not asked for with another roster as well.
    on_missing_party: Literal["refuse", "pool", "smaller-roster"] = "refuse"
    health_seconds: float = 5.0  # interval of the health checks
    # After this many timeouts in a row, a party counts as missing at once, until it answers a probe; 0: never.
    circuit_failures: int = 3
    circuit_seconds: float = 5.0  # interval of the probes

    def __post_init__(self) -> None:
        _at_least(self.circuit_failures, 0, "rounds: circuit_failures", "0 keeps asking")
        for name in ("one_seconds", "two_seconds", "health_seconds", "circuit_seconds"):
            _at_least(getattr(self, name), 0.001, f"rounds: {name}", "seconds")


@dataclass(frozen=True, kw_only=True)
class RoundOnePrivacy:
    """Whether the parties mask Round 1, so that the coordinator sees the pooled posterior only."""

    round1: Literal["plain", "masked"] = "plain"  # "masked" needs a router fitted with pooled_only=True


MOST_COORDINATORS = 256  # two hex digits of a decision's id


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """The decision log: decisions, feedback, the audit trail, and the state for a restart."""

    path: Path = Path("decisions.sqlite")  # an SQLite file, written by one coordinator
    # Instead of the file, a database that several coordinators share: postgresql+psycopg://user:password@host/database
    url: str = field(default="", repr=False)
    coordinators: int = 4  # with `url`, most coordinators at once; each gets an equal share of [controller.cap]
    # Of the audit trail; by default beside `path`, as <path>.key. With `url`, the same file at every coordinator.
    key: Path | None = None
    # Store local, pooled and strong posteriors: for explanations, recalibration, the comparison with a shadow router,
    # and the calibration alarm.
    posteriors: bool = False
    # "refuse": no answer unless its row is on disk. "answer": answered, and marked `degraded:unlogged`.
    on_failure: Literal["refuse", "answer"] = "refuse"
    retention_days: float = 0.0  # older rows are deleted; 0 keeps them
    max_bytes: int = 0  # largest size of the file; 0 sets no limit

    @property
    def sharing(self) -> int:
        """Most coordinators that share this log at once."""
        return self.coordinators if self.url else 1

    def __post_init__(self) -> None:
        _at_least(self.retention_days, 0, "log: retention_days", "0 keeps everything")
        _at_least(self.max_bytes, 0, "log: max_bytes", "0 sets no limit")
        if not 1 <= self.coordinators <= MOST_COORDINATORS:
            found = f"log: coordinators is {self.coordinators!r}"
            raise SettingError(f"{found}; 1 … {MOST_COORDINATORS} are allowed: 4 is a good choice")
        if self.url and not self.url.startswith("postgresql+psycopg://"):
            scheme = self.url.partition(":")[0][:40]  # the rest may contain a password
            raise SettingError(f"log: url begins with {scheme!r}; postgresql+psycopg://user@host/database is needed")
        if self.url and self.max_bytes:
            raise SettingError("log: max_bytes is of the file, and url names a database: remove one of them")


@dataclass(frozen=True, kw_only=True)
class CapSettings:
    """A hard limit on bursts of escalations: at most `burst` + `rate`·T in any stretch of length T."""

    rate: float  # what may be spent in the long run
    burst: float  # what may be spent at once; raised to the cost of one sample
    unit: Literal["samples", "bytes"] = "samples"  # escalated samples, or the bytes of their embeddings
    per: Literal["second", "sample"] = "second"  # `rate` is per second, or per routed sample

    def share(self, coordinators: int) -> CapSettings:
        """An equal share of the cap; what is earned per sample is earned where the sample is routed."""
        rate = self.rate / coordinators if self.per == "second" else self.rate
        return replace(self, rate=rate, burst=self.burst / coordinators)

    def __post_init__(self) -> None:
        for name in ("rate", "burst"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingError(f"controller.cap: {name} is {getattr(self, name)!r}; a number above 0 is needed")


@dataclass(frozen=True, kw_only=True)
class ControllerSettings:
    """The budget controller, which keeps the escalation rate at the budget; without the section there is none."""

    budget: float | None = None  # B; by default that of [router], or the artifact's
    explore: float = 0.01  # share of the samples below the threshold escalated at random, within B; to recalibrate
    step: float | None = (
        None  # of the threshold, on the scale of the calibration scores; see gainroute.BudgetController
    )
    cap: CapSettings | None = None  # a hard limit on bursts
    seed: int = 0  # of the exploration

    def __post_init__(self) -> None:
        _share(self.budget, "controller: budget", "0.2")
        _share(self.explore, "controller: explore", "0.01")
        if self.step is not None and not 0 < self.step <= 1:
            raise SettingError(f"controller: step is {self.step!r}; it lies in (0, 1]: leave it out for the default")
        _at_least(self.seed, 0, "controller: seed", "any whole number")


@dataclass(frozen=True, kw_only=True)
class DriftSettings:
    """The drift monitor: compares scores and rate with calibration, and tests whether escalation still helps."""

    enabled: bool = True
    protect: bool = False  # escalations need a larger gain once collaboration hurts, until an admin resets the alarm
    window: int = 1000  # this and the next four: see gainroute.DriftMonitor
    horizon: int = 10_000
    false_alarm: float = 0.01
    memory: int = 5000
    min_feedback_probability: float = 0.1  # feedback with a smaller probability is stored, but not monitored
    # Holders whose labels alone may raise an alarm. Those of an operator may; those of others only if the labels of the
    # rest raise it as well.
    trusted_holders: tuple[str, ...] = ()
    seconds: float = 1.0  # interval at which new answers and labels are examined

    def __post_init__(self) -> None:
        if not 0 < self.window <= self.horizon:
            found = f"window is {self.window} and horizon {self.horizon}"
            raise SettingError(f"drift: {found}; 0 < window ≤ horizon is needed")
        for name in ("false_alarm", "min_feedback_probability"):
            if not 0 < getattr(self, name) < 1:
                raise SettingError(f"drift: {name} is {getattr(self, name)!r}; it lies between 0 and 1")
        _at_least(self.memory, 1, "drift: memory", "5000 is a good choice")
        _at_least(self.seconds, 0.01, "drift: seconds", "1 is a good choice")


@dataclass(frozen=True, kw_only=True)
class FederationFolder:
    """Where `gainroute federate` forms the versions of this federation: a run in progress is on the dashboard."""

    out: Path


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """All settings of a coordinator."""

    router: RouterSettings
    fusion: FusionSettings
    party: tuple[PartyEndpoint, ...]
    server: ServerSettings = field(default_factory=ServerSettings)
    tls: CoordinatorTls = field(default_factory=CoordinatorTls)
    batching: BatchingSettings = field(default_factory=BatchingSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    privacy: RoundOnePrivacy = field(default_factory=RoundOnePrivacy)
    log: LogSettings = field(default_factory=LogSettings)
    tokens: TokenSettings = field(default_factory=TokenSettings)
    quota: ClientQuotaSettings = field(default_factory=ClientQuotaSettings)
    controller: ControllerSettings | None = None
    drift: DriftSettings = field(default_factory=DriftSettings)
    federation: FederationFolder | None = None
    tracing: RequestTracingSettings | None = None  # with it, requests are traced by OpenTelemetry
    trust: TrustSettings | None = None  # with it, router and fusion have to be signed

    def __post_init__(self) -> None:
        if self.router.budget is not None and self.controller is not None and self.controller.budget is not None:
            raise SettingError("budget is given in [router] and in [controller]; they are the same: remove one")
        masked, policy = self.privacy.round1 == "masked", self.rounds.on_missing_party
        if policy == ("pool" if masked else "smaller-roster"):
            raise SettingError(
                f"rounds: on_missing_party is {policy!r}, but [privacy] round1 is {self.privacy.round1!r}; allowed are "
                + ("'refuse' and 'smaller-roster': a masked sum without one of its parties is noise" if masked
                   else "'refuse' and 'pool'")
            )  # fmt: skip
        names = [p.name for p in self.party]
        if not names:
            raise SettingError("party: the route table is empty; add a [[party]] with name and address")
        if len(set(names)) != len(names):
            raise SettingError(f"party: the names {names} repeat; each party is listed once")
        if not (self.tokens.client or self.tokens.infer or self.tokens.file or self.open_access):
            remedy = "add [tokens.client] (gainroute coordinator --new-token draws one), or"
            if not is_loopback(self.server.host):
                found = f"there are none for clients, and host {self.server.host!r} is reachable by others"
                raise SettingError(f"tokens: {found}; {remedy} bind to 127.0.0.1")
            raise SettingError(
                f"tokens: there are none for clients; {remedy} set server.without_tokens = true to answer everyone on "
                "this machine, and everyone whom a proxy on it lets in"
            )

    @property
    def budget(self) -> float | None:
        """The configured budget; None uses the artifact's."""
        given = None if self.controller is None else self.controller.budget
        return self.router.budget if given is None else given

    @property
    def open_access(self) -> bool:
        """Whether clients need no token: the settings say so, and none is configured."""
        given = [getattr(self.tokens, name) for name in ("file", *ROLES) if name != "admin"]
        return self.server.without_tokens and is_loopback(self.server.host) and not any(given)
