"""How the long commands show their progress: a bar with time left in a terminal, a line a step in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gainroute._util.progress import LineProgress
from gainroute.cli._output import console

__all__ = ["Telling", "telling"]


class Telling(Protocol):
    """A `gainroute._util.progress.Progress` that can also say something in between."""

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Begin a task."""
        ...

    def advance(self, note: str = "") -> None:
        """One step of it is done."""
        ...

    def say(self, text: str) -> None:
        """Say what comes next."""
        ...


class _OneBar:
    """The bar of the task at hand; those before it are gone: a seed has dozens of them."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console(stderr=True),
            transient=True,
        )
        self._task: Any = None

    def start(self, name: str, total: int, done: int = 0) -> None:
        if self._task is not None:
            self.bars.remove_task(self._task)
        self._task = self.bars.add_task(name, total=total, completed=done, note="")

    def advance(self, note: str = "") -> None:
        self.bars.update(self._task, advance=1, note=note)

    def say(self, text: str) -> None:
        self.bars.console.print(text, soft_wrap=True)


@contextmanager
def telling() -> Iterator[Telling]:
    """Show progress on stderr, as fits what stderr is."""
    if not sys.stderr.isatty():
        yield LineProgress(sys.stderr)
        return
    bar = _OneBar()
    with bar.bars:
        yield bar
