"""Frozen settings from TOML and environment variables; every key is known, or it is an error."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gainroute.errors import SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["parse_settings", "read_text"]

T = TypeVar("T")


def read_text(path: str | os.PathLike[str], example: str) -> str:
    """The text of a settings file; `example` is where an error points to."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read as text ({error}): see {example}") from error


def parse_settings(
    kind: type[T], text: str, where: str, folder: Path, prefix: str, environment: Mapping[str, str] | None = None
) -> T:
    """Build a dataclass from TOML, with environment variables over it.

    Parameters
    ----------
    kind
        A dataclass; its fields are the keys, its dataclass fields the tables.
    text
        TOML.
    where
        Names the text in errors.
    folder
        Where relative paths start.
    prefix
        Of environment variables. What follows is the key in capitals, of a table ``TABLE_KEY``.
    environment
        Instead of the process's own.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{where} is not valid TOML: {error}") from error
    for key, value in (os.environ if environment is None else environment).items():
        if key.startswith(prefix):
            _override(kind, table, key, prefix, value)
    return _build(kind, table, where, folder)


def _override(kind: Any, table: dict[str, Any], key: str, prefix: str, value: str) -> None:
    hints = get_type_hints(kind)
    name = key.removeprefix(prefix).lower()
    if name in hints and not dataclasses.is_dataclass(hints[name]):
        table[name] = _from_text(hints[name], value, key)
        return
    for part, inner in hints.items():
        if dataclasses.is_dataclass(inner) and name.startswith(f"{part}_"):
            inside = table.setdefault(part, {})
            if not isinstance(inside, dict):
                raise SettingError(f"{part} is {inside!r}; it has to be a table")
            _override(inner, inside, key, f"{prefix}{part.upper()}_", value)
            return
    raise SettingError(f"{key} is set, but there is no key {name!r}; the keys here are {', '.join(hints)}")


def _from_text(kind: Any, value: str, key: str) -> Any:
    if get_origin(kind) is tuple:
        return [part.strip() for part in value.split(",") if part.strip()]
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise SettingError(f"{key} is {value!r}; true or false is due")
        return value.lower() == "true"
    if kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            raise SettingError(f"{key} is {value!r}; a number is due") from None
    return value


def _build(kind: type[T], table: Any, where: str, folder: Path) -> T:
    if not isinstance(table, dict):
        raise SettingError(f"{where} is {table!r}; it has to be a table")
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(table) - set(fields))
    if unknown:
        raise SettingError(f"{where}: unknown key {unknown[0]!r}; the keys here are {', '.join(fields)}")
    needed = [n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING]
    missing = [name for name in needed if name not in table]
    if missing:
        raise SettingError(f"{where}: key {missing[0]!r} is missing; {', '.join(needed)} must be given")
    given = {key: _value(hints[key], value, f"{where}: {key}", folder) for key, value in table.items()}
    for name, known in fields.items():  # a path that is not given starts at the folder as well
        if name not in given and isinstance(known.default, Path):
            given[name] = folder / known.default
        elif name not in given and dataclasses.is_dataclass(hints[name]):
            given[name] = _value(hints[name], {}, f"{where}: {name}", folder)
    return kind(**given)


def _value(kind: Any, value: Any, where: str, folder: Path) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, where, folder)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise SettingError(f"{where} is {value!r}; it has to be a list")
        return tuple(_value(get_args(kind)[0], entry, where, folder) for entry in value)
    kinds = [k for k in get_args(kind) or (kind,) if k is not type(None)]
    if Path in kinds:
        if not isinstance(value, str) or not value:
            raise SettingError(f"{where} is {value!r}; it has to be a path")
        return folder / Path(value).expanduser()
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SettingError(f"{where} is {value!r}; it has to be of type {kind.__name__}")
    return value
