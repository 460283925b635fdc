"""The one reader of settings: TOML and environment variables into frozen dataclasses. Also writes tables as TOML.

- A dataclass is a table, its fields are the keys. Unknown and missing keys are errors that list the known ones.
- Fields are ``str``, ``int``, ``float``, ``bool``, ``Path``, ``Literal``, ``tuple[X, ...]`` (a list, or tables
  ``[[name]]``), ``Mapping[str, str]``, another dataclass, or one of these ``| None``.
- ``~`` in a path is expanded; relative paths, defaults included, are taken from the folder of the file.
- ``<PREFIX><TABLE>_<KEY>`` in the environment replaces the value in the file. Booleans are written true, false, 1 or
  0, lists with commas. A ``Mapping`` gains the entry "environment". Lists of tables are set in the file only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gainroute.errors import SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["build_settings", "load_settings", "parse_settings", "settings_text"]

T = TypeVar("T")
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def load_settings(
    kind: type[T],
    path: str | os.PathLike[str],
    *,
    prefix: str = "",
    environment: Mapping[str, str] | None = None,
    example: str = "",
) -> T:
    """Read settings from a TOML file; an error about the file itself refers to `example`.

    The other parameters are those of `parse_settings`.
    """
    file = Path(path)
    remedy = f"; name a TOML file, see {example}" if example else "; name a TOML file"
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(f"{file} is not UTF-8 text ({error}): save it as UTF-8") from None
    except OSError as error:
        raise SettingError(f"{file} cannot be read ({error.strerror}){remedy}") from None
    return parse_settings(kind, text, str(file), file.resolve().parent, prefix=prefix, environment=environment)


def parse_settings(
    kind: type[T],
    text: str,
    where: str = "settings",
    folder: Path | None = None,
    *,
    prefix: str = "",
    environment: Mapping[str, str] | None = None,
) -> T:
    """Read settings, a dataclass of this kind, from the text of a TOML file, which errors name `where`.

    Relative paths start at `folder`, by default the working directory. Environment variables have this `prefix`;
    without one the environment is not read. `environment` is used instead of the process's own.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingError(f"{where} is not valid TOML: {error}") from None
    if prefix:
        _apply_environment(kind, table, prefix, os.environ if environment is None else environment)
    return build_settings(kind, table, where, folder or Path.cwd())


def settings_text(table: Mapping[str, Any]) -> str:
    """The text of a TOML file: a table of plain values, paths, lists, tables, and lists of tables.

    Examples
    --------
    >>> print(settings_text({"name": "hub", "server": {"port": 0}, "party": [{"name": "lab"}]}))
    name = "hub"
    <BLANKLINE>
    [server]
    port = 0
    <BLANKLINE>
    [[party]]
    name = "lab"
    <BLANKLINE>
    """
    return "\n".join(_table_lines(table, ())) + "\n"


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping) or _is_list_of_tables(value)}
    lines = [f"{_text(key)} = {_toml(value)}" for key, value in table.items() if key not in inner]
    for key, value in inner.items():
        name = ".".join(map(_text, (*path, key)))
        tables, header = ([value], f"[{name}]") if isinstance(value, Mapping) else (value, f"[[{name}]]")
        for one in tables:
            lines += [*([""] if lines else []), header, *_table_lines(one, (*path, key))]
    return lines


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _text(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (str, Path)):
        # JSON escapes what TOML wants escaped, but for DEL, and has no other escapes.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    raise TypeError(f"{value!r} of type {type(value).__name__} has no place in TOML")


# ---- the environment --------------------------------------------------------------------------------


def _apply_environment(kind: Any, table: dict[str, Any], prefix: str, environment: Mapping[str, str]) -> None:
    known = _variables(kind, prefix, ())
    for name, text in environment.items():
        if not name.startswith(prefix):
            continue
        if name not in known:
            raise SettingError(f"{name} is set, but is not a setting; known are {', '.join(sorted(known))}")
        (*tables, key), hint = known[name]
        inner = table
        for step in tables:
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                raise SettingError(f"{step} is {inner!r}; it has to be a table")
        if get_origin(hint) is Mapping:
            inner[key] = {**inner.get(key, {}), "environment": text}
        else:
            inner[key] = _from_text(hint, text, name)


def _variables(kind: Any, prefix: str, tables: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Path and type of every setting by the name of its variable."""
    found: dict[str, tuple[tuple[str, ...], Any]] = {}
    for key, hint in get_type_hints(kind).items():
        given = _without_none(hint)
        if _is_table(given):
            found |= _variables(given, f"{prefix}{key.upper()}_", (*tables, key))
        elif not (get_origin(given) is tuple and _is_table(get_args(given)[0])):
            found[f"{prefix}{key}".upper()] = (*tables, key), given
    return found


def _from_text(kind: Any, text: str, name: str) -> Any:
    if get_origin(kind) is tuple:
        return [_from_text(get_args(kind)[0], part.strip(), name) for part in text.split(",") if part.strip()]
    if kind is bool:
        if text.lower() not in BOOLEANS:
            raise SettingError(f"{name} is {text!r}; allowed are true, false, 1 and 0")
        return BOOLEANS[text.lower()]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise SettingError(f"{name} is {text!r}; it has to be of type {kind.__name__}") from None
    return text


# ---- the file ---------------------------------------------------------------------------------------


def build_settings(kind: type[T], table: Any, where: str, folder: Path) -> T:
    """Build a dataclass from a table of plain values; `where` names it in errors, relative paths start at `folder`."""
    if not isinstance(table, dict):
        raise SettingError(f"{where} is {table!r}; it has to be a table")
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(table) - set(fields))
    if unknown:
        raise SettingError(f"{where}: unknown key {unknown[0]!r}; the keys here are {', '.join(fields)}")
    required = [n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING]
    missing = [name for name in required if name not in table]
    if missing:
        raise SettingError(f"{where}: key {missing[0]!r} is missing; {', '.join(required)} must be given")
    given = {key: _value(_without_none(hints[key]), value, f"{where}: {key}", folder) for key, value in table.items()}
    for name, known in fields.items():  # default paths start at the folder as well
        if name not in given and isinstance(known.default, Path):
            given[name] = folder / known.default
        elif name not in given and _is_table(hints[name]):
            given[name] = build_settings(hints[name], {}, f"{where}: {name}", folder)
    return kind(**given)


def _value(kind: Any, value: Any, where: str, folder: Path) -> Any:
    origin = get_origin(kind)
    if _is_table(kind):
        return build_settings(kind, value, where, folder)
    if origin is tuple:
        if not isinstance(value, list):
            raise SettingError(f"{where} is {value!r}; it has to be a list")
        return tuple(_value(get_args(kind)[0], v, f"{where} {i}", folder) for i, v in enumerate(value, 1))
    if origin is Literal:
        if value not in get_args(kind):
            raise SettingError(f"{where} is {value!r}; allowed are {', '.join(map(repr, get_args(kind)))}")
        return value
    if origin is Mapping:  # its values may be secret, so that the message does not repeat them
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise SettingError(f'{where} has to be a table of texts by name, such as ops = "…"')
        return dict(value)
    if kind is Path:
        if not isinstance(value, str) or not value:
            raise SettingError(f"{where} is {value!r}; it has to be a path")
        return folder / Path(value).expanduser()
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SettingError(f"{where} is {value!r}; it has to be of type {kind.__name__}")
    return value


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _without_none(hint: Any) -> Any:
    """X of ``X | None``; any other type as it is."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint
