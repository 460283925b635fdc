"""Experiments as TOML files a person can read; every key is known, or it is an error."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gainroute.errors import SettingError
from gainroute.training.data.settings import DataSettings
from gainroute.training.settings import DeferSettings, LocalSettings, MaskedSettings, RouteSettings, VflSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Config", "NoiseSettings", "config_names", "load_config", "parse_config"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NoiseSettings:
    """Degradation at test time: deviation on standardised inputs, and how many classes each regime touches."""

    sigma: float = 0.25
    classes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Config:
    """One experiment: a data source, how both routes are trained, and the noise they are tested under.

    Attributes
    ----------
    name
        Records and work folders carry it.
    threads
        Threads torch computes with; 0 leaves that to torch. Sums taken in another order round differently,
        so the same result bit by bit needs the same number.
    """

    name: str
    threads: int = 0
    data: DataSettings
    local: LocalSettings
    vfl: VflSettings
    masked: MaskedSettings
    defer: DeferSettings = field(default_factory=DeferSettings)
    noise: NoiseSettings = field(default_factory=NoiseSettings)

    @property
    def routes(self) -> RouteSettings:
        """What training needs of it."""
        return RouteSettings(local=self.local, vfl=self.vfl, masked=self.masked, defer=self.defer)

    def as_dict(self) -> dict[str, Any]:
        """The whole of it in plain containers, for the record."""
        return dataclasses.asdict(self)


def config_names() -> list[str]:
    """The configs that come with the package; those in ``-paper`` are unreduced and were not run by us."""
    folder = resources.files("gainroute.experiments") / "configs"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_config(name_or_path: str | os.PathLike[str]) -> Config:
    """Read a config by the name it has in the package, or from a path.

    Examples
    --------
    >>> load_config("digits").data.source
    'digits'
    """
    text = os.fspath(name_or_path)
    if text in config_names():
        source = resources.files("gainroute.experiments") / "configs" / f"{text}.toml"
        return parse_config(source.read_text(encoding="utf-8"), text)
    path = Path(text)
    if not path.is_file():
        names = ", ".join(config_names())
        raise SettingError(f"config {text!r} is neither a file nor one of {names}: name one of these or a TOML file")
    try:
        return parse_config(path.read_text(encoding="utf-8"), text)
    except UnicodeDecodeError as error:
        raise SettingError(f"config {text} is not UTF-8 text ({error}): save it as such") from error


def parse_config(text: str, where: str = "config") -> Config:
    """Read a config from the text of a TOML file; `where` names it in errors."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{where} is not valid TOML: {error}") from error
    return _build(Config, table, where)


def _build(kind: type[T], table: Any, where: str) -> T:
    if not isinstance(table, dict):
        raise SettingError(f"{where} is {table!r}: it has to be a table")
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(table) - set(fields))
    if unknown:
        raise SettingError(f"{where}: unknown key {unknown[0]!r}; the keys here are {', '.join(fields)}")
    required = [
        name
        for name, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in required if name not in table]
    if missing:
        raise SettingError(f"{where}: key {missing[0]!r} is missing; {', '.join(required)} must be given")
    return kind(**{key: _value(hints[key], value, f"{where}: {key}") for key, value in table.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise SettingError(f"{where} is {value!r}: it has to be a list")
        return tuple(_value(get_args(kind)[0], entry, where) for entry in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SettingError(f"{where} is {value!r}: it has to be of type {kind.__name__}")
    return value
