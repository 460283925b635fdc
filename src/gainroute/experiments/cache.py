"""A cache of fitted scores, numbers and figures, keyed by everything they were made from: data, settings and code."""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import json
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import numpy.typing as npt

from gainroute._util.files import write_npz
from gainroute._util.hashing import hash_named_files
from gainroute.errors import DataError
from gainroute.io.tables import read_table

__all__ = ["Arrays", "Cache", "source_hash"]

Arrays = Mapping[str, npt.NDArray[Any]]


class Cache:
    """Arrays and numbers by the hash of what they were made from; a damaged entry is made again.

    They are kept in `folder`; None keeps nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def arrays(self, key: Sequence[str], make: Callable[[], Arrays]) -> Arrays:
        """Return the arrays under `key`; `make` computes them if they are not cached."""
        if self._folder is None:
            return make()
        libraries = (f"{name} {version(name)}" for name in ("numpy", "scipy"))
        name = hashlib.sha256("\0".join((*libraries, *key)).encode()).hexdigest()[:32]
        path = self._folder / f"{name}.npz"
        if path.is_file():
            try:
                return read_table(path).columns
            except DataError:
                path.unlink(missing_ok=True)
        value = make()
        write_npz(path, value, compress=True)
        return value

    def numbers(self, key: Sequence[str], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the plain numbers under `key`; `make` computes them if they are not cached."""
        found = self.arrays(("json", *key), lambda: {"json": np.array(json.dumps(make()))})
        return dict(json.loads(str(found["json"])))


# ---- code as part of a key ----------------------------------------------------------------------


@cache
def source_hash(module: str) -> str:
    """Hash the source of a module and of every module that it imports, directly or not.

    Installed libraries are left out: their versions are part of the key where they matter. Imports are read from the
    source, so those inside functions count too; what is imported by a name computed at run time does not.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = None if name in found else _own_source(name, module)
        if path is not None:
            found[name] = path
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            waiting += _imports(package, path.read_bytes())
    return hash_named_files(found.items())


def _own_source(name: str, root: str) -> Path | None:
    """The file of a module that belongs to the project of `root`; None for libraries and for what is no module."""
    loaded = sys.modules.get(name)
    file = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        file = spec.origin if spec is not None else None
    if file is None or not file.endswith(".py"):
        return None
    path, top = Path(file).resolve(), name.partition(".")[0]
    library = not _library_folders().isdisjoint(path.parents)
    return path if not library or top in ("gainroute", root.partition(".")[0]) else None


@cache
def _library_folders() -> frozenset[Path]:
    return frozenset(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib"))


@cache
def _imports(package: str, source: bytes) -> tuple[str, ...]:
    """Names imported by a module, read from its bytecode: `ast.parse` of Python 3.11 fails at random beside threads."""
    above, found = package.split("."), []
    waiting = [compile(source, "<source>", "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opname == "IMPORT_NAME":
                from_package = above[: len(above) - level.argval + 1] if level.argval else []
                base = ".".join([*from_package, *([step.argval] if step.argval else [])])
                found += [base, *(f"{base}.{imported}" for imported in names.argval or ())]  # may be a module
    return tuple(found)
