"""Load objects by name: `package.module:attribute`, as entry points write it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from gainroute.errors import SettingError

__all__ = ["load_callable", "load_object"]


def load_object(spec: str, name: str) -> Any:
    """Import the object that `spec`, "package.module:attribute", names; `name` is the setting that holds it."""
    module, colon, attribute = spec.partition(":")
    if not (module and colon and attribute):
        raise SettingError(f"{name} is {spec!r}; write it as package.module:attribute")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise SettingError(
            f"{name} is {spec!r}, but {module} cannot be imported ({error}); install it, or run in its folder"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SettingError(f"{name} is {spec!r}, but the module {module} has no {attribute}; check the spelling")
        found = getattr(found, part)
    return found


def load_callable(spec: str, name: str) -> Callable[..., Any]:
    """Import the function or class that `spec` names; see `load_object`."""
    found = load_object(spec, name)
    if not callable(found):
        raise SettingError(f"{name} is {spec!r}, which is a {type(found).__name__}; a function or class is needed")
    return found  # type: ignore[no-any-return]
