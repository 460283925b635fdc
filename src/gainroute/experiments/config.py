"""Experiments as TOML files a person can read; every key is known, or it is an error."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from gainroute._util.settings import load_settings, parse_settings
from gainroute.errors import SettingError
from gainroute.training.data.noise import UNITS
from gainroute.training.data.settings import DataSettings
from gainroute.training.settings import DeferSettings, LocalSettings, MaskedSettings, RouteSettings, VflSettings

__all__ = ["Config", "NoiseSettings", "config_names", "load_config", "parse_config"]


@dataclass(frozen=True, kw_only=True)
class NoiseSettings:
    """Degradation at test time.

    Attributes
    ----------
    sigma, unit
        Deviation of the noise, and what it is measured in: one of `gainroute.training.data.noise.UNITS`.
    classes
        How many classes each regime touches.
    other_units, other_seeds
        Further units in which `sigma` is read, for these seeds: records then hold the same regimes under each.
    """

    sigma: float = 0.25
    unit: str = UNITS[0]
    classes: tuple[int, ...] = ()
    other_units: tuple[str, ...] = ()
    other_seeds: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Config:
    """One experiment: a data source, how both routes are trained, and the noise they are tested under."""

    name: str  # carried by records and work folders
    # That torch computes with; 0 leaves it to torch. Sums taken in another order round differently, so the same result
    # bit by bit needs the same number.
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
    return load_settings(Config, path)


def parse_config(text: str, where: str = "config") -> Config:
    """Read a config from the text of a TOML file; `where` names it in errors."""
    return parse_settings(Config, text, where)
