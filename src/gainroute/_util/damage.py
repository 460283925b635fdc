"""Damaged files: whatever they lead to becomes one of our errors, which names the file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from gainroute.errors import DataError, GainrouteError

__all__ = ["names_damage", "naming_damage"]

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def naming_damage(source: object, kind: type[GainrouteError] = DataError) -> Iterator[None]:
    """Raise `kind`, which names the source, for any error in this block that is not one of ours."""
    try:
        yield
    except (GainrouteError, ImportError):
        raise
    except Exception as error:
        shown = os.fspath(source) if isinstance(source, os.PathLike) else source
        raise kind(f"{shown} is damaged, or of another kind ({error!r:.200}): write or copy it again") from error


def names_damage(kind: type[GainrouteError] = DataError) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The same for a function that reads the file, or the files, of its first argument."""

    def decorate(read: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(read)
        def reading(*args: P.args, **options: P.kwargs) -> R:
            with naming_damage(args[0] if args else next(iter(options.values()), ""), kind):
                return read(*args, **options)

        return reading

    return decorate
