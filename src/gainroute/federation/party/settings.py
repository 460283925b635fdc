"""Settings of a party: a TOML file, overridden by environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gainroute._util.settings import load_settings
from gainroute.errors import SettingError
from gainroute.federation.pki.certificates import CertificateFiles
from gainroute.federation.pki.signatures import TrustSettings
from gainroute.federation.tracing import TracingSettings
from gainroute.routing.payload import CODECS

__all__ = [
    "PREFIX",
    "AgreementSettings",
    "AuditSettings",
    "PartySettings",
    "PrivacySettings",
    "QuotaSettings",
    "SourceSettings",
    "TrainingSettings",
    "ViewSettings",
    "load_party_settings",
]

PREFIX = "GAINROUTE_PARTY_"


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Where the party's model versions come from: exactly one of `run`, `onnx`, `factory` and `columns`.

    Attributes
    ----------
    run
        A party's folder written by `gainroute train`, or a folder with one such folder per version.
    onnx
        A folder with local.onnx and encoder.onnx, written by `gainroute export` or your own, or a folder with one such
        folder per version. It is served with onnxruntime, without torch.
    factory
        ``package.module:make_party``, which returns any object of the `Party` protocol.
    columns
        A file of precomputed posteriors and embeddings by id (.npz or Parquet), or a folder with one per version.
    models
        With `factory`: a folder with one subfolder per version; `make_party(folder)` is called for each.
    classes
        Class names in the order of the posterior columns, if neither the object nor the file has them.
    dimension, hash
        With `factory`: what the object does not state itself (`dimension`, `model_hash`).
    """

    run: Path | None = None
    onnx: Path | None = None
    factory: str = ""
    columns: Path | None = None
    models: Path | None = None
    classes: tuple[str, ...] = ()
    dimension: int = 0
    hash: str = ""

    def __post_init__(self) -> None:
        given = [name for name in ("run", "onnx", "factory", "columns") if getattr(self, name)]
        if len(given) != 1:
            raise SettingError(
                f"source gives {', '.join(given) or 'nothing'}; exactly one of run, onnx, factory, columns is needed"
            )
        if not self.factory and (self.models or self.dimension or self.hash):
            raise SettingError("source.models, dimension and hash belong to source.factory: remove them")
        if self.run and self.classes:
            raise SettingError("source.classes is given, but a run states its classes itself: remove it")


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """Where the party finds its views by sample id. Without any of these, the model has the views itself.

    Attributes
    ----------
    path
        A .npz file (`ids`, `x`) or a Parquet file.
    url
        URL of a database, in SQLAlchemy's notation: ``postgresql+psycopg://…``, ``sqlite:///…``.
    table
        With `url`; ``schema.table`` is allowed.
    id_column
        Id column of the Parquet file or the table.
    columns
        Columns of the table; by default all but the id.
    source
        Name of a registered view source, which gets all of these settings; see `gainroute.federation.party.views`.
    """

    path: Path | None = None
    url: str = ""
    table: str = ""
    id_column: str = "id"
    columns: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if self.source:
            return
        if self.path and self.url:
            raise SettingError("views gives both path and url; only one of them is allowed")
        if bool(self.url) != bool(self.table):
            raise SettingError(f"views.url is {self.url!r} and views.table {self.table!r}; give both or neither")


@dataclass(frozen=True, kw_only=True)
class QuotaSettings:
    """How much each coordinator may request per minute; 0 is no limit.

    Attributes
    ----------
    samples_per_minute, embeddings_per_minute
        Ids in Round 1 and in Round 2.
    refusals_per_minute
        Requests that are invalid, too large or for an unknown model. Beyond it, none of its requests is answered.
    """

    samples_per_minute: int = 600_000
    embeddings_per_minute: int = 120_000
    refusals_per_minute: int = 600

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise SettingError(f"quota.{name} is {value}; 0 (no limit) or more is needed")


