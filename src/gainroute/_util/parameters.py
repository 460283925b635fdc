"""Objects that are built from settings alone, and can list them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

__all__ = ["Settings"]


class Settings:
    """Base of classes whose constructor stores each argument as an attribute of the same name."""

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Names of the constructor's arguments, those of base classes included."""
        names: dict[str, None] = {}
        for base in cls.__mro__[:-1]:
            for name, parameter in inspect.signature(base).parameters.items():
                if parameter.kind is not parameter.VAR_KEYWORD:
                    names[name] = None
        return tuple(names)

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, by name."""
        return {name: getattr(self, name) for name in self.setting_names()}

    def __repr__(self) -> str:
        default = type(self)().settings()
        shown = {k: v for k, v in self.settings().items() if not _same(v, default[k])}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and bool(np.all(a == b)))
