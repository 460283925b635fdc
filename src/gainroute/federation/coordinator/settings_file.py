"""Settings from a TOML file and from the environment; a key that is not known is an error that names those that are.

An entry of a table can also be given, and is overridden, by the environment: ``[server] port`` is
``GAINROUTE_COORDINATOR_SERVER_PORT``. Parties, tables within tables and tokens of several holders are for the
file alone; ``GAINROUTE_COORDINATOR_TOKENS_CLIENT`` and ``…_TOKENS_ADMIN`` add one hashed token each.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gainroute.errors import SettingError
from gainroute.federation.coordinator.settings import CoordinatorSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PREFIX", "load_settings", "parse_settings"]

T = TypeVar("T")
PREFIX = "GAINROUTE_COORDINATOR_"
BY_HOLDER = "tokens"


def load_settings(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> CoordinatorSettings:
    """Read a file, then the environment over it. Paths in the file are relative to its folder."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{file}: {error.strerror}; name a TOML file, see deploy/coordinator.example.toml") from None
    except UnicodeDecodeError as error:
        raise SettingError(f"{file} is not UTF-8 text ({error}): save it as such") from None
    return parse_settings(text, file.resolve().parent, os.environ if environment is None else environment, str(file))


def parse_settings(
    text: str, folder: Path, environment: Mapping[str, str] | None = None, where: str = "settings"
) -> CoordinatorSettings:
    """Read settings from the text of a TOML file; `folder` is what its paths are relative to."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{where} is not valid TOML: {error}") from None
    return _Reader(folder).build(CoordinatorSettings, _with_environment(table, environment or {}), where)


def _with_environment(table: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    given = {name: text for name, text in environment.items() if name.startswith(PREFIX)}
    if not given:
        return table
    known: dict[str, tuple[str, str, Any]] = {}
    for section, hints in get_type_hints(CoordinatorSettings).items():
        kind = _options(hints)[0]
        if _is_table(kind):
            for key, hint in get_type_hints(kind).items():
                if not _is_table(_options(hint)[0]):
                    known[f"{PREFIX}{section}_{key}".upper()] = section, key, hint
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    for name, text in given.items():
        if name not in known:
            raise SettingError(f"the environment has {name}; known are {', '.join(sorted(known))}")
        section, key, hint = known[name]
        part = merged.setdefault(section, {})
        if not isinstance(part, dict):
            raise SettingError(f"{section} is {part!r}: it has to be a table")
        if section == BY_HOLDER:
            part[key] = {**part.get(key, {}), "environment": text}
        else:
            part[key] = _from_text(hint, text, name)
    return merged


def _from_text(hint: Any, text: str, name: str) -> Any:
    kinds = [k for k in _options(hint) if k is not type(None)]
    try:
        if kinds[0] is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if kinds[0] in (int, float):
            return kinds[0](text)
    except (KeyError, ValueError):
        raise SettingError(f"{name} is {text!r}; it has to be of type {kinds[0].__name__}") from None
    return text


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


@dataclasses.dataclass(frozen=True)
class _Reader:
    folder: Path

    def build(self, kind: type[T], table: Any, where: str) -> T:
        if not isinstance(table, dict):
            raise SettingError(f"{where} is {table!r}: it has to be a table")
        hints = get_type_hints(kind)
        fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
        unknown = sorted(set(table) - set(fields))
        if unknown:
            raise SettingError(f"{where}: unknown key {unknown[0]!r}; the keys here are {', '.join(fields)}")
        unset = dataclasses.MISSING
        required = [n for n, f in fields.items() if f.default is unset and f.default_factory is unset]
        missing = [name for name in required if name not in table]
        if missing:
            raise SettingError(f"{where}: key {missing[0]!r} is missing; {', '.join(required)} must be given")
        return kind(**{key: self.value(hints[key], value, f"{where}: {key}") for key, value in table.items()})

    def value(self, hint: Any, value: Any, where: str) -> Any:
        kind = next(k for k in _options(hint) if k is not type(None))
        origin = get_origin(kind)
        if _is_table(kind):
            return self.build(kind, value, where)
        if origin is tuple:
            if not isinstance(value, list):
                raise SettingError(f"{where} is {value!r}: it has to be a list of tables, [[party]]")
            return tuple(self.value(get_args(kind)[0], entry, f"{where} {i + 1}") for i, entry in enumerate(value))
        if origin is Literal:
            if value not in get_args(kind):
                raise SettingError(f"{where} is {value!r}; allowed are {', '.join(map(repr, get_args(kind)))}")
            return value
        if origin is not None:  # tokens by holder
            if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
                raise SettingError(f'{where} is {value!r}: it has to be a table of hashes by holder, ops = "sha256:…"')
            return dict(value)
        if kind is Path and isinstance(value, str):
            return self.folder / value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise SettingError(f"{where} is {value!r}: it has to be of type {kind.__name__}")
        return value
