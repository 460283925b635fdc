"""List what users rely on: Python names and signatures, commands and options, settings, format versions.

Usage: python tools/public_surface.py tests/public_surface.json

The committed list is that of the previous release. `tests/test_package.py` compares the code with it: what the list has
must still be there, and further names are welcome. Write the list anew when a release is made.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

__all__ = ["as_text", "changes", "surface"]

MODULES = ("gainroute", "gainroute.errors", "gainroute.evaluation")
SETTINGS = {
    "coordinator": "gainroute.federation.coordinator.settings:CoordinatorSettings",
    "party": "gainroute.federation.party.settings:PartySettings",
    "experiment": "gainroute.experiments.config:Config",
}
FORMATS = {
    "router": "gainroute.routing.artifacts:VERSION",
    "budget state": "gainroute.control.budget:VERSION",
    "drift state": "gainroute.control.drift:VERSION",
    "record": "gainroute.experiments.records:FORMAT",
}


def surface() -> dict[str, Any]:
    """Everything public, as plain JSON."""
    return {
        "python": {module: _names(module) for module in MODULES},
        "commands": _commands(),
        "settings": {name: dict(sorted(_keys(_load(where)))) for name, where in SETTINGS.items()},
        "formats": {name: _load(where) for name, where in FORMATS.items()},
    }


def _load(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


# ---- Python ---------------------------------------------------------------------------------------


def _names(module: str) -> dict[str, Any]:
    loaded = importlib.import_module(module)
    return {name: _described(getattr(loaded, name)) for name in sorted(loaded.__all__)}


def _described(found: Any) -> dict[str, Any]:
    if inspect.isclass(found):
        fields = [field.name for field in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else []
        return {
            "kind": "class",
            "bases": [base.__name__ for base in found.__mro__[1:-1] if base.__name__ not in ("Generic", "Protocol")],
            "fields": fields,
            "parameters": _parameters(found),
            "members": {name: _member(found, name) for name in _own_members(found)},
        }
    if inspect.isroutine(found):
        return {"kind": "function", "parameters": _parameters(found)}
    return {"kind": "module" if inspect.ismodule(found) else "value"}


def _own_members(owner: type) -> list[str]:
    """Public names of a class, without those of builtins and other libraries."""
    ours = [base for base in owner.__mro__ if base.__module__.startswith("gainroute")]
    return sorted({name for base in ours for name in vars(base) if not name.startswith("_")})


def _member(owner: type, name: str) -> dict[str, Any]:
    found = inspect.getattr_static(owner, name)
    if isinstance(found, classmethod | staticmethod) or inspect.isroutine(found):
        bound = getattr(owner, name)
        parameters = _parameters(bound)
        if inspect.isfunction(found):
            parameters = parameters[1:]  # self
        return {"kind": "method", "parameters": parameters}
    return {"kind": "attribute"}


def _parameters(found: Any) -> list[dict[str, Any]]:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return []
    listed = []
    for parameter in signature.parameters.values():
        entry: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name}
        if parameter.default is not parameter.empty:
            entry["default"] = _text(parameter.default)
        listed.append(entry)
    return listed


def _text(value: Any) -> str:
    named = getattr(value, "__qualname__", None)
    return str(named) if named else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


# ---- commands and settings ------------------------------------------------------------------------


def _commands() -> dict[str, Any]:
    import typer.main

    app = importlib.import_module("gainroute.cli").app
    found: dict[str, Any] = {}

    def walk(command: Any, path: str) -> None:
        for name, below in sorted(getattr(command, "commands", {}).items()):
            walk(below, f"{path} {name}".strip())
        parameters: dict[str, Any] = {}
        for parameter in command.params:
            option = parameter.param_type_name == "option"
            place = sum(entry["kind"] == "argument" for entry in parameters.values()) + 1
            for name in [*parameter.opts, *parameter.secondary_opts] if option else [f"argument {place}"]:
                parameters[name] = {
                    "kind": parameter.param_type_name,
                    "flag": bool(getattr(parameter, "is_flag", False)),
                    "several": bool(getattr(parameter, "multiple", False)) or parameter.nargs != 1,
                    "required": parameter.required,
                    "default": None if callable(parameter.default) else _text(parameter.default),
                }
        found[path] = parameters

    walk(typer.main.get_command(app), "")
    return found


def _keys(kind: Any, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        plain = field.default is not dataclasses.MISSING
        yield f"{prefix}{field.name}", {"required": missing, "default": _text(field.default) if plain else None}
        for below in _tables(hints[field.name]):
            yield from _keys(below, f"{prefix}{field.name}.")


def _tables(hint: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(hint):
        yield hint
    elif get_origin(hint) in (Union, types.UnionType, tuple):
        for part in get_args(hint):
            yield from _tables(part)


# ---- what changed ---------------------------------------------------------------------------------


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a user of `before` would miss in `now`, one line each; what was added is not listed."""
    found: list[str] = []
    for module, names in before["python"].items():
        for name, old in names.items():
            found += _changed_name(f"{module}.{name}", old, now["python"].get(module, {}).get(name))
    for command, parameters in before["commands"].items():
        where = f"gainroute {command}".strip()
        if command not in now["commands"]:
            found.append(f"{where} is gone")
            continue
        new = now["commands"][command]
        for name, old in parameters.items():
            found += _changed_entry(f"{where} {name}", old, new.get(name))
        found += [
            f"{where} {name} is new and required" for name in new if name not in parameters and new[name]["required"]
        ]
    for file, keys in before["settings"].items():
        new = now["settings"].get(file, {})
        for key, old in keys.items():
            found += _changed_entry(f"{file} setting {key}", old, new.get(key))
        for key, entry in new.items():
            table = key.rpartition(".")[0]
            if key not in keys and entry["required"] and (not table or table in keys):
                found.append(f"{file} setting {key} is new and required")
    for name, version in before["formats"].items():
        if now["formats"].get(name, 0) < version:
            found.append(f"format of {name}: {now['formats'].get(name)}, was {version}")
    return found


