"""Named parts that other packages can add: routers, calibrators, pools, data sets, view sources, transports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from gainroute._util.importing import load_object
from gainroute.errors import SettingError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects by name: registered in this process, built in, or offered by an installed package.

    Packages offer theirs under the entry point group, such as "gainroute.routers". Errors call an object `what` it is:
    "router". Built-in names refer to "package.module:attribute", imported when first asked for.

    Examples
    --------
    >>> shapes = Registry("example.shapes", "shape", {"fraction": "fractions:Fraction"})
    >>> @shapes.register("square")
    ... class Square:
    ...     pass
    >>> shapes.get("square") is Square, shapes.names()
    (True, ('fraction', 'square'))
    """

    def __init__(self, group: str, what: str, builtin: Mapping[str, str] | None = None) -> None:
        self.group, self.what = group, what
        self.builtin = dict(builtin or {})
        self._registered: dict[str, T] = {}

    @overload
    def register(self, name: str) -> Callable[[T], T]: ...
    @overload
    def register(self, name: str, obj: T) -> T: ...
    def register(self, name: str, obj: T | None = None) -> T | Callable[[T], T]:
        """Register an object under a name for this process; without the object, return a decorator."""
        if obj is None:
            return lambda decorated: self.register(name, decorated)
        known = self._registered.get(name)
        # Running a notebook cell again defines the same class anew: that one may replace itself.
        if name in self.builtin or (known is not None and _address(known) != _address(obj)):
            raise SettingError(f"{self.what} {name!r} is already registered; choose another name")
        self._registered[name] = obj
        return obj

    def get(self, name: str, remedy: str = "") -> T:
        """Return the object of this name; if there is none, an error says the remedy: by default, to install it."""
        if name in self._registered:
            return self._registered[name]
        if name in self.builtin:
            return load_object(self.builtin[name], self.what)  # type: ignore[no-any-return]
        offered = self._offered()
        if name in offered:
            return _load(offered[name], self.what)  # type: ignore[return-value]
        allowed = ", ".join(map(repr, self.names()))
        advice = (
            remedy or f"install the package that offers it (entry point group {self.group!r}), or register it first"
        )
        raise SettingError(f"{self.what} is {name!r}; allowed are {allowed}: {advice}")

    def names(self) -> tuple[str, ...]:
        """All names: built-in ones first, then registered and installed ones by alphabet."""
        return (*self.builtin, *sorted({*self._registered, *self._offered()} - set(self.builtin)))

    def name_of(self, obj: T) -> str | None:
        """The name under which exactly this object can be found again, or None."""
        for name, known in self._registered.items():
            if known is obj:
                return name
        module, attribute = _address(obj)
        for name, spec in self.builtin.items():
            if spec == f"{module}:{attribute}":
                return name
        package = module.partition(".")[0]
        for name, entry in self._offered().items():  # only the object's own package is imported
            if entry.module.partition(".")[0] == package and name not in self.builtin and self.get(name) is obj:
                return name
        return None

    def package_of(self, name: str) -> str | None:
        """The installed package that offers this name, or None."""
        entry = self._offered().get(name)
        return None if entry is None or entry.dist is None else entry.dist.name

    def _offered(self) -> dict[str, EntryPoint]:
        from importlib.metadata import entry_points  # slow to import, and seldom needed

        found: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self.group):
            first = found.setdefault(entry.name, entry)
            if first.value != entry.value:
                raise SettingError(
                    f"two installed packages offer the {self.what} {entry.name!r} ({first.value} and {entry.value}); "
                    "uninstall one of them"
                )
        return found


def _address(obj: object) -> tuple[str, str]:
    kind = obj if hasattr(obj, "__qualname__") else type(obj)
    return kind.__module__, kind.__qualname__


def _load(entry: EntryPoint, what: str) -> object:
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise SettingError(
            f"{what} {entry.name!r} is offered by {package} as {entry.value}, which cannot be loaded ({error}); "
            f"reinstall {package}, or what it needs"
        ) from error