@dataclass(frozen=True, kw_only=True)
class AgreementSettings:
    """The share of escalations agreed with the coordinators, which the party enforces by its own count.

    An embedding is given only for a sample that Round 1 was answered for within the window. Without this table there is
    no such limit.

    Attributes
    ----------
    escalation_share
        Embeddings per distinct sample of Round 1, at most; somewhat above the budget of the router.
    window_seconds
        How far back samples and embeddings are counted.
    burst
        Embeddings beyond the share, per window: of the first few samples, more than the share may be escalated.
    max_ids
        Most samples remembered per coordinator, about 0.2 kB each. With more within a window, the window is the latest
        `max_ids` samples.
    """

    escalation_share: float
    window_seconds: float = 600.0
    burst: int = 20
    max_ids: int = 250_000

    def __post_init__(self) -> None:
        if not 0 <= self.escalation_share <= 1:
            raise SettingError(
                f"agreement.escalation_share is {self.escalation_share}; a share in [0, 1] is needed, such as 0.3"
            )
        if not 0 < self.window_seconds < float("inf"):
            raise SettingError(f"agreement.window_seconds is {self.window_seconds}; a number above 0 is needed")
        for name, least in (("burst", 0), ("max_ids", 1)):
            if getattr(self, name) < least:
                raise SettingError(f"agreement.{name} is {getattr(self, name)}; at least {least} is needed")


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """The party's audit log.

    Attributes
    ----------
    path
        JSON lines, append-only.
    max_bytes
        Size at which the file is renamed to a name with the time, and a new one is started.
    keep
        Number of renamed files to keep; 0 keeps all, so that no coordinator can push out its traces by asking often.
    sync
        Whether each line is forced to disk (fsync) before its answer is sent.
    key
        File of the key that makes lines tamper-evident; by default beside `path`, with ``.key`` appended. It is created
        if needed.
    samples
        Whether the lines of answers name the samples, by pseudonyms that only this key can make.
    """

    path: Path = Path("audit.jsonl")
    max_bytes: int = 64 << 20
    keep: int = 0
    sync: bool = False
    key: Path | None = None
    samples: bool = True


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """Whether Round 1 is masked, so that the coordinator sees only the sum of all parties; see docs/privacy.md.

    Attributes
    ----------
    round1
        "plain", or "masked": posteriors are then given in no other way.
    key
        The party's masking key, from `gainroute certs mask-key`.
    peers
        Public masking keys of the other parties by name. Their operators hand them over, never the coordinator.
    min_roster
        Fewest parties of a sum. Two parties hide nothing from a coordinator that works together with one of them.
    max_weight_share
        Largest share of one party in the absolute weights of a sum: what one party dominates shows that party.
    window_seconds
        For how long, at least, a sample is in no sum with another roster, other weights or other models.
    remember
        Most samples remembered for that, about 0.15 kB each; beyond it requests are refused.
    """

    round1: Literal["plain", "masked"] = "plain"
    key: Path | None = None
    peers: Mapping[str, str] = field(default_factory=dict)
    min_roster: int = 3
    max_weight_share: float = 0.8
    window_seconds: float = 600.0
    remember: int = 1_000_000

    def __post_init__(self) -> None:
        if self.round1 == "masked" and (self.key is None or not self.peers):
            raise SettingError(
                'privacy.round1 is "masked", which needs privacy.key (`gainroute certs mask-key` makes it) and the '
                "public keys of the other parties under [privacy.peers]"
            )
        if self.min_roster < 2 or self.remember < 1:
            raise SettingError(
                f"privacy.min_roster is {self.min_roster} and remember {self.remember}; at least 2 and 1 are needed"
            )
        if not 0 < self.max_weight_share <= 1 or not self.window_seconds > 0:
            raise SettingError(
                f"privacy.max_weight_share is {self.max_weight_share} and window_seconds {self.window_seconds}; a "
                "share above 0 and seconds above 0 are needed"
            )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Taking part in the training of a federation: off unless coordinators are named.

    Attributes
    ----------
    coordinators
        Names of the coordinators that may train.
    views
        The party's views with ids, from which it trains: .npz (`ids`, `x`) or Parquet. They never leave the party.
    labels
        The party's labels with ids, if it has any: .npz (`ids`, `labels`) or Parquet.
    folder
        Where keys, alignments and checkpoints are kept.
    kind
        "images" or "features", to override what the shape of the views implies.
    id_column, label_column
        Of Parquet files.
    max_ids
        Most ids that are aligned.
    max_gradient
        A gradient with a larger absolute value is refused.
    max_epsilon
        If set, labels are used only in plans with access "private" and at most this ε.
    signing_key
        Signs the versions that this party trains: the private key of one of `[trust] signers`.
    """

    coordinators: tuple[str, ...] = ()
    views: Path | None = None
    labels: Path | None = None
    folder: Path = Path("training")
    kind: Literal["auto", "images", "features"] = "auto"
    id_column: str = "id"
    label_column: str = "label"
    max_ids: int = 1_000_000
    max_gradient: float = 1e3
    max_epsilon: float | None = None
    signing_key: Path | None = None

    def __post_init__(self) -> None:
        if self.coordinators and self.views is None:
            raise SettingError("training.views is missing: name the file of views to train on")


@dataclass(frozen=True, kw_only=True)
class PartySettings:
    """Settings of one party process. Relative paths start at the folder of the settings file.

    Attributes
    ----------
    name
        As in the certificate.
    coordinators
        Names of the coordinators that are answered.
    tls
        The party's certificate and key, and the authority it trusts.
    source, views, quota, agreement, audit, privacy, training, trust, tracing
        See the classes. With `trust`, model versions have to be signed.
    listen
        ``host:port``; port 0 takes a free one.
    deny_list
        File of certificate fingerprints that are denied; read again when it changes.
    codecs
        Embedding codecs offered.
    workers
        Threads that run model code. With 1, calls are made one after the other, which suits any model.
    threads
        Threads that a model computes with; 0 leaves the choice to its library.
    max_samples, max_message_bytes, max_in_flight
        Ids per request, length of a message, and requests processed at once per stream.
    rescan_seconds
        Interval at which new model versions are looked for; `Describe` and SIGHUP look for them too.
    drain_seconds
        How long requests in flight may take after SIGTERM.
    reflection
        Whether the gRPC reflection service is offered.
    log_level
        "debug", "info", "warning" or "error".
    """

    name: str
    coordinators: tuple[str, ...]
    tls: CertificateFiles
    source: SourceSettings
    listen: str = "127.0.0.1:7443"
    views: ViewSettings = field(default_factory=ViewSettings)
    quota: QuotaSettings = field(default_factory=QuotaSettings)
    agreement: AgreementSettings | None = None
    audit: AuditSettings = field(default_factory=AuditSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    trust: TrustSettings | None = None
    tracing: TracingSettings | None = None
    deny_list: Path | None = None
    codecs: tuple[str, ...] = CODECS
    workers: int = 1
    threads: int = 1
    max_samples: int = 65_536
    max_message_bytes: int = 16 << 20
    max_in_flight: int = 256
    rescan_seconds: float = 30.0
    drain_seconds: float = 30.0
    reflection: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        if self.source.columns and (self.views.path or self.views.url or self.views.source):
            raise SettingError("source.columns needs no views: remove [views]")
        if not self.coordinators:
            raise SettingError("coordinators is empty, so no request would be answered: name one or more")
        strangers = sorted(set(self.training.coordinators) - set(self.coordinators))
        if strangers:
            raise SettingError(f"training.coordinators names {strangers[0]!r}; add it to coordinators as well")
        if self.training.coordinators and self.source.run is None:
            raise SettingError("training needs source.run, the folder in which trained versions are kept: set it")
        if self.trust and self.training.coordinators and self.training.signing_key is None:
            raise SettingError(
                "[trust] is set, so that versions trained here would be refused: set training.signing_key to the "
                "private key of one of trust.signers"
            )
        if not self.codecs or set(self.codecs) - set(CODECS):
            raise SettingError(f"codecs is {list(self.codecs)}; one or more of {', '.join(CODECS)} are needed")
        for name, least in (
            ("workers", 1), ("threads", 0), ("max_samples", 1), ("max_in_flight", 1), ("max_message_bytes", 1 << 16),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise SettingError(f"{name} is {getattr(self, name)}; at least {least} is needed")


def load_party_settings(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> PartySettings:
    """Read a TOML file and apply the environment variables ``GAINROUTE_PARTY_…``.

    Parameters
    ----------
    path
        The file.
    environment
        Used instead of the process's own. ``GAINROUTE_PARTY_LISTEN`` sets `listen`;
        ``GAINROUTE_PARTY_QUOTA_SAMPLES_PER_MINUTE`` sets `samples_per_minute` of the table `quota`.
    """
    return load_settings(
        PartySettings, path, prefix=PREFIX, environment=environment, example="deploy/party.example.toml"
    )
