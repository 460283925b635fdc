"""Objects that are built from settings alone, and can list and change them, as scikit-learn's estimators can."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from gainroute.errors import SettingError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Settings"]


class Settings:
    """Base of classes whose constructor stores each argument as an attribute of the same name."""

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Default of each of the constructor's arguments, those passed on to base classes included."""
        found: dict[str, Any] = {}
        for base in cls.__mro__[:-1]:
            parameters = inspect.signature(base).parameters.values()
            for parameter in parameters:
                if parameter.kind is not parameter.VAR_KEYWORD:
                    found.setdefault(parameter.name, parameter.default)
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
                break
        return found

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Names of the constructor's arguments, those of base classes included."""
        return tuple(cls._defaults())

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, by name."""
        return {name: getattr(self, name) for name in self.setting_names()}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings, as scikit-learn does.

        Parameters
        ----------
        deep
            Whether to include the settings of settings that have some, as ``name__setting``.
        """
        params = self.settings()
        if deep:
            for name, value in self.settings().items():
                if hasattr(value, "get_params") and not isinstance(value, type):
                    params |= {f"{name}__{inner}": given for inner, given in value.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change settings, as scikit-learn does; what was fitted stays until the next `fit`.

        Parameters
        ----------
        **params
            New values by name; ``name__setting`` changes a setting of a setting.

        Returns
        -------
        self
        """
        settings, inner = self.settings(), dict[str, dict[str, Any]]()
        for key, value in params.items():
            name, _, setting = key.partition("__")
            if name not in settings:
                raise SettingError(f"{type(self).__name__} has no setting {name!r}; it has {', '.join(settings)}")
            if setting:
                inner.setdefault(name, {})[setting] = value
            else:
                settings[name] = value
        for name, changes in inner.items():
            if not hasattr(settings[name], "set_params"):
                raise SettingError(
                    f"{name} is {settings[name]!r}, which has no settings; set {name} itself, or first to an object "
                    "with set_params"
                )
            settings[name].set_params(**changes)
        checked = type(self)(**settings)  # the constructor refuses bad values before anything has changed
        for name in settings:
            setattr(self, name, getattr(checked, name))
        return self

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of an estimator; only scikit-learn calls this, so it is not imported for others."""
        utils = import_module("sklearn.utils")
        return utils.Tags(estimator_type=None, target_tags=utils.TargetTags(required=True))

    def __repr__(self) -> str:
        default = self._defaults()
        shown = {k: v for k, v in self.settings().items() if not _same(v, default[k])}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and bool(np.all(a == b)))