def _changed_entry(where: str, old: dict[str, Any], new: dict[str, Any] | None) -> list[str]:
    if new is None:
        return [f"{where} is gone"]
    found = [
        f"{where}: {key} is {new[key]!r}, was {old[key]!r}"
        for key in old
        if key != "required" and new[key] != old[key] and (key, new[key]) != ("several", True)  # one is still allowed
    ]
    if new["required"] and not old["required"]:
        found.append(f"{where} is required now")
    return found


def _changed_name(where: str, old: dict[str, Any], new: dict[str, Any] | None) -> list[str]:
    if new is None:
        return [f"{where} is gone"]
    if old["kind"] != new["kind"]:
        return [f"{where} is a {new['kind']}, was a {old['kind']}"]
    found = []
    for key in ("bases", "fields"):
        found += [f"{where}: {key} lack {name}" for name in old.get(key, ()) if name not in new[key]]
    if "parameters" in old:
        found += _changed_parameters(where, old["parameters"], new["parameters"])
    for name, member in old.get("members", {}).items():
        # A method may not become an attribute, nor the other way round.
        found += _changed_name(f"{where}.{name}", member, new["members"].get(name))
    return found


def _changed_parameters(where: str, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[str]:
    found = []
    known = {parameter["name"]: parameter for parameter in new}
    for parameter in old:
        name, now = parameter["name"], known.get(parameter["name"])
        if now is None:
            found.append(f"{where}: parameter {name} is gone")
            continue
        wider = (parameter["kind"], now["kind"]) == ("KEYWORD_ONLY", "POSITIONAL_OR_KEYWORD")
        if now["kind"] != parameter["kind"] and not wider:
            found.append(f"{where}: parameter {name} is {now['kind']}, was {parameter['kind']}")
        if "default" in parameter and now.get("default") != parameter["default"]:
            found.append(f"{where}: default of {name} is {now.get('default')}, was {parameter['default']}")
    positional = [[p["name"] for p in listed if p["kind"].startswith("POSITIONAL")] for listed in (old, new)]
    if positional[1][: len(positional[0])] != positional[0]:
        found.append(f"{where}: positional parameters are {positional[1]}, were {positional[0]}")
    names = {parameter["name"] for parameter in old}
    found += [
        f"{where}: parameter {p['name']} is new and required"
        for p in new
        if p["name"] not in names and "default" not in p and not p["kind"].startswith("VAR")
    ]
    return found


def as_text(value: Any, depth: int = 3) -> str:
    """JSON with one line per name, option or key, so that a diff shows what changed."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    lines = [f"{json.dumps(key)}: {as_text(value[key], depth - 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(as_text(surface()) + "\n", encoding="utf-8")
