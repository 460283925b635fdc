"""A party's settings: a TOML file, and environment variables over it; every key is known, or it is an error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gainroute._util.settings import load_settings, parse_settings
from gainroute.errors import SettingError
from gainroute.routing.payload import CODECS

__all__ = [
    "PREFIX",
    "AuditSettings",
    "PartySettings",
    "QuotaSettings",
    "SourceSettings",
    "TlsSettings",
    "ViewSettings",
    "load_party_settings",
    "parse_party_settings",
]

PREFIX = "GAINROUTE_PARTY_"


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """The party's certificate and key, and the authority it trusts: PEM files, read again when they change."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Where answers come from: exactly one of `run`, `factory` and `columns`.

    Attributes
    ----------
    run
        A party's folder that `gainroute train` left, or a folder of such, one a version.
    factory
        ``package.module:make_party``: any object of the `Party` protocol.
    columns
        A file of precomputed posteriors and embeddings by id (.npz or Parquet), or a folder of such, one a version.
    models
        With `factory`: a folder whose subfolders are versions; `make_party(folder)` is called for each.
    classes
        Names in the order of the posterior's columns, where the object or the file does not say them.
    dimension, hash
        With `factory`: what the object does not say itself (`dimension`, `model_hash`).
    """

    run: Path | None = None
    factory: str = ""
    columns: Path | None = None
    models: Path | None = None
    classes: tuple[str, ...] = ()
    dimension: int = 0
    hash: str = ""


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """Where the party finds its views by sample id; without any, the source has them itself.

    Attributes
    ----------
    path
        A .npz file (`ids`, `x`) or a Parquet file.
    url
        Of a database, as SQLAlchemy writes it: ``postgresql+psycopg://…``, ``sqlite:///…``.
    table
        With `url`; ``schema.table`` is allowed.
    id_column
        Of Parquet or the table.
    columns
        Of the table; all but the id where none are named.
    """

    path: Path | None = None
    url: str = ""
    table: str = ""
    id_column: str = "id"
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QuotaSettings:
    """What each coordinator may ask for a minute; 0 is no limit."""

    samples_per_minute: int = 600_000
    embeddings_per_minute: int = 120_000


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """The party's own record of who asked for what.

    Attributes
    ----------
    path
        JSON lines, appended to.
    max_bytes
        Size at which the file is put aside under a name with the time, and a new one begun.
    keep
        Files put aside that are kept; 0 keeps all, so that nobody can push out traces by asking often.
    sync
        Whether each line is on disk before its answer is sent (fsync), not only with the operating system.
    """

    path: Path = Path("audit.jsonl")
    max_bytes: int = 64 << 20
    keep: int = 0
    sync: bool = False


@dataclass(frozen=True, kw_only=True)
class PartySettings:
    """One party process. Relative paths are taken from the folder of the settings file.

    Attributes
    ----------
    name
        As in the certificate.
    coordinators
        Names of the coordinators that are answered.
    listen
        ``host:port``; port 0 is any that is free.
    deny_list
        File of fingerprints that are not answered; read again when it changes.
    codecs
        Embedding codecs offered.
    workers
        Threads that run model code. With 1, calls come one after the other: any model may be used.
    threads
        Threads a model computes with; 0 leaves it to its library.
    max_samples, max_message_bytes, max_in_flight
        Most ids a request, longest message, and requests of one stream worked on at once.
    rescan_seconds
        How often new model versions are looked for; they are also at `Describe` and on SIGHUP.
    drain_seconds
        How long SIGTERM waits for what is in flight.
    reflection
        Whether the server tells its protocol to those it answers.
    log_level
        "debug", "info", "warning" or "error".
    """

    name: str
    coordinators: tuple[str, ...]
    tls: TlsSettings
    source: SourceSettings
    listen: str = "127.0.0.1:7443"
    views: ViewSettings = field(default_factory=ViewSettings)
    quota: QuotaSettings = field(default_factory=QuotaSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
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
    log_level: str = "info"

    def __post_init__(self) -> None:
        _check(self)


def _check(settings: PartySettings) -> None:
    source, views = settings.source, settings.views
    given = [n for n, v in (("run", source.run), ("factory", source.factory), ("columns", source.columns)) if v]
    if len(given) != 1:
        raise SettingError(f"source gives {', '.join(given) or 'nothing'}; exactly one of run, factory, columns is due")
    if not source.factory and (source.models or source.dimension or source.hash):
        raise SettingError("source.models, dimension and hash belong to source.factory: leave them out")
    if source.run and source.classes:
        raise SettingError("source.classes is given, but a run names its classes itself: leave it out")
    if views.path and views.url:
        raise SettingError("views gives both path and url; one of them is due")
    if bool(views.url) != bool(views.table):
        raise SettingError(f"views.url is {views.url!r} and views.table {views.table!r}; both or neither are due")
    if source.columns and (views.path or views.url):
        raise SettingError("source.columns needs no views: leave [views] out")
    if not settings.coordinators:
        raise SettingError("coordinators is empty, so nobody would be answered: name one or more")
    unknown = sorted(set(settings.codecs) - set(CODECS))
    if unknown or not settings.codecs:
        raise SettingError(f"codecs is {list(settings.codecs)}; one or more of {', '.join(CODECS)} are due")
    for name, least in (("workers", 1), ("threads", 0), ("max_samples", 1), ("max_in_flight", 1)):
        if getattr(settings, name) < least:
            raise SettingError(f"{name} is {getattr(settings, name)}; at least {least} is due")
    if settings.max_message_bytes < 1 << 16:
        raise SettingError(f"max_message_bytes is {settings.max_message_bytes}; at least {1 << 16} are due")
    for name in ("samples_per_minute", "embeddings_per_minute"):
        if getattr(settings.quota, name) < 0:
            raise SettingError(f"quota.{name} is {getattr(settings.quota, name)}; 0 (no limit) or more is due")
    if settings.log_level not in ("debug", "info", "warning", "error"):
        raise SettingError(f"log_level is {settings.log_level!r}; debug, info, warning or error is due")


def load_party_settings(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> PartySettings:
    """Read a TOML file, with ``GAINROUTE_PARTY_…`` over it.

    Parameters
    ----------
    path
        Of the file.
    environment
        Instead of the process's own. ``GAINROUTE_PARTY_LISTEN`` sets `listen`, of a table
        ``GAINROUTE_PARTY_QUOTA_SAMPLES_PER_MINUTE`` sets `samples_per_minute`; lists are separated by commas.
    """
    return load_settings(
        PartySettings, path, prefix=PREFIX, environment=environment, example="deploy/party.example.toml"
    )


def parse_party_settings(
    text: str, where: str = "settings", folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> PartySettings:
    """Read settings from the text of a TOML file; relative paths start at `folder`."""
    return parse_settings(PartySettings, text, where, folder, prefix=PREFIX, environment=environment)
